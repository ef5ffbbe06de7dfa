"""Images from disk to tensors: the paper's input pipeline, and the handling of unreadable files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fewtags.contract import Batch
from fewtags.data.annotations import Annotations
from fewtags.data.images import BadImage
from fewtags.data.preprocess import InputConfig, random_crop_flip, read_square
from fewtags.data.store import PreparedImages


class Sample(NamedTuple):
    image: np.ndarray | None  # [H, W, 3] uint8; None where the file cannot be read
    row: int
    problem: str = ""


@dataclass(frozen=True)
class Loaded:
    """A batch of the readable images, and what was wrong with the others."""

    batch: Batch | None  # None when no image of the batch could be read
    broken: dict[int, str]  # row -> reason


class ImageDataset:
    """Item (epoch, row) -> Sample. The augmentation depends on seed, epoch and row alone, so it is reproducible.

    Training images are resized to `first_side` and then augmented; the others are resized directly to the input size.
    Thread-safe.
    """

    def __init__(
        self,
        annotations: Annotations,
        config: InputConfig,
        *,
        augment: bool,
        seed: int,
        keep: bool,
        prepared: PreparedImages | None = None,  # of the side that is read
    ):
        self.annotations = annotations
        self.config = config
        self.augment = augment
        self.seed = seed
        self.kept: dict[int, Image.Image] | None = {} if keep else None
        self.prepared = prepared

    def __len__(self) -> int:
        return len(self.annotations)

    def __getitem__(self, key: tuple[int, int]) -> Sample:
        epoch, row = key
        return self.views(row, [epoch])[0]

    def views(self, row: int, epochs: Sequence[int]) -> list[Sample]:
        """The image as seen in each of these epochs; its file is opened once."""
        try:
            image = self._resized(row)
        except BadImage as error:
            return [Sample(None, row, str(error)) for _ in epochs]
        return [Sample(self._view(image, epoch, row), row) for epoch in epochs]

    def _view(self, image: Image.Image, epoch: int, row: int) -> np.ndarray:
        if not self.augment:
            return np.asarray(image)
        return random_crop_flip(image, self.config, np.random.default_rng((self.seed, epoch, row)))

    def _resized(self, row: int) -> Image.Image:
        if self.kept is not None and row in self.kept:
            return self.kept[row]
        image = self._read(row)
        if self.kept is not None:
            self.kept[row] = image
        return image

    def _read(self, row: int) -> Image.Image:
        path = self.annotations.path(row)
        if self.prepared is not None and (found := self.prepared.find(self.annotations.images[row], path)) is not None:
            return found
        return read_square(path, self.config.first_side if self.augment else self.config.size)


class Collate:
    """Samples -> Loaded, without the images that could not be read."""

    def __init__(self, labels: Tensor | None, pin: bool = False):
        self.labels = labels  # [N, C]; None if not needed
        self.pin = pin  # pinned memory: a GPU copies from it while it computes

    def __call__(self, samples: Sequence[Sample]) -> Loaded:
        broken = {sample.row: sample.problem for sample in samples if sample.image is None}
        images = [sample.image for sample in samples if sample.image is not None]
        if not images:
            return Loaded(None, broken)
        index = torch.tensor([sample.row for sample in samples if sample.image is not None])
        pixels = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2)  # [B, 3, H, W] uint8; the backbone normalises
        labels = torch.zeros(len(index), 0, dtype=torch.int8) if self.labels is None else self.labels[index]
        return Loaded(Batch(pixels.pin_memory() if self.pin else pixels, labels, index), broken)
