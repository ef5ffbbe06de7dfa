"""The outputs of a saved model for every image of a dataset: logits and pooled features, cached in files.

Computed batch by batch and memory-mapped, so 100,000 images take no more memory than 100. The outputs of a
run are cached in its folder and reused as long as the model and the image files are the same.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fewtags.atomic import file_crc, file_stamp, reserve, write_json
from fewtags.config import RunConfig
from fewtags.data.annotations import Annotations
from fewtags.data.dataset import ImageDataset
from fewtags.engine.evaluation import Batches
from fewtags.engine.feature_cache import cached_batches, keeps_averages, keeps_features
from fewtags.engine.feature_pass import FeatureBatches, num_rows
from fewtags.engine.ray_pass import make_pass
from fewtags.engine.run import choose_device, precision_of
from fewtags.engine.run_folder import RunFolder
from fewtags.engine.run_log import RunLog
from fewtags.engine.runtime import choose_runtime
from fewtags.errors import DataError, RunFailed
from fewtags.locks import one_at_a_time
from fewtags.models.build import first_trained
from fewtags.models.saved import SavedModel
from fewtags.models.tensor_files import add_tensors
from fewtags.presence.ridge import unit_length

ROWS_AT_ONCE = 4096
NAMES = ("logits", "features")
KEPT = 3  # sets of outputs kept in a run's folder; the oldest are removed


@dataclass(frozen=True)
class ModelOutputs:
    logits: np.ndarray  # [N, C] float32; 0 for unreadable images
    features: np.ndarray  # [N, D] float16, unit length: the average of the feature map the head sees
    unreadable: dict[int, str]  # row -> what is wrong with its file

    def __len__(self) -> int:
        return len(self.logits)

    @property
    def readable(self) -> np.ndarray:
        """[N] bool."""
        mask = np.ones(len(self), dtype=bool)
        mask[list(self.unreadable)] = False
        return mask

    def chunks(self, rows: np.ndarray | None = None) -> Iterator[np.ndarray]:
        """The rows (default: all) in chunks that fit in memory."""
        rows = np.arange(len(self)) if rows is None else rows
        return (rows[first : first + ROWS_AT_ONCE] for first in range(0, len(rows), ROWS_AT_ONCE))

    def unit_features(self, rows: np.ndarray) -> Tensor:
        """[M, D] float32."""
        return torch.from_numpy(self.features[rows].astype(np.float32))


def model_outputs(
    saved: SavedModel,
    annotations: Annotations,
    folder: Path,
    *,
    config: RunConfig | None = None,
    device: str = "auto",
    quiet: bool = False,
) -> ModelOutputs:
    """The outputs cached in `folder`, else computed now. With the run's `config`, its feature cache is used."""
    place = folder / outputs_key(saved, annotations)
    if not can_write(folder):  # on a read-only disk what is there is used, and what is not is made elsewhere
        outputs = read_outputs(place)
        if outputs is not None:
            return outputs
        folder = Path(tempfile.mkdtemp(prefix="fewtags-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        place = folder / place.name
    with one_at_a_time(place):
        outputs = read_outputs(place)
        if outputs is None:
            shutil.rmtree(place, ignore_errors=True)  # damaged, or of an earlier version
            part = place.with_name(place.name + ".part")
            part.mkdir(parents=True, exist_ok=True)
            compute_outputs(saved, annotations, part, config, device, quiet)
            part.replace(place)
            drop_oldest(folder)
            outputs = read_outputs(place)
    if outputs is None:
        raise RunFailed(f"{place} cannot be read back correctly; is the disk damaged?")
    (place / "about.json").touch()  # used last
    return outputs


def can_write(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def read_outputs(place: Path) -> ModelOutputs | None:
    """What `compute_outputs` left; None where it is not there, or is not what was written."""
    try:
        about = json.loads((place / "about.json").read_text(encoding="utf-8"))
        unreadable = {int(row): str(reason) for row, reason in about["unreadable"].items()}
        if any(file_crc(place / f"{name}.npy") != about["checksums"][name] for name in NAMES):
            return None
        logits, features = (np.load(place / f"{name}.npy", mmap_mode="r") for name in NAMES)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return ModelOutputs(logits, features, unreadable)


def compute_outputs(
    saved: SavedModel, annotations: Annotations, place: Path, config: RunConfig | None, device: str, quiet: bool
) -> None:
    where = choose_device(device)
    model = saved.classifier.to(where).eval()  # outside of inference mode, which would forbid to relabel it afterwards
    log = RunLog(RunFolder(place), quiet)
    batches = batches_for(saved, annotations, config, where, log)
    num_images, files = len(annotations), {}
    unreadable: dict[int, str] = {}
    with torch.inference_mode(), log.progress_bar("Reading images", num_images, "images") as bar:
        for loaded in batches.epoch():
            bar.step(by=num_rows(loaded))
            unreadable |= loaded.broken
            if loaded.batch is None:
                continue
            maps = model.feature_map(loaded.batch.images.to(where), loaded.batch.are_maps)
            outputs = {"logits": model.head(maps).logits, "features": unit_length(maps.float().mean((2, 3)))}
            for name, values in outputs.items():
                if name not in files:
                    kind = np.float32 if name == "logits" else np.float16
                    shape = (num_images, values.shape[1])
                    files[name] = np.lib.format.open_memmap(place / f"{name}.npy", "w+", kind, shape)
                    reserve(place / f"{name}.npy")
                files[name][loaded.batch.index.numpy()] = values.float().cpu().numpy()
    if not files:
        raise DataError(f"None of the {num_images} images could be read: {next(iter(unreadable.values()))}")
    for file in files.values():
        file.flush()
    checksums = {name: file_crc(place / f"{name}.npy") for name in NAMES}
    write_json(place / "about.json", {"unreadable": unreadable, "checksums": checksums})


def batches_for(
    saved: SavedModel, annotations: Annotations, config: RunConfig | None, device: torch.device, log: RunLog
) -> Batches:
    """Features from the run's cache if it has one; else from one pass over the image files."""
    model = saved.classifier
    if config is not None:
        model.backbone.freeze_before(first_trained(config.model))
        wanted = config.cache.enabled is not True or model.backbone.num_frozen > 0
        if wanted and keeps_features(config.cache, model, config.input.size, len(annotations)):
            return cached_batches(
                annotations,
                model.backbone,
                config.input,
                config.cache,
                pooled=keeps_averages(config.cache, model),
                augment=False,
                batch_size=config.train.batch_size,
                workers=config.train.workers,
                device=device,
                precision=precision_of(config.train.precision, device),
                log=log,
            )
    model.backbone.freeze_before("head")
    dataset = ImageDataset(annotations.without_labels(), saved.input, augment=False, seed=0, keep=False)
    runtime = choose_runtime(model.backbone, "auto", saved.input.size, device, num_images=len(annotations))
    making = make_pass(model.backbone, runtime, saved.input.size, device)
    return FeatureBatches(dataset, making, torch.from_numpy(annotations.labels))


def outputs_key(saved: SavedModel, annotations: Annotations) -> str:
    """Hash of everything the outputs depend on. A file counts as changed if its size or modification time differs."""
    digest = hashlib.sha256(json.dumps(saved.input.model_dump(mode="json"), sort_keys=True).encode())
    add_tensors(digest, saved.classifier.state_dict())
    for row in range(len(annotations)):
        path = annotations.path(row)
        digest.update(f"{path}\0{file_stamp(path)}\n".encode())
    return digest.hexdigest()[:24]


def drop_oldest(folder: Path) -> None:
    places = sorted(folder.glob("*/about.json"), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in places[KEPT:]:
        shutil.rmtree(file.parent, ignore_errors=True)
