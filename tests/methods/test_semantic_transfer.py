import pytest
import torch
import torch.nn.functional as F

from fewtags.contract import Batch, Outputs, Problem, Progress
from fewtags.methods.losses import assume_negative_loss
from fewtags.methods.semantic_transfer import (
    CrossImageTransfer,
    PairClassifier,
    SemanticTransfer,
    theta_schedule,
    transfer_loss,
)


def at(epoch: int, step: int = 0) -> Progress:
    return Progress(epoch, 20, step, 10)


def example(objective, num_categories: int = 4, labels=None, **settings):
    torch.manual_seed(0)
    if labels is None:
        labels = torch.randint(-1, 2, (6, num_categories), dtype=torch.int8)
    problem = Problem(tuple(str(c) for c in range(num_categories)), labels)
    outputs = Outputs(torch.randn(6, num_categories), torch.randn(6, num_categories, 8))
    method = objective(objective.Config(**settings), problem, 8)
    return method, Batch(torch.empty(6, 0), labels, torch.arange(6)), outputs


def literal_pair_scores(pairs: PairClassifier, features):
    """The network as the paper draws it: every pair's concatenated features through both layers."""
    q = pairs.reduce(features)
    scores = []
    for number, (i, j) in enumerate(zip(pairs.first.tolist(), pairs.second.tolist(), strict=True)):
        hidden = pairs.mix(F.relu(pairs.to_hidden(torch.cat([q[:, i], q[:, j]], dim=-1))))
        scores.append(hidden @ pairs.vectors[number] + pairs.bias[number])
    return torch.stack(scores, dim=1)


def test_factorised_pair_scores_equal_the_literal_network():
    """In value, and in the gradient of everything that is trained."""
    torch.manual_seed(0)
    pairs = PairClassifier(num_categories=7, feature_dim=9, width=5, hidden=6).double()
    features = torch.randn(3, 7, 9, dtype=torch.float64, requires_grad=True)
    ours, literal = pairs(features), literal_pair_scores(pairs, features)
    torch.testing.assert_close(ours, literal, rtol=0, atol=1e-9)

    sensitivity = torch.randn_like(literal)
    inputs = [features, *pairs.parameters()]
    gradients = (torch.autograd.grad((scores * sensitivity).sum(), inputs) for scores in (ours, literal))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


def test_the_hidden_layer_of_the_pairs_is_not_kept():
    """Nothing of [B, pairs, hidden] is kept between forward and backward."""
    pairs, features = PairClassifier(40, 8, width=4, hidden=32), torch.randn(16, 40, 8)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        pairs(features)
    assert max(kept) < 16 * 780 * 32 / 8


def test_support_is_the_mean_over_the_known_positives():
    pairs = PairClassifier(4, 8, width=2, hidden=3)
    scores = torch.randn(3, 6)
    present = torch.tensor([[1, 0, 1, 0], [0, 0, 0, 0], [0, 1, 0, 0]], dtype=torch.bool)
    together = torch.zeros(3, 4, 4)
    for number, (i, j) in enumerate([(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]):
        together[:, i, j] = together[:, j, i] = scores[:, number].sigmoid()
    support = pairs.support(scores, present)
    torch.testing.assert_close(support[0, 1], (together[0, 1, 0] + together[0, 1, 2]) / 2)
    torch.testing.assert_close(support[2, 3], together[2, 3, 1])
    assert not support[1].any()


def test_theta_falls_from_095_to_075():
    theta = [theta_schedule(epoch, start=5) for epoch in (5, 6, 12, 13, 19)]
    assert theta == pytest.approx([0.95, 0.925, 0.775, 0.75, 0.75])


def test_transfer_loss_leaves_out_the_unknown_that_were_not_found():
    logits = torch.tensor([[1.0, -2.0, 3.0, 0.5]])
    labels = torch.tensor([[1, -1, 0, 0]], dtype=torch.int8)
    found = torch.tensor([[False, False, True, False]])
    expected = (F.softplus(torch.tensor(-1.0)) + F.softplus(torch.tensor(-2.0)) + F.softplus(torch.tensor(-3.0))) / 3
    torch.testing.assert_close(transfer_loss(logits, labels, found, "skipped"), expected)
    assert transfer_loss(logits, torch.zeros_like(labels), torch.zeros_like(found), "skipped") == 0


def test_with_positives_alone_the_transfer_loss_takes_what_was_not_found_for_absent():
    logits, labels = torch.randn(3, 2), torch.tensor([[1, 0], [0, 0], [-1, 0]], dtype=torch.int8)
    found = torch.tensor([[False, True], [False, False], [False, False]])
    target = torch.tensor([[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
    expected = F.binary_cross_entropy_with_logits(logits, target)
    torch.testing.assert_close(transfer_loss(logits, labels, found, "absent"), expected)


@pytest.mark.parametrize("objective", [CrossImageTransfer, SemanticTransfer])
def test_in_the_first_step_it_is_assume_negative(objective):
    method, batch, outputs = example(objective)
    method.observe(batch, outputs, at(0))
    result = method.loss(batch, outputs, at(0))
    torch.testing.assert_close(result.total, assume_negative_loss(outputs.logits, batch.labels).mean())


def test_cst_finds_unknown_labels_that_look_like_known_positives():
    labels = torch.zeros(6, 4, dtype=torch.int8)
    labels[0] = torch.tensor([1, 1, 0, 0])
    labels[2, 0] = -1
    method, batch, outputs = example(CrossImageTransfer, labels=labels, queue_size=1)
    features = outputs.features.clone()
    features[1:3, 0] = (
        features[0, 0] * 3
    )  # images 1 and 2 show category 0 as image 0 does; of 2 it is known to be false
    outputs = Outputs(outputs.logits, features)
    method.observe(batch, outputs, at(5))
    found = method.loss(batch, outputs, at(5)).decisions["found"]
    assert found.nonzero().tolist() == [[1, 0]]
    assert not method.loss(batch, outputs, at(4)).decisions["found"].any()


def test_sst_finds_unknown_labels_that_go_with_the_known_ones():
    labels = torch.zeros(6, 4, dtype=torch.int8)
    labels[0, 0], labels[1, 1] = 1, 1
    method, batch, outputs = example(SemanticTransfer, labels=labels)
    with torch.no_grad():
        method.pairs.vectors.zero_()
        method.pairs.bias.fill_(-10.0)
        method.pairs.bias[2] = 10.0  # the pair (0, 3)
    found = method.loss(batch, outputs, at(5)).decisions["found"]
    assert found.nonzero().tolist() == [[0, 3]]


def test_the_pair_loss_is_that_of_pairs_of_known_positives():
    """Against the formula: gamma+ = 1, gamma- = 2, margin 0.05, times the weight 10."""
    method, batch, outputs = example(SemanticTransfer)
    p = literal_pair_scores(method.pairs, outputs.features).sigmoid()
    total = 0.0
    for b in range(6):
        for number, (i, j) in enumerate([(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]):
            if batch.labels[b, i] == 1 and batch.labels[b, j] == 1:
                total -= (1 - p[b, number]) * p[b, number].log()
            else:
                shifted = (p[b, number] - 0.05).clamp(min=0)
                total -= shifted**2 * (1 - shifted).log()
    loss = method.loss(batch, outputs, at(0, step=5)).losses["cooccurrence"]
    torch.testing.assert_close(loss, 10 * 0.5 * total / 36)


def test_gradients_reach_the_pair_classifier_and_the_features():
    method, batch, outputs = example(SemanticTransfer)
    features = outputs.features.clone().requires_grad_()
    method.loss(batch, Outputs(outputs.logits, features), at(1)).total.backward()
    assert features.grad.any()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in method.parameters())


def test_a_single_category_has_no_pairs_and_a_finite_loss():
    method, batch, outputs = example(SemanticTransfer, num_categories=1)
    method.observe(batch, outputs, at(6))
    assert method.loss(batch, outputs, at(6)).total.isfinite()


@pytest.mark.parametrize("csl", ["dense", "sampled"])
def test_an_all_unknown_batch_is_finite(csl):
    method, batch, outputs = example(SemanticTransfer, labels=torch.zeros(6, 4, dtype=torch.int8), csl=csl)
    method.observe(batch, outputs, at(6))
    assert method.loss(batch, outputs, at(6)).total.isfinite()


def test_the_queue_is_part_of_the_checkpoint():
    method, batch, outputs = example(CrossImageTransfer)
    method.observe(batch, outputs, at(0))
    again, _, _ = example(CrossImageTransfer)
    again.load_state_dict(method.state_dict())
    torch.testing.assert_close(again.queue.mean_cosine(outputs.features), method.queue.mean_cosine(outputs.features))
