"""The head that starts at the closed form: equal to it, refined by what it finds, and learning from zero on."""

import pytest
import torch
import torch.nn.functional as F

import fewtags.models.closed_form_start as module
from fewtags.contract import Batch
from fewtags.errors import DataError, UserError
from fewtags.labels import ABSENT, PRESENT, UNKNOWN
from fewtags.metrics import mean_average_precision
from fewtags.models.closed_form import ClosedFormHead
from fewtags.models.names import NameScorer
from fewtags.models.residual import WHITENING, Whiten
from fewtags.presence.fitting import fit_presence, known_proportion_of
from fewtags.presence.model import Presence
from fewtags.presence.ridge import Basis, ImageSums
from fewtags.presence.windows import unit_windows

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


def test_features_are_gathered_in_the_order_of_the_images_and_not_copied(world):
    """Batches come in any order; images that cannot be read are in none of them."""
    maps, _, labels = world
    for left_out in (0, 7):
        seen, order = module.FeatureAccumulator(CATEGORIES, DIM, NUM), torch.randperm(NUM)[left_out:]
        for rows in order.split(50):
            seen.add(Batch(maps[rows], labels[rows], rows))
        _, features, of, index = seen.everything()
        assert torch.equal(index, order.sort().values)
        assert torch.equal(features, maps[index].mean((2, 3)))
        assert torch.equal(of, labels[index])
        assert (features.data_ptr() == seen.features.data_ptr()) is (left_out == 0)


def test_without_any_image_that_can_be_read_there_is_nothing_to_fit():
    with pytest.raises(DataError, match="None of the training images could be read"):
        module.FeatureAccumulator(CATEGORIES, DIM, NUM).everything()


def started(world, **settings):
    torch.manual_seed(0)
    head = ClosedFormHead(ClosedFormHead.Config(**settings), DIM, CATEGORIES).eval()
    with torch.no_grad():
        return head, head.start(batches(world), NUM)


def test_after_the_start_it_gives_the_closed_form_of_the_pooled_map(world):
    maps, _, labels = world
    head, start = started(world)
    pooled, model = maps.mean((2, 3)), Presence(CATEGORIES, DIM)
    fitted = fit_presence(model, ImageSums.of(pooled, labels), pooled, labels)
    torch.testing.assert_close(head(maps).logits, model.log_odds(pooled), rtol=1e-3, atol=1e-3)
    share = known_proportion_of(model, fitted.left_out())
    torch.testing.assert_close(start.known_proportion, share, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(head.thresholds, model.thresholds, rtol=1e-3, atol=1e-3)


def test_the_order_and_size_of_batches_do_not_matter(world):
    head, _ = started(world)
    other = ClosedFormHead(ClosedFormHead.Config(), DIM, CATEGORIES).eval()
    with torch.no_grad():
        other.start(reversed(batches(world, 50)), NUM)
    torch.testing.assert_close(head(world[0]).logits, other(world[0]).logits, rtol=1e-3, atol=1e-3)


def test_a_given_known_proportion_is_used_and_reported(world):
    _, start = started(world, known_proportion=0.2)
    assert float(start.known_proportion.mean()) == pytest.approx(0.2, abs=0.02)
    assert start.facts.share_is_given
    assert not started(world)[1].facts.share_is_given


def test_a_setting_of_version_0_1_is_passed_over():
    assert ClosedFormHead.Config(calibration="shared") == ClosedFormHead.Config()


def name_scorer(world):
    """A classifier whose classes are the categories' own directions, and one that is none of them."""
    maps, truth, _ = world
    pooled = F.normalize(maps.mean((2, 3)), dim=1)
    means = torch.stack([pooled[truth[:, c]].mean(0) for c in range(CATEGORIES)]) - pooled.mean(0)
    weight = torch.cat([40 * means / means.norm(dim=1, keepdim=True), torch.zeros(1, DIM)])
    members = torch.eye(CATEGORIES + 1)[:CATEGORIES].bool()
    return NameScorer(weight, torch.zeros(CATEGORIES + 1), members, [f"{c}: itself" for c in range(CATEGORIES)])


def test_names_are_used_reported_saved_and_loaded(world):
    """Where one positive of each category is known, they help."""
    maps, truth, labels = world
    first = labels * (labels.cumsum(0) == 1)
    head = ClosedFormHead(ClosedFormHead.Config(), DIM, CATEGORIES).eval()
    head.names = name_scorer(world)
    with torch.no_grad():
        start = head.start(batches((maps, truth, first)), NUM)
        logits = head(maps).logits
    assert start.facts.num_named == 4
    assert start.facts.name_matches[2] == "2: itself"
    plain = started((maps, truth, first))[0](maps).logits
    with_names, without = (mean_average_precision(each.numpy(), truth.numpy()) for each in (logits, plain))
    assert with_names > without + 0.01
    fresh = ClosedFormHead(head.config, DIM, CATEGORIES).eval()
    fresh.load_state_dict(head.state_dict())
    torch.testing.assert_close(fresh(maps).logits, logits)


def test_the_name_that_fits_its_images_least_is_the_most_doubtful_one(world):
    """Category 2 is matched to the class of category 3, as "athlete" to jocks."""
    names = name_scorer(world)
    names.members[2] = names.members[3]
    head = ClosedFormHead(ClosedFormHead.Config(), DIM, CATEGORIES).eval()
    head.names = names
    with torch.no_grad():
        start = head.start(batches(world), NUM)
    assert start.facts.doubtful_names[0] == 2
    assert sorted(start.facts.doubtful_names) == list(range(CATEGORIES))


def test_names_alone_make_a_tagger(world):
    maps, truth, labels = world
    head = ClosedFormHead(ClosedFormHead.Config(), DIM, CATEGORIES).eval()
    head.names = name_scorer(world)
    with torch.no_grad():
        start = head.start(batches((maps, truth, torch.zeros_like(labels))), NUM)
        probabilities = head(maps).logits.sigmoid()
    assert start.facts.known_share is None
    assert mean_average_precision(probabilities.numpy(), truth.numpy()) > 0.5
    assert 0.05 < float(probabilities.mean()) < 0.6


def test_the_facts_of_a_start_are_counts_of_its_labels(world):
    maps, truth, labels = world
    head = ClosedFormHead(ClosedFormHead.Config(), DIM, CATEGORIES)
    with torch.no_grad():
        facts = head.start(batches((maps[:40], truth[:40], labels[:40])), 40).facts
    assert facts.num_images == 40
    assert list(facts.known_positives) == (labels[:40] == PRESENT).sum(0).tolist()
    assert facts.num_named is None


def test_whitening_keeps_the_directions_of_most_variance():
    features = torch.randn(500, 6) @ torch.randn(6, 6) + 3
    basis = Basis.of(ImageSums.of(features, torch.zeros(500, 1)))
    whiten = Whiten(6, 2)
    whiten.set(basis)
    unit = F.normalize(features)
    x = (unit - unit.mean(0)) / unit.std(0, unbiased=False)
    values, vectors = torch.linalg.eigh(x.T @ x / len(x))
    expected = x @ vectors[:, -2:] / (values[-2:] + WHITENING).sqrt()
    torch.testing.assert_close(whiten(unit).abs(), expected.abs(), rtol=1e-2, atol=1e-3)


def test_the_residual_is_zero_at_the_start_and_gets_gradients(world):
    maps = world[0]
    plain, with_residual = started(world)[0], started(world, residual=True, width=16)[0]
    outputs = with_residual(maps)
    torch.testing.assert_close(outputs.logits, plain(maps).logits)
    torch.testing.assert_close(outputs.attention.sum((2, 3)), torch.ones(NUM, CATEGORIES))
    assert [name for name, _ in plain.named_parameters()] == []
    with_residual.residual.attended_weight.data.normal_()
    with_residual(maps).logits.sum().backward()
    assert all(parameter.grad.any() for parameter in with_residual.parameters())


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
    full, of_all = started(world)
    monkeypatch.setattr(module, "KEEP", 300 * DIM)
    head, start = started(world)
    assert len(of_all.judged.labels) == NUM
    assert 250 < len(start.judged.labels) < 350  # judged on a sample,
    assert start.judged.num_images == start.facts.num_images == NUM  # which stands for all,
    whole, part = (mean_average_precision(each(maps).logits.numpy(), truth.numpy()) for each in (full, head))
    assert part > whole - 0.02  # and the regression is of all of them
    expected, found = (float(each(maps).logits.sigmoid().sum()) for each in (full, head))
    assert found == pytest.approx(expected, rel=0.15)


def test_of_many_categories_a_sample_of_images_shows_its_windows(world, monkeypatch):
    maps, truth, _ = world
    seen, look = [], module.best_left_out
    monkeypatch.setattr(module, "best_left_out", lambda fit, rows, *more: seen.append(rows) or look(fit, rows, *more))
    head, _ = started(world, windows=True)
    assert len(torch.cat(seen).unique()) == NUM
    seen.clear()
    monkeypatch.setattr(module, "ENTRIES", 200 * CATEGORIES)
    few, _ = started(world, windows=True)
    assert len(torch.cat(seen).unique()) == 200
    scores = [mean_average_precision(each(maps).logits.numpy(), truth.numpy()) for each in (few, head)]
    assert scores[0] > scores[1] - 0.03


def test_a_state_dict_carries_everything_that_prediction_needs(world):
    head, _ = started(world, residual=True, refine=True)
    fresh = ClosedFormHead(head.config, DIM, CATEGORIES).eval()
    fresh.load_state_dict(head.state_dict())
    assert torch.equal(fresh(world[0]).logits, head(world[0]).logits)


# --- changing labels ---


def relabelled(world, *said):
    head, _ = started(world)
    for image, category, label in said:
        head.relabel(world[0][image].mean((1, 2)), category, label)
    return head


def some_unknown(world, category, number):
    """Images whose label is unknown, with the right answer."""
    _, truth, labels = world
    rows = (labels[:, category] == UNKNOWN).nonzero()[:number, 0].tolist()
    return [(row, category, PRESENT if truth[row, category] else ABSENT) for row in rows]


def test_saying_the_same_again_changes_nothing(world):
    """Also of an image that was computed again with other last digits."""
    said = some_unknown(world, 1, 3)
    once, twice = relabelled(world, *said), relabelled(world, *said, *said)
    torch.testing.assert_close(once(world[0]).logits, twice(world[0]).logits, rtol=1e-4, atol=1e-4)
    image, category, label = said[0]
    twice.relabel(world[0][image].mean((1, 2)) * 1.0001 + 1e-5, category, label)
    assert len(twice.relabelled.labels) == len(once.relabelled.labels) == 3
    torch.testing.assert_close(once(world[0]).logits, twice(world[0]).logits, rtol=1e-4, atol=1e-4)


def test_labels_may_come_in_any_order_and_a_change_of_mind_leaves_no_trace(world):
    said = some_unknown(world, 1, 6)
    forth, back = relabelled(world, *said), relabelled(world, *said[::-1])
    torch.testing.assert_close(forth(world[0]).logits, back(world[0]).logits, rtol=1e-3, atol=1e-3)
    undone = [(image, category, UNKNOWN) for image, category, _ in said]
    before = started(world)[0](world[0]).logits
    assert not torch.allclose(forth(world[0]).logits, before, atol=0.01)
    assert torch.equal(relabelled(world, *said, *undone)(world[0]).logits, before)


@pytest.mark.parametrize("label", [PRESENT, ABSENT])
def test_a_label_moves_its_image_and_other_categories_keep_their_order(world, label):
    """What an answer says about other categories is how likely their unknown labels are present."""
    before = started(world)[0](world[0]).logits
    image = some_unknown(world, 2, 1)[0][0]
    after = relabelled(world, (image, 2, label))(world[0]).logits
    assert label * float(after[image, 2] - before[image, 2]) > 0.1
    others = [0, 1, 3]
    assert torch.equal(after[:, others].argsort(0), before[:, others].argsort(0))


def test_what_was_said_is_saved(world):
    said = some_unknown(world, 1, 4)
    head, more = relabelled(world, *said), some_unknown(world, 1, 6)
    fresh = ClosedFormHead(head.config, DIM, CATEGORIES).eval()
    fresh.load_state_dict(head.state_dict())
    for one in (head, fresh):
        for image, category, label in (said[0], more[-1]):
            one.relabel(world[0][image].mean((1, 2)), category, label)
    assert len(fresh.relabelled.labels) == 5
    torch.testing.assert_close(fresh(world[0]).logits, head(world[0]).logits)


def test_the_first_positives_of_a_category_that_nobody_labelled(world):
    """They move its probabilities, and never to certainty."""
    maps, truth, labels = world
    labels = labels.clone()
    labels[:, 3] = UNKNOWN
    head, _ = started((maps, truth, labels))
    for image in truth[:, 3].nonzero()[:5, 0].tolist():
        head.relabel(maps[image].mean((1, 2)), 3, PRESENT)
        chance = head(maps).logits[:, 3].sigmoid()
        assert 0 < float(chance.min()) < float(chance.max()) < 0.99
    assert chance[truth[:, 3]].mean() > chance[~truth[:, 3]].mean()


def test_a_trained_residual_cannot_learn_single_labels(world):
    head, _ = started(world, residual=True)
    with pytest.raises(UserError, match="cannot learn single labels"):
        head.relabel(world[0][0].mean((1, 2)), 0, PRESENT)


@pytest.mark.parametrize("copies", [1, 20])
@pytest.mark.parametrize("settings", [{}, {"windows": True}, {"residual": True}], ids=str)
def test_one_photo_or_copies_of_it_make_a_working_tagger(copies, settings):
    maps = torch.rand(1, DIM, 5, 4, generator=torch.Generator().manual_seed(0)).repeat(copies, 1, 1, 1)
    labels = torch.zeros(copies, CATEGORIES, dtype=torch.int8)
    labels[0, 0] = PRESENT
    head = ClosedFormHead(ClosedFormHead.Config(**settings), DIM, CATEGORIES).eval()
    with torch.no_grad():
        head.start(batches((maps, None, labels)), copies)
        assert head(maps).logits.isfinite().all()
        if head.residual is None:
            head.relabel(maps[0].mean((1, 2)), 1, PRESENT)
            assert head(maps).logits.isfinite().all()


def with_weights(world, **settings):
    head, _ = started(world, residual=True, windows=True, width=16, **settings)
    for weight in head.parameters():
        weight.data.normal_()
    return head


def test_the_residual_is_the_product_with_each_category_s_attended_feature(world):
    """By the definition: the feature of a category is the mean of the windows by its attention."""
    head, maps = with_weights(world), world[0][:50]
    residual = head.residual
    windows, _ = unit_windows(maps, 3)
    image, windows = residual.whitened(F.normalize(maps.mean((2, 3))), windows)
    attention = torch.einsum("bld,cd->bcl", windows, residual.first_query + residual.query).softmax(2)
    features = torch.einsum("bcl,bld->bcd", attention, windows)
    expected = image @ residual.pooled_weight.T + residual.bias
    expected = expected + torch.einsum("bcd,cd->bc", features, residual.attended_weight)
    torch.testing.assert_close(
        residual(torch.zeros(50, CATEGORIES), image, windows).logits, expected, rtol=1e-4, atol=1e-4
    )
    torch.testing.assert_close(head(maps).attention.flatten(2), attention, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("training", [False, True])
def test_what_is_settled_before_training_gives_the_same_outputs(world, training):
    head, maps = with_weights(world).train(training), world[0][:50]
    assert head.spec.settles
    settled = head.settled(maps).detach()
    torch.manual_seed(1)
    expected = head(maps)
    torch.manual_seed(1)
    found = head.from_settled(settled)
    torch.testing.assert_close(found.logits, expected.logits)
    torch.testing.assert_close(found.prior, expected.prior)


def test_nothing_is_settled_without_a_residual(world):
    assert not started(world)[0].spec.settles
