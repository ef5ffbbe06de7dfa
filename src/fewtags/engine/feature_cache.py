"""Features of the frozen stages, computed once and shared by all runs that need them.

A cache is a folder named by a hash of everything its content depends on: the image files, the frozen stages and their
weights, the input pipeline, the number of views, the runtime and the number type. Any change gives a new
folder. While it is being written the folder is named `<key>.part`; an unfinished one is completed first.

`cache.enabled=auto` caches what the head needs: the average of each map (2.5 KB per image) if that is enough, else the
maps (125 KB).
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fewtags.atomic import atomic_write, file_stamp, naming, write_json
from fewtags.contract import Batch
from fewtags.data.annotations import Annotations
from fewtags.data.dataset import ImageDataset, Loaded
from fewtags.data.images import DECODER
from fewtags.data.loaders import EpochBatches
from fewtags.data.prefetch import default_workers, in_order
from fewtags.data.preprocess import InputConfig
from fewtags.data.store import file_hash
from fewtags.engine.feature_pass import Pass, average, num_rows
from fewtags.engine.ray_pass import make_pass
from fewtags.engine.run_log import RunLog
from fewtags.engine.runtime import EXACT, choose_runtime
from fewtags.errors import DataError, RunFailed, UserError
from fewtags.locks import one_at_a_time
from fewtags.models.backbones import Backbone
from fewtags.models.classifier import Classifier
from fewtags.models.tensor_files import add_tensors
from fewtags.progress import ProgressBar, progress_bar
from fewtags.train_settings import CacheConfig

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
SAVE_EVERY = 256  # images between writes of the progress file
ROWS_PER_CHUNK = 256  # that share a checksum: 32 MB of maps, 0.6 MB of averages
IN_MEMORY = 2**30  # bytes: a smaller cache is loaded into memory, a larger one is memory-mapped
WORTH_SAYING = 10**9  # bytes: writing more than this is announced
SPARE = 0.5  # of the free disk, without being asked to


class DamagedCache(UserError):
    """Its files differ from what was written."""


@dataclass(frozen=True)
class FeatureCache:
    """Maps [views, N, D, h, w]. Training has several augmented views, evaluation the plain one."""

    maps: Tensor
    broken: dict[int, str]  # row -> why its image could not be read
    unchecked: Unchecked | None = None  # if it is too large to be verified on opening

    @classmethod
    def open(cls, folder: Path) -> FeatureCache:
        """Raises DamagedCache. A small cache is loaded and verified now, a large one is mapped and verified as it is
        used."""
        file = folder / "maps.bin"
        try:
            about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
            shape, dtype = [int(side) for side in about["shape"]], DTYPES[about["dtype"]]
            broken = {int(row): str(reason) for row, reason in about["broken"].items()}
            size, expected = file.stat().st_size, int(np.prod(shape)) * dtype.itemsize
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise damaged(folder, "its about.json cannot be read") from error
        if size != expected:
            raise damaged(folder, f"maps.bin has {size} bytes and should have {expected}")
        if size <= IN_MEMORY:
            maps = torch.from_numpy(np.fromfile(file, dtype=np.uint8)).view(dtype).view(shape)
        else:
            maps = torch.from_file(str(file), shared=False, size=int(np.prod(shape)), dtype=dtype).view(shape)
        unchecked = Unchecked(folder, maps, about.get("checksums"))  # version 0.1 wrote none
        if size <= IN_MEMORY:
            unchecked.check_all()
        return cls(maps, broken, unchecked)

    @property
    def num_views(self) -> int:
        return len(self.maps)

    def rows(self, view: int, index: Tensor) -> Tensor:
        """[B, D, h, w] float32"""
        if self.unchecked is not None:
            self.unchecked.check(view, index)
        return self.maps[view][index].float()


class Unchecked:
    """Which chunks of ROWS_PER_CHUNK rows have not been verified yet."""

    def __init__(self, folder: Path, maps: Tensor, checksums: list[list[int]] | None):
        self.folder, self.maps, self.checksums = folder, maps, checksums or []
        self.chunks = {(view, chunk) for view, sums in enumerate(self.checksums) for chunk in range(len(sums))}

    def check_all(self) -> None:
        for view, chunk in sorted(self.chunks):
            self._check(view, chunk)

    def check(self, view: int, rows: Tensor) -> None:
        if self.chunks:
            for chunk in sorted({row // ROWS_PER_CHUNK for row in rows.tolist()}):
                if (view, chunk) in self.chunks:
                    self._check(view, chunk)

    def _check(self, view: int, chunk: int) -> None:
        rows = self.maps[view, chunk * ROWS_PER_CHUNK : (chunk + 1) * ROWS_PER_CHUNK]
        if zlib.crc32(as_bytes(rows)) != self.checksums[view][chunk]:
            raise damaged(self.folder, f"the checksum of the rows starting at {chunk * ROWS_PER_CHUNK} is wrong")
        self.chunks.discard((view, chunk))


def damaged(folder: Path, how: str) -> DamagedCache:
    return DamagedCache(
        f"The feature cache {folder} is damaged ({how}); remove that folder to have it recomputed. Check the disk, too."
    )


def as_bytes(rows: Tensor) -> memoryview:
    return rows.contiguous().flatten().view(torch.uint8).numpy().data


class Rows(Protocol):
    """What is kept of each image, in one or several views of it."""

    @property
    def broken(self) -> Mapping[int, str]: ...

    @property
    def num_views(self) -> int: ...

    def rows(self, view: int, index: Tensor) -> Tensor: ...


class CachedBatches:
    """Batches of cached maps, in the order and with the views that `ImageBatches` would give."""

    def __init__(self, cache: Rows, labels: Tensor, sampler: EpochBatches):
        self.cache, self.labels, self.sampler = cache, labels, sampler

    @property
    def num_steps(self) -> int:
        return self.sampler.num_batches

    def epoch(self, number: int = 0, from_step: int = 0) -> Iterator[Loaded]:
        self.sampler.start(number, from_step)
        view = number % self.cache.num_views
        for batch in self.sampler:
            rows = [row for _, row in batch]
            broken = {row: self.cache.broken[row] for row in rows if row in self.cache.broken}
            index = torch.tensor([row for row in rows if row not in broken], dtype=torch.long)
            maps = self.cache.rows(view, index)
            yield Loaded(Batch(maps, self.labels[index], index, are_maps=True) if len(index) else None, broken)


# --- what to cache ---


def keeps_features(config: CacheConfig, model: Classifier, size: int, num_views: int) -> bool:
    """Are features computed once and cached? `auto` does so if the whole backbone is frozen and the disk has room for
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
    """Cache averages instead of whole maps?"""
    return config.enabled == "auto" and model.looks_at_the_average


def free_space(folder: Path) -> int:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free


# --- from images to batches ---


def cached_batches(
    annotations: Annotations,
    backbone: Backbone,
    input_config: InputConfig,
    cache_config: CacheConfig,
    *,
    pooled: bool = False,
    augment: bool,
    shuffle: bool | None = None,  # default: if augmented
    batch_size: int,
    seed: int = 0,
    workers: int | None = None,
    device: torch.device,
    precision: torch.dtype | None = None,
    log: RunLog | None = None,
) -> CachedBatches:
    """Batches of the frozen stages' features; computed now unless the same cache already exists."""
    dataset = ImageDataset(annotations.without_labels(), input_config, augment=augment, seed=seed, keep=False)
    views = cache_config.views if augment else 1
    root = cache_root(cache_config)
    about = {
        "images": image_hash(annotations, root, log),
        "decoder": DECODER,
        "frozen": backbone.stage_names[: backbone.num_frozen],
        "weights": weights_hash(backbone),
        "input": input_config.model_dump(exclude={"keep_in_memory", "augment"}),
        "augment": augment,
        "views": views,
        "seed": seed if augment else None,
        "pooled": pooled,
        "precision": str(precision),
        "dtype": cache_config.dtype,
    }
    cache = None
    with suppress(DamagedCache):
        cache = find_and_open(root, about, cache_config.runtime)
    if cache is None:  # one of several processes computes it and the others wait, however long it takes
        with one_at_a_time(root / cache_key(about, cache_config.runtime)):
            cache = open_complete(root, about, cache_config.runtime, log)
            if cache is None:
                num_images = len(annotations) * views
                runtime = choose_runtime(
                    backbone, cache_config.runtime, input_config.size, device, precision, num_images
                )
                if log is not None and runtime.sentence:
                    log.say(runtime.sentence)
                finish = average if pooled else None
                making = make_pass(backbone, runtime, input_config.size, device, precision, finish, workers)
                folder = root / cache_key(about, runtime.name)
                compute(folder, dataset, making, views, cache_config.dtype, log)
                cache = FeatureCache.open(folder)
    sampler = EpochBatches(len(annotations), batch_size, shuffle=augment if shuffle is None else shuffle, seed=seed)
    return CachedBatches(cache, torch.from_numpy(annotations.labels), sampler)


def find_and_open(root: Path, about: Mapping[str, Any], runtime: str) -> FeatureCache | None:
    folder = find_cache(root, about, runtime)
    return None if folder is None else FeatureCache.open(folder)


def open_complete(root: Path, about: Mapping[str, Any], runtime: str, log: RunLog | None) -> FeatureCache | None:
    """The finished cache; None if there is none. A damaged one is removed."""
    while (folder := find_cache(root, about, runtime)) is not None:
        try:
            return FeatureCache.open(folder)
        except DamagedCache as error:
            remove_damaged(folder)
            if log is not None:
                log.warn(f"{str(error).partition(';')[0]}; it is recomputed.")
    return None


def remove_damaged(folder: Path) -> None:
    """Renamed atomically, so that no process sees half of it."""
    with naming(folder):
        aside = folder.with_name(f"{folder.name}.damaged")
        shutil.rmtree(aside, ignore_errors=True)
        folder.replace(aside)
        shutil.rmtree(aside, ignore_errors=True)


def cache_key(about: Mapping[str, Any], runtime: str) -> str:
    return hashlib.sha256(json.dumps({**about, "runtime": runtime}).encode()).hexdigest()[:24]


def find_cache(root: Path, about: Mapping[str, Any], runtime: str) -> Path | None:
    """The finished cache; with runtime auto, from any runtime, as their features agree. If averages are
    enough, those of maps that another run cached also work."""
    for kept in [about, {**about, "pooled": False}] if about["pooled"] else [about]:
        for name in EXACT if runtime == "auto" else [runtime]:
            if (root / cache_key(kept, name) / "about.json").is_file():
                return root / cache_key(kept, name)
    return None


def cache_root(config: CacheConfig) -> Path:
    """The cache folder; a temporary one if caching was not requested and the folder is not writable."""
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


# --- what a cache depends on ---


def image_hash(annotations: Annotations, root: Path, log: RunLog | None = None) -> str:
    """A hash of all image files' names and content. They are read once, and again if a modification time changes:
    copied or merely touched data still finds its features."""
    remembered = root / ".images" / image_stamps(annotations)
    with one_at_a_time(remembered):
        if not is_digest(remembered):
            with bar_of(log, "Reading images", len(annotations)) as bar:
                digest = content_hash(annotations, bar)
            with atomic_write(remembered) as temporary:
                temporary.write_text(digest, encoding="utf-8")
    return remembered.read_text(encoding="utf-8")


def is_digest(file: Path) -> bool:
    """Does it exist, and is it complete?"""
    return file.is_file() and re.fullmatch(rb"[0-9a-f]{64}", file.read_bytes()) is not None


def content_hash(annotations: Annotations, bar: ProgressBar) -> str:
    digest, workers = hashlib.sha256(), default_workers()
    paths = (annotations.path(row) for row in range(len(annotations)))
    found = in_order(file_hash, paths, workers=workers, ahead=4 * workers)
    for name, content in zip(annotations.images, found, strict=True):
        bar.step()
        digest.update(f"{name}\0{content}\n".encode())
    return digest.hexdigest()


def image_stamps(annotations: Annotations) -> str:
    """A hash of every image file's path, size and modification time."""
    digest = hashlib.sha256()
    for row in range(len(annotations)):
        path = annotations.path(row)
        digest.update(f"{path.resolve()}\0{file_stamp(path)}\n".encode())
    return digest.hexdigest()


def weights_hash(backbone: Backbone) -> str:
    digest = hashlib.sha256(json.dumps([backbone.mean, backbone.std]).encode())
    digest.update(backbone.variant.encode())
    for stage in list(backbone.stages.values())[: backbone.num_frozen]:
        add_tensors(digest, stage.state_dict())
    return digest.hexdigest()


# --- computing ---


def compute(
    folder: Path, dataset: ImageDataset, making: Pass, views: int, dtype: str, log: RunLog | None = None
) -> None:
    """Fill `<folder>.part` row by row, resuming an interrupted one; then rename it."""
    part, num_images = folder.with_name(folder.name + ".part"), len(dataset)
    part.mkdir(parents=True, exist_ok=True)
    state = Progress.read(part / "progress.json", views)
    file = part / "maps.bin"
    with (
        naming(file),
        file.open("r+b" if file.exists() else "w+b") as out,
        bar_of(log, "Computing features", num_images) as bar,
    ):
        bar.skip(state.rows)
        saved = state.rows
        for loaded in making.over(range(state.rows, num_images), lambda row: dataset.views(row, range(views))):
            if not state.shape and loaded[0].batch is not None:
                state.shape = list(loaded[0].batch.images.shape[1:])
                announce(part, views * num_images * row_bytes(state.shape, dtype), log)
                state.count_unreadable(row_bytes(state.shape, dtype))
            for view, one in enumerate(loaded):
                write_maps(out, one, view * num_images, view, state, dtype)
            state.broken |= {str(row): reason for row, reason in loaded[0].broken.items()}
            state.rows += num_rows(loaded[0])
            bar.step(by=num_rows(loaded[0]))
            if state.rows - saved >= SAVE_EVERY:
                out.flush()
                os.fsync(out.fileno())  # what the progress file lists must survive a power cut
                write_json(part / "progress.json", asdict(state))
                saved = state.rows
        if not state.shape:
            raise DataError(next(iter(state.broken.values()), "There are no images."))
        out.truncate(views * num_images * row_bytes(state.shape, dtype))  # rows of unreadable images are zeros
        out.flush()
        os.fsync(out.fileno())
    write_json(part / "about.json", {**asdict(state), "dtype": dtype, "shape": [views, num_images, *state.shape]})
    part.replace(folder)


@dataclass
class Progress:
    rows: int = 0  # written so far
    shape: list[int] = field(default_factory=list)  # of one map; empty until an image has been read
    broken: dict[str, str] = field(default_factory=dict)  # row -> why its image could not be read
    checksums: list[list[int]] = field(default_factory=list)  # of each view: the CRC of every ROWS_PER_CHUNK rows

    @classmethod
    def read(cls, file: Path, views: int) -> Progress:
        """Starts from the beginning if there is none, it is damaged, or it is from another version."""
        try:
            state = cls(**json.loads(file.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, RecursionError):
            return cls(checksums=[[] for _ in range(views)])
        chunks = -(-state.rows // ROWS_PER_CHUNK) if state.shape else 0
        whole = len(state.checksums) == views and all(len(sums) == chunks for sums in state.checksums)
        return state if whole else cls(checksums=[[] for _ in range(views)])

    def count_unreadable(self, row_bytes: int) -> None:
        """The rows before the first readable image, whose size was not known yet, are zeros."""
        for view in range(len(self.checksums)):
            for row in range(self.rows):
                self.add(view, row, bytes(row_bytes), row_bytes)

    def add(self, view: int, row: int, content: bytes | memoryview, row_bytes: int) -> None:
        """The content of rows starting at `row`, which follow those added before."""
        content, sums = memoryview(content), self.checksums[view]
        while content:
            if row % ROWS_PER_CHUNK == 0:
                sums.append(0)
            here = min(len(content) // row_bytes, ROWS_PER_CHUNK - row % ROWS_PER_CHUNK)
            sums[-1] = zlib.crc32(content[: here * row_bytes], sums[-1])
            content, row = content[here * row_bytes :], row + here


def row_bytes(shape: list[int], dtype: str) -> int:
    return int(np.prod(shape)) * torch.zeros((), dtype=DTYPES[dtype]).element_size()


def write_maps(out: IO[bytes], loaded: Loaded, first: int, view: int, state: Progress, dtype: str) -> None:
    """Write maps of the rows after `state.rows` into the view, which starts at row `first` of the file."""
    if not state.shape:
        return
    maps = torch.zeros(num_rows(loaded), *state.shape, dtype=DTYPES[dtype])
    if loaded.batch is not None:
        maps[loaded.batch.index - state.rows] = loaded.batch.images.to(maps.dtype)
    length, content = row_bytes(state.shape, dtype), as_bytes(maps)
    out.seek((first + state.rows) * length)
    out.write(content)
    state.add(view, state.rows, content, length)


def announce(part: Path, needed: int, log: RunLog | None) -> None:
    """Announce a large cache, and reject one that does not fit."""
    free = shutil.disk_usage(part).free
    if needed > free:
        raise RunFailed(
            f"The feature cache needs {needed / 1e9:.1f} GB and {part.parent} has {free / 1e9:.1f} GB free; "
            "set another cache.folder, use fewer cache.views, or disable the cache (cache.enabled=false)."
        )
    if needed > WORTH_SAYING and log is not None:
        log.say(
            f"Feature maps of all images are cached in {part.parent}: {needed / 1e9:.1f} GB, shared by later runs. "
            "cache.enabled=false recomputes them in every epoch instead."
        )


def bar_of(log: RunLog | None, title: str, total: int) -> AbstractContextManager[ProgressBar]:
    return progress_bar(title, total, quiet=True) if log is None else log.progress_bar(title, total, "images")
