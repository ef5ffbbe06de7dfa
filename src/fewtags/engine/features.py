"""From images to batches of features: what the store has is read, the rest is computed once and added.

`cache.enabled=auto` keeps what the head needs: the average of each map (2.5 KB per image) if that is enough, else the
maps (125 KB), which bring their averages along.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fewtags.contract import Batch
from fewtags.data.annotations import Annotations
from fewtags.data.dataset import ImageDataset, Loaded
from fewtags.data.loaders import EpochBatches
from fewtags.data.preprocess import InputConfig
from fewtags.engine.feature_pass import Pass, average, num_rows
from fewtags.engine.feature_spec import DTYPES, FeatureSpec
from fewtags.engine.feature_store import ROWS_PER_CHUNK, DamagedChunks, FeatureStore, Shelf, Writer, view_keys
from fewtags.engine.ray_pass import make_pass
from fewtags.engine.run_log import RunLog
from fewtags.engine.runtime import choose_runtime
from fewtags.errors import DataError, RunFailed, UserError
from fewtags.locks import one_at_a_time
from fewtags.models.backbones import Backbone
from fewtags.models.classifier import Classifier
from fewtags.progress import ProgressBar, progress_bar
from fewtags.train_settings import CacheConfig
from fewtags.wording import plural

SAVE_EVERY = 256  # images between two commits to the store
IN_MEMORY = 2**28  # bytes: fewer are loaded and checked at once, more are read and checked as they are used
WORTH_SAYING = 10**9  # bytes: writing more than this is announced
SPARE = 0.5  # of the free disk, without being asked to


class Features(Protocol):
    """Features of N images in one or more views. Training has several augmented views, evaluation the plain one."""

    @property
    def broken(self) -> dict[int, str]:
        """Row -> why its image could not be read."""

    @property
    def num_views(self) -> int: ...

    def rows(self, view: int, index: Tensor) -> Tensor:
        """[B, D, h, w] float32"""


@dataclass(frozen=True)
class LoadedFeatures:
    """In memory."""

    maps: Tensor  # [views, N, D, h, w]
    broken: dict[int, str]

    @property
    def num_views(self) -> int:
        return len(self.maps)

    def rows(self, view: int, index: Tensor) -> Tensor:
        return self.maps[view][index].float()


class FeaturesOnDisk:
    """On disk. What is found damaged when it is used is computed again."""

    def __init__(self, shelf: Shelf, found: np.ndarray, broken: dict[int, str], wanted: Callable[[], Wanted]):
        """`found` [V, N] are rows of the shelf; `wanted` knows how to make them."""
        self.shelf, self.found, self.broken, self.wanted = shelf, found, broken, wanted

    @property
    def num_views(self) -> int:
        return len(self.found)

    def rows(self, view: int, index: Tensor) -> Tensor:
        while True:
            try:
                return read_rows(self.shelf, self.found[view, index.numpy()]).float()
            except DamagedChunks as damage:
                wanted = self.wanted()
                wanted.forget(damage)
                self.found, self.broken = wanted.complete()
                self.shelf = wanted.shelf


class CachedBatches:
    """Batches of features, in the order and with the views that `ImageBatches` would give."""

    def __init__(self, features: Features, labels: Tensor, sampler: EpochBatches):
        self.features, self.labels, self.sampler = features, labels, sampler

    @property
    def num_steps(self) -> int:
        return self.sampler.num_batches

    def epoch(self, number: int = 0, from_step: int = 0) -> Iterator[Loaded]:
        self.sampler.start(number, from_step)
        features = self.features
        for batch in self.sampler:
            rows = [row for _, row in batch]
            broken = {row: features.broken[row] for row in rows if row in features.broken}
            index = torch.tensor([row for row in rows if row not in broken], dtype=torch.long)
            if not len(index):
                yield Loaded(None, broken)
                continue
            maps = features.rows(number % features.num_views, index)
            yield Loaded(Batch(maps, self.labels[index], index, are_maps=True), broken)


# --- what to keep ---


def keeps_features(config: CacheConfig, model: Classifier, size: int, num_views: int) -> bool:
    """Are features computed once and kept? `auto` does so if the whole backbone is frozen and the disk has room for
    `num_views` of them; else they are recomputed in every epoch."""
    backbone = model.backbone
    if config.enabled is True and not backbone.num_frozen:
        raise UserError("cache.enabled=true caches the maps of frozen stages, but model.train_from freezes none.")
    if config.enabled != "auto":
        return config.enabled
    if backbone.num_frozen < len(backbone.stages):
        return False
    with torch.inference_mode():
        maps = backbone.forward_frozen(torch.zeros(1, 3, size, size, device=backbone.pixel_mean.device))
    shape = [maps.shape[1], 1, 1] if keeps_averages(config, model) else list(maps.shape[1:])
    return num_views * row_bytes(shape, config.dtype) <= SPARE * free_space(cache_root(config))


def keeps_averages(config: CacheConfig, model: Classifier) -> bool:
    """Keep averages instead of whole maps?"""
    return config.enabled == "auto" and model.looks_at_the_average


def free_space(folder: Path) -> int:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free


def row_bytes(shape: list[int], dtype: str) -> int:
    return int(np.prod(shape)) * DTYPES[dtype].itemsize


def cache_root(config: CacheConfig) -> Path:
    """The store's folder; a temporary one if nothing is to be kept, or if the folder is not writable and was not asked
    for."""
    if config.enabled is False:
        return temporary_root()
    if config.folder:
        return Path(config.folder)
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fewtags" / "features"
    try:
        root.mkdir(parents=True, exist_ok=True)
        usable = os.access(root, os.W_OK)
    except OSError:
        usable = False
    return root if usable or config.enabled is True else temporary_root()


@cache
def temporary_root() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="fewtags-features-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


# --- from images to features ---


@dataclass(frozen=True)
class FeatureMaker:
    """The frozen stages of a backbone: which features they make, and how they make them."""

    backbone: Backbone
    input: InputConfig
    config: CacheConfig
    device: torch.device
    precision: torch.dtype | None = None
    seed: int | None = None  # of augmented views; None: the plain image
    workers: int | None = None

    @cached_property
    def spec(self) -> FeatureSpec:
        return FeatureSpec.of(
            self.backbone,
            self.input,
            seed=self.seed,
            precision=self.precision,
            runtime=self.config.runtime,
            dtype=self.config.dtype,
        )

    @property
    def num_views(self) -> int:
        return 1 if self.seed is None else self.config.views

    def dataset(self, annotations: Annotations) -> ImageDataset:
        augment = self.seed is not None
        return ImageDataset(annotations.without_labels(), self.input, augment=augment, seed=self.seed or 0, keep=False)

    def make_pass(self, num_images: int, *, pooled: bool, log: RunLog | None) -> Pass:
        with nullcontext() if log is None else log.working("Choosing the runtime"):  # others have to be imported for it
            runtime = choose_runtime(
                self.backbone, self.config.runtime, self.input.size, self.device, self.precision, num_images
            )
        if log is not None and runtime.sentence:
            log.say(runtime.sentence)
        finish = average if pooled else None
        return make_pass(
            self.backbone, runtime, self.input.size, self.device, self.precision, finish, self.workers
        )  # fmt: skip


def cached_batches(
    annotations: Annotations,
    maker: FeatureMaker,
    *,
    pooled: bool = False,
    shuffle: bool,
    batch_size: int,
    seed: int = 0,
    log: RunLog | None = None,
) -> CachedBatches:
    """Batches of features; those that the store lacks are computed now."""
    features = kept_features(annotations, maker, pooled=pooled, log=log)
    sampler = EpochBatches(len(annotations), batch_size, shuffle=shuffle, seed=seed)
    return CachedBatches(features, torch.from_numpy(annotations.labels), sampler)


def kept_features(
    annotations: Annotations, maker: FeatureMaker, *, pooled: bool = False, log: RunLog | None = None
) -> LoadedFeatures | FeaturesOnDisk:
    wanted = Wanted(annotations, maker, pooled, log)
    while True:
        found, broken = wanted.complete()
        shelf = wanted.shelf
        if found.size * shelf.row_bytes > IN_MEMORY:
            return FeaturesOnDisk(shelf, found, broken, lambda: wanted)
        try:
            maps = read_rows(shelf, found.ravel()).view(*found.shape, *shelf.shape)
            return LoadedFeatures(maps, broken)
        except DamagedChunks as damage:
            wanted.forget(damage)


def read_rows(shelf: Shelf, rows: np.ndarray) -> Tensor:
    """[M, D, h, w]; zeros for a row of -1."""
    if (rows >= 0).all():
        return shelf.read(rows)
    maps = torch.zeros(len(rows), *shelf.shape, dtype=shelf.dtype)
    maps[torch.from_numpy(rows >= 0)] = shelf.read(rows[rows >= 0])
    return maps


class Wanted:
    """The features of some images: where the store has them, and how to make those that it lacks."""

    def __init__(self, annotations: Annotations, maker: FeatureMaker, pooled: bool, log: RunLog | None):
        self.annotations, self.maker, self.pooled, self.log = annotations, maker, pooled, log
        self.store = FeatureStore(cache_root(maker.config))
        root = str(annotations.root.absolute())
        files = [os.path.join(root, image) for image in annotations.images]
        with bar_of(log, "Reading images", len(files)) as bar:
            contents = self.store.contents(files, bar)
        self.keys = contents[None] if maker.seed is None else view_keys(contents, maker.num_views)  # [V, N, 2]
        self.shelf = self.store.shelf(maker.spec, pooled=pooled)

    @property
    def identity(self) -> str:
        return hashlib.sha256(self.shelf.key.encode() + self.keys.tobytes()).hexdigest()[:24]

    def complete(self) -> tuple[np.ndarray, dict[int, str]]:
        """[V, N] the rows of the shelf, -1 for unreadable images; and what is wrong with those."""
        found = self.shelf.find(self.keys)
        if (found >= 0).all():
            return found, {}
        # Of processes that want the same, one computes it and the others wait, however long it takes.
        with one_at_a_time(self.store.root / self.identity):
            self.shelf.refresh()
            missing = self.shelf.find(self.keys) < 0
            broken = self._compute(missing) if missing.any() else {}
        self.shelf.refresh()
        found = self.shelf.find(self.keys)
        for row in np.flatnonzero((found < 0).any(0)).tolist():
            broken.setdefault(row, f"{self.annotations.path(row)}: it changed while it was read.")
        if len(broken) == len(self.annotations):
            raise DataError(next(iter(broken.values()), "There are no images."))
        return found, broken

    def forget(self, damage: DamagedChunks) -> None:
        self.shelf.forget(damage.chunks)
        if self.log is not None:
            self.log.warn(
                f"Features in {self.shelf.folder} are damaged; {plural(len(damage.chunks), 'chunk')} of up to "
                f"{ROWS_PER_CHUNK} images will be computed again. Check the disk, too."
            )

    def _compute(self, missing: np.ndarray) -> dict[int, str]:
        """Add what is `missing` [V, N]; gives what is wrong with unreadable images."""
        rows, views = np.flatnonzero(missing.any(0)), np.flatnonzero(missing.any(1)).tolist()
        dataset = self.maker.dataset(self.annotations)
        one_pass = self.maker.make_pass(len(rows) * len(views), pooled=self.pooled, log=self.log)
        broken: dict[int, str] = {}
        done, announced = 0, False
        with self._writing() as writers, bar_of(self.log, "Computing features", len(self.annotations)) as bar:
            bar.skip(len(self.annotations) - len(rows))
            for loaded in one_pass.over(rows.tolist(), lambda row: dataset.views(row, views)):
                if not announced and loaded[0].batch is not None:
                    shape, announced = list(loaded[0].batch.images.shape[1:]), True
                    self._announce(int(missing.sum()) * row_bytes(shape, self.maker.config.dtype))
                for view, one in zip(views, loaded, strict=True):
                    self._add(writers, one, view, missing[view])
                broken |= loaded[0].broken
                bar.step(by=num_rows(loaded[0]))
                if (done + num_rows(loaded[0])) // SAVE_EVERY > done // SAVE_EVERY:
                    for writer in writers:
                        writer.commit()
                done += num_rows(loaded[0])
        return broken

    @contextmanager
    def _writing(self) -> Iterator[list[Writer]]:
        shelves = [self.shelf] if self.pooled else [self.shelf, self.store.shelf(self.maker.spec, pooled=True)]
        with ExitStack() as stack:
            yield [stack.enter_context(shelf.writer()) for shelf in shelves]

    def _add(self, writers: list[Writer], loaded: Loaded, view: int, missing: np.ndarray) -> None:
        if loaded.batch is None:
            return
        index, maps = loaded.batch.index.numpy(), loaded.batch.images
        new = missing[index] & self.keys[view, index].any(1)
        keys, maps = self.keys[view, index[new]], maps[torch.from_numpy(new)]
        for writer in writers:
            writer.add(keys, maps if writer.shelf.kind == "maps" else average(maps))

    def _announce(self, needed: int) -> None:
        """Announce that much is written, and reject what does not fit."""
        root = self.store.root
        free = shutil.disk_usage(root).free
        if needed > free:
            raise RunFailed(
                f"The feature cache needs {needed / 1e9:.1f} GB and {root} has {free / 1e9:.1f} GB free; "
                "set another cache.folder, use fewer cache.views, or disable the cache (cache.enabled=false)."
            )
        if needed > WORTH_SAYING and self.log is not None:
            self.log.say(
                f"Feature maps of all images are cached in {root}: {needed / 1e9:.1f} GB, shared by later runs. "
                "cache.enabled=false recomputes them in every epoch instead."
            )


def bar_of(log: RunLog | None, title: str, total: int) -> AbstractContextManager[ProgressBar]:
    return progress_bar(title, total, quiet=True) if log is None else log.progress_bar(title, total, "images")
