"""CALD and CANR as probabilities: the two terms, what they are together, and their limits."""

import math

import pytest
import torch
import torch.nn.functional as F

from fewtags.contract import Batch, Outputs, Problem, Progress, Start
from fewtags.methods.posterior import PosteriorLabels

PROGRESS = Progress(0, 6, 0, 10)
KNOWN = 0.3


def objective(labels, *, tunes_features=False, **settings):
    problem = Problem(tuple("abcd"), labels, tunes_features=tunes_features)
    made = PosteriorLabels(PosteriorLabels.Config(**settings), problem, None)
    made.start(Start("estimated", torch.full((4,), KNOWN)))
    return made


@pytest.fixture
def step():
    torch.manual_seed(0)
    labels = (torch.rand(8, 4) < 0.3).to(torch.int8)
    return Batch(torch.zeros(8, 1), labels, torch.arange(8)), torch.randn(8, 4, requires_grad=True)


def hidden_probability(logits):
    """P(present | not known), by Bayes' rule."""
    present, absent = logits.sigmoid() * (1 - KNOWN), 1 - logits.sigmoid()
    return present / (present + absent)


def test_gradient_is_that_of_the_likelihood_of_what_is_known_and_what_is_not(step):
    batch, logits = step
    (gradient,) = torch.autograd.grad(objective(batch.labels).loss(batch, Outputs(logits), PROGRESS).total, logits)
    chance = KNOWN * logits.sigmoid()  # of being known
    known = batch.labels == 1
    likelihood = torch.where(known, chance, 1 - chance).log().sum(1).mean()
    (expected,) = torch.autograd.grad(-likelihood, logits)
    torch.testing.assert_close(gradient, expected)


def test_cald_adds_the_discovered_term_and_canr_weighs_the_assumed_one(step):
    batch, logits = step
    q, unknown = hidden_probability(logits), batch.labels == 0
    as_present = (q * F.softplus(-logits) * unknown).sum(1).mean()
    as_absent, weighed = (F.softplus(logits) * unknown).sum(1).mean(), (F.softplus(logits) * unknown * (1 - q))
    for discover in (False, True):
        for reject in (False, True):
            losses = objective(batch.labels, discover=discover, reject=reject).loss(batch, Outputs(logits), PROGRESS)
            torch.testing.assert_close(losses.losses["assumed"], weighed.sum(1).mean() if reject else as_absent)
            assert ("discovered" in losses.losses) == discover
            if discover:
                torch.testing.assert_close(losses.losses["discovered"], as_present)
            decided = [name for name, on in (("found", discover), ("rejected", reject)) if on]
            assert list(losses.decisions) == decided


def test_without_both_it_is_assume_negative(step):
    batch, logits = step
    loss = objective(batch.labels, discover=False, reject=False).loss(batch, Outputs(logits), PROGRESS).total
    expected = F.binary_cross_entropy_with_logits(logits, (batch.labels == 1).float(), reduction="none").sum(1).mean()
    torch.testing.assert_close(loss, expected)


def test_where_every_label_is_known_unknown_means_absent(step):
    batch, logits = step
    loss = objective(batch.labels, known_proportion=1.0).loss(batch, Outputs(logits), PROGRESS).total
    expected = F.binary_cross_entropy_with_logits(logits, (batch.labels == 1).float(), reduction="none").sum(1).mean()
    torch.testing.assert_close(loss, expected)


def test_found_are_the_unknown_labels_that_are_more_likely_hidden_than_absent(step):
    batch, logits = step
    batch.labels[0, 0] = -1
    found = objective(batch.labels).loss(batch, Outputs(10 * logits), PROGRESS).decisions["found"]
    assert not found[batch.labels != 0].any()
    sure = (batch.labels == 0) & (10 * logits > 3)
    assert sure.any()
    assert found[sure].all()


def test_what_the_head_estimated_is_kept_with_the_state_unless_it_is_given(step):
    batch, _ = step
    assert objective(batch.labels).state_dict()["known_proportion"].tolist() == pytest.approx([KNOWN] * 4)
    assert objective(batch.labels, known_proportion=0.8).known_proportion.tolist() == pytest.approx([0.8] * 4)


# --- with a backbone that is trained ---


def at_start(labels, logits, **settings):
    made = objective(labels, tunes_features=True, **settings)
    made.start(Start("estimated", torch.full((4,), KNOWN), logits=logits))
    return made


def test_targets_are_half_those_of_the_start(step):
    batch, logits = step
    start, later = logits.detach(), (logits.detach() - 3).requires_grad_()
    losses = at_start(batch.labels, start).loss(batch, Outputs(later), PROGRESS).losses
    unknown = batch.labels == 0
    as_present = (hidden_probability((start + later.detach()) / 2) * -F.logsigmoid(later) * unknown).sum(1).mean()
    torch.testing.assert_close(losses["discovered"], as_present, rtol=1e-3, atol=1e-3)  # remembered in half precision


def test_an_image_that_could_not_be_read_at_the_start_has_current_targets(step):
    batch, logits = step
    made = at_start(batch.labels, torch.full_like(logits, torch.nan))
    current = objective(batch.labels).loss(batch, Outputs(logits), PROGRESS).total
    torch.testing.assert_close(made.loss(batch, Outputs(logits), PROGRESS).total, current)


@pytest.mark.parametrize("tunes_features", [False, True])
def test_what_can_memorise_the_known_labels_keeps_the_hidden_ones_only_by_the_start(step, tunes_features):
    """One free logit per label memorises everything. Current targets follow it to 0; the start holds it."""
    batch, logits = step
    start, unknown = logits.detach().clone(), batch.labels == 0
    made = at_start(batch.labels, start) if tunes_features else objective(batch.labels)
    solver = torch.optim.Adam([logits], lr=0.1)
    for _ in range(2000):
        solver.zero_grad()
        made.loss(batch, Outputs(logits), PROGRESS).total.backward()
        solver.step()
    chance = logits.detach().sigmoid()
    assert chance[batch.labels == 1].min() > 0.98
    if tunes_features:
        lowest = start + 2 * math.log(1 - KNOWN)
        torch.testing.assert_close(chance[unknown], lowest.sigmoid()[unknown], rtol=0, atol=0.01)
    else:
        assert chance[unknown].max() < 0.02


def test_a_checkpoint_from_before_targets_of_the_start_can_be_resumed(step):
    batch, _ = step
    old = objective(batch.labels).state_dict()
    del old["start_logits"]
    for tunes_features in (False, True):
        made = objective(batch.labels, tunes_features=tunes_features)
        made.load_state_dict(old)
        assert made.start_logits.isnan().all()


def test_a_checkpoint_brings_its_start_logits(step):
    """Also to a learner that was built without pretrained weights, as the report's is."""
    batch, logits = step
    made = objective(batch.labels)
    made.load_state_dict(at_start(batch.labels, logits.detach()).state_dict())
    torch.testing.assert_close(made.start_logits, logits.detach().half())
