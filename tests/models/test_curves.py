"""What is special where each image has one known tag."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from fewtags.labels import PRESENT
from fewtags.models.curves import has_one_tag_each, one_tag_likelihood


def by_counting(chances, labels):
    """The same by looking at everything that an image may show."""
    value = torch.zeros(())
    for chance, label in zip(chances, labels, strict=True):
        as_known, any_present = 0.0, 0.0
        for shown in product((0, 1), repeat=len(chance)):
            shown = torch.tensor(shown)
            probability = float(torch.where(shown == 1, chance, 1 - chance).prod())
            any_present += probability * bool(shown.any())
            if bool(shown[label == PRESENT].all()):
                as_known += probability / int(shown.sum())
        value += torch.tensor(as_known / any_present).log()
    return float(value)


def test_the_likelihood_of_the_tag_that_is_known_is_that_of_one_drawn_from_all_present():
    chances = torch.rand(6, 5, generator=torch.Generator().manual_seed(0)).double()
    labels = torch.zeros(6, 5, dtype=torch.int8)
    labels[torch.arange(6), torch.tensor([0, 4, 2, 2, 1, 3])] = PRESENT
    assert one_tag_likelihood(chances, labels) == pytest.approx(by_counting(chances, labels), rel=1e-6)


def test_images_without_a_known_tag_tell_nothing():
    chances = torch.full((3, 4), 0.3)
    labels = torch.zeros(3, 4, dtype=torch.int8)
    labels[0, 1] = PRESENT
    assert one_tag_likelihood(chances, labels) == pytest.approx(one_tag_likelihood(chances[:1], labels[:1]))


def test_one_tag_each_is_one_and_never_two():
    labels = torch.eye(4, dtype=torch.int8).repeat(5, 1)
    assert has_one_tag_each(labels)
    labels[0, 1] = PRESENT
    assert not has_one_tag_each(labels)
    labels[0] = 0
    assert has_one_tag_each(labels)  # one image of twenty shows nothing
    labels[:4] = 0
    assert not has_one_tag_each(labels)
