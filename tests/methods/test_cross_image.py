"""L_csl against loops over pairs of images and categories."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fewtags.methods.cross_image import cross_image_loss, sampled_cross_image_loss


def pair_losses(features: Tensor, positive: Tensor) -> dict[int, list[Tensor]]:
    """Losses of all pairs i < j and categories, by how many of the two images show the category."""
    losses: dict[int, list[Tensor]] = {0: [], 1: [], 2: []}
    for i in range(len(features)):
        for j in range(i + 1, len(features)):
            for c in range(features.shape[1]):
                shown = int(positive[i, c]) + int(positive[j, c])
                cosine = F.cosine_similarity(features[i, c], features[j, c], dim=0)
                losses[shown].append(1 - cosine if shown == 2 else 1 + cosine)
    return losses


def mean_over_pairs(features: Tensor, positive: Tensor) -> Tensor:
    return torch.stack([loss for group in pair_losses(features, positive).values() for loss in group]).mean()


def case(rate: float = 0.4) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(6, 3, 5, dtype=torch.double, requires_grad=True), torch.rand(6, 3) < rate


@pytest.mark.parametrize("rate", [0.0, 0.4, 1.0])
def test_the_closed_form_is_the_mean_over_all_pairs(rate: float) -> None:
    features, positive = case(rate)
    written = mean_over_pairs(features, positive)
    loss = cross_image_loss(features, positive)
    torch.testing.assert_close(loss, written, rtol=0, atol=1e-12)
    ours, expected = (torch.autograd.grad(value, features)[0] for value in (loss, written))
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-12)


def test_a_zero_feature_has_cosine_zero_and_a_finite_gradient() -> None:
    features, positive = case()
    with torch.no_grad():
        features[0] = 0
    loss = cross_image_loss(features, positive)
    torch.testing.assert_close(loss, mean_over_pairs(features, positive))
    assert torch.autograd.grad(loss, features)[0].isfinite().all()


@pytest.mark.parametrize("loss", [cross_image_loss, sampled_cross_image_loss])
def test_a_single_image_has_no_pairs(loss) -> None:
    features = torch.randn(1, 3, 5, requires_grad=True)
    value = loss(features, torch.ones(1, 3, dtype=torch.bool))
    value.backward()
    assert value == 0


def test_the_sample_has_twice_as_many_random_and_as_many_hardest_of_each_kind() -> None:
    features, positive = case(0.25)
    losses = pair_losses(features, positive)
    count = len(losses[2])
    assert 0 < 2 * count < min(len(losses[0]), len(losses[1]))
    values = torch.stack(
        [sampled_cross_image_loss(features, positive, torch.Generator().manual_seed(s)) for s in range(2000)]
    )
    expected = torch.stack(losses[2]).sum()
    for kind in (0, 1):
        group = torch.stack(losses[kind])
        expected = expected + 2 * count * group.mean() + group.topk(count).values.sum()  # in expectation
    torch.testing.assert_close(values.mean(), expected / (7 * count), rtol=0.01, atol=0)


def test_without_a_positive_pair_the_sample_is_everything() -> None:
    features, positive = case(0.0)
    torch.testing.assert_close(sampled_cross_image_loss(features, positive), cross_image_loss(features, positive))
