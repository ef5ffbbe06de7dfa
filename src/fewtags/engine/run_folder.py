"""The files of a run, all names in one place, and the run's state derived from them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fewtags.errors import UserError, no_such_folder
from fewtags.models.places import MODEL_FOLDER


@dataclass(frozen=True)
class RunFolder:
    path: Path

    # --- written when it starts ---

    @property
    def config(self) -> Path:
        """The resolved settings. A folder with this file is a run."""
        return self.path / "config.yaml"

    @property
    def environment(self) -> Path:
        """Versions of everything."""
        return self.path / "environment.json"

    @property
    def data(self) -> Path:
        """Names, counts and hashes of its training and evaluation data."""
        return self.path / "data.json"

    @property
    def labels(self) -> Path:
        """The labels it was given, image by image, to detect later changes in their source."""
        return self.path / "labels.npz"

    @property
    def decisions(self) -> Path:
        """The decisions about single labels it was trained with (`--reviewed`), if any."""
        return self.path / "decisions.jsonl"

    @property
    def names(self) -> Path:
        """What the classifier of the backbone took the name of each category for; absent where names are not used."""
        return self.path / "names.txt"

    # --- written while it trains ---

    @property
    def metrics(self) -> Path:
        """One JSON line per epoch and kind."""
        return self.path / "metrics.jsonl"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @property
    def bad_images(self) -> Path:
        """Unreadable image files with the reason, one per line; absent if there are none."""
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
        """The results; written last, so its presence means that the run is finished."""
        return self.path / "result.json"

    # --- written by others ---

    @property
    def cell(self) -> Path:
        """Its position in the grid of a bench."""
        return self.path / "cell.json"

    @property
    def log(self) -> Path:
        """The output of a bench run."""
        return self.path / "log.txt"

    @property
    def review(self) -> Path:
        """Decisions of `fewtags review`, and what it has computed."""
        return self.path / "review"

    @property
    def update(self) -> Path:
        """What `fewtags update` has seen, and the run that it is making."""
        return self.path / "update"

    @property
    def outputs(self) -> Path:
        """What `fewtags review` has found out about its images, such as bursts."""
        return self.path / "outputs"

    # --- its state ---

    @property
    def is_run(self) -> bool:
        return self.config.is_file()

    @property
    def is_finished(self) -> bool:
        return self.result.is_file()

    @property
    def can_resume(self) -> bool:
        """Is there a checkpoint to resume from?"""
        return self.last.is_file()

    def must_be_run(self) -> RunFolder:
        """Returns itself; raises if it contains no run."""
        if not self.path.exists():
            raise no_such_folder(self.path)
        if not self.is_run:
            raise UserError(f"{self.path} is not a run folder (it has no {self.config.name}).")
        return self

    @classmethod
    def below(cls, folder: Path) -> list[RunFolder]:
        """All runs in a folder and its subfolders."""
        return [cls(file.parent) for file in sorted(folder.rglob(cls(folder).config.name))]
