"""What the fixed part of a head makes of each image, computed once instead of in every epoch.

It is in a file without a name next to the cached features: the system keeps as much of it in memory as there is room
for, and it is gone when the process ends, however it ends.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from fewtags import distributed
from fewtags.engine.evaluation import Batches
from fewtags.engine.features import SPARE, CachedBatches, cache_root, free_space
from fewtags.engine.row_file import read_places
from fewtags.engine.run import Run
from fewtags.models.classifier import Classifier

AT_ONCE = 128  # images: the memory that a batch takes is then used again by the next


def settle(run: Run, batches: Batches, title: str) -> Batches:
    """Batches of what `Head.settled` makes of cached maps; or the same ones, if it makes nothing or the disk has no
    room.

    Rows are computed in their order, so that they are the same after a resume. With several processes each would
    have to compute all of them.
    """
    if not (settles(run.model) and isinstance(batches, CachedBatches)) or distributed.world_size() > 1:
        return batches
    kept = SettledRows(batches.features.num_views, len(batches.labels), dict(batches.features.broken))
    with run.log.progress_bar(title, kept.num_views * kept.num_images, "images") as bar:
        for view in range(kept.num_views):
            for rows in torch.arange(kept.num_images).split(AT_ONCE):
                found = settled_rows(run, batches.features.rows(view, rows))
                if not kept.write(found, cache_root(run.config.cache)):
                    return batches
                bar.step(by=len(rows))
    return CachedBatches(kept, batches.labels, batches.sampler)


def settles(model: Classifier) -> bool:
    """Does nothing before the head's trained part change?"""
    frozen = model.backbone.num_frozen == len(model.backbone.stages) and not list(model.neck.parameters())
    return frozen and model.head.spec.settles


@torch.inference_mode()
def settled_rows(run: Run, maps: Tensor) -> Tensor:
    model = run.model
    return model.head.settled(model.feature_map(maps.to(run.device), are_maps=True).float()).cpu()


class SettledRows:
    """[views, N, K] float32, to be read like a feature cache."""

    def __init__(self, num_views: int, num_images: int, broken: dict[int, str]):
        self.num_views, self.num_images, self.broken = num_views, num_images, broken
        self.width = 0
        self.file: IO[bytes] | None = None

    def write(self, rows: Tensor, folder: Path) -> bool:
        """Behind those written before. False if there is no room, as is known before the first."""
        if self.file is None:
            self.width = rows.shape[1]
            if self.num_views * self.num_images * self.width * 4 > SPARE * free_space(folder):
                return False
            self.file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (open as long as the batches are used)
        try:
            self.file.write(rows.contiguous().numpy().data)
            self.file.flush()
        except OSError:
            self.file.close()
            return False
        return True

    def rows(self, view: int, index: Tensor) -> Tensor:
        """[B, K]"""
        assert self.file is not None
        found = read_places(self.file, view * self.num_images + index.numpy(), 4 * self.width)
        return torch.from_numpy(found).view(torch.float32)
