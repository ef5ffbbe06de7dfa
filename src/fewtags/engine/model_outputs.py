"""What a saved model gives for every image of a dataset: logits and pooled features, kept in files.

Computed batch by batch and memory-mapped, so that 100,000 images take no more memory than 100. What was computed for a
run stays in its folder and is found again as long as the model and the image files are the same.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fewtags.atomic import write_json
from fewtags.config import RunConfig
from fewtags.data.annotations import Annotations
from fewtags.data.dataset import ImageDataset
from fewtags.engine.evaluation import Batches
from fewtags.engine.feature_cache import cached_batches, keeps_averages, keeps_features, one_at_a_time
from fewtags.engine.feature_pass import FeatureBatches, FeaturePass
from fewtags.engine.run import choose_device, precision_of
from fewtags.engine.runtime import choose_runtime
from fewtags.errors import DataError
from fewtags.models.build import first_trained
from fewtags.models.discriminant import unit_length
from fewtags.models.saved import SavedModel
from fewtags.progress import progress_bar

ROWS_AT_ONCE = 4096
KEPT = 3  # so many sets of outputs stay in a run's folder; the oldest make room


@dataclass(frozen=True)
class ModelOutputs:
    logits: np.ndarray  # [N, C] float32; 0 for images that could not be read
    features: np.ndarray  # [N, D] float16, unit length: the average over the feature map that the head sees
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
        """The rows (by default all) in pieces that fit in memory."""
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
    """Those kept in `folder`, or else computed now. With the `config` of the run its feature cache is used."""
    place = folder / outputs_key(saved, annotations)
    with one_at_a_time(place):
        if not place.is_dir():
            part = place.with_name(place.name + ".part")
            part.mkdir(parents=True, exist_ok=True)
            compute_outputs(saved, annotations, part, config, device, quiet)
            part.replace(place)
            drop_oldest(folder)
    about = json.loads((place / "about.json").read_text(encoding="utf-8"))
    (place / "about.json").touch()  # used last
    logits, features = (np.load(place / f"{name}.npy", mmap_mode="r") for name in ("logits", "features"))
    return ModelOutputs(logits, features, {int(row): reason for row, reason in about["unreadable"].items()})


def compute_outputs(
    saved: SavedModel, annotations: Annotations, place: Path, config: RunConfig | None, device: str, quiet: bool
) -> None:
    where = choose_device(device)
    model = saved.classifier.to(where).eval()  # outside of inference mode, which would forbid to relabel it afterwards
    batches = batches_for(saved, annotations, config, where)
    num_images, files = len(annotations), {}
    unreadable: dict[int, str] = {}
    with torch.inference_mode(), progress_bar("Looking at the images", batches.num_steps, quiet=quiet) as bar:
        for loaded in batches.epoch():
            bar.step()
            unreadable |= loaded.broken
            if loaded.batch is None:
                continue
            maps = model.feature_map(loaded.batch.images.to(where))
            outputs = {"logits": model.head(maps).logits, "features": unit_length(maps.float().mean((2, 3)))}
            for name, values in outputs.items():
                if name not in files:
                    kind = np.float32 if name == "logits" else np.float16
                    shape = (num_images, values.shape[1])
                    files[name] = np.lib.format.open_memmap(place / f"{name}.npy", "w+", kind, shape)
                files[name][loaded.batch.index.numpy()] = values.float().cpu().numpy()
    model.takes_maps = False
    if not files:
        raise DataError(f"Not a single one of the {num_images} images could be read: {next(iter(unreadable.values()))}")
    for file in files.values():
        file.flush()
    write_json(place / "about.json", {"unreadable": unreadable})


def batches_for(saved: SavedModel, annotations: Annotations, config: RunConfig | None, device: torch.device) -> Batches:
    """Features from the cache of the run, where it has one; else by one pass over the image files."""
    model = saved.classifier
    model.takes_maps = True
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
            )
    model.backbone.freeze_before("head")
    dataset = ImageDataset(annotations, saved.input, augment=False, seed=0, keep=False)
    runtime = choose_runtime(model.backbone, "auto", saved.input.size, device, num_images=len(annotations))
    return FeatureBatches(dataset, FeaturePass(runtime), torch.from_numpy(annotations.labels))


def outputs_key(saved: SavedModel, annotations: Annotations) -> str:
    """Of everything the outputs depend on. A file counts as another one when its size or time of change differs."""
    digest = hashlib.sha256(json.dumps(saved.input.model_dump(mode="json"), sort_keys=True).encode())
    for name, tensor in saved.classifier.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    for row in range(len(annotations)):
        path = annotations.path(row)
        try:
            state = path.stat()
            digest.update(f"{path}\0{state.st_size}\0{state.st_mtime_ns}\n".encode())
        except OSError:
            digest.update(f"{path}\0missing\n".encode())
    return digest.hexdigest()[:24]


def drop_oldest(folder: Path) -> None:
    places = sorted(folder.glob("*/about.json"), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in places[KEPT:]:
        shutil.rmtree(file.parent, ignore_errors=True)
