import math

import pytest
import torch

from fewtags.contract import Batch, Outputs, Problem, Progress
from fewtags.methods.role import Role, expected_positives, initial_label_table, role_half

NOW = Progress(0, 10, 0, 5)


def example(num_images: int = 12, num_categories: int = 5, **settings):
    torch.manual_seed(0)
    labels = torch.randint(-1, 2, (num_images, num_categories), dtype=torch.int8)
    problem = Problem(tuple(str(c) for c in range(num_categories)), labels)
    index = torch.tensor([7, 2, 10, 4])
    return Role(Role.Config(**settings), problem, None), Batch(torch.empty(4, 0), labels[index], index)


def slow_half(student, teacher, labels, k):
    """The formula of the paper as loops, with known absences mirrored."""
    a, t = student.sigmoid(), teacher.sigmoid()
    num_images, num_categories = labels.shape
    total, eps = 0.0, 1e-5
    for b in range(num_images):
        for c in range(num_categories):
            known = {1: -math.log(a[b, c] + eps), 0: 0.0, -1: -math.log(1 - a[b, c] + eps)}[int(labels[b, c])]
            total += known - t[b, c] * math.log(a[b, c] + eps) - (1 - t[b, c]) * math.log(1 - a[b, c] + eps)
    surplus = sum(float(row.sum()) for row in a) / num_images - k
    return total / labels.numel() + surplus**2 / num_categories**2


def test_the_loss_matches_the_formula():
    role, batch = example(expected_positives=2.0)
    logits = torch.randn(4, 5)
    losses = role.loss(batch, Outputs(logits), NOW).losses
    table = role.label_table.detach()[batch.index]
    torch.testing.assert_close(losses["classifier"], 0.5 * slow_half(logits, table, batch.labels, 2.0))
    torch.testing.assert_close(losses["label_table"], 0.5 * slow_half(table, logits, batch.labels, 2.0))


def test_the_two_halves_are_symmetric():
    """Exchanging the predictions with the estimated labels exchanges the halves."""
    role, batch = example()
    logits = torch.randn(4, 5)
    before = role.loss(batch, Outputs(logits), NOW).losses
    table = role.label_table.detach()[batch.index].clone()
    with torch.no_grad():
        role.label_table[batch.index] = logits
    after = role.loss(batch, Outputs(table), NOW).losses
    torch.testing.assert_close(before["classifier"], after["label_table"])
    torch.testing.assert_close(before["label_table"], after["classifier"])


def test_each_half_trains_its_own_side_only():
    student, teacher = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)
    role_half(student, teacher, torch.zeros(3, 4, dtype=torch.int8), 1.0).backward()
    assert student.grad.abs().sum() > 0
    assert teacher.grad is None


def test_the_gradient_reaches_only_the_rows_of_the_batch():
    role, batch = example()
    role.loss(batch, Outputs(torch.randn(4, 5)), NOW).total.backward()
    changed = role.label_table.grad.any(1).nonzero().view(-1).tolist()
    assert changed == sorted(batch.index.tolist())


def test_initial_estimates_follow_the_known_labels():
    role, _ = example(num_images=200)
    torch.manual_seed(0)
    labels = torch.randint(-1, 2, (200, 5), dtype=torch.int8)
    estimate = role.label_table.detach().sigmoid()
    torch.testing.assert_close(estimate[labels == 1], torch.full_like(estimate[labels == 1], 0.995))
    torch.testing.assert_close(estimate[labels == -1], torch.full_like(estimate[labels == -1], 0.005))
    unknown = estimate[labels == 0]
    assert 0.4 <= unknown.min() < 0.42
    assert 0.58 < unknown.max() <= 0.6


def test_the_paper_starts_unknown_labels_as_absent():
    labels = torch.tensor([[1, 0, -1]], dtype=torch.int8)
    absent = initial_label_table(labels, "absent").sigmoid()
    torch.testing.assert_close(absent, torch.tensor([[0.995, 0.005, 0.005]]))
    undecided = initial_label_table(labels).sigmoid()
    assert 0.4 <= undecided[0, 1] <= 0.6


def test_expected_positives_of_ones_own_dataset_are_the_known_ones_per_tagged_image():
    labels = torch.tensor([[1, 1, 0], [1, -1, 0], [0, 0, 0]], dtype=torch.int8)
    assert expected_positives(Problem(("a", "b", "c"), labels)) == 1.5
    assert expected_positives(Problem(("a", "b", "c"), torch.zeros_like(labels))) == 1.0


def test_a_set_expectation_wins():
    role, _ = example(expected_positives=3.5)
    assert role.expected_positives == 3.5


@pytest.mark.parametrize("extreme", [-1e4, 1e4])
def test_extreme_logits_are_finite(extreme):
    role, batch = example()
    logits = torch.full((4, 5), extreme, requires_grad=True)
    total = role.loss(batch, Outputs(logits), NOW).total
    total.backward()
    assert total.isfinite()
    assert logits.grad.isfinite().all()
    assert role.label_table.grad.isfinite().all()


def test_the_table_has_its_own_learning_rate_and_no_weight_decay():
    role, _ = example()
    (group,) = role.parameter_groups()
    assert group["lr_scale"] == 10
    assert group["weight_decay"] == 0
    assert group["params"][0] is role.label_table


def test_the_table_is_part_of_the_checkpoint():
    role, _ = example()
    other, _ = example()
    other.load_state_dict({name: torch.zeros_like(value) for name, value in role.state_dict().items()})
    assert not torch.equal(other.label_table, role.label_table)
    other.load_state_dict(role.state_dict())
    assert torch.equal(other.label_table, role.label_table)


def test_known_absent_labels_are_never_found():
    role, batch = example()
    with torch.no_grad():
        role.label_table.fill_(5.0)
    found = role.loss(batch, Outputs(torch.zeros(4, 5)), NOW).decisions["found"]
    assert torch.equal(found, batch.labels == 0)
