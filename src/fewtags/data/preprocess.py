"""From an image file to the backbone's square input: one place for training, prediction, pages and export."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import numpy as np
from PIL import Image
from pydantic import Field, model_validator

from fewtags.data.images import LARGEST_SIDE, open_resized
from fewtags.settings import Settings


class InputConfig(Settings):
    size: int = Field(224, ge=16, le=LARGEST_SIDE)
    """Side of the square image that the backbone sees; 448 in the paper."""
    resize: int | None = Field(None, ge=1, le=2 * LARGEST_SIDE)
    """Side images are first resized to, aspect ratio not kept; default: size * 8/7 (512 for 448)."""
    crops: list[int] | None = None
    """Crop sides, one drawn per training image; default: resize * 1, 7/8, 6/8, 5/8, 4/8 as in the paper."""
    flip: bool = True
    """Flip half of the training images horizontally."""
    augment: bool = True
    """Train on random crops and flips; otherwise on the whole image, as in evaluation."""
    keep_in_memory: bool | None = None
    """Cache the resized images in memory; default: if they take less than 2 GB."""

    @model_validator(mode="after")
    def _crops_fit(self) -> Self:
        wrong = [side for side in self.crop_sides if not 1 <= side <= self.first_side]
        if wrong:
            raise ValueError(f"crops of {wrong[0]} px do not fit images resized to {self.first_side} px")
        return self

    @property
    def first_side(self) -> int:
        return self.resize or round(self.size * 8 / 7)

    @property
    def crop_sides(self) -> list[int]:
        return self.crops or [round(self.first_side * eighths / 8) for eighths in (8, 7, 6, 5, 4)]


def read_square(path: str | Path, side: int) -> Image.Image:
    """The picture as a square, aspect ratio not kept, as in the paper. Raises BadImage.

    Without augmentation the network sees this at `InputConfig.size`; crops are taken from it at `first_side`.
    """
    return open_resized(path, (side, side))


def square(image: Image.Image, side: int) -> Image.Image:
    """The same as `read_square`, for an opened picture."""
    return image if image.size == (side, side) else image.resize((side, side), Image.Resampling.BICUBIC)


def random_crop_flip(image: Image.Image, config: InputConfig, rng: np.random.Generator) -> np.ndarray:
    """Crop a random square of one of the given sides, resize it to the input size, flip it with probability 1/2."""
    side = int(rng.choice(config.crop_sides))
    left, top = rng.integers(0, config.first_side - side + 1, size=2).tolist()
    box = (left, top, left + side, top + side)
    view = image.resize((config.size, config.size), Image.Resampling.BICUBIC, box=box)
    pixels = np.asarray(view)
    return pixels[:, ::-1] if config.flip and rng.random() < 0.5 else pixels
