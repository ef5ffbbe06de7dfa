"""How presences come to be known: the table of states, Bayes' rule, and derivatives."""

from __future__ import annotations

import pytest
import torch

from fewtags.labels import ABSENT, PRESENT, UNKNOWN
from fewtags.presence.observation import (
    BEND,
    BEND_AT,
    Observation,
    bent,
    derivatives,
    known_absences,
    log_likelihood,
    rise,
    soften,
)

ODDS = torch.linspace(-9, 6, 31, dtype=torch.float64)
KNOWN, NOT_KNOWN, FOUND_PRESENT, FOUND_ABSENT = torch.eye(4, dtype=torch.float64)


def probability(state, odds, known):
    return log_likelihood(odds, known, state.expand(*odds.shape, 4)).exp()


@pytest.mark.parametrize("known", [-4.0, 0.0, 3.0])
def test_the_probabilities_of_all_states_sum_to_one(known):
    """Unknown is what is found to be present or absent once somebody looks."""
    r = torch.full_like(ODDS, known)
    is_known, unknown, present, absent = (
        probability(state, ODDS, r) for state in (KNOWN, NOT_KNOWN, FOUND_PRESENT, FOUND_ABSENT)
    )
    torch.testing.assert_close(is_known + unknown, torch.ones_like(ODDS))
    torch.testing.assert_close(present + absent, unknown)
    torch.testing.assert_close(is_known, ODDS.sigmoid() * r.sigmoid())


def test_an_unknown_label_is_present_by_bayes_rule():
    observation = Observation(torch.tensor([-3.0, 0.0, 2.0]).double(), 0.2)
    odds = ODDS[:, None].expand(-1, 3)
    P, e = odds.sigmoid(), observation.known(odds)
    expected = P * (1 - e) / (P * (1 - e) + 1 - P)
    torch.testing.assert_close(observation.if_unknown(odds).sigmoid(), expected)
    torch.testing.assert_close(observation.if_unknown(odds[:, 2], 2).sigmoid(), expected[:, 2])
    assert (observation.if_unknown(odds) < odds).all()


def test_a_coin_shows_the_same_share_whatever_the_image():
    observation = Observation.coin(0.3, 2)
    torch.testing.assert_close(observation.known(ODDS[:, None].float().expand(-1, 2)), torch.full((31, 2), 0.3))


def test_soft_labels_are_what_is_said_and_otherwise_bayes_rule_for_a_coin():
    chance = torch.tensor([[0.2, 0.5], [0.9, 1e-9], [1.0, 0.0]])
    labels = torch.tensor([[PRESENT, UNKNOWN], [ABSENT, UNKNOWN], [UNKNOWN, UNKNOWN]])
    soft = soften(chance, labels, torch.tensor([0.4, 0.4]))
    assert soft[0, 0] == 1
    assert soft[1, 0] == 0
    assert float(soft[0, 1]) == pytest.approx(0.5 * 0.6 / (0.5 * 0.6 + 0.5))
    assert soft.isfinite().all()


def test_the_share_of_known_absences_is_their_number_over_all_absences():
    chance = torch.full((100, 2), 0.2)
    labels = torch.zeros(100, 2)
    labels[:20, 0] = ABSENT
    torch.testing.assert_close(known_absences(chance, labels), torch.tensor([0.25, 0.0]))


def some_counts():
    generator = torch.Generator().manual_seed(0)
    odds = (4 * torch.randn(40, generator=generator, dtype=torch.float64)).requires_grad_()
    known = (2 * torch.randn(40, generator=generator, dtype=torch.float64)).requires_grad_()
    return odds, known, torch.rand(40, 4, generator=generator, dtype=torch.float64)


def test_derivatives_are_those_of_the_likelihood():
    odds, known, counts = some_counts()
    by_odds, by_known = torch.autograd.grad(log_likelihood(odds, known, counts).sum(), (odds, known))
    found = derivatives(odds, known, counts)
    torch.testing.assert_close(found.by_odds, by_odds, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(found.by_known, by_known, rtol=1e-6, atol=1e-9)


def test_information_is_the_expected_second_derivative():
    """With as many known as are expected, less the second derivative itself."""
    odds, known, counts = some_counts()
    chance = (odds.sigmoid() * known.sigmoid()).detach()
    counts[:, 0], counts[:, 1] = chance, 1 - chance
    first = torch.autograd.grad(log_likelihood(odds, known, counts).sum(), (odds, known), create_graph=True)
    (by_odds, both), (_, by_known) = (
        torch.autograd.grad(each.sum(), (odds, known), retain_graph=True) for each in first
    )
    found = derivatives(odds, known, counts)
    torch.testing.assert_close(found.info, -by_odds, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(found.info_known, -by_known, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(found.info_both, -both, rtol=1e-6, atol=1e-9)


def test_log_odds_rise_more_slowly_above_the_bend():
    far = torch.tensor([BEND_AT - 20, BEND_AT + 20], dtype=torch.float64)
    low, high = (bent(far + 1) - bent(far)).tolist()
    assert low == pytest.approx(1.0)
    assert high == pytest.approx(torch.tensor(BEND).exp().item())
    assert torch.equal(bent(ODDS, 0.0), ODDS)


def test_the_rise_is_the_derivative_of_the_bend():
    eta = ODDS.clone().requires_grad_()
    torch.testing.assert_close(rise(eta), torch.autograd.grad(bent(eta).sum(), eta)[0], rtol=1e-6, atol=1e-7)
