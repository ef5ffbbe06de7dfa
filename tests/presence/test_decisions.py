"""What decisions teach about a category: one minimum, found from everywhere."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fewtags.presence.decisions import PRIOR, PRIOR_OF_BIAS, UNDECIDED, Kept, Lesson, fit_lesson


def decided(number=20, dim=6, seed=0):
    """Inputs of length about 1, decisions, and log-odds before; and a sample that keeps the rest in place."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(number, dim, generator=generator) / dim**0.5
    present = inputs[:, 0] > 0.1
    sample = torch.randn(50, dim, generator=generator) / dim**0.5
    odds, sample_odds = (torch.randn(each, generator=generator) - 2 for each in (number, 50))
    return inputs, present, odds, Kept(sample, 2.0), sample_odds


def at(lesson):
    return torch.cat([lesson.weights, lesson.bias[None]])


def assert_same(a, b, tolerance=2e-3):
    torch.testing.assert_close(at(a), at(b), rtol=tolerance, atol=tolerance)


def test_a_lesson_is_the_minimum_that_another_optimiser_finds():
    inputs, present, odds, kept, sample_odds = decided()
    w, b = torch.zeros(6, requires_grad=True), torch.zeros((), requires_grad=True)
    optimizer = torch.optim.LBFGS([w, b], lr=1, max_iter=200, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        told = F.binary_cross_entropy_with_logits(odds + inputs @ w + b, present.float(), reduction="sum")
        rest = F.binary_cross_entropy_with_logits(
            sample_odds + kept.inputs @ w + b, sample_odds.sigmoid(), reduction="sum"
        )
        loss = told + UNDECIDED * kept.stand_for * rest
        loss = loss + PRIOR / 2 * w.square().sum() + PRIOR_OF_BIAS / 2 * b.square()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert_same(kept.learn(inputs, present, odds, sample_odds), Lesson(w.detach(), b.detach()))


@pytest.mark.parametrize("size", [1.0, 30.0])
def test_the_minimum_is_the_same_whatever_the_start(size):
    inputs, present, odds, kept, sample_odds = decided()
    from_zero = kept.learn(inputs, present, odds, sample_odds)
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        start = Lesson(size * torch.randn(6, generator=generator), size * torch.randn((), generator=generator))
        assert_same(kept.learn(inputs, present, odds, sample_odds, start), from_zero)


def test_the_order_of_decisions_does_not_matter():
    inputs, present, odds, kept, sample_odds = decided()
    back = kept.learn(inputs.flip(0), present.flip(0), odds.flip(0), sample_odds)
    assert_same(kept.learn(inputs, present, odds, sample_odds), back)


def test_an_undone_decision_leaves_nothing():
    """Learning goes on from the lesson that had it, and ends where it would have without."""
    inputs, present, odds, kept, sample_odds = decided()
    with_it = kept.learn(inputs, present, odds, sample_odds)
    without = kept.learn(inputs[:-3], present[:-3], odds[:-3], sample_odds)
    assert not torch.allclose(at(with_it), at(without), atol=0.01)
    assert_same(kept.learn(inputs[:-3], present[:-3], odds[:-3], sample_odds, with_it), without)


def test_without_decisions_nothing_is_learned():
    _, _, _, kept, sample_odds = decided()
    nothing = torch.zeros(0)
    lesson = kept.learn(torch.zeros(0, 6), nothing, nothing, sample_odds)
    torch.testing.assert_close(at(lesson), torch.zeros(7), atol=1e-5, rtol=0)


def test_a_decision_moves_its_image_and_those_like_it():
    inputs, _, odds, kept, sample_odds = decided()
    for present in (True, False):
        lesson = kept.learn(inputs[:1], torch.tensor([present]), odds[:1], sample_odds)
        sign = 1 if present else -1
        assert sign * float(lesson(inputs[:1])) > 0
        assert sign * float(lesson(inputs[:1]) - lesson(-inputs[:1])) > 0


def test_a_large_sample_keeps_the_rest_in_place():
    inputs, present, odds, kept, sample_odds = decided()
    few, many = (
        Kept(kept.inputs, number).learn(inputs, present, odds, sample_odds)(kept.inputs).abs().mean()
        for number in (1.0, 100.0)
    )
    assert many < 0.5 * few


@pytest.mark.parametrize("inputs", [torch.zeros(4, 3), torch.ones(4, 3), torch.zeros(4, 0), 1e4 * torch.eye(4, 3)])
@pytest.mark.parametrize("odds", [0.0, 1e6, -torch.inf, torch.nan])
def test_inputs_and_log_odds_that_say_nothing_give_finite_lessons(inputs, odds):
    """Zero, constant, none, huge: a decision that is stored must not make its tag unopenable."""
    lesson = fit_lesson(inputs, torch.tensor([1.0, 0, 1, 0]), torch.ones(4), torch.full((4,), odds))
    assert at(lesson).isfinite().all()
