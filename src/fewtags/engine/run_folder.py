"""The files of a run, every name in one place, and what they say about where the run is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fewtags.errors import UserError
from fewtags.models.tensor_files import MODEL_FOLDER


@dataclass(frozen=True)
class RunFolder:
    path: Path

    # --- written when it starts ---

    @property
    def config(self) -> Path:
        """The resolved settings. Where this file is, there is a run."""
        return self.path / "config.yaml"

    @property
    def environment(self) -> Path:
        """Versions of everything."""
        return self.path / "environment.json"

    @property
    def data(self) -> Path:
        """Names, counts and hashes of what it trains and measures on."""
        return self.path / "data.json"

    @property
    def labels(self) -> Path:
        """The labels it was given, image by image, to tell later what changed in their source since."""
        return self.path / "labels.npz"

    @property
    def decisions(self) -> Path:
        """What people had decided about single labels, where it was trained with that (`--reviewed`)."""
        return self.path / "decisions.jsonl"

    # --- written while it trains ---

    @property
    def metrics(self) -> Path:
        """One JSON line for each epoch and kind."""
        return self.path / "metrics.jsonl"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @property
    def bad_images(self) -> Path:
        """What was wrong with image files, a line each; absent where all could be read."""
        return self.path / "bad_images.txt"

    @property
    def last(self) -> Path:
        """The checkpoint to resume from."""
        return self.path / "checkpoints" / "last.pt"

    @property
    def best(self) -> Path:
        """The model of the best epoch on validation."""
        return self.path / "checkpoints" / "best.pt"

    # --- written at its end ---

    @property
    def model(self) -> Path:
        return self.path / MODEL_FOLDER

    def predictions(self, split: str) -> Path:
        return self.path / f"predictions-{split}.npz"

    @property
    def result(self) -> Path:
        """What was measured; the last file to be written, so that it tells whether the run is finished."""
        return self.path / "result.json"

    # --- written by others ---

    @property
    def cell(self) -> Path:
        """Its place in the grid of a bench."""
        return self.path / "cell.json"

    @property
    def log(self) -> Path:
        """What a run of a bench said."""
        return self.path / "log.txt"

    @property
    def review(self) -> Path:
        """Decisions of `fewtags review`, and what it computed."""
        return self.path / "review"

    @property
    def outputs(self) -> Path:
        """Logits and pooled features of its images, kept for `fewtags discover`."""
        return self.path / "outputs"

    # --- where it is ---

    @property
    def is_run(self) -> bool:
        return self.config.is_file()

    @property
    def is_finished(self) -> bool:
        return self.result.is_file()

    @property
    def can_resume(self) -> bool:
        """There is a checkpoint to resume from."""
        return self.last.is_file()

    def must_be_run(self) -> RunFolder:
        """Itself; an error where it holds no run."""
        if not self.is_run:
            raise UserError(f"{self.path} is not a run folder (it has no {self.config.name}).")
        return self

    @classmethod
    def below(cls, folder: Path) -> list[RunFolder]:
        """All runs in a folder and its subfolders."""
        return [cls(file.parent) for file in sorted(folder.rglob(cls(folder).config.name))]
