"""From evidence to log-odds: the optimum by another optimiser, priors, and what is known of how labels came to be."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fewtags.labels import ABSENT, PRESENT
from fewtags.presence.observation import bent
from fewtags.presence.regression import (
    HABIT_SPREADS,
    OWN_INTERCEPT,
    OWN_SLOPE,
    USUAL_SLOPE,
    Cases,
    Prior,
    Shared,
    _Newton,
    fit_categories,
    rank_bins,
    rank_edges,
    rank_places,
    share_of,
    share_of_others,
)


def made(known, num_images=3000, num_categories=8, slope=2.2, intercept=-4.0, seed=0):
    """Evidence [N, C, 1] of spread 1, and labels: present by bent(slope * evidence + intercept), known with this
    probability, one for all or one per category."""
    generator = torch.Generator().manual_seed(seed)
    evidence = torch.randn(num_images, num_categories, 1, generator=generator)
    chance = bent(slope * evidence[..., 0] + intercept).sigmoid()
    present = torch.rand(chance.shape, generator=generator) < chance
    shown = torch.rand(present.shape, generator=generator) < torch.as_tensor(known)
    return evidence, present, (present & shown).to(torch.int8)


def all_cases(evidence, labels):
    """Every label by itself."""
    states = torch.stack([labels == PRESENT, labels == 0, labels * 0 > 1, labels == ABSENT], dim=-1)
    return Cases(evidence.double(), states.double())


def some_cases(evidence, labels):
    """Positives each for itself; of the others some stand for all."""
    known = labels == PRESENT
    place = (known.cumsum(0) - 1)[known]
    shape = (int(known.sum(0).max()), labels.shape[1])
    positives, number = torch.zeros(*shape, evidence.shape[-1]), torch.zeros(shape)
    column = known.nonzero()[:, 1]
    positives[place, column], number[place, column] = evidence[known], 1.0
    return Cases.of(positives, number, evidence, labels)


def objective(cases, theta, shared, prior, habit_spread, clarity):
    """Log likelihood and priors as they are defined, state by state."""
    odds = bent(theta[:, 0] + (cases.evidence * theta[:, 1:-1]).sum(-1))
    is_known = theta[:, -1] + clarity * odds
    P, e = odds.sigmoid(), is_known.sigmoid()
    present, unknown, found, absent = cases.counts.unbind(-1)
    value = (present * (P * e).log() + unknown * (1 - P * e).log() + found * (P * (1 - e)).log()).sum()
    value = value + (absent * F.logsigmoid(-odds)).sum()
    own = torch.tensor([OWN_INTERCEPT, OWN_SLOPE, habit_spread])
    return (
        value - ((theta - shared) / own).square().sum() / 2 - ((shared - prior.mean) / prior.spread).square().sum() / 2
    )


def by_lbfgs(cases, prior, habit_spread, clarity):
    shared = prior.mean.clone().requires_grad_()
    theta = prior.mean.repeat(cases.counts.shape[1], 1).requires_grad_()
    optimizer = torch.optim.LBFGS([theta, shared], lr=1, max_iter=300, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        loss = -objective(cases, theta, shared, prior, habit_spread, clarity)
        loss.backward()
        return loss

    optimizer.step(closure)
    return theta.detach(), shared.detach()


@pytest.mark.parametrize(("habit_spread", "clarity"), [(0.1, 0.0), (1.0, 0.2)])
def test_newton_finds_the_optimum_that_another_optimiser_finds(habit_spread, clarity):
    evidence, present, labels = made(0.4, 600, 3)
    labels = torch.where(~present & (evidence[..., 0] > 1), ABSENT, labels)  # some absences are known
    cases, prior = all_cases(evidence, labels), Prior.of([USUAL_SLOPE], 0.2, 3)
    fit = _Newton(cases, prior, *(torch.tensor([each], dtype=torch.float64) for each in (habit_spread, clarity)))
    fit.run()
    theta, shared = by_lbfgs(cases, prior, habit_spread, clarity)
    best = objective(cases, theta, shared, prior, habit_spread, clarity)
    mine = objective(cases, fit.theta[0], fit.shared[0], prior, habit_spread, clarity)
    assert float(mine) == pytest.approx(float(best), abs=0.01)
    assert float(fit.value(fit.theta, fit.shared)) == pytest.approx(float(mine), abs=1e-6)
    torch.testing.assert_close(fit.theta[0], theta, rtol=0.05, atol=0.05)


def test_pairs_of_spread_and_clarity_fitted_at_once_are_those_fitted_alone():
    evidence, _, labels = made(0.4, 400, 3)
    cases, prior = all_cases(evidence, labels), Prior.of([USUAL_SLOPE], 0.2, 3)
    spread, clarity = torch.tensor([0.1, 1.0]).double(), torch.tensor([0.0, 0.2]).double()
    both = _Newton(cases, prior, spread, clarity)
    both.run()
    for place in range(2):
        alone = _Newton(cases, prior, spread[place : place + 1], clarity[place : place + 1])
        alone.run()
        torch.testing.assert_close(both.theta[place], alone.theta[0], rtol=0.02, atol=0.02)


def test_a_category_of_which_nothing_is_said_is_what_all_share():
    evidence, _, labels = made(0.5, 300, 4)
    cases = all_cases(evidence, labels)
    cases.counts[:, 2] = 0
    shared = Shared(torch.tensor([-3.0, 1.7, -0.4]).double(), 0.4, 0.1)
    theta = fit_categories(cases, shared)
    torch.testing.assert_close(theta[2], shared.mean)
    assert ((theta - shared.mean).abs().amax(1) > 0.01).tolist() == [True, True, False, True]


def test_categories_with_a_label_at_most_are_as_rare_as_their_labels_say():
    """As many of them are expected to be known as are, and half a label: counted one by one."""
    evidence, _, labels = made(0.3, num_images=200, num_categories=12)
    labels[:] = 0
    labels[[3, 50], [1, 7]] = PRESENT
    cases, shared = all_cases(evidence, labels), Shared(torch.tensor([1.0, 2.0, -1.0]).double(), 0.4, 0.1)
    others = share_of_others(cases, shared)
    assert torch.equal(others.mean[1:], shared.mean[1:])
    expected = 0.0
    for one in evidence.flatten().double():
        odds = bent(others.mean[0] + others.mean[1] * one)
        expected += float(odds.sigmoid() * (others.mean[2] + 0.1 * odds).sigmoid())
    assert expected == pytest.approx(2.5, rel=1e-4)
    labels[:100] = PRESENT  # more than those that share could have: not more frequent than they are
    assert float(share_of_others(all_cases(evidence, labels), shared).mean[0]) == pytest.approx(1.0)


def test_without_any_known_label_all_share_the_prior():
    evidence, _, labels = made(0.5, 100, 4)
    prior = Prior.of([USUAL_SLOPE], 0.0, 4)
    shared = share_of(all_cases(evidence, labels * 0), prior)
    assert torch.equal(shared.mean, prior.mean)


def found_proportion(evidence, labels):
    """The share of presences that are known, over the images; and what was expected before the labels were seen."""
    cases, tags = some_cases(evidence, labels), float((labels == PRESENT).sum(1).float().mean())
    prior = Prior.of([USUAL_SLOPE], tags, labels.shape[1])
    shared = share_of(cases, prior)
    theta = fit_categories(cases, shared)
    odds = bent(theta[:, 0] + theta[:, 1] * evidence[..., 0].double())
    chance, known = odds.sigmoid(), (theta[:, -1] + shared.clarity * odds).sigmoid()
    return float((chance * known).sum() / chance.sum()), float(prior.mean[-1].sigmoid())


@pytest.mark.parametrize("known", [0.2, 0.5])
def test_the_known_proportion_of_a_coin_is_recovered(known):
    """Where images have about as many tags as is usual: 1.23, and 1.26 are for ten categories."""
    evidence, _, labels = made(known, 3000, 10, slope=3.0, intercept=-3.3)
    assert found_proportion(evidence, labels)[0] == pytest.approx(known, rel=0.2)


def test_labels_move_a_wrong_expectation_towards_the_truth():
    """These images have 0.57 tags, less than half of what is usual, so too many are expected to be missing."""
    evidence, _, labels = made(0.5, 3000, 10)
    found, expected = found_proportion(evidence, labels)
    assert expected < 0.25
    assert expected + 0.05 < found < 0.55


def test_a_given_known_proportion_stays():
    evidence, _, labels = made(0.5)
    shared = share_of(some_cases(evidence, labels), Prior.of([USUAL_SLOPE], 0.5, 8), 0.3)
    assert float(shared.mean[-1].sigmoid()) == pytest.approx(0.3, abs=0.01)
    assert shared.clarity == 0


def test_habits_that_differ_are_found():
    """Each category has its own share of known presences; a coin has one for all."""
    shares = torch.linspace(0.08, 0.92, 12)
    spread = {}
    for name, known in (("coin", 0.5), ("habits", shares)):
        evidence, _, labels = made(known, 4000, 12, slope=3.0)
        cases = some_cases(evidence, labels)
        shared = share_of(cases, Prior.of([USUAL_SLOPE], 0.7, 12))
        spread[name] = shared.habit_spread
        habits = fit_categories(cases, shared)[:, -1]
    assert HABIT_SPREADS[0] <= spread["coin"] < spread["habits"] <= HABIT_SPREADS[-1]
    assert float(torch.corrcoef(torch.stack([habits.float(), shares.logit()]))[0, 1]) > 0.8


# --- cases ---


def test_a_few_labels_of_each_bin_stand_for_all():
    evidence, present, labels = made(0.5, 2000, 5)
    labels = torch.where(~present & (evidence[..., 0] < -1), ABSENT, labels)
    cases = some_cases(evidence, labels)
    assert len(cases.counts) < 500
    total = cases.counts.sum(0)
    torch.testing.assert_close(total[:, 0], (labels == PRESENT).sum(0).double())
    torch.testing.assert_close(total.sum(1), torch.full((5,), 2000.0).double(), rtol=1e-6, atol=1e-3)
    torch.testing.assert_close(total[:, 3], (labels == ABSENT).sum(0).double(), rtol=0.15, atol=5.0)
    prior = Prior.of([USUAL_SLOPE], 0.5, 5)
    few, many = (fit_categories(each, share_of(each, prior, 0.5)) for each in (cases, all_cases(evidence, labels)))
    torch.testing.assert_close(few, many, rtol=0.1, atol=0.1)


@pytest.mark.parametrize("number", [1, 5, 16, 17, 3000])
def test_bins_hold_every_rank_once_and_each_has_who_stands_for_it(number):
    edges, bins = rank_edges(number), rank_bins(number)
    assert edges[0] == 0
    assert edges[-1] == number
    for place, (first, last) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)):
        assert (bins[first:last] == place).all()
    places, of_places = rank_places(number)
    assert torch.equal(bins[places], of_places)
    assert set(of_places.tolist()) == set(bins.tolist())
