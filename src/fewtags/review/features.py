"""The pooled features of a run's training images, computed once and cached in the run's folder."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fewtags.atomic import atomic_write, file_crc, file_stamp, write_json
from fewtags.data.annotations import Annotations
from fewtags.engine.prediction import pooled_features
from fewtags.models.discriminant import unit_length
from fewtags.models.saved import SavedModel
from fewtags.models.tensor_files import add_tensors
from fewtags.progress import progress_bar


def unit_features(
    saved: SavedModel, annotations: Annotations, folder: Path, *, quiet: bool = False
) -> tuple[Tensor, dict[int, str]]:
    """[N, D] unit-length features, zeros for unreadable images, and the reasons, by row.

    They are cached in `folder`, and recomputed if an image file or the model has changed.
    """
    numbers, about = folder / "features.npy", folder / "features.json"
    key = _key(saved, annotations)
    kept = _read(numbers, about, key)
    if kept is not None:
        return kept
    unreadable: dict[int, str] = {}
    files = [annotations.path(row) for row in range(len(annotations))]
    with progress_bar("Reading images", len(files), quiet=quiet, unit="images") as bar:
        pooled = pooled_features(saved, files, unreadable=unreadable, on_step=lambda number: bar.step(by=number))
    features = unit_length(pooled)
    with suppress(OSError):  # a read-only folder can still be reviewed
        folder.mkdir(parents=True, exist_ok=True)
        about.unlink(missing_ok=True)
        with atomic_write(numbers) as temporary, temporary.open("wb") as out:
            np.save(out, features.numpy())
        write_json(about, {"key": key, "unreadable": unreadable, "checksum": file_crc(numbers)})
    return features, unreadable


def _read(numbers: Path, about: Path, key: str) -> tuple[Tensor, dict[int, str]] | None:
    """None if there are none with this key, or they are damaged."""
    try:
        kept = json.loads(about.read_text(encoding="utf-8"))
        if kept["key"] != key or kept["checksum"] != file_crc(numbers):
            return None
        return torch.from_numpy(np.load(numbers)), {int(row): reason for row, reason in kept["unreadable"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _key(saved: SavedModel, annotations: Annotations) -> str:
    """Hash of everything the features depend on. A file has changed if its size or modification time has."""
    digest = hashlib.sha256(json.dumps(saved.input.model_dump(mode="json"), sort_keys=True).encode())
    tensors = saved.classifier.state_dict()
    add_tensors(digest, {name: tensor for name, tensor in tensors.items() if not name.startswith("head.")})
    for row in range(len(annotations)):
        path = annotations.path(row)
        digest.update(f"{path}\0{file_stamp(path)}\n".encode())
    return digest.hexdigest()[:24]
