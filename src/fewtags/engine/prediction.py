"""Streaming prediction of tags for image files; a bad image does not stop it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from fewtags.data.annotations import Annotations
from fewtags.data.dataset import Collate, Loaded, Sample
from fewtags.data.images import BadImage, picture_in_memory
from fewtags.data.inputs import Picture
from fewtags.data.preprocess import read_square, square
from fewtags.data.remote import remote_url
from fewtags.engine.cluster import active_cluster
from fewtags.engine.feature_pass import FeaturePass, num_rows
from fewtags.engine.predictions import Prediction, Predictions, gathered, name_of, prediction_of
from fewtags.engine.ray_pass import RayPass, make_pass
from fewtags.engine.run import choose_device
from fewtags.engine.runtime import choose_runtime
from fewtags.errors import UserError
from fewtags.models.saved import SavedModel


def predict_files(
    saved: SavedModel,
    files: Iterable[Path | Picture],
    *,
    num_files: int | None = None,  # if `files` has no length
    device: str = "auto",
    batch_size: int | None = None,
    workers: int | None = None,
    runtime: str = "auto",
    say: Callable[[str], object] = lambda _: None,
) -> Iterator[Prediction]:
    """One Prediction per file (or picture in memory), in order, lazily."""
    finish = Probabilities(saved.classifier.neck, saved.classifier.head)
    making = model_pass(saved, finish, count(files, num_files), device, batch_size, workers, runtime, say)
    names: deque[str] = deque()  # of those in flight
    for loaded in making.over(numbered(files, names), reader(saved)):
        rows: dict[int, np.ndarray] = {}
        if loaded[0].batch is not None:
            rows = dict(zip(loaded[0].batch.index.tolist(), loaded[0].batch.images.numpy(), strict=True))
        for row in sorted([*rows, *loaded[0].broken]):
            problem = loaded[0].broken.get(row, "")
            yield prediction_of(names.popleft(), rows.get(row), problem, saved.categories, saved.tree)


def predict_annotations(
    saved: SavedModel,
    part: Annotations,
    *,
    device: str = "auto",
    workers: int | None = None,
    on_step: Callable[[], object] = lambda: None,
) -> Predictions:
    """Probabilities of every image of `part`; `on_step` is called after each."""
    files = [part.path(row) for row in range(len(part))]
    return gathered(predict_files(saved, files, device=device, workers=workers), part.labels.shape, on_step)


def pooled_features(
    saved: SavedModel,
    files: Sequence[Path | Picture],
    *,
    device: str = "auto",
    unreadable: dict[int, str] | None = None,
    on_step: Callable[[int], object] = lambda _: None,
) -> Tensor:
    """[N, D] the average of each image's feature map. `on_step` receives the number of images done since the last call.

    An unreadable image is an error or, if `unreadable` is given, a row of zeros and an entry there.
    """
    model = saved.classifier
    making = model_pass(saved, PooledFeature(model.neck), len(files), device)
    features = torch.zeros(len(files), model.neck.num_channels)
    for loaded in making.over(enumerate(files), reader(saved)):
        for row, problem in loaded[0].broken.items():
            if unreadable is None:
                raise UserError(f"{problem} Remove it.")
            unreadable[row] = problem
        if loaded[0].batch is not None:
            features[loaded[0].batch.index] = loaded[0].batch.images
        on_step(num_rows(loaded[0]))
    return features


# --- how ---


class Probabilities(nn.Module):
    """From the backbone's maps to the model's probabilities, [B, C]."""

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
    """The model's backbone in the fastest runtime, and `finish` for the rest; on Ray if it is active."""
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
    """An image as in evaluation: whole, resized to a square."""
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


def count(files: Iterable[Path | Picture], told: int | None) -> int | None:
    return len(files) if isinstance(files, Sized) else told


def load_file(saved: SavedModel, file: Path) -> Loaded:
    """One image as the model sees it."""
    return Collate(None)([plain_sample(file, 0, saved.input.size)])
