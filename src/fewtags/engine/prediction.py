"""Tags for image files from a trained model, streaming: one bad image does not stop it."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from fewtags.data.annotations import Annotations
from fewtags.data.dataset import Collate, Loaded, Sample
from fewtags.data.image_files import IMAGE_SUFFIXES, Skipped, is_image, unsupported_kind
from fewtags.data.images import BadImage, picture_in_memory
from fewtags.data.inputs import Picture
from fewtags.data.preprocess import read_square, square
from fewtags.data.remote import remote_files, remote_url
from fewtags.engine.cluster import active_cluster
from fewtags.engine.evaluation import Predictions
from fewtags.engine.feature_pass import FeaturePass, num_rows
from fewtags.engine.ray_pass import RayPass, make_pass
from fewtags.engine.run import choose_device
from fewtags.engine.runtime import choose_runtime
from fewtags.errors import UserError
from fewtags.models.saved import SavedModel

SORTED = 50_000  # entries of one folder that are put in order; more come as the folder has them
NOT_A_NUMBER = "the model's answer is not a number: its weights are damaged, or its training went wrong."


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


# --- which files ---


def find_images(paths: Iterable[str | Path]) -> list[Path]:
    """Image files as given, and those below the given folders, in sorted order."""
    found = list(iter_images(paths))
    if not found:
        raise no_images()
    return found


def no_images() -> UserError:
    return UserError(f"No images were found; looked for files ending in {', '.join(IMAGE_SUFFIXES)}.")


def iter_images(paths: Iterable[str | Path], skipped: Skipped | None = None) -> Iterator[Path]:
    """The same one by one: of folders with more than SORTED entries in no order, but without keeping them in memory.

    Hidden files are left out, and photos that cannot be opened are counted in `skipped`.
    """
    for path in paths:
        if (url := remote_url(path)) is not None:
            yield from map(Path, filter(is_image, remote_files(url)))
        elif os.path.isdir(path):
            yield from map(Path, _below(os.fspath(path), skipped or Skipped()))
        elif os.path.isfile(path):
            yield Path(path)
        else:
            raise UserError(f"{path} does not exist.")


def _below(folder: str, skipped: Skipped) -> Iterator[str]:
    with os.scandir(folder) as entries:
        first = list(islice(entries, SORTED + 1))
        if len(first) <= SORTED:
            first.sort(key=lambda entry: entry.name)
        for entry in chain(first, entries):
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from _below(entry.path, skipped)
            elif is_image(entry.name) and entry.is_file():
                yield entry.path
            elif (kind := unsupported_kind(entry.name)) is not None:
                skipped.kinds[kind] += 1


# --- what is in them ---


def predict_files(
    saved: SavedModel,
    files: Iterable[Path | Picture],
    *,
    num_files: int | None = None,  # where `files` does not know its length
    device: str = "auto",
    batch_size: int | None = None,
    workers: int | None = None,
    runtime: str = "auto",
    say: Callable[[str], object] = lambda _: None,
) -> Iterator[Prediction]:
    """One Prediction per file (or picture in memory), in order, as they come."""
    finish = Probabilities(saved.classifier.neck, saved.classifier.head)
    making = model_pass(saved, finish, count(files, num_files), device, batch_size, workers, runtime, say)
    names: deque[str] = deque()  # of those under way
    for loaded in making.over(numbered(files, names), reader(saved)):
        rows: dict[int, np.ndarray] = {}
        if loaded[0].batch is not None:
            rows = dict(zip(loaded[0].batch.index.tolist(), loaded[0].batch.images.numpy(), strict=True))
        for row in sorted([*rows, *loaded[0].broken]):
            yield prediction_of(names.popleft(), rows.get(row), loaded[0].broken.get(row, ""))


def prediction_of(image: str, values: np.ndarray | None, problem: str) -> Prediction:
    if values is not None and not np.isfinite(values).all():
        return Prediction(image, None, f"{image}: {NOT_A_NUMBER}")
    return Prediction(image, values, problem)


def predict_annotations(
    saved: SavedModel,
    part: Annotations,
    *,
    device: str = "auto",
    workers: int | None = None,
    on_step: Callable[[], object] = lambda: None,
) -> Predictions:
    """Of every image of `part`; `on_step` is called after each."""
    probabilities = np.full(part.labels.shape, np.nan, dtype=np.float32)
    broken: dict[int, str] = {}
    files = [part.path(row) for row in range(len(part))]
    for row, prediction in enumerate(predict_files(saved, files, device=device, workers=workers)):
        if prediction.probabilities is None:
            broken[row] = prediction.problem
        else:
            probabilities[row] = prediction.probabilities
        on_step()
    return Predictions(probabilities, broken)


def pooled_features(
    saved: SavedModel,
    files: Sequence[Path | Picture],
    *,
    device: str = "auto",
    unreadable: dict[int, str] | None = None,
    on_step: Callable[[int], object] = lambda _: None,
) -> Tensor:
    """[N, D] the average over each image's feature map. `on_step` is told of so many more images, as they come.

    An image that cannot be read is an error, or, where `unreadable` is given, a row of zeros and an entry there.
    """
    model = saved.classifier
    making = model_pass(saved, PooledFeature(model.neck), len(files), device)
    features = torch.zeros(len(files), model.neck.num_channels)
    for loaded in making.over(enumerate(files), reader(saved)):
        for row, problem in loaded[0].broken.items():
            if unreadable is None:
                raise UserError(f"{problem} Take it out.")
            unreadable[row] = problem
        if loaded[0].batch is not None:
            features[loaded[0].batch.index] = loaded[0].batch.images
        on_step(num_rows(loaded[0]))
    return features


# --- how ---


class Probabilities(nn.Module):
    """Of the backbone's maps: what the model says in the end, [B, C]."""

    def __init__(self, neck: nn.Module, head: nn.Module):
        super().__init__()
        self.neck, self.head = neck, head

    def forward(self, maps: Tensor) -> Tensor:
        return self.head(self.neck(maps).float()).logits.sigmoid()


class PooledFeature(nn.Module):
    """The average over each image's feature map, [B, D]."""

    def __init__(self, neck: nn.Module):
        super().__init__()
        self.neck = neck

    def forward(self, maps: Tensor) -> Tensor:
        return self.neck(maps).float().mean((2, 3))


def model_pass(
    saved: SavedModel,
    finish: nn.Module,
    num_files: int | None,
    device: str = "auto",
    batch_size: int | None = None,
    workers: int | None = None,
    runtime: str = "auto",
    say: Callable[[str], object] = lambda _: None,
) -> FeaturePass | RayPass:
    """The model's backbone by the fastest runtime, and `finish` for what is behind it; on Ray where it is at work."""
    where = choose_device(device)
    backbone = saved.classifier.to(where).eval().backbone.all_frozen()
    chosen = choose_runtime(backbone, runtime, saved.input.size, where, num_images=num_files)
    if chosen.sentence:
        say(chosen.sentence)
    chosen = replace(chosen, batch=batch_size or chosen.batch)
    return make_pass(backbone, chosen, saved.input.size, where, finish=finish.eval(), workers=workers)


def reader(saved: SavedModel) -> Callable[[tuple[int, Path | Picture]], list[Sample]]:
    side = saved.input.size  # and not the whole model, which would go to every worker of a cluster
    return lambda numbered: [plain_sample(numbered[1], numbered[0], side)]


def plain_sample(picture: Path | Picture, row: int, side: int) -> Sample:
    """An image as it is evaluated: the whole of it, as a square."""
    try:
        if isinstance(picture, Path):
            return Sample(np.asarray(read_square(picture, side)), row)
        return Sample(np.asarray(square(picture_in_memory(picture, row), side)), row)
    except BadImage as error:
        return Sample(None, row, str(error))


def numbered(files: Iterable[Path | Picture], names: deque[str]) -> Iterator[tuple[int, Path | Picture]]:
    elsewhere = active_cluster() is not None  # where relative paths mean nothing
    for row, file in enumerate(files):
        names.append(name_of(file, row))
        yield row, file.absolute() if elsewhere and isinstance(file, Path) and not remote_url(file) else file


def name_of(file: Path | Picture, row: int) -> str:
    return (remote_url(file) or str(file)) if isinstance(file, Path) else f"image {row}"


def count(files: Iterable[Path | Picture], told: int | None) -> int | None:
    return len(files) if isinstance(files, Sized) else told


def load_file(saved: SavedModel, file: Path) -> Loaded:
    """One image as the model sees it."""
    return Collate(None)([plain_sample(file, 0, saved.input.size)])
