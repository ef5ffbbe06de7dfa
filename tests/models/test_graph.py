import pytest
import torch
from torch import Tensor

from fewtags.contract import Problem, WordVectors
from fewtags.errors import UserError
from fewtags.models.graph import GatedPropagation, GraphHead, LabelGraph, cooccurrence, word_cosines


def example(num_categories: int = 4, num_images: int = 30) -> Problem:
    torch.manual_seed(0)
    labels = torch.randint(-1, 2, (num_images, num_categories), dtype=torch.int8)
    words = WordVectors(torch.randn(num_categories, 7), "random")
    return Problem(tuple(str(c) for c in range(num_categories)), labels, words)


def build(problem: Problem, in_channels: int = 6, **settings) -> GraphHead:
    torch.manual_seed(1)
    head = GraphHead(GraphHead.Config(width=5, **settings), in_channels, problem.num_categories, problem.words)
    head.initialise(problem)
    return head


def slow_step(layer: GatedPropagation, matrix: Tensor, h: Tensor) -> Tensor:
    """One image, one category at a time, with one matrix per symbol of the equations."""
    Wz, Wr, Wh = layer.from_messages.weight.chunk(3)
    bz, br, bh = layer.from_messages.bias.chunk(3)
    Uz, Ur = layer.to_gates.weight.chunk(2)
    Uh = layer.to_candidate.weight
    rows = []
    for c in range(len(h)):
        m = torch.cat(
            [sum(matrix[c, j] * h[j] for j in range(len(h))), sum(matrix[j, c] * h[j] for j in range(len(h)))]
        )
        z, r = torch.sigmoid(Wz @ m + bz + Uz @ h[c]), torch.sigmoid(Wr @ m + br + Ur @ h[c])
        rows.append((1 - z) * h[c] + z * torch.tanh(Wh @ m + bh + Uh @ (r * h[c])))
    return torch.stack(rows)


def test_propagation_matches_the_equations():
    problem = example()
    graph = LabelGraph("cooccurrence", problem.words)
    graph.start(problem.labels)
    layer, states = GatedPropagation(6, steps=3), torch.randn(2, 4, 6)
    expected = states
    for _ in range(3):
        expected = torch.stack([slow_step(layer, cooccurrence(problem.labels), h) for h in expected])
    torch.testing.assert_close(layer(states, graph), expected)


def test_cooccurrence_counts_known_labels_only():
    labels = torch.tensor([[1, 1, 0], [1, 0, -1], [1, 1, -1], [0, 0, 0]], dtype=torch.int8)
    expected = torch.tensor([[1, 2 / 3, 0], [1, 1, 0], [0, 0, 0]])  # two thirds of 0 show 1, all of 1 show 0
    torch.testing.assert_close(cooccurrence(labels), expected)


def test_a_category_without_known_positives_has_a_row_of_zeros_and_finite_gradients():
    problem = example()
    labels = problem.labels.clone()
    labels[:, 2] = labels[:, 2].clamp(max=0)
    head = build(Problem(problem.categories, labels, problem.words))
    assert not head.label_graph.incoming[2].any()
    head(torch.randn(2, 6, 3, 3)).logits.sum().backward()
    assert all(p.grad.isfinite().all() for p in head.parameters() if p.grad is not None)


def test_without_steps_only_the_decoupled_features_and_the_output_layer_remain():
    head, maps = build(example(), steps=0), torch.randn(2, 6, 3, 3)
    outputs = head(maps)
    features, attention = head.decoupling(maps)
    hidden = torch.tanh(head.feature_graph.output(torch.cat([features, features], -1)))
    expected = (hidden * head.weight).sum(-1) + head.bias
    torch.testing.assert_close(outputs.logits, expected)
    torch.testing.assert_close(outputs.features, features)
    torch.testing.assert_close(outputs.attention, attention)
    assert not any("propagation" in name for name, _ in head.named_parameters())


def test_features_are_those_before_the_graph():
    head, maps = build(example()), torch.randn(2, 6, 3, 3)
    torch.testing.assert_close(head(maps).features, head.decoupling(maps)[0])


def test_messages_carry_one_category_to_another():
    """A change of one category's feature reaches another's output through the graph; without steps it does not."""
    for steps, reaches in ((0, False), (1, True)):
        head = build(example(), steps=steps)
        start = torch.randn(1, 4, 6, requires_grad=True)
        head.feature_graph(start, head.label_graph)[0, 0].sum().backward()
        assert bool(start.grad[0, 1].any()) == reaches


def test_kggr_sends_the_classifier_through_its_own_graph():
    problem, maps = example(), torch.randn(2, 6, 3, 3)
    paper, product = build(problem, classifier_graph="paper"), build(problem, classifier_graph="product")
    assert paper.weight_graph is not None
    assert {p.data_ptr() for p in paper.weight_graph.parameters()}.isdisjoint(
        p.data_ptr() for p in paper.feature_graph.parameters()
    )
    states = paper.weight_graph.propagation(paper.weight, paper.label_graph)
    transformed = paper.weight_graph.output(torch.cat([states, paper.weight], -1))
    hidden = torch.tanh(paper.feature_graph(paper.decoupling(maps)[0], paper.label_graph))
    torch.testing.assert_close(paper(maps).logits, (hidden * transformed).sum(-1) + paper.bias)
    torch.testing.assert_close(product(maps).logits, (hidden * transformed * paper.weight).sum(-1) + paper.bias)


def test_the_word_graph_starts_at_the_cosines_and_is_learned():
    problem = example()
    head = build(problem, graph="words")
    vectors = problem.words.vectors
    expected = torch.stack([torch.nn.functional.cosine_similarity(v[None], vectors) for v in vectors])
    torch.testing.assert_close(word_cosines(problem.words), expected)
    torch.testing.assert_close(head.label_graph.incoming.data, expected)
    head(torch.randn(2, 6, 3, 3)).logits.sum().backward()
    assert head.label_graph.incoming.grad.any()
    assert head.label_graph.outgoing.grad.any()


def test_the_fixed_graph_is_saved_with_the_model_and_not_trained():
    head = build(example())
    assert "label_graph.incoming" in head.state_dict()
    assert "label_graph.incoming" not in dict(head.named_parameters())


@pytest.mark.parametrize("num_categories", [1, 300])
def test_any_number_of_categories(num_categories):
    head = build(example(num_categories), classifier_graph="paper")
    assert head(torch.randn(2, 6, 3, 3)).logits.isfinite().all()


def test_half_precision_on_the_cpu():
    head = build(example(), classifier_graph="paper")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = head(torch.randn(2, 6, 3, 3))
    outputs.logits.float().sum().backward()
    assert outputs.logits.isfinite().all()


def test_missing_word_vectors_are_explained():
    problem = example()
    with pytest.raises(UserError, match="word vectors"):
        build(Problem(problem.categories, problem.labels))
