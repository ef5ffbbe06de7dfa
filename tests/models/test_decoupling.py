"""The head against Eq. 3 written out: same outputs and same gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fewtags.contract import Problem, WordVectors
from fewtags.errors import UserError
from fewtags.models import decoupling
from fewtags.models.decoupling import DecoupledHead, SemanticDecoupling, tanh_scores

EXACT = {"rtol": 0, "atol": 1e-10}


def words(num_categories: int, learned: bool = True) -> WordVectors:
    return WordVectors(torch.randn(num_categories, 5), "random", learned)


def problem(num_categories: int) -> Problem:
    labels = (torch.rand(10, num_categories) < 0.3).to(torch.int8)
    return Problem(tuple(map(str, range(num_categories))), labels, words(num_categories))


def attention_as_written(module: SemanticDecoupling, feature_map: Tensor) -> Tensor:
    """[B, L, C], through both linear layers on the whole product."""
    locations = feature_map.flatten(2).transpose(1, 2)
    product = torch.tanh(module.project_map(locations)[:, :, None] * module.project_words(module.words))
    return module.score(module.mix(product)).squeeze(-1).softmax(1)


def assert_same_gradients(ours: list[Tensor], written: list[Tensor], inputs: list[Tensor]) -> None:
    weights = [torch.randn_like(output) for output in ours]
    for output, expected in zip(ours, written, strict=True):
        torch.testing.assert_close(output, expected, **EXACT)
    left, right = (
        torch.autograd.grad(sum((o * w).sum() for o, w in zip(side, weights, strict=True)), inputs)
        for side in (ours, written)
    )
    for gradient, expected in zip(left, right, strict=True):
        torch.testing.assert_close(gradient, expected, **EXACT)


@pytest.mark.parametrize("piece", [1, 50, 2**19])
def test_features_attention_and_all_gradients_match_the_equations(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folding W3 and w4, dropping b3 and b4 and working in pieces change nothing."""
    monkeypatch.setitem(decoupling.PIECE, "cpu", piece)
    torch.manual_seed(0)
    module = SemanticDecoupling(12, words(7), width=9).double()
    feature_map = torch.randn(3, 12, 4, 5, dtype=torch.double, requires_grad=True)
    attention = attention_as_written(module, feature_map)
    features = torch.einsum("blc,bdl->bcd", attention, feature_map.flatten(2))
    written = [features, attention.transpose(1, 2).unflatten(-1, (4, 5))]
    assert_same_gradients(list(module(feature_map)), written, [feature_map, *module.parameters()])


@pytest.mark.parametrize("num_categories", [3, 9])  # fewer and more than the 6 locations
def test_the_head_matches_the_equations_on_either_side_of_the_pooling(num_categories: int) -> None:
    torch.manual_seed(0)
    head = DecoupledHead(DecoupledHead.Config(width=4), 8, num_categories, problem(num_categories).words).double()
    feature_map = torch.randn(2, 8, 2, 3, dtype=torch.double, requires_grad=True)
    attention = attention_as_written(head.decoupling, feature_map)
    features = torch.einsum("blc,bdl->bcd", attention, feature_map.flatten(2))
    logits = (torch.tanh(head.hidden(features)) * head.weight).sum(-1) + head.bias
    outputs = head(feature_map)
    assert_same_gradients([outputs.logits, outputs.features], [logits, features], [feature_map, *head.parameters()])


def test_single_precision_is_as_good_as_tanh_written_out() -> None:
    torch.manual_seed(0)
    a, b, direction = torch.randn(64, 10), torch.randn(64, 30), torch.randn(64) / 8
    exact = torch.einsum("kij,k->ij", torch.tanh(a.double()[:, :, None] * b.double()[:, None]), direction.double())
    assert (tanh_scores(a, b, direction) - exact).abs().max() < 2e-6


def test_scores_stay_finite_for_huge_inputs() -> None:
    a = torch.tensor([[1e30, -1e30]], requires_grad=True)
    scores = tanh_scores(a, torch.tensor([[1e8]]), torch.ones(1))
    scores.sum().backward()
    assert scores.flatten().tolist() == [1.0, -1.0]
    assert a.grad.tolist() == [[0.0, 0.0]]


def test_half_precision_maps_are_scored_in_single() -> None:
    module = SemanticDecoupling(6, words(4), width=8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        features, attention = module(torch.randn(2, 6, 3, 3))
    assert attention.dtype == torch.float32
    torch.testing.assert_close(attention.sum((2, 3)), torch.ones(2, 4))
    features.float().sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())


def test_given_words_stay_as_they_are_and_random_ones_are_learned() -> None:
    assert "words" not in dict(SemanticDecoupling(6, words(4, learned=False)).named_parameters())
    assert "words" in dict(SemanticDecoupling(6, words(4, learned=True)).named_parameters())


def test_an_exported_graph_gives_the_same_logits() -> None:
    head = DecoupledHead(DecoupledHead.Config(width=4), 8, 5, problem(5).words).eval()
    feature_map = torch.randn(2, 8, 2, 3)

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = head

        def forward(self, feature_map: Tensor) -> Tensor:
            return self.head(feature_map).logits

    exported = torch.export.export(Logits(), (feature_map,)).module()
    torch.testing.assert_close(exported(feature_map), head(feature_map).logits)


def test_the_head_asks_for_words() -> None:
    without = Problem(("a", "b"), torch.zeros(3, 2, dtype=torch.int8))
    with pytest.raises(UserError, match="word vectors"):
        DecoupledHead(DecoupledHead.Config(), 8, without.num_categories)


def test_the_gradient_of_the_scores_is_right_for_each_argument() -> None:
    """Apart from the softmax, which would forgive a constant."""
    torch.manual_seed(0)
    shapes = ((5, 3), (5, 4), (5,))
    assert torch.autograd.gradcheck(
        tanh_scores, [torch.randn(s, dtype=torch.double, requires_grad=True) for s in shapes]
    )
