"""Tags for image files from a trained model, streaming: one bad image does not stop it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fewtags.data.annotations import Annotations
from fewtags.data.dataset import Collate, Loaded, Sample
from fewtags.data.image_files import IMAGE_SUFFIXES
from fewtags.data.images import BadImage, picture_in_memory
from fewtags.data.inputs import Picture
from fewtags.data.loaders import image_batches
from fewtags.data.preprocess import read_square, square
from fewtags.engine.run import choose_device
from fewtags.errors import UserError
from fewtags.models.saved import SavedModel

FEW_FILES = 200  # starting worker processes would take longer than reading so few


@dataclass(frozen=True)
class Prediction:
    """What the model says about one image, or why its file could not be read."""

    image: str
    probabilities: np.ndarray | None  # [C]; None where the file could not be read
    problem: str = ""

    def tags(self, categories: Sequence[str], thresholds: np.ndarray) -> dict[str, float]:
        """The tags whose probability reaches their threshold, most probable first."""
        if self.probabilities is None:
            return {}
        order = np.argsort(-self.probabilities, kind="stable")
        chosen = [c for c in order if self.probabilities[c] >= thresholds[c]]
        return {categories[c]: float(self.probabilities[c]) for c in chosen}


def find_images(paths: Iterable[str | Path]) -> list[Path]:
    """Image files as given, and those below the given folders, in sorted order."""
    found: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            found += sorted(p for p in path.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES and p.is_file())
        elif path.is_file():
            found.append(path)
        else:
            raise UserError(f"{path} does not exist.")
    if not found:
        raise UserError(f"No images were found; looked for files ending in {', '.join(IMAGE_SUFFIXES)}.")
    return found


@torch.inference_mode()
def predict_files(
    saved: SavedModel,
    files: Sequence[Path | Picture],
    *,
    device: str = "auto",
    batch_size: int = 32,
    workers: int | None = None,
    on_step: Callable[[], None] = lambda: None,
) -> Iterator[Prediction]:
    """One Prediction per file (or picture in memory), in order, batch by batch."""
    where = choose_device(device)
    model = saved.classifier.to(where).eval()
    for loaded in file_batches(saved, files, batch_size, workers):
        rows = {row: Prediction(name_of(files, row), None, problem) for row, problem in loaded.broken.items()}
        if loaded.batch is not None:
            probabilities = model(loaded.batch.images.to(where)).logits.sigmoid().cpu().numpy()
            for row, values in zip(loaded.batch.index.tolist(), probabilities, strict=True):
                rows[row] = Prediction(name_of(files, row), values)
        yield from (rows[row] for row in sorted(rows))
        on_step()


@torch.inference_mode()
def pooled_features(
    saved: SavedModel,
    files: Sequence[Path | Picture],
    *,
    device: str = "auto",
    unreadable: dict[int, str] | None = None,
    on_step: Callable[[], None] = lambda: None,
) -> torch.Tensor:
    """[N, D] the average over each image's feature map.

    An image that cannot be read is an error, or, where `unreadable` is given, a row of zeros and an entry there.
    """
    where = choose_device(device)
    model = saved.classifier.to(where).eval()
    features = torch.zeros(len(files), model.neck.num_channels)
    for loaded in file_batches(saved, files):
        for row, problem in loaded.broken.items():
            if unreadable is None:
                raise UserError(f"{problem} Take it out.")
            unreadable[row] = problem
        if loaded.batch is not None:
            pooled = model.feature_map(loaded.batch.images.to(where)).float().mean((2, 3))
            features[loaded.batch.index] = pooled.cpu()
        on_step()
    return features


def name_of(files: Sequence[Path | Picture], row: int) -> str:
    file = files[row]
    return str(file) if isinstance(file, Path) else f"image {row}"


def file_batches(
    saved: SavedModel, files: Sequence[Path | Picture], batch_size: int = 32, workers: int | None = None
) -> Iterator[Loaded]:
    if not all(isinstance(file, Path) for file in files):
        return picture_batches(saved, files, batch_size)
    labels = np.zeros((len(files), len(saved.categories)), dtype=np.int8)
    annotations = Annotations(Path(), [str(f) for f in files], saved.categories, labels, np.full(len(files), "test"))
    if workers is None and len(files) < FEW_FILES:
        workers = 0
    inputs = saved.input.model_copy(update={"keep_in_memory": False})
    return image_batches(annotations, inputs, batch_size=batch_size, workers=workers, augment=False).epoch()


def picture_batches(saved: SavedModel, pictures: Sequence[Path | Picture], batch_size: int) -> Iterator[Loaded]:
    """Of pictures in memory, perhaps with files among them."""
    collate, side = Collate(torch.zeros(len(pictures), len(saved.categories), dtype=torch.int8)), saved.input.size
    for first in range(0, len(pictures), batch_size):
        rows = range(first, min(first + batch_size, len(pictures)))
        yield collate([picture_sample(pictures[row], row, side) for row in rows])


def picture_sample(picture: Path | Picture, row: int, side: int) -> Sample:
    try:
        if isinstance(picture, Path):
            return Sample(np.asarray(read_square(picture, side)), row)
        return Sample(np.asarray(square(picture_in_memory(picture, row), side)), row)
    except BadImage as error:
        return Sample(None, row, str(error))
