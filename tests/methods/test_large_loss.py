import math

import pytest
import torch
import torch.nn.functional as F

from fewtags.contract import Batch, Outputs, Problem, Progress
from fewtags.methods.large_loss import LargeLossPermanent, LargeLossRejection, LargeLossTemporary, largest, share_count
from fewtags.methods.losses import assume_negative_loss

ALL = [LargeLossRejection, LargeLossTemporary, LargeLossPermanent]


def example(num_images: int = 6, num_categories: int = 10, seed: int = 0):
    torch.manual_seed(seed)
    labels = torch.randint(-1, 2, (num_images, num_categories), dtype=torch.int8)
    problem = Problem(tuple(str(c) for c in range(num_categories)), labels)
    return (
        problem,
        Batch(torch.empty(num_images, 0), labels, torch.arange(num_images)),
        Outputs(torch.randn(labels.shape)),
    )


def at(epoch: int) -> Progress:
    return Progress(epoch, 10, 0, 5)


def build(objective, problem, **settings):
    return objective(objective.Config(**settings), problem, None)


def slow_rejection(logits, labels, epoch, delta_rel):
    """The indices that LL-R rejects: sort the losses of unknown labels, take the first k."""
    k = math.ceil(round(labels.numel() * epoch * delta_rel / 100, 9))
    unknown = [(float(F.softplus(logits[b, c])), b, c) for b, c in (labels == 0).nonzero().tolist()]
    return {(b, c) for _, b, c in sorted(unknown, reverse=True)[:k]}


@pytest.mark.parametrize("epoch", [0, 1, 3, 9])
def test_rejects_the_largest_losses_of_unknown_labels(epoch):
    problem, batch, outputs = example()
    result = build(LargeLossRejection, problem, delta_rel=4.0).loss(batch, outputs, at(epoch))
    expected = slow_rejection(outputs.logits, batch.labels, epoch, 4.0)
    assert {tuple(pair) for pair in result.decisions["rejected"].nonzero().tolist()} == expected
    losses = assume_negative_loss(outputs.logits, batch.labels)
    kept = sum(losses[b, c] for b in range(6) for c in range(10) if (b, c) not in expected)
    torch.testing.assert_close(result.total, kept / 60)


def test_mean_over_the_kept_labels():
    problem, batch, outputs = example()
    everything = build(LargeLossRejection, problem, delta_rel=4.0).loss(batch, outputs, at(3))
    kept = build(LargeLossRejection, problem, delta_rel=4.0, average_over="kept").loss(batch, outputs, at(3))
    num_kept = int((~kept.decisions["rejected"]).sum())
    torch.testing.assert_close(kept.total, everything.total * 60 / num_kept)


@pytest.mark.parametrize("objective", ALL)
@pytest.mark.parametrize(("epoch", "delta_rel"), [(0, 5.0), (7, 0.0)], ids=["first epoch", "rate 0"])
def test_without_doubt_it_is_assume_negative(objective, epoch, delta_rel):
    problem, batch, outputs = example()
    method = build(objective, problem, delta_rel=delta_rel)
    method.observe(batch, outputs, at(epoch))
    expected = assume_negative_loss(outputs.logits, batch.labels).mean()
    torch.testing.assert_close(method.loss(batch, outputs, at(epoch)).total, expected)


def test_ties_do_not_reject_too_many():
    problem, batch, _ = example()
    batch = Batch(batch.images, torch.zeros_like(batch.labels), batch.index)
    result = build(LargeLossRejection, problem, delta_rel=5.0).loss(batch, Outputs(torch.zeros(6, 10)), at(1))
    assert result.decisions["rejected"].sum() == 3  # 5 % of 60


def test_known_labels_are_never_doubted():
    problem, batch, outputs = example()
    for objective in ALL:
        method = build(objective, problem, delta_rel=100.0)
        for epoch in (1, 2, 3):
            method.observe(batch, outputs, at(epoch))
            (doubted,) = method.loss(batch, outputs, at(epoch)).decisions.values()
            assert not doubted[batch.labels != 0].any()


def test_all_unknown_and_all_rejected_is_finite():
    problem, batch, outputs = example()
    batch = Batch(batch.images, torch.zeros_like(batch.labels), batch.index)
    method = build(LargeLossRejection, problem, delta_rel=100.0, average_over="kept")
    assert method.loss(batch, outputs, at(1)).total == 0


def test_temporary_correction_trains_the_doubted_as_present():
    problem, batch, outputs = example()
    logits = outputs.logits.clone().requires_grad_()
    result = build(LargeLossTemporary, problem, delta_rel=4.0).loss(batch, Outputs(logits), at(2))
    found = result.decisions["found"]
    assert found.sum() == 5  # ceil(60 x 8 %)
    losses = torch.where(found | (batch.labels == 1), F.softplus(-outputs.logits), F.softplus(outputs.logits))
    torch.testing.assert_close(result.total, losses.mean())
    result.total.backward()
    assert (logits.grad[found] < 0).all()


def test_permanent_correction_flips_the_share_even_if_it_is_a_single_label():
    problem, batch, outputs = example()
    for delta_rel, strict, expected in ((5.0, False, 3), (5.0, True, 2), (1.0, False, 1), (1.0, True, 0)):
        method = build(LargeLossPermanent, problem, delta_rel=delta_rel, strict=strict)
        method.observe(batch, outputs, at(1))
        assert method.corrected.sum() == expected


def test_permanent_correction_flips_strictly_above_the_bar_and_remembers():
    problem, batch, outputs = example()
    method = build(LargeLossPermanent, problem, delta_rel=5.0, strict=True)  # the bar is the third largest of 60
    method.observe(batch, outputs, at(1))
    first = method.corrected.clone()
    order = sorted(slow_rejection(outputs.logits, batch.labels, 1, 5.0), key=lambda bc: -outputs.logits[bc])
    assert {tuple(pair) for pair in first.nonzero().tolist()} == set(order[:2])

    method.observe(batch, outputs, at(1))
    assert method.corrected.sum() == 4  # two more: what was corrected is not counted again
    assert (method.corrected & first).sum() == 2

    losses = method.loss(batch, outputs, at(5))
    assert torch.equal(losses.decisions["found"], method.corrected)
    again = build(LargeLossPermanent, problem)
    again.load_state_dict(method.state_dict())
    assert torch.equal(again.corrected, method.corrected)


def test_corrections_are_stored_by_the_index_of_the_image():
    problem, batch, outputs = example()
    method, shuffled = (
        build(LargeLossPermanent, problem, delta_rel=10.0),
        build(LargeLossPermanent, problem, delta_rel=10.0),
    )
    order = torch.tensor([4, 2, 0, 5, 1, 3])
    method.observe(batch, outputs, at(1))
    shuffled.observe(
        Batch(batch.images, batch.labels[order], batch.index[order]), Outputs(outputs.logits[order]), at(1)
    )
    assert torch.equal(method.corrected, shuffled.corrected)


def test_count_is_not_one_too_many_by_rounding():
    assert share_count(1000, 3 * 0.1) == 3  # 3 x 0.1 is a little more than 0.3
    assert share_count(1000, 0.31) == 4
    assert share_count(10, 0) == 0


def test_largest_takes_all_where_fewer_are_marked():
    among = torch.tensor([[True, False, True]])
    assert torch.equal(largest(torch.tensor([[1.0, 9.0, 2.0]]), among, 3), among)
