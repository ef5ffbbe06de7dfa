"""Nearly identical images are found, others are left alone."""

from __future__ import annotations

import torch

from fewtags.presence.bursts import burst_leaders


def some_features(number: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(number, 64, generator=generator).relu() + 0.1, dim=1)


def test_copies_are_found_wherever_they_are():
    features = some_features(5000)
    pairs = [(number, 4999 - number) for number in range(0, 400, 4)]
    generator = torch.Generator().manual_seed(1)
    for original, copy in pairs:
        features[copy] = features[original] + 0.004 * torch.randn(64, generator=generator)
    leaders = burst_leaders(torch.nn.functional.normalize(features, dim=1))
    found = sum(int(leaders[copy]) == original for original, copy in pairs)
    assert found >= 0.97 * len(pairs)
    assert int((leaders != torch.arange(5000)).sum()) == found  # and nothing else


def test_a_burst_is_around_its_leader_and_not_a_chain():
    """Ten steps on a circle, each near to the next: one long chain, but no image far from its leader."""
    background = some_features(300)
    angles = torch.linspace(0, 1.5, 10)
    a, b = background[0] - background.mean(0), background[1] - background.mean(0)
    steps = background.mean(0) + angles.cos()[:, None] * a + angles.sin()[:, None] * b
    features = torch.cat([steps, background[2:]])
    leaders = burst_leaders(features, similarity=0.9)[:10]
    assert len(leaders.unique()) >= 3
    standard = (features - features.mean(0)) / features.std(0, correction=0)
    directions = torch.nn.functional.normalize(standard, dim=1)
    assert all(directions[row] @ directions[leader] >= 0.9 for row, leader in enumerate(leaders.tolist()))


def test_where_everything_looks_alike_nearly_the_same_means_nearer():
    """Two kinds of images that a weak backbone hardly tells apart are not two large bursts."""
    generator = torch.Generator().manual_seed(2)
    kinds = torch.randn(2, 64, generator=generator)
    features = kinds[torch.arange(600) % 2] + 0.25 * torch.randn(600, 64, generator=generator)
    leaders = burst_leaders(torch.nn.functional.normalize(features, dim=1))
    assert (leaders == torch.arange(600)).float().mean() > 0.95


def test_few_images():
    assert burst_leaders(some_features(1)).tolist() == [0]
    assert burst_leaders(some_features(2)).tolist() == [0, 1]
