"""The head that starts at the closed form: equal to it, refined by what it finds, and learning from zero on."""

import pytest
import torch
import torch.nn.functional as F
from fewtags.models.best_window import unit_windows
from fewtags.models.discriminant import Basis, Discriminant, DiscriminantSums

import fewtags.models.closed_form as module
from fewtags.contract import Batch
from fewtags.metrics import mean_average_precision
from fewtags.models import self_labelling
from fewtags.models.closed_form import ClosedFormHead, Whiten
from fewtags.models.names import NameScorer

DIM, NUM, CATEGORIES = 24, 600, 4


@pytest.fixture(scope="module")
def world():
    """Maps in which a present category shows at one location, the truth, and labels of which a fifth is known."""
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(CATEGORIES, DIM, generator=generator)
    truth = torch.rand(NUM, CATEGORIES, generator=generator) < 0.25
    maps = torch.randn(NUM, DIM, 5, 4, generator=generator) + 2
    for image, category in truth.nonzero():
        row, column = (int(torch.randint(0, side, (), generator=generator)) for side in (5, 4))
        maps[image, :, row, column] += 8 * directions[category]
    known = torch.rand(truth.shape, generator=generator) < 0.2
    return maps, truth, (truth & known).to(torch.int8)


def batches(world, size=64):
    maps, _, labels = world
    return [Batch(maps[rows], labels[rows], rows) for rows in torch.arange(len(maps)).split(size)]


def started(world, **settings):
    torch.manual_seed(0)
    head = ClosedFormHead(ClosedFormHead.Config(**settings), DIM, CATEGORIES).eval()
    with torch.no_grad():
        return head, head.start(batches(world), NUM)


def test_after_the_start_it_gives_the_closed_form_of_the_pooled_map(world):
    maps, _, labels = world
    head, start = started(world)
    pooled = maps.mean((2, 3))
    model = Discriminant.of(DiscriminantSums.of(pooled, labels), pooled, labels)
    torch.testing.assert_close(head(maps).logits.sigmoid(), model.probabilities(pooled), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(start.known_proportion, model.known_proportion)
    torch.testing.assert_close(head.thresholds, model.thresholds, rtol=1e-3, atol=1e-4)


def test_the_order_and_size_of_batches_do_not_matter(world):
    head, _ = started(world)
    other = ClosedFormHead(ClosedFormHead.Config(), DIM, CATEGORIES).eval()
    with torch.no_grad():
        other.start(reversed(batches(world, 50)), NUM)
    torch.testing.assert_close(head(world[0]).logits, other(world[0]).logits, rtol=1e-3, atol=1e-3)


def test_refining_is_left_alone_where_held_back_labels_say_so(world, monkeypatch):
    """Then the head is the closed form as it was."""
    monkeypatch.setattr(self_labelling, "CONVINCING", 1e6)
    (plain, _), (refined, start) = started(world), started(world, refine=True)
    assert torch.equal(refined(world[0]).logits, plain(world[0]).logits)
    assert "not used" in start.sentence


def name_scorer(world):
    """A classifier whose classes are the categories' own directions, and one that is none of them."""
    maps, truth, _ = world
    pooled = F.normalize(maps.mean((2, 3)), dim=1)
    means = torch.stack([pooled[truth[:, c]].mean(0) for c in range(CATEGORIES)]) - pooled.mean(0)
    weight = torch.cat([40 * means / means.norm(dim=1, keepdim=True), torch.zeros(1, DIM)])
    members = torch.eye(CATEGORIES + 1)[:CATEGORIES].bool()
    return NameScorer(weight, torch.zeros(CATEGORIES + 1), members, [f"{c}: itself" for c in range(CATEGORIES)])


def test_names_are_used_said_saved_and_loaded(world):
    maps, truth, _ = world
    head = ClosedFormHead(ClosedFormHead.Config(), DIM, CATEGORIES).eval()
    head.use_names(name_scorer(world))
    with torch.no_grad():
        start = head.start(batches(world), NUM)
        logits = head(maps).logits
    assert "Names: 4 of 4" in start.sentence
    assert "2: itself" in start.sentence
    plain = started(world)[0](maps).logits
    with_names, without = (mean_average_precision(each.numpy(), truth.numpy()) for each in (logits, plain))
    assert with_names > without
    fresh = ClosedFormHead(head.config, DIM, CATEGORIES).eval()
    fresh.load_state_dict(head.state_dict())
    torch.testing.assert_close(fresh(maps).logits, logits)


def test_names_alone_make_a_tagger(world):
    maps, truth, labels = world
    head = ClosedFormHead(ClosedFormHead.Config(), DIM, CATEGORIES).eval()
    head.use_names(name_scorer(world))
    with torch.no_grad():
        head.start(batches((maps, truth, torch.zeros_like(labels))), NUM)
        probabilities = head(maps).logits.sigmoid()
    assert mean_average_precision(probabilities.numpy(), truth.numpy()) > 0.5
    assert 0.05 < float(probabilities.mean()) < 0.6


def test_few_images_are_said_to_be_few(world):
    maps, truth, labels = world
    few = maps[:40], truth[:40], labels[:40]
    head = ClosedFormHead(ClosedFormHead.Config(), DIM, CATEGORIES)
    head.categories = ["sun", "sea", "dog", "cat"]
    with torch.no_grad():
        sentence = head.start(batches(few), 40).sentence
    assert "40 images are few" in sentence
    assert "known)" in sentence


def test_whitening_keeps_the_directions_of_most_variance():
    features = torch.randn(500, 6) @ torch.randn(6, 6) + 3
    basis = Basis.of(DiscriminantSums.of(features, torch.zeros(500, 1)))
    whiten = Whiten(6, 2)
    whiten.set(basis)
    unit = F.normalize(features)
    x = (unit - unit.mean(0)) / unit.std(0, unbiased=False)
    values, vectors = torch.linalg.eigh(x.T @ x / len(x))
    expected = x @ vectors[:, -2:] / (values[-2:] + module.WHITENING).sqrt()
    torch.testing.assert_close(whiten(unit).abs(), expected.abs(), rtol=1e-2, atol=1e-3)


def test_a_curve_for_all_categories_ranks_as_one_for_each(world):
    maps, truth, _ = world
    own, shared = (started(world, calibration=kind)[0](maps).logits for kind in ("category", "shared"))
    maps_of = [mean_average_precision(logits.numpy(), truth.numpy()) for logits in (own, shared)]
    assert maps_of[0] == pytest.approx(maps_of[1], abs=1e-4)
    assert not torch.allclose(own, shared)


def test_the_residual_is_zero_at_the_start_and_gets_gradients(world):
    maps = world[0]
    plain, with_residual = started(world)[0], started(world, residual=True, width=16)[0]
    outputs = with_residual(maps)
    torch.testing.assert_close(outputs.logits, plain(maps).logits)
    assert outputs.features.shape == (NUM, CATEGORIES, 16)
    torch.testing.assert_close(outputs.attention.sum((2, 3)), torch.ones(NUM, CATEGORIES))
    assert [name for name, _ in plain.named_parameters()] == []
    with_residual.residual.attended_weight.data.normal_()
    with_residual(maps).logits.sum().backward()
    assert all(parameter.grad.any() for parameter in with_residual.parameters())


@pytest.mark.parametrize("shape", [(7, 7), (5, 4), (2, 6), (1, 1)])
def test_windows_are_unit_length_averages(shape):
    maps = torch.rand(3, DIM, *shape)
    windows, grid = unit_windows(maps, 3)
    pooled = F.avg_pool2d(maps, [min(3, side) for side in shape], stride=1)
    assert grid == tuple(pooled.shape[2:])
    torch.testing.assert_close(windows, F.normalize(pooled.flatten(2).transpose(1, 2), dim=-1))


def test_first_queries_look_where_the_category_is(world):
    maps, truth, _ = world
    head, _ = started(world, residual=True)
    attention = head(maps).attention
    assert attention.shape[2:] == (3, 2)
    # A present category concentrates the attention; an absent one spreads it.
    peak = attention.flatten(2).amax(2)
    assert peak[truth].mean() > 1.1 * peak[~truth].mean()


def test_with_more_images_than_are_kept_a_sample_chooses_and_calibrates(world, monkeypatch):
    maps, truth, _ = world
    monkeypatch.setattr(module, "KEEP", 300 * DIM)
    head, _ = started(world)
    assert mean_average_precision(head(maps).logits.numpy(), truth.numpy()) > 0.6


def test_a_state_dict_carries_everything_that_prediction_needs(world):
    head, _ = started(world, residual=True, refine=True)
    fresh = ClosedFormHead(head.config, DIM, CATEGORIES).eval()
    fresh.load_state_dict(head.state_dict())
    assert torch.equal(fresh(world[0]).logits, head(world[0]).logits)
