"""The queue against Eq. 6 written as loops over categories and entries."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fewtags.methods.feature_queue import FeatureQueue


def mean_cosine_as_written(remembered: list[list[Tensor]], features: Tensor, size: int | None) -> Tensor:
    """Mean cosine to each category's entries: over `size` places, the empty ones 0, or over the entries alone."""
    similarity = torch.zeros(features.shape[:2])
    for b, per_category in enumerate(features):
        for c, feature in enumerate(per_category):
            cosines = [float(F.cosine_similarity(feature, entry, dim=0)) for entry in remembered[c]]
            similarity[b, c] = sum(cosines) / (size or max(1, len(cosines)))
    return similarity


@pytest.mark.parametrize("fill", ["zeros", "occupied"])
def test_mean_cosine_matches_the_formula_through_filling_and_wrapping_around(fill: str) -> None:
    torch.manual_seed(0)
    queue, remembered = FeatureQueue(3, 4, 6, fill), [[], [], []]
    rate = torch.tensor([0.6, 0.2, 0.0])  # the last category has no positive at all
    for _ in range(6):
        features, positive = torch.randn(7, 3, 6), torch.rand(7, 3) < rate
        queue.add(features, positive)
        for c in range(3):
            remembered[c] = (remembered[c] + list(features[positive[:, c], c]))[-4:]
        expected = mean_cosine_as_written(remembered, features, 4 if fill == "zeros" else None)
        torch.testing.assert_close(queue.mean_cosine(features), expected, rtol=1e-4, atol=1e-5)
        assert queue.occupied().tolist() == [len(entries) / 4 for entries in remembered]


def test_the_oldest_entry_leaves_first() -> None:
    queue = FeatureQueue(1, 2, 3)
    for axis in (0, 1, 2):
        queue.add(torch.eye(3)[axis].view(1, 1, 3), torch.tensor([[True]]))
    kept = {tuple(entry.tolist()) for entry in queue.features[0]}
    assert kept == {(0, 1, 0), (0, 0, 1)}


def test_of_a_flood_the_newest_stay() -> None:
    queue = FeatureQueue(1, 2, 4)
    queue.add(torch.eye(4)[:, None], torch.ones(4, 1, dtype=torch.bool))
    kept = {tuple(entry.tolist()) for entry in queue.features[0]}
    assert kept == {(0, 0, 1, 0), (0, 0, 0, 1)}


def test_a_positive_meets_itself_and_empty_places_count_as_zero() -> None:
    queue, feature = FeatureQueue(1, 100, 5), torch.randn(1, 1, 5)
    queue.add(feature, torch.tensor([[True]]))
    torch.testing.assert_close(queue.mean_cosine(feature), torch.tensor([[0.01]]))


def test_an_empty_queue_and_a_zero_feature_give_zero() -> None:
    queue = FeatureQueue(2, 3, 4, fill="occupied")
    queue.add(torch.randn(1, 2, 4), torch.tensor([[True, False]]))
    assert queue.mean_cosine(torch.randn(1, 2, 4))[0, 1] == 0
    assert queue.mean_cosine(torch.zeros(1, 2, 4)).tolist() == [[0, 0]]


def test_the_whole_state_is_in_the_checkpoint() -> None:
    queue, copy = FeatureQueue(2, 3, 4), FeatureQueue(2, 3, 4)
    queue.add(torch.randn(5, 2, 4), torch.rand(5, 2) < 0.5)
    copy.load_state_dict(queue.state_dict())
    features = torch.randn(2, 2, 4)
    assert torch.equal(copy.mean_cosine(features), queue.mean_cosine(features))
