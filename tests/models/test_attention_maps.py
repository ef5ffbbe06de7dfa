from __future__ import annotations

import torch
from PIL import Image
from torch import Tensor, nn

from fewtags.contract import Outputs
from fewtags.models.attention_maps import evidence_maps, is_informative, overlay


class Pooled(nn.Module):
    """Two channels, two categories: the logit of each is the average of its channel."""

    def feature_map(self, images: Tensor) -> Tensor:
        return images

    def head(self, maps: Tensor) -> Outputs:
        return Outputs(maps.mean((2, 3)))


def test_evidence_is_where_the_category_gets_its_logit_from() -> None:
    maps = torch.zeros(2, 2, 3, 3)
    maps[0, 0, 0, 2], maps[0, 1, 2, 0] = 9.0, 18.0  # the first category top right, the second bottom left
    maps[1, 1, 1, 1], maps[1, 1, 0, 0] = 9.0, -9.0
    with torch.inference_mode():
        evidence = evidence_maps(Pooled(), maps, torch.tensor([[0, 1], [1, 0]]))  # type: ignore[arg-type]
    assert evidence.shape == (2, 2, 3, 3)
    expected = torch.zeros(2, 2, 3, 3)
    expected[0, 0, 0, 2], expected[0, 1, 2, 0], expected[1, 0, 1, 1] = 1.0, 2.0, 1.0  # what speaks against is none
    torch.testing.assert_close(evidence, expected)


def test_an_even_map_tells_nothing() -> None:
    assert is_informative(torch.tensor([[0.0, 1.0]]))
    assert not is_informative(torch.tensor([[0.7]]))
    assert not is_informative(torch.zeros(3, 3))


def test_the_attended_corner_is_the_brightest() -> None:
    attention = torch.zeros(7, 7)
    attention[0, 6] = 0.9
    picture = overlay(Image.new("RGB", (70, 49), "grey"), attention)
    assert picture.size == (70, 49)
    assert sum(picture.getpixel((69, 0))) > sum(picture.getpixel((0, 48)))


def test_even_attention_colours_nothing_more_than_the_rest() -> None:
    """No place is looked at more than another: one colour, that of no attention, over the whole picture."""
    picture = overlay(Image.new("L", (8, 6), 200), torch.full((2, 2), 0.25))
    assert (picture.mode, picture.size) == ("RGB", (8, 6))
    assert len(set(picture.get_flattened_data() if hasattr(picture, "get_flattened_data") else picture.getdata())) == 1
    assert max(picture.getpixel((3, 3))) < 200
