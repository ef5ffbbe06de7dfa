"""The first labels of a category that nobody labelled move its probabilities, and never to certainty."""

from __future__ import annotations

import torch

from fewtags.models.discriminant import Discriminant, DiscriminantSums


def test_the_first_positives_of_a_category():
    generator = torch.Generator().manual_seed(0)
    truth = torch.rand(300, 5, generator=generator) < 0.3
    features = 2 * truth.float() @ torch.randn(5, 32, generator=generator) + torch.randn(300, 32, generator=generator)
    labels = (truth & (torch.rand(300, 5, generator=generator) < 0.5)).to(torch.int8)
    labels[:, 3] = 0
    model = Discriminant.of(DiscriminantSums.of(features, labels), features, labels)
    for row in truth[:, 3].nonzero()[:5, 0].tolist():
        model.relabel(features[row], 3, 1)
        found = model.probabilities(features)[:, 3]
        assert found.isfinite().all()
        assert found.max() < 0.99
        assert found.min() > 0
        assert found[truth[:, 3]].mean() > 3 * found[~truth[:, 3]].mean()
