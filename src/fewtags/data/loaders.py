"""Batches of images, read by threads while the network runs.

The order depends only on seed and epoch, and every image comes exactly once per epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from fewtags import distributed
from fewtags.data.annotations import Annotations
from fewtags.data.dataset import Collate, ImageDataset, Loaded
from fewtags.data.prefetch import default_workers, in_order
from fewtags.data.preprocess import InputConfig
from fewtags.data.store import ImageStore, PreparedImages
from fewtags.errors import UserError

KEEP_BYTES = 2 * 1024**3
AHEAD = 2  # batches read ahead


class EpochBatches:
    """Batches of (epoch, row) for one epoch, starting at a given step; `start(epoch, step)` sets both.

    Rows are divided into batches of nearly equal size, so there is no short last batch. Of each batch,
    each process takes its share.
    """

    def __init__(self, num_rows: int, batch_size: int, *, shuffle: bool, seed: int = 0):
        self.num_rows, self.shuffle, self.seed = num_rows, shuffle, seed
        self.num_batches = max(1, -(-num_rows // batch_size))
        self.epoch, self.first_step = 0, 0

    def start(self, epoch: int, step: int = 0) -> None:
        self.epoch, self.first_step = epoch, step

    def __len__(self) -> int:
        return self.num_batches - self.first_step

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        rows = np.arange(self.num_rows)
        if self.shuffle:
            np.random.default_rng((self.seed, self.epoch)).shuffle(rows)
        for batch in np.array_split(rows, self.num_batches)[self.first_step :]:
            share = batch[distributed.rank() :: distributed.world_size()]
            yield [(self.epoch, int(row)) for row in share]


class ImageBatches:
    """Batches read from image files; `epoch(number, from_step)` gives them as Loaded."""

    def __init__(self, dataset: ImageDataset, sampler: EpochBatches, collate: Collate, workers: int):
        self.dataset, self.sampler, self.collate, self.workers = dataset, sampler, collate, workers

    @property
    def num_steps(self) -> int:
        return self.sampler.num_batches

    def epoch(self, number: int = 0, from_step: int = 0) -> Iterator[Loaded]:
        self.sampler.start(number, from_step)
        batches = list(self.sampler)
        keys = (key for batch in batches for key in batch)
        ahead = AHEAD * max(map(len, batches), default=1)
        with closing(in_order(self.dataset.__getitem__, keys, workers=self.workers, ahead=ahead)) as samples:
            for batch in batches:
                yield self.collate(list(islice(samples, len(batch))))


def image_batches(
    annotations: Annotations,
    input_config: InputConfig,
    *,
    batch_size: int = 32,
    workers: int | None = None,
    augment: bool,
    shuffle: bool | None = None,  # default: if augmented
    seed: int = 0,
    on_gpu: bool = False,
    store: str | None = None,
) -> ImageBatches:
    """Batches of the images of `annotations`, read by `workers` threads (default: one per core).

    What `store` has of them, as `fewtags prepare` made it, is taken from there.
    """
    side = input_config.first_side if augment else input_config.size
    prepared = None if store is None else prepared_images(Path(store), side, required=augment)
    keep = input_config.keep_in_memory
    if keep is None:
        keep = prepared is None and len(annotations) * side * side * 3 < KEEP_BYTES
    dataset = ImageDataset(annotations, input_config, augment=augment, seed=seed, keep=keep, prepared=prepared)
    sampler = EpochBatches(len(annotations), batch_size, shuffle=augment if shuffle is None else shuffle, seed=seed)
    collate = Collate(torch.from_numpy(annotations.labels), pin=on_gpu)
    return ImageBatches(dataset, sampler, collate, default_workers() if workers is None else workers)


def prepared_images(folder: Path, side: int, *, required: bool) -> PreparedImages | None:
    """Those of this side; None where the store has none and they are not required."""
    store = ImageStore.open(folder)
    found = store.of_side(side)
    if found is None and required:
        has = " and ".join(str(size) for size in store.sides)
        raise UserError(
            f"data.store={folder} has images of {has} px, and this run takes crops of {side} px; "
            f"prepare one with --size {round(side * 7 / 8)}, or leave data.store out."
        )
    return found
