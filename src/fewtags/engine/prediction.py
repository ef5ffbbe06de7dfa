"""Streaming prediction of tags for image files; a bad image does not stop it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, replace
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
from fewtags.engine.feature_pass import Pass, average, in_groups
from fewtags.engine.feature_store import DamagedChunks, FeatureStore, Shelf
from fewtags.engine.features import FeatureMaker, cache_root
from fewtags.engine.predictions import Prediction, Predictions, gathered, name_of, prediction_of
from fewtags.engine.ray_pass import make_pass
from fewtags.engine.run import choose_device
from fewtags.engine.runtime import choose_runtime
from fewtags.errors import UserError
from fewtags.models.saved import SavedModel
from fewtags.train_settings import CacheConfig

LOOKED_UP = 64  # files at a time whose content is compared with the store's
COMMITTED = 256  # files between two commits
WORTH_LOOKING_UP = 16  # files, from which on Python's users profit from the store, too; to open it takes a while


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
    cache: CacheConfig | None = None,
) -> Iterator[Prediction]:
    """One Prediction per file (or picture in memory), in order, lazily. With a `cache`, what the store has of a file is
    used and what it lacks is added, if the model looks only at averages."""
    if cache is not None and cache.enabled is not False and saved.classifier.looks_at_the_average:
        one_pass = model_pass(saved, average, count(files, num_files), device, batch_size, workers, runtime, say)
        cache = cache.model_copy(update={"runtime": runtime})
        yield from predict_kept(saved, files, one_pass, cache, choose_device(device))
        return
    finish = Probabilities(saved.classifier.neck, saved.classifier.head).eval()
    one_pass = model_pass(saved, finish, count(files, num_files), device, batch_size, workers, runtime, say)
    names: deque[str] = deque()  # of those in flight
    for loaded in one_pass.over(numbered(files, names), reader(saved)):
        rows: dict[int, np.ndarray] = {}
        if loaded[0].batch is not None:
            rows = dict(zip(loaded[0].batch.index.tolist(), loaded[0].batch.images.numpy(), strict=True))
        for row in sorted([*rows, *loaded[0].broken]):
            problem = loaded[0].broken.get(row, "")
            yield prediction_of(names.popleft(), rows.get(row), problem, saved.categories, saved.tree)


def predict_kept(
    saved: SavedModel, files: Iterable[Path | Picture], one_pass: Pass, cache: CacheConfig, device: torch.device
) -> Iterator[Prediction]:
    """By the averages of the maps."""
    head = saved.classifier.head
    shelf = shelf_of(saved, cache, device)
    for group in kept_averages(shelf, files, one_pass, saved.input.size):
        features = [one.feature for one in group if one.feature is not None]
        probabilities: Iterator[np.ndarray] = iter(())
        if features:
            with torch.inference_mode():
                logits = head(torch.stack(features).float().to(device)).logits
                probabilities = iter(logits.sigmoid().cpu().numpy())
        for one in group:
            values = None if one.feature is None else next(probabilities)
            yield prediction_of(one.name, values, one.problem, saved.categories, saved.tree)


def shelf_of(saved: SavedModel, cache: CacheConfig, device: torch.device) -> Shelf:
    """Where averages of the maps are kept."""
    spec = FeatureMaker(saved.classifier.backbone.all_frozen(), saved.input, cache, device).spec
    return FeatureStore(cache_root(cache)).shelf(spec, pooled=True)


def worth_looking_up(files: Sequence[Path | Picture]) -> bool:
    return sum(isinstance(file, Path) and not remote_url(file) for file in files) >= WORTH_LOOKING_UP


@dataclass
class Seen:
    """A file on its way through the backbone, or past it."""

    name: str
    key: np.ndarray  # [2] its content; zeros if it is not a local file
    feature: Tensor | None  # [D, 1, 1]; None if it is not known yet, or never will be:
    problem: str = ""


def kept_averages(shelf: Shelf, files: Iterable[Path | Picture], one_pass: Pass, side: int) -> Iterator[list[Seen]]:
    """For groups of files in order: the average of each one's map, found in the store, or computed now and added."""
    waiting: deque[Seen] = deque()

    def keys() -> Iterator[tuple[int, Path | Picture | None]]:
        names: deque[str] = deque()
        for group in in_groups(numbered(files, names), LOOKED_UP):
            for (row, file), key, feature in zip(group, *look_up(shelf, [file for _, file in group]), strict=True):
                waiting.append(Seen(names.popleft(), key, feature))
                yield row, None if feature is not None else file

    added = 0
    with shelf.writer() as writer:
        for (loaded,) in one_pass.over(keys(), lambda key: [unless_seen(*key, side)]):
            computed = {}
            if loaded.batch is not None:  # rounded, as they will be read
                features = loaded.batch.images.to(shelf.dtype)
                computed = dict(zip(loaded.batch.index.tolist(), features, strict=True))
            group = []
            for row in sorted([*loaded.broken, *computed]):
                one = waiting.popleft()
                if one.feature is None:
                    one.feature, one.problem = computed.get(row), loaded.broken.get(row, "")
                    if one.feature is not None and one.key.any():
                        writer.add(one.key[None], one.feature[None])
                        added += 1
                group.append(one)
            if added >= COMMITTED:
                writer.commit()
                added = 0
            yield group


def look_up(shelf: Shelf, files: list[Path | Picture]) -> tuple[np.ndarray, list[Tensor | None]]:
    """[N, 2] the contents of files, and what the store has of them."""
    local = [str(file) if isinstance(file, Path) and not remote_url(file) else "" for file in files]
    keys = shelf.store.contents(local)
    while True:
        rows = shelf.find(keys)
        try:
            found = iter(shelf.read(rows[rows >= 0]) if (rows >= 0).any() else ())
        except DamagedChunks as damage:
            shelf.forget(damage.chunks)
        else:
            return keys, [next(found) if row >= 0 else None for row in rows.tolist()]


def unless_seen(row: int, picture: Path | Picture | None, side: int) -> Sample:
    """Nothing is read of a file whose features are known."""
    return Sample(None, row, "known") if picture is None else plain_sample(picture, row, side)


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
    cache: CacheConfig | None = None,
) -> Tensor:
    """[N, D] the average of each image's feature map. `on_step` receives the number of images done since the last call.
    With a `cache`, from the store where it has them.

    An unreadable image is an error or, if `unreadable` is given, a row of zeros and an entry there.
    """
    model = saved.classifier
    features, row = torch.zeros(len(files), model.neck.num_channels), 0
    for group in averages(saved, files, device, cache):
        for one in group:
            if one.feature is not None:
                features[row] = one.feature.flatten()
            elif unreadable is None:
                raise UserError(f"{one.problem} Remove it.")
            else:
                unreadable[row] = one.problem
            row += 1
        on_step(len(group))
    return features


def averages(
    saved: SavedModel, files: Sequence[Path | Picture], device: str, cache: CacheConfig | None
) -> Iterator[list[Seen]]:
    """For groups of files in order: the average of each one's map."""
    model = saved.classifier
    if cache is not None and cache.enabled is not False and not len(model.neck) and worth_looking_up(files):
        one_pass = model_pass(saved, average, len(files), device)
        yield from kept_averages(shelf_of(saved, cache, choose_device(device)), files, one_pass, saved.input.size)
        return
    one_pass = model_pass(saved, PooledFeature(model.neck).eval(), len(files), device)
    nothing = np.zeros(2, dtype=np.uint64)
    for (loaded,) in one_pass.over(enumerate(files), reader(saved)):
        rows: dict[int, Tensor] = {}
        if loaded.batch is not None:
            rows = dict(zip(loaded.batch.index.tolist(), loaded.batch.images, strict=True))
        every = sorted([*rows, *loaded.broken])
        yield [Seen(str(row), nothing, rows.get(row), loaded.broken.get(row, "")) for row in every]


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
    finish: Callable[[Tensor], Tensor],
    num_files: int | None,
    device: str = "auto",
    batch_size: int | None = None,
    workers: int | None = None,
    runtime: str = "auto",
    say: Callable[[str], object] = lambda _: None,
) -> Pass:
    """The model's backbone in the fastest runtime, and `finish` for the rest; on Ray if it is active."""
    where = choose_device(device)
    backbone = saved.classifier.to(where).eval().backbone.all_frozen()
    chosen = choose_runtime(backbone, runtime, saved.input.size, where, num_images=num_files)
    if chosen.sentence:
        say(chosen.sentence)
    chosen = replace(chosen, batch=batch_size or chosen.batch)
    return make_pass(backbone, chosen, saved.input.size, where, finish=finish, workers=workers)


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


def count(files: Iterable[Path | Picture], given: int | None) -> int | None:
    return len(files) if isinstance(files, Sized) else given


def load_file(saved: SavedModel, file: Path) -> Loaded:
    """One image as the model sees it."""
    return Collate(None)([plain_sample(file, 0, saved.input.size)])
