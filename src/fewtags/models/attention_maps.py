"""Attention as a picture: where in an image each category was looked for."""

from __future__ import annotations

import numpy as np
from PIL import Image
from torch import Tensor

# From no attention to the most: black, purple, red, orange, pale yellow; readable in grey and by the colour-blind.
COLOURS = np.array([(0, 0, 4), (87, 16, 110), (188, 55, 84), (249, 142, 9), (252, 255, 164)], dtype=float)


def tells_where(attention: Tensor) -> bool:
    """Has the map [..., h, w] more than one place?"""
    return attention.shape[-1] * attention.shape[-2] > 1


def overlay(image: Image.Image, attention: Tensor, opacity: float = 0.55) -> Image.Image:
    """The image under a heat map of `attention` [h, w], scaled so that its largest value is the hottest colour."""
    heat = attention.detach().float().cpu().numpy()
    heat = (heat - heat.min()) / max(float(np.ptp(heat)), 1e-12)
    smooth = Image.fromarray(np.uint8(255 * heat)).resize(image.size, Image.Resampling.BICUBIC)
    return Image.blend(image.convert("RGB"), Image.fromarray(_coloured(np.asarray(smooth) / 255)), opacity)


def _coloured(heat: np.ndarray) -> np.ndarray:
    """[h, w] in 0..1 -> [h, w, 3] bytes."""
    stops = np.linspace(0, 1, len(COLOURS))
    return np.stack([np.interp(heat, stops, COLOURS[:, channel]) for channel in range(3)], axis=-1).astype(np.uint8)
