"""The models `predict` and `evaluate` accept: a run, a saved tagger, or an exported file, which needs no torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from fewtags.atomic import file_checksum
from fewtags.data.tag_tree import TagTree
from fewtags.engine.cluster import active_cluster
from fewtags.engine.onnx_tagger import ExportedTagger, is_exported
from fewtags.engine.predictions import Prediction
from fewtags.errors import UserError, no_such_folder

if TYPE_CHECKING:
    from fewtags.models.saved import SavedModel
    from fewtags.train_settings import CacheConfig


@dataclass(frozen=True)
class Inference:
    """How images are run through the model; None and "auto" let the model choose."""

    device: str = "auto"
    batch_size: int | None = None
    workers: int | None = None
    runtime: str = "auto"


class OpenModel(Protocol):
    categories: list[str]
    thresholds: np.ndarray  # [C]
    tree: TagTree

    def predict(
        self,
        files: Iterable[Path],
        inference: Inference,
        num_files: int | None = None,
        say: Callable[[str], object] = ...,
    ) -> Iterator[Prediction]:
        """Predictions in order; `say` receives a sentence about the runtime, if there was a choice."""

    def fingerprint(self) -> str:
        """Hash of everything a prediction depends on."""

    def purpose_thresholds(self, precision: float | None, recall: float | None) -> tuple[np.ndarray, str]:
        """[C], and a sentence about how they were chosen."""

    def keep_thresholds(self, thresholds: np.ndarray) -> None:
        """Save them with the model."""


def open_model(path: Path) -> OpenModel:
    if is_exported(path):
        return ExportedModel(path)
    if not path.exists():
        raise no_such_folder(path)
    if path.is_file():
        raise UserError(f"{path} is not a model; pass a run's folder, or a .onnx or .xml file from `fewtags export`.")
    return SavedFolder(path)


class ExportedModel:
    def __init__(self, file: Path):
        self.file, self.tagger = file, ExportedTagger(file)
        self.categories, self.thresholds = self.tagger.categories, self.tagger.thresholds
        self.tree = self.tagger.tree

    def predict(
        self,
        files: Iterable[Path],
        inference: Inference,
        num_files: int | None = None,
        say: Callable[[str], object] = lambda _: None,
    ) -> Iterator[Prediction]:
        runs_it = "openvino" if self.file.suffix == ".xml" else "onnxruntime"
        if inference.runtime not in ("auto", runs_it):
            raise UserError(f"{self.file} is run by {runs_it}; --runtime {inference.runtime} is for a run's folder.")
        if active_cluster() is not None:
            raise UserError(f"--ray needs the model of a run, but {self.file} is an exported one; remove --ray.")
        if inference.device not in ("auto", "cpu"):
            raise UserError(f"An exported model runs on the CPU; --device {inference.device} is for a run's folder.")
        return self.tagger.predict_files(files, inference.batch_size, inference.workers)

    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for part in (self.file, self.file.with_suffix(".bin")):  # OpenVINO stores the weights next to its .xml
            if part.is_file() and (part == self.file or self.file.suffix == ".xml"):
                digest.update(bytes.fromhex(file_checksum(part)))
        return digest.hexdigest()[:32]

    def purpose_thresholds(self, precision: float | None, recall: float | None) -> tuple[np.ndarray, str]:
        raise UserError(
            f"--precision and --recall choose thresholds on the held-out images of a run, which {self.file} does not "
            "have; use them with --save-thresholds on the run, and export it again."
        )

    def keep_thresholds(self, thresholds: np.ndarray) -> None:
        raise UserError(f"{self.file} cannot be changed; use --save-thresholds on the run, and export it again.")


class SavedFolder:
    def __init__(self, folder: Path):
        from fewtags.models.saved import load_model

        self.folder = folder
        self.saved: SavedModel = load_model(folder)
        self.categories, self.thresholds = self.saved.categories, self.saved.thresholds
        self.tree = self.saved.tree

    def predict(
        self,
        files: Iterable[Path],
        inference: Inference,
        num_files: int | None = None,
        say: Callable[[str], object] = lambda _: None,
    ) -> Iterator[Prediction]:
        from fewtags.engine.prediction import predict_files

        return predict_files(self.saved, files, num_files=num_files, say=say, cache=self.cache(), **asdict(inference))

    def cache(self) -> CacheConfig:
        """Where its features are kept."""
        from fewtags.engine.record import cache_of

        return cache_of(self.folder)

    def fingerprint(self) -> str:
        from fewtags.models.tensor_files import add_tensors  # brings torch

        saved = self.saved
        about = [self.categories, self.thresholds.tolist(), saved.input.model_dump(mode="json"), saved.model.backbone]
        about += [saved.tree.to_json()] if saved.tree else []
        digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
        add_tensors(digest, saved.classifier.state_dict())
        return digest.hexdigest()[:32]

    def purpose_thresholds(self, precision: float | None, recall: float | None) -> tuple[np.ndarray, str]:
        from fewtags.engine.purpose import purpose_thresholds

        return purpose_thresholds(self.folder, self.saved, precision=precision, recall=recall)

    def keep_thresholds(self, thresholds: np.ndarray) -> None:
        from fewtags.models.saved import save_thresholds

        save_thresholds(self.folder, self.saved, thresholds)
        self.thresholds = thresholds
