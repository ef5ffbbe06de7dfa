"""Each later method against its formula written out, one image and category at a time."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fewtags.contract import Batch, Outputs, Problem, Progress
from fewtags.methods.entropy import AsymmetricPseudoLabels, EntropyMaximisation
from fewtags.methods.expected_count import ExpectedCount
from fewtags.methods.generalised_robust import GeneralisedRobust
from fewtags.methods.missing_labels import Hill, SelfPaced
from fewtags.methods.pu_risk import NonNegativeRisk
from fewtags.methods.variational_pu import VariationalPU
from fewtags.methods.weak_negatives import SmoothedNegatives, WeakNegatives

N, C = 12, 5


def at(epoch: int, epochs: int = 10) -> Progress:
    return Progress(epoch, epochs, 0, 3)


@pytest.fixture
def step() -> tuple[Batch, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(-1, 2, (N, C), generator=generator).to(torch.int8)
    labels[:, 4] = torch.where(labels[:, 4] == 1, 0, labels[:, 4])  # a category without known positives
    logits = 3 * torch.randn(N, C, generator=generator, dtype=torch.double)
    return Batch(torch.zeros(N), labels, torch.arange(N)), logits.requires_grad_()


def make(kind, labels: Tensor, **settings):
    return kind(kind.Config(**settings), Problem(tuple("abcde"), labels), None)


def total(kind, step, epoch: int = 3, **settings) -> Tensor:
    batch, logits = step
    return make(kind, batch.labels, **settings).loss(batch, Outputs(logits), at(epoch)).total


def mean_of(step, of_present, of_unknown, of_absent) -> Tensor:
    """The mean over images and categories of a function of p by label."""
    batch, logits = step
    losses = {1: of_present, 0: of_unknown, -1: of_absent}
    values = [losses[int(batch.labels[n, c])](torch.sigmoid(logits[n, c])) for n in range(N) for c in range(C)]
    return torch.stack(values).mean()


def assert_same(found: Tensor, expected: Tensor, logits: Tensor) -> None:
    """Value and gradient."""
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    one, other = (torch.autograd.grad(value.double(), logits, retain_graph=True)[0] for value in (found, expected))
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-7)


def present(p: Tensor) -> Tensor:
    return -torch.log(p)


def absent(p: Tensor) -> Tensor:
    return -torch.log(1 - p)


# --- assumed negatives ---


def test_wan_lets_the_assumed_negatives_of_an_image_count_as_one_positive(step):
    expected = mean_of(step, present, lambda p: absent(p) / (C - 1), absent)
    assert_same(total(WeakNegatives, step), expected, step[1])


def test_the_weight_of_wan_can_be_given(step):
    expected = mean_of(step, present, lambda p: 0.5 * absent(p), absent)
    assert_same(total(WeakNegatives, step, negative_weight=0.5), expected, step[1])


def test_label_smoothing_trains_a_tenth_as_the_contrary(step):
    def as_absent(p: Tensor) -> Tensor:
        return 0.9 * absent(p) + 0.1 * present(p)

    expected = mean_of(step, lambda p: 0.9 * present(p) + 0.1 * absent(p), as_absent, as_absent)
    assert_same(total(SmoothedNegatives, step), expected, step[1])


def focal_present(logit: Tensor, gamma: float = 2.0) -> Tensor:
    p = torch.sigmoid(logit)
    return -((1 - p) ** gamma) * torch.log(p)


def test_hill_is_a_hill_for_negatives_and_focal_with_a_margin_for_positives(step):
    def margin(p: Tensor) -> Tensor:
        return focal_present(torch.log(p / (1 - p)) - 1)

    def hill(p: Tensor) -> Tensor:
        return (1.5 - p) * p**2

    assert_same(total(Hill, step), mean_of(step, margin, hill, hill), step[1])


# --- relabelling ---


@pytest.mark.parametrize("epoch", [0, 1, 7])
def test_splc_trains_what_it_is_sure_of_as_present_after_the_first_epoch(step, epoch):
    def margin(p: Tensor) -> Tensor:
        return focal_present(torch.log(p / (1 - p)) - 1)

    def negative(p: Tensor) -> Tensor:
        return -(p**2) * torch.log(1 - p)

    def unknown(p: Tensor) -> Tensor:
        return focal_present(torch.log(p / (1 - p))) if p > 0.6 and epoch >= 1 else negative(p)

    assert_same(total(SelfPaced, step, epoch), mean_of(step, margin, unknown, negative), step[1])
    batch, logits = step
    found = make(SelfPaced, batch.labels).loss(batch, Outputs(logits), at(epoch)).decisions["found"]
    assert torch.equal(found, (batch.labels == 0) & (logits.sigmoid() > 0.6) & (epoch >= 1))


# --- estimating ---


def test_epr_has_known_labels_and_a_count(step):
    counts = torch.sigmoid(step[1]).sum(1).mean()
    expected = mean_of(step, present, lambda p: 0 * p, absent) + (counts - 1.5) ** 2 / C**2
    assert_same(total(ExpectedCount, step, expected_positives=1.5), expected, step[1])


def entropy_of(p: Tensor) -> Tensor:
    return -p * torch.log(p) - (1 - p) * torch.log(1 - p)


def test_em_maximises_the_entropy_of_what_is_unknown(step):
    expected = mean_of(step, present, lambda p: -0.2 * entropy_of(p), absent)
    assert_same(total(EntropyMaximisation, step), expected, step[1])


def test_apl_takes_the_least_probable_unknown_labels_of_each_category_in_turn():
    """Ten epochs, five of warm-up: in each of the rest a fifth of 90 % of a category's unknown labels."""
    torch.manual_seed(0)
    labels = (torch.rand(40, C) < 0.2).to(torch.int8)
    method = make(AsymmetricPseudoLabels, labels)
    unknown = (labels == 0).sum(0)
    chosen = torch.zeros(40, C, dtype=torch.bool)
    for epoch in range(10):
        before = method.predicted.clone().float()
        method.start_epoch(at(epoch))
        if epoch >= 5:
            for c in range(C):
                free = [n for n in range(40) if labels[n, c] == 0 and not chosen[n, c]]
                for n in sorted(free, key=lambda n: before[n, c].item())[: int(0.9 / 5 * unknown[c])]:
                    chosen[n, c] = True
                    assert method.soft_negatives[n, c] == method.predicted[n, c]
        assert torch.equal(method.soft_negatives >= 0, chosen)
        for rows in torch.randperm(40).split(10):
            outputs = Outputs(torch.randn(10, C))
            method.observe(Batch(torch.zeros(10), labels[rows], rows), outputs, at(epoch))
            torch.testing.assert_close(
                method.predicted[rows],
                outputs.logits.sigmoid().masked_fill(labels[rows] != 0, -1).half(),
            )
    assert (chosen.sum(0) / unknown > 0.75).all()


def test_soft_negatives_are_trained_on_what_was_predicted(step):
    batch, logits = step
    method = make(AsymmetricPseudoLabels, batch.labels)
    soft = (batch.labels == 0) & (torch.rand(N, C) < 0.5)
    method.soft_negatives.copy_(torch.where(soft, 0.25, -1.0))
    values = []
    for n in range(N):
        for c in range(C):
            p, label = torch.sigmoid(logits[n, c]), batch.labels[n, c]
            if soft[n, c]:
                values.append(0.02 * (0.25 * present(p) + 0.75 * absent(p)))
            else:
                values.append(present(p) if label == 1 else absent(p) if label == -1 else -0.2 * entropy_of(p))
    assert soft.any()
    assert_same(method.loss(batch, Outputs(logits), at(7)).total, torch.stack(values).mean(), logits)


@pytest.mark.parametrize("epoch", [0, 4, 9])
def test_gr_has_the_soft_label_and_the_weight_of_the_epoch(step, epoch):
    w, b = 2 * epoch / 10, -2.0
    mu, sigma = 0.5 + 0.3 * (epoch + 1) / 10, 2 - 1.5 * (epoch + 1) / 10

    def unknown(p: Tensor) -> Tensor:
        fixed = p.item()
        k = 1 / (1 + math.exp(-(w * fixed + b)))
        v = math.exp(-((fixed - mu) ** 2) / (2 * sigma**2))
        return v * (k * (1 - p**0.01) / 0.01 + (1 - k) * (1 - (1 - p)))

    assert_same(total(GeneralisedRobust, step, epoch), mean_of(step, present, unknown, absent), step[1])


@pytest.mark.parametrize("surrogate", ["logistic", "sigmoid"])
def test_nnpu_is_the_risk_of_each_category_and_steps_back_where_it_overfits(step, surrogate):
    batch, logits = step
    p = torch.sigmoid(logits)
    known = (batch.labels == 1).double()
    share = known.sum().item() / N / 3.0  # of three expected positives
    as_present, as_absent = (present(p), absent(p)) if surrogate == "logistic" else (1 - p, p)
    risks, overfitted = [], 0
    for c in range(C):
        positive = sum(as_present[n, c] * known[n, c] for n in range(N)) / N / share
        negative = sum(as_absent[n, c] * (1 - known[n, c] / share) for n in range(N)) / N
        if negative < 0:
            overfitted += 1
            risks.append(positive.detach() - (negative - negative.detach()))  # only its gradient, reversed
        else:
            risks.append(positive + negative)
    method = make(NonNegativeRisk, batch.labels, expected_positives=3.0, surrogate=surrogate)
    result = method.loss(batch, Outputs(logits), at(0))
    assert result.stats["overfitted"] == overfitted
    assert overfitted in range(1, C)  # both kinds are there
    assert_same(result.total, torch.stack(risks).mean(), logits)


def test_nnpu_is_unbiased_where_the_labels_are_a_random_share():
    """Over many draws its risk is that on the complete labels."""
    torch.manual_seed(0)
    truth, logits = torch.rand(400, 3) < 0.4, torch.randn(400, 3)
    complete = torch.where(truth, present(logits.sigmoid()), absent(logits.sigmoid())).mean().item()
    estimates = []
    for _ in range(300):
        labels = (truth & (torch.rand(400, 3) < 0.5)).to(torch.int8)
        method = make(NonNegativeRisk, labels, expected_positives=truth.sum(1).float().mean().item())
        estimates.append(sum(part.mean().item() for part in method.risks(logits, labels)))
    assert sum(estimates) / len(estimates) == pytest.approx(complete, abs=0.01)


def test_pu_mlc_is_the_variational_loss_with_temperature_and_balance(step):
    batch, logits = step
    losses = []
    for c in range(C):
        z = logits[:, c]
        fixed = z.detach()
        spread = ((fixed - fixed.mean()) ** 2).mean().sqrt()
        temperature = min(1.0, max(0.1, 0.2 * spread.item()))
        s = torch.sigmoid(z / temperature)
        weight = s.mean().item() ** 0.85
        known = [torch.log(s[n]) for n in range(N) if batch.labels[n, c] == 1]
        of_known = torch.stack(known).mean() if known else 0
        losses.append(weight * torch.log(s.mean()) - of_known)
    assert_same(total(VariationalPU, step, mixup=0, alpha=0.2), torch.stack(losses).mean(), logits)


def test_pu_mlc_mixes_logits_and_targets_alike(step):
    batch, logits = step
    method = make(VariationalPU, batch.labels)
    torch.manual_seed(5)
    found = method.loss(batch, Outputs(logits), at(0)).losses["mixup"]
    torch.manual_seed(5)
    order = torch.randperm(N // 2)
    share = torch.distributions.Beta(0.3, 0.3).sample().double()
    values = []
    for n in range(N // 2):
        one, other = order[n], N // 2 + n
        for c in range(C):
            targets = [
                torch.sigmoid(logits[k, c]) if batch.labels[k, c] != 1 else torch.tensor(1.0) for k in (one, other)
            ]
            mixed = share * targets[0] + (1 - share) * targets[1]
            predicted = torch.sigmoid(share * logits[one, c] + (1 - share) * logits[other, c])
            values.append((torch.log(mixed) - torch.log(predicted)) ** 2)
    assert_same(found, torch.stack(values).mean(), logits)
