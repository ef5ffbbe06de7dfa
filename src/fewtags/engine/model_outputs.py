"""What a saved model sees of every image of a dataset: pooled features, from the store or computed now.

Read block by block, so 1,000,000 images take no more memory than 1,000.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fewtags.config import RunConfig
from fewtags.data.annotations import Annotations
from fewtags.engine.features import FeatureMaker, Features, Wanted, kept_features
from fewtags.engine.run import choose_device, precision_of
from fewtags.engine.run_folder import RunFolder
from fewtags.engine.run_log import RunLog
from fewtags.models.saved import SavedModel
from fewtags.presence.ridge import unit_length
from fewtags.train_settings import CacheConfig

ROWS_AT_ONCE = 4096
IN_MEMORY = 2**28  # values: so many features of a review stay in memory once they were used (1 GB)


@dataclass(frozen=True)
class ModelOutputs:
    features: Features  # one view: the average of each image's feature map
    num_images: int
    key: str = ""  # of all that they depend on; '' if it is not known

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


class UnitFeatures:
    """[N, D] features of unit length, used like a tensor (`presence.rows`) and read when they are used."""

    def __init__(self, outputs: ModelOutputs):
        self.outputs = outputs

    @cached_property
    def _kept(self) -> Tensor | None:
        """All of them, if they are few enough."""
        number = len(self)
        size = self.outputs.unit_features(np.arange(1)).shape[1] if number else 0
        if not number or number * size > IN_MEMORY:
            return None
        features = torch.empty(number, size)  # torch.cat would need the memory twice
        for rows in self.outputs.chunks():
            features[torch.from_numpy(rows)] = self.outputs.unit_features(rows)
        return features

    def __len__(self) -> int:
        return len(self.outputs)

    def __getitem__(self, rows: Tensor | slice | int) -> Tensor:
        if self._kept is not None:
            return self._kept[rows]
        if isinstance(rows, int):
            return self.outputs.unit_features(np.array([rows]))[0]
        places = np.arange(len(self))[rows] if isinstance(rows, slice) else rows.numpy()
        return self.outputs.unit_features(places)

    def split(self, size: int, /) -> Iterator[Tensor]:
        return (self[slice(first, first + size)] for first in range(0, len(self), size))

    def __matmul__(self, weights: Tensor, /) -> Tensor:
        if self._kept is not None:
            return self._kept @ weights
        return torch.cat([part @ weights for part in self.split(ROWS_AT_ONCE)])


def model_outputs(
    saved: SavedModel,
    annotations: Annotations,
    *,
    config: RunConfig | None = None,
    device: str = "auto",
    quiet: bool = False,
) -> ModelOutputs:
    """With the run's `config`, from the store that the run uses."""
    maker, log = maker_of(saved, config, device), RunLog(RunFolder(Path()), quiet)
    return ModelOutputs(kept_features(annotations, maker, pooled=True, log=log), len(annotations))


def wanted_outputs(saved: SavedModel, annotations: Annotations, config: RunConfig, device: str, quiet: bool) -> Wanted:
    return Wanted(annotations, maker_of(saved, config, device), True, RunLog(RunFolder(Path()), quiet))


def maker_of(saved: SavedModel, config: RunConfig | None, device: str) -> FeatureMaker:
    where = choose_device(device)
    backbone = saved.classifier.to(where).eval().backbone.all_frozen()
    precision = None if config is None else precision_of(config.train.precision, where)
    return FeatureMaker(backbone, saved.input, CacheConfig() if config is None else config.cache, where, precision)
