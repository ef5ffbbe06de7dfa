"""What a saved model sees of every image of a dataset: pooled features, from the store or computed now.

Memory-mapped, so 1,000,000 images take no more memory than 1,000.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fewtags.atomic import atomic_write
from fewtags.config import RunConfig
from fewtags.data.annotations import Annotations
from fewtags.engine.features import FeatureMaker, Features, kept_features
from fewtags.engine.run import choose_device, precision_of
from fewtags.engine.run_folder import RunFolder
from fewtags.engine.run_log import RunLog
from fewtags.models.saved import SavedModel
from fewtags.presence.bursts import burst_leaders
from fewtags.presence.ridge import unit_length
from fewtags.train_settings import CacheConfig

ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class ModelOutputs:
    features: Features  # one view: the average of each image's feature map
    num_images: int

    def __len__(self) -> int:
        return self.num_images

    @property
    def unreadable(self) -> dict[int, str]:
        """Row -> what is wrong with its file."""
        return self.features.broken

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
        """[M, D] float32; zeros for unreadable images."""
        return unit_length(self.features.rows(0, torch.from_numpy(rows)).flatten(1))


def kept_bursts(outputs: ModelOutputs, unit_features: Tensor, folder: Path) -> np.ndarray:
    """[N] the first image of each one's burst. To find them takes seconds for 100,000, so they are kept in `folder`."""
    identity = getattr(outputs.features, "identity", "")
    file = folder / f"bursts-{identity}.npy"
    with suppress(OSError, ValueError, EOFError):
        if identity and len(leaders := np.load(file)) == len(outputs):
            return leaders
    leaders = burst_leaders(unit_features).numpy()
    with suppress(OSError):  # a run may be on a read-only disk
        if identity:
            folder.mkdir(parents=True, exist_ok=True)
            for old in folder.glob("bursts-*.npy"):
                old.unlink()
            with atomic_write(file) as temporary, temporary.open("wb") as out:
                np.save(out, leaders)
    return leaders


def model_outputs(
    saved: SavedModel,
    annotations: Annotations,
    *,
    config: RunConfig | None = None,
    device: str = "auto",
    quiet: bool = False,
) -> ModelOutputs:
    """With the run's `config`, from the store that the run uses."""
    where = choose_device(device)
    backbone = saved.classifier.to(where).eval().backbone.all_frozen()
    precision = None if config is None else precision_of(config.train.precision, where)
    cache = CacheConfig() if config is None else config.cache
    maker = FeatureMaker(backbone, saved.input, cache, where, precision)
    log = RunLog(RunFolder(Path()), quiet)
    return ModelOutputs(kept_features(annotations, maker, pooled=True, log=log), len(annotations))
