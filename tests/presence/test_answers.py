"""What answers teach: the prior before the first one, the same in any order, and the truth in the end."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from fewtags.presence.answers import (
    CENTRE,
    DOUBT,
    OFFSET,
    OWN_OFFSET,
    SLOPE,
    TAIL,
    TAIL_AT,
    USUAL_DOUBT,
    USUAL_TAIL,
    Answers,
    Correction,
    Shift,
    log1mexp,
)
from fewtags.presence.observation import Observation

HABITS = torch.tensor([-4.0, 0.0, 2.5])
SAME = torch.zeros(3)  # habits


def shift(offset, slope=0.0, tail=0.0):
    return Shift(torch.tensor(offset).double(), torch.tensor(slope).double(), torch.tensor(tail).double())


def answered(number, offset=1.0, slope=0.1, tail=USUAL_TAIL, num_categories=3, seed=0):
    """Log-odds of unknown labels, their categories, and answers whose truth is corrected by these."""
    generator = torch.Generator().manual_seed(seed)
    odds = 2 * torch.randn(number, generator=generator) - 2
    category = torch.randint(0, num_categories, (number,), generator=generator)
    chance = (odds + offset + slope * (odds - CENTRE) + tail * (odds - TAIL_AT).clamp(min=0)).sigmoid()
    return odds, category, torch.rand(number, generator=generator) < chance


@pytest.mark.parametrize("clarity", [0.0, 0.2])
def test_a_correction_of_nothing_changes_nothing(clarity):
    odds = torch.linspace(-12, 8, 41)[:, None].expand(-1, 3)
    answers = Answers(Observation(HABITS, clarity), Shift(torch.zeros(3), torch.zeros(()), torch.zeros(())))
    torch.testing.assert_close(answers.present(odds), odds, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(answers.present(odds).sigmoid(), odds.sigmoid(), rtol=1e-5, atol=1e-5)
    assert torch.equal(answers.if_unknown(odds), answers.observation.if_unknown(odds))


def test_presence_is_known_or_unknown_and_present():
    """P = s + (1 - s) q, with s = P(known) by the labels, and q as the answers have it."""
    odds = torch.linspace(-8, 5, 27).double()[:, None].expand(-1, 3)
    answers = Answers(Observation(HABITS.double(), 0.1), shift([0.5, -1.0, 0.0], 0.2, -0.4))
    s = odds.sigmoid() * answers.observation.known(odds)
    q = answers.if_unknown(odds).sigmoid()
    torch.testing.assert_close(answers.present(odds).sigmoid(), s + (1 - s) * q)
    torch.testing.assert_close(answers.present(odds[:, 1], 1), answers.present(odds)[:, 1])
    before = answers.observation.if_unknown(odds)[:, 1]
    for place, by_labels in enumerate(before.tolist()):
        tail = 0.4 * (by_labels - TAIL_AT) if by_labels > TAIL_AT else 0.0
        expected = by_labels - 1 + 0.2 * (by_labels - CENTRE) - tail
        assert float(answers.if_unknown(odds)[place, 1]) == pytest.approx(expected)


def test_certain_labels_stay_finite():
    odds = torch.tensor([-200.0, -40.0, 40.0, 200.0])[:, None].expand(-1, 3)
    answers = Answers(Observation(HABITS, 0.2), shift([3.0] * 3, 0.3, -0.9))
    assert answers.present(odds).isfinite().all()
    assert log1mexp(torch.tensor([0.0, -1e-30, -1e30])).isfinite().all()


def test_the_order_of_answers_does_not_matter():
    odds, category, present = answered(60)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(1))
    first = Correction.of(odds, category, present, SAME)
    second = Correction.of(odds[order], category[order], present[order], SAME)
    torch.testing.assert_close(first.mean, second.mean, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(first.covariance, second.covariance, rtol=1e-8, atol=1e-8)


def test_many_answers_find_what_is_true():
    truth = {"offset": 1.5, "slope": -0.2}
    off = []
    for number in (0, 40, 20_000):
        correction = Correction.of(*answered(number, **truth), SAME)
        off.append(float((correction.shift.offset - truth["offset"]).abs().mean()))
    assert off[0] == 1.5
    assert off[2] < 0.1 < off[1] < off[0]
    assert float(correction.shift.slope) == pytest.approx(-0.2, abs=0.05)


def test_the_answers_of_one_category_say_less_about_the_others():
    odds, category, present = answered(300, offset=2.0)
    mine = category == 0
    offset = Correction.of(odds[mine], category[mine], present[mine], SAME).shift.offset
    assert 0 < float(offset[1]) == pytest.approx(float(offset[2]))
    assert float(offset[0]) > float(offset[1]) + 0.3


def test_answers_about_the_surest_say_little_about_the_rest():
    """Labels that are sure (log-odds of 4 to 8) and right nine times of ten: the surest are less sure, and the unsure
    nearly as likely as before."""
    odds, category = torch.linspace(4, 8, 400), torch.arange(400) % 3
    corrected = Correction.of(odds, category, torch.arange(400) % 10 > 0, SAME).shift
    assert float(corrected(torch.tensor([[6.0] * 3])).mean()) == pytest.approx(math.log(9), abs=0.3)
    unsure = torch.zeros(1, 3)
    assert float((corrected(unsure) - unsure).abs().max()) < 0.5


def test_a_label_that_looks_surer_is_never_less_likely():
    odds = torch.linspace(2, 12, 2000)
    corrected = Correction.of(odds, torch.arange(2000) % 3, odds < 6, SAME).shift  # a deceptive look
    assert (corrected(odds[:, None].expand(-1, 3)).diff(dim=0) > 0).all()


def test_the_correction_is_at_the_top_of_its_posterior():
    """Where the derivative of the log likelihood and the log priors, by autograd, is 0; the covariance is the inverse
    of less the second."""
    odds, category, present = answered(80)
    correction = Correction.of(odds, category, present, HABITS)
    prior = torch.tensor([0, 0, USUAL_TAIL, USUAL_DOUBT, 0, 0, 0], dtype=torch.float64)
    spread = torch.tensor([OFFSET, SLOPE, TAIL, DOUBT, *[OWN_OFFSET] * 3], dtype=torch.float64)
    habits = (HABITS - HABITS.mean()).double()

    def posterior(at):
        said = odds.double()
        shared = at[0] + at[1] * (said - CENTRE) + at[2] * F.relu(said - TAIL_AT) + at[3] * habits[category]
        logits = said + shared + at[4:][category]
        likelihood = -F.binary_cross_entropy_with_logits(logits, present.double(), reduction="sum")
        return likelihood - ((at - prior) / spread).square().sum() / 2

    top = correction.mean.clone().requires_grad_()
    gradient = torch.autograd.grad(posterior(top), top)[0]
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), atol=1e-5, rtol=0)
    curvature = -torch.autograd.functional.hessian(posterior, correction.mean)
    torch.testing.assert_close(correction.covariance, torch.linalg.inv(curvature), rtol=1e-4, atol=1e-6)


def spread_of_draws(correction):
    offset, slope, tail = (torch.stack(part).std(0) for part in zip(*correction.draws(1000), strict=True))
    return offset, float(slope), float(tail)


def test_without_answers_draws_have_the_spread_of_the_prior():
    nothing = torch.zeros(0)
    offset, slope, tail = spread_of_draws(Correction.of(nothing, nothing.long(), nothing, SAME))
    torch.testing.assert_close(offset, torch.full((3,), (OFFSET**2 + OWN_OFFSET**2) ** 0.5), rtol=0.08, atol=0)
    assert (slope, tail) == pytest.approx((SLOPE, TAIL), rel=0.08)


def test_answers_narrow_the_draws():
    few, many = (spread_of_draws(Correction.of(*answered(number), SAME))[0] for number in (30, 3000))
    assert (many < 0.5 * few).all()


@pytest.mark.parametrize("present", [True, False])
def test_answers_that_are_all_the_same_stay_finite(present):
    odds, category, _ = answered(500)
    correction = Correction.of(odds, category, torch.full((500,), present), SAME)
    assert correction.mean.isfinite().all()
    assert bool((correction.shift.offset > 0).all()) is present


def answers_about_habits(are_real, number=1500, num_categories=30):
    """Tags whose habits seem to differ. If they do not, a tag seems to be known less often because it is present less
    often than its scores say, so its log-odds are too high by the difference."""
    generator = torch.Generator().manual_seed(3)
    habits = torch.randn(num_categories, generator=generator)
    odds, category, _ = answered(number, num_categories=num_categories)
    chance = (odds + (0.0 if are_real else 1.0) * habits[category]).sigmoid()
    return Correction.of(odds, category, torch.rand(number, generator=generator) < chance, habits)


def test_answers_tell_habits_from_looks():
    """`doubt` is 0 where taggers differ in habits, and 1 where only scores do; answers about some tags tell."""
    real, apparent = (float(answers_about_habits(are_real).mean[3]) for are_real in (True, False))
    assert real == pytest.approx(0.0, abs=0.3)
    assert apparent == pytest.approx(1.0, abs=0.3)
