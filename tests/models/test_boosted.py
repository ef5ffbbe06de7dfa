"""BoostLU's head against the class activation map written out."""

from __future__ import annotations

import pytest
import torch

from fewtags.contract import Batch, Problem
from fewtags.models.boosted import BoostedHead
from fewtags.models.heads import LinearHead

B, D, C = 6, 8, 3


def started(kind, **settings):
    torch.manual_seed(0)
    head = kind(kind.Config(**settings), D, C)
    head.initialise(Problem(tuple("abc"), torch.zeros(40, C, dtype=torch.int8)))
    if head.spec.needs_start:
        head.start([Batch(torch.rand(40, D, 4, 4), torch.zeros(40, C), torch.arange(40))], 40)
    with torch.no_grad():
        head.classifier.weight.normal_()
        head.classifier.bias.normal_()
    return head


def test_positive_scores_of_places_count_alpha_times():
    head = started(BoostedHead, standardise=False, alpha=5.0)
    maps = torch.randn(B, D, 4, 4)
    logits = head(maps).logits
    for b in range(B):
        for c in range(C):
            scores = [
                head.classifier.weight[c] @ maps[b, :, y, x] + head.classifier.bias[c]
                for y in range(4)
                for x in range(4)
            ]
            boosted = [5 * score if score > 0 else score for score in scores]
            assert logits[b, c].item() == pytest.approx(sum(boosted).item() / 16, abs=1e-4)


@pytest.mark.parametrize("standardise", [True, False])
def test_without_the_boost_it_is_the_linear_head(standardise):
    maps = torch.rand(B, D, 4, 4)
    boosted, linear = (
        started(BoostedHead, standardise=standardise, alpha=1.0),
        started(LinearHead, standardise=standardise),
    )
    linear.load_state_dict(boosted.state_dict())
    torch.testing.assert_close(boosted(maps).logits, linear(maps).logits)
    if standardise:
        torch.testing.assert_close(boosted(maps).prior, linear(maps).prior)
