from __future__ import annotations

import torch
from PIL import Image

from fewtags.models.attention_maps import overlay


def test_the_attended_corner_is_the_brightest() -> None:
    attention = torch.zeros(7, 7)
    attention[0, 6] = 0.9
    picture = overlay(Image.new("RGB", (70, 49), "grey"), attention)
    assert picture.size == (70, 49)
    assert sum(picture.getpixel((69, 0))) > sum(picture.getpixel((0, 48)))


def test_even_attention_is_drawn_too() -> None:
    assert overlay(Image.new("L", (8, 8)), torch.full((2, 2), 0.25)).mode == "RGB"
