"""Feature maps of the frozen stages, computed once and memory-mapped, for every run that shares them.

A cache is a folder named by a hash of everything its content depends on: the image files, the frozen stages and their
weights, the input pipeline, the number of views and the number type. Anything that changes makes another folder. While
it is written the folder is called `<key>.part`; a half-written one is completed first.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewtags import distributed
from fewtags.atomic import atomic_write, write_json
from fewtags.contract import Batch
from fewtags.data.annotations import Annotations
from fewtags.data.dataset import Collate, ImageDataset, Loaded
from fewtags.data.loaders import EpochBatches
from fewtags.data.preprocess import InputConfig
from fewtags.errors import DataError, MissingExtra, RunFailed
from fewtags.models.backbones import Backbone
from fewtags.progress import ProgressBar, progress_bar
from fewtags.train_settings import CacheConfig

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
CHUNK = 64  # images per forward pass; after each the progress is written down


@dataclass(frozen=True)
class FeatureCache:
    """Maps [views, N, D, h, w] on disk. Training has several augmented views, evaluation the plain one."""

    maps: Tensor
    broken: dict[int, str]  # row -> why its image could not be read

    @classmethod
    def open(cls, folder: Path) -> FeatureCache:
        about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
        shape, dtype = about["shape"], DTYPES[about["dtype"]]
        size = int(np.prod(shape))
        maps = torch.from_file(str(folder / "maps.bin"), shared=False, size=size, dtype=dtype).view(shape)
        return cls(maps, {int(row): reason for row, reason in about["broken"].items()})


class CachedBatches:
    """Batches of cached maps, in the order and with the views that `ImageBatches` would give."""

    def __init__(self, cache: FeatureCache, labels: Tensor, sampler: EpochBatches):
        self.cache, self.labels, self.sampler = cache, labels, sampler

    @property
    def num_steps(self) -> int:
        return self.sampler.num_batches

    def epoch(self, number: int = 0, from_step: int = 0) -> Iterator[Loaded]:
        self.sampler.start(number, from_step)
        view = self.cache.maps[number % len(self.cache.maps)]
        for batch in self.sampler:
            rows = [row for _, row in batch]
            broken = {row: self.cache.broken[row] for row in rows if row in self.cache.broken}
            index = torch.tensor([row for row in rows if row not in broken], dtype=torch.long)
            maps = view[index].float()
            yield Loaded(Batch(maps, self.labels[index], index) if len(index) else None, broken)


def cached_batches(
    annotations: Annotations,
    backbone: Backbone,
    input_config: InputConfig,
    cache_config: CacheConfig,
    *,
    augment: bool,
    shuffle: bool | None = None,  # by default where augmented
    batch_size: int,
    seed: int = 0,
    device: torch.device,
    precision: torch.dtype | None = None,
    quiet: bool = False,
) -> CachedBatches:
    """Batches of the frozen stages' maps; they are computed now unless an equal cache is there already."""
    dataset = ImageDataset(annotations, input_config, augment=augment, seed=seed, keep=False)
    views = cache_config.views if augment else 1
    root = cache_root(cache_config)
    about = {
        "images": image_hash(annotations, root, quiet),
        "frozen": backbone.stage_names[: backbone.num_frozen],
        "weights": weights_hash(backbone),
        "input": input_config.model_dump(exclude={"keep_in_memory", "augment"}),
        "augment": augment,
        "views": views,
        "seed": seed if augment else None,
        "precision": str(precision),
        "runtime": cache_config.runtime,
        "dtype": cache_config.dtype,
    }
    folder = root / hashlib.sha256(json.dumps(about).encode()).hexdigest()[:24]
    if distributed.is_main() and not (folder / "about.json").is_file():
        run = frozen_part(backbone, cache_config.runtime, input_config.size, device, precision)
        with one_at_a_time(folder):
            if not (folder / "about.json").is_file():
                with progress_bar("Computing features", -(-len(annotations) // CHUNK) * views, quiet=quiet) as bar:
                    compute(folder, dataset, run, views, cache_config.dtype, bar)
    distributed.wait_for_all()
    sampler = EpochBatches(len(annotations), batch_size, shuffle=augment if shuffle is None else shuffle, seed=seed)
    return CachedBatches(FeatureCache.open(folder), torch.from_numpy(annotations.labels), sampler)


def cache_root(config: CacheConfig) -> Path:
    if config.folder:
        return Path(config.folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fewtags" / "features"


@contextmanager
def one_at_a_time(result: Path) -> Iterator[None]:
    """Of runs that want `result` one makes it and the others wait. The lock ends with its process, however it ends."""
    locks = result.parent / ".locks"
    locks.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    with (locks / result.name).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def image_hash(annotations: Annotations, root: Path, quiet: bool = False) -> str:
    """A hash of all image files' names and content. They are read once, and again when one has another time of change:
    a copy of the data, or one that was only touched, finds its features."""
    remembered = root / ".images" / image_stamps(annotations)
    with one_at_a_time(remembered):
        if not remembered.is_file():
            with progress_bar("Reading images", len(annotations), quiet=quiet) as bar:
                digest = content_hash(annotations, bar)
            with atomic_write(remembered) as beside:
                beside.write_text(digest, encoding="utf-8")
    return remembered.read_text(encoding="utf-8")


def content_hash(annotations: Annotations, bar: ProgressBar) -> str:
    digest = hashlib.sha256()
    for row, name in enumerate(annotations.images):
        bar.step()
        digest.update(f"{name}\0{file_hash(annotations.path(row))}\n".encode())
    return digest.hexdigest()


def file_hash(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return "missing"


def image_stamps(annotations: Annotations) -> str:
    """A hash of every image file's place, size and time of change."""
    digest = hashlib.sha256()
    for row in range(len(annotations)):
        path = annotations.path(row)
        try:
            status = path.stat()
            digest.update(f"{path.resolve()}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
        except OSError:
            digest.update(f"{path.resolve()}\0missing\n".encode())
    return digest.hexdigest()


def weights_hash(backbone: Backbone) -> str:
    digest = hashlib.sha256(json.dumps([backbone.mean, backbone.std]).encode())
    digest.update(backbone.variant.encode())
    for stage in list(backbone.stages.values())[: backbone.num_frozen]:
        for name, tensor in stage.state_dict().items():
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def frozen_part(
    backbone: Backbone, runtime: str, size: int, device: torch.device, precision: torch.dtype | None
) -> Callable[[Tensor], Tensor]:
    """The frozen stages as a function of a batch of images, with the chosen runtime."""
    if runtime == "openvino":
        return with_openvino(backbone, size)

    def run(images: Tensor) -> Tensor:
        with torch.autocast(device.type, dtype=precision, enabled=precision is not None):
            return backbone.forward_frozen(images.to(device))

    return run


def with_openvino(backbone: Backbone, size: int) -> Callable[[Tensor], Tensor]:
    try:
        import openvino
    except ImportError:
        raise MissingExtra("cache.runtime=openvino", "openvino") from None
    stages = torch.nn.Sequential(*list(backbone.stages.values())[: backbone.num_frozen])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch deprecates the tracing that OpenVINO still does
        model = openvino.convert_model(stages, example_input=torch.zeros(1, 3, size, size))
    compiled = openvino.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    mean, std = backbone.pixel_mean.cpu(), backbone.pixel_std.cpu()

    def run(images: Tensor) -> Tensor:
        return torch.from_numpy(compiled(((images - mean) / std).contiguous().numpy())[0])

    return run


@torch.inference_mode()
def compute(
    folder: Path,
    dataset: ImageDataset,
    run: Callable[[Tensor], Tensor],
    views: int,
    dtype: str,
    bar: ProgressBar,
) -> None:
    """Fill `<folder>.part` view by view and chunk by chunk, going on where an interrupted one ended; then rename it."""
    part = folder.with_name(folder.name + ".part")
    part.mkdir(parents=True, exist_ok=True)
    state = read_progress(part)
    chunks = [range(first, min(first + CHUNK, len(dataset))) for first in range(0, len(dataset), CHUNK)]
    labels = Collate(torch.zeros(len(dataset), 0))
    with (part / "maps.bin").open("r+b" if (part / "maps.bin").exists() else "w+b") as out:
        for number, (view, rows) in enumerate((view, rows) for view in range(views) for rows in chunks):
            bar.step()
            if number < state["chunks"]:
                continue
            loaded = labels([dataset[view, row] for row in rows])
            maps = chunk_maps(loaded, rows, run, state, dtype)
            if number == 0:
                check_space(part, views * len(dataset) * maps[0].numel() * maps.element_size())
            out.seek(number_of_bytes(view, rows, len(dataset), maps))
            out.write(maps.view(torch.uint8).numpy().tobytes())
            state["chunks"] = number + 1
            state["broken"] |= {str(row): reason for row, reason in loaded.broken.items()}
            if (number + 1) % 16 == 0:
                out.flush()
                write_json(part / "progress.json", state)
    if state["shape"] is None:
        raise DataError("Not a single image could be read, so there are no features to keep.")
    write_json(part / "about.json", {**state, "dtype": dtype, "shape": [views, len(dataset), *state["shape"]]})
    part.replace(folder)


def chunk_maps(
    loaded: Loaded,
    rows: range,
    run: Callable[[Tensor], Tensor],
    state: dict[str, Any],
    dtype: str,
) -> Tensor:
    """[chunk, D, h, w]; rows of unreadable images are zeros."""
    if loaded.batch is None:
        if state["shape"] is None:
            raise DataError(next(iter(loaded.broken.values())))
        return torch.zeros(len(rows), *state["shape"], dtype=DTYPES[dtype])
    computed = run(loaded.batch.images).to("cpu", DTYPES[dtype])
    state["shape"] = list(computed.shape[1:])
    maps = torch.zeros(len(rows), *computed.shape[1:], dtype=computed.dtype)
    maps[loaded.batch.index - rows.start] = computed
    return maps


def number_of_bytes(view: int, rows: range, num_images: int, maps: Tensor) -> int:
    """Where the chunk begins in the file."""
    return (view * num_images + rows.start) * maps[0].numel() * maps.element_size()


def check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise RunFailed(
            f"The feature cache needs {needed / 1e9:.1f} GB and {folder.parent} has {free / 1e9:.1f} GB free; "
            "give another place with cache.folder, fewer cache.views, or do without (cache.enabled=false)."
        )


def read_progress(part: Path) -> dict[str, Any]:
    file = part / "progress.json"
    if file.is_file():
        return json.loads(file.read_text(encoding="utf-8"))
    return {"chunks": 0, "shape": None, "broken": {}}
