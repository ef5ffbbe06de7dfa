"""The whole model: calibrated, saved, on data that say nothing, with names, answers and lessons."""

from __future__ import annotations

import pytest
import torch

from fewtags.errors import DataError, UserError
from fewtags.labels import ABSENT, PRESENT, UNKNOWN
from fewtags.metrics import mean_average_precision
from fewtags.presence import fitting as module
from fewtags.presence.decision_learner import DecisionLearner
from fewtags.presence.decisions import Kept, Lesson
from fewtags.presence.fitting import first_of_each, fit_presence, known_proportion_of, sample_rows
from fewtags.presence.model import Presence
from fewtags.presence.ridge import ImageSums, unit_length
from made_features import some_images


def kept(model: Presence) -> Kept:
    """What lessons keep in place."""
    return DecisionLearner(model, torch.zeros(len(model.sample), len(model.slope))).kept


def fit(features, labels, **options):
    model = Presence(labels.shape[1], features.shape[1])
    return fit_presence(model, ImageSums.of(features, labels), features, labels, **options)


def mean_ap(scores, truth):
    return mean_average_precision(scores.numpy(), truth.numpy())


def with_names(knowledge, seed=0, **options):
    """Images, and name scores that say the more of the truth the more `knowledge` is in them."""
    features, truth, labels = some_images(seed=seed, **options)
    generator = torch.Generator().manual_seed(seed + 50)
    names = knowledge * truth + torch.randn(truth.shape, generator=generator)
    return features, truth, labels, names.log_softmax(1)


@pytest.mark.parametrize("refine", [False, True])
def test_the_memory_of_the_features_can_be_used_again(refine):
    """They take most of it."""
    features, _, labels = some_images(400, 5, 16)
    mine, sums = features.clone(), ImageSums.of(features, labels)
    before = fit_presence(Presence(5, 16), sums, features, labels, refine=refine)
    after = fit_presence(Presence(5, 16), sums, mine, labels, refine=refine, overwrite=True)
    assert torch.equal(before.left_out(), after.left_out())
    assert after.images.rotated.data_ptr() == mine.data_ptr()
    assert before.images.rotated.data_ptr() != features.data_ptr()


@pytest.mark.parametrize("known", [0.3, 0.8])
def test_probabilities_of_new_images_are_calibrated(known):
    features, _, labels = some_images(3000, 8, 24, known=known, strength=0.7)
    images, truth, _ = some_images(3000, 8, 24, seed=1, strength=0.7)
    model = fit(features, labels).model
    chance = model.log_odds(images).sigmoid()
    assert float(chance.sum()) == pytest.approx(float(truth.sum()), rel=0.25)
    for low, high in ((0.0, 0.2), (0.2, 0.5), (0.5, 0.8), (0.8, 1.01)):
        among = (chance >= low) & (chance < high)
        assert truth[among].float().mean().item() == pytest.approx(chance[among].mean().item(), abs=0.15)


@pytest.mark.parametrize("known", [0.3, 0.6])
def test_the_known_proportion_of_a_coin_is_found(known):
    """From images and labels alone, within a fifth."""
    features, truth, labels = some_images(3000, 8, 24, known=known)
    fitted = fit(features, labels)
    found = known_proportion_of(fitted.model, fitted.left_out())
    share = (labels == PRESENT).sum() / truth.sum()
    assert float(found.mean()) == pytest.approx(float(share), rel=0.2)


def test_a_handful_of_labels_does_not_make_every_tag_common():
    """20 images, 20 tags: two labels of one tag and one of another are known. The others are not as common as the first
    is, of which two were seen: that made every tag likely in every image."""
    features, _, labels = some_images(20, 20, 24)
    labels[:] = UNKNOWN
    labels[[2, 9, 5], [4, 4, 11]] = PRESENT
    fitted = fit(features, labels)
    expected = fitted.model.answers.present(fitted.left_out()).sigmoid().sum(0)
    others = [c for c in range(20) if c not in (4, 11)]
    assert float(expected[others].max()) < 0.25 * float(expected[4])
    assert float(expected[others].max()) <= float(expected[11]) + 1e-3


def test_left_out_log_odds_are_as_good_as_those_of_new_images():
    """The fit's own labels must not show through: known positives would stand out."""
    features, truth, labels = some_images(300, 4, 100, known=1.0, strength=0.15)
    images, answers, _ = some_images(3000, 4, 100, seed=1, strength=0.15)
    fitted = fit(features, labels)
    own, new = mean_ap(fitted.left_out(), truth), mean_ap(fitted.model.log_odds(images), answers)
    assert own == pytest.approx(new, abs=0.06)
    assert mean_ap(fitted.model.log_odds(features), truth) > own + 0.06


def test_unknown_labels_that_were_found_help():
    features, _, labels = some_images(1500, 6, 60, known=0.1, strength=0.4)
    images, truth, _ = some_images(3000, 6, 60, seed=1, strength=0.4)
    plain, refined = (fit(features, labels, refine=each).model.log_odds(images) for each in (False, True))
    assert mean_ap(refined, truth) > mean_ap(plain, truth)


def large_and_small(seed):
    """Images [N, D] with things that look the more otherwise the smaller they are; what is there, and its size
    [N, C]."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.rand(3000, 6, generator=generator) < 0.15
    size = torch.rand(truth.shape, generator=generator)
    looks = torch.eye(24)[:12].reshape(2, 6, 24)
    features = 1.5 * (truth * size) @ looks[0] + (truth * (1 - size)) @ looks[1]
    return features + 0.3 * torch.randn(features.shape, generator=generator) + 0.5, truth, size


def test_known_labels_that_were_unlikely_to_be_known_count_more(monkeypatch):
    """People leave out what is small: known labels then stand for all presences by inverse propensities, and new images
    are ranked better."""
    features, truth, size = large_and_small(0)
    known = torch.rand(truth.shape, generator=torch.Generator().manual_seed(9)) < 0.4 * size.square()
    labels = (truth & known).to(torch.int8)
    fitted = fit(features, labels)
    weights, some = fitted.images.weights, labels == PRESENT
    torch.testing.assert_close(weights.sum(0), some.sum(0).float())
    assert (weights[~some] == 0).all()
    assert weights[some & (size < 0.5)].mean() > 1.1 > 1 > weights[some & (size > 0.8)].mean()
    images, there, _ = large_and_small(1)
    monkeypatch.setattr(module, "_by_propensity", lambda images, shared: images)
    plain = mean_ap(fit(features, labels).model.log_odds(images), there)
    assert mean_ap(fitted.model.log_odds(images), there) > plain + 0.005


def test_labels_that_a_coin_left_count_the_same():
    features, _, labels = some_images(3000, 8, 24, known=0.3, strength=0.7)
    weights = fit(features, labels).images.weights[labels == PRESENT]
    assert float(weights.std()) < 0.05


def test_images_may_be_a_sample_of_those_behind_the_sums():
    features, _, labels = some_images(2000, 4, 24)
    whole, sample = Presence(4, 24), Presence(4, 24)
    sums = ImageSums.of(features, labels)
    fit_presence(whole, sums, features, labels)
    fit_presence(sample, sums, features[:1000], labels[:1000])
    difference = whole.log_odds(features).sigmoid() - sample.log_odds(features).sigmoid()
    assert difference.abs().mean() < 0.03


def test_a_saved_model_predicts_the_same():
    features, _, labels, names = with_names(2.0)
    model = fit(features, labels, names=names).model
    model.take_answers(torch.tensor([-1.0, 0.5]), torch.tensor([0, 2]), torch.tensor([True, False]))
    model.take_lesson(1, Lesson(torch.ones(12), torch.tensor(0.3)))
    again = Presence(4, 12)
    again.load_state_dict({name: value.clone() for name, value in model.state_dict().items()})
    assert torch.equal(again.log_odds(features, names), model.log_odds(features, names))
    assert torch.equal(kept(again).inputs, kept(model).inputs)
    assert torch.equal(again.thresholds, model.thresholds)


def test_what_lessons_keep_in_place_is_of_the_last_fit():
    model, other = Presence(4, 12), Presence(4, 12)
    for seed in (0, 1):
        features, _, labels = some_images(dim=12, seed=seed)
        fit_presence(model, ImageSums.of(features, labels), features, labels)
    fit_presence(other, ImageSums.of(features, labels), features, labels)
    assert torch.equal(kept(model).inputs, kept(other).inputs)


def test_scores_of_unit_length_features_are_plain_products():
    """100,000 images are ranked again after a decision: to scale them once more would take four times as long."""
    features, _, labels = some_images()
    model, unit = fit(features, labels).model, unit_length(features)
    assert torch.equal(model.scores(unit), unit @ model.weights.T - model.weights @ model.mean)
    torch.testing.assert_close(model.log_odds(3 * features), model.log_odds(features))


def test_a_model_saved_before_there_was_a_buffer_does_without_it():
    features, _, labels = some_images()
    model = fit(features, labels).model
    state = model.state_dict()
    for name in ("lesson_weights", "lesson_bias", "sample"):
        del state[name]
    again = Presence(4, 12)
    again.load_state_dict(state)
    assert torch.equal(again.log_odds(features), model.log_odds(features))


# --- data that say little ---


def degenerate():
    one = torch.rand(1, 12, generator=torch.Generator().manual_seed(0))
    some = some_images(30)[0]
    return {
        "one image": one,
        "copies": one.repeat(30, 1),
        "copies that differ by a thousandth": one * (1 + 1e-3 * some),
        "constant": torch.ones(30, 12),
        "zero": torch.zeros(30, 12),
        "one dimension": some[:, :1],
        "huge": 1e30 * some,
    }


@pytest.mark.parametrize("which", degenerate())
def test_images_that_say_nothing_make_a_working_tagger(which):
    features = degenerate()[which]
    labels = torch.zeros(len(features), 3, dtype=torch.int8)
    labels[0, 0] = labels[-1, 1] = PRESENT
    fitted = fit(features, labels)
    model = fitted.model
    for values in (
        fitted.left_out(),
        model.log_odds(features),
        model.log_odds(some_images(5)[0][:, : features.shape[1]]),
    ):
        assert values.isfinite().all()
    assert model.thresholds.isfinite().all()
    inputs = model.inputs(unit_length(features[:1]))
    lesson = kept(model).learn(inputs, torch.ones(1), torch.zeros(1), torch.zeros(len(model.sample)))
    model.take_lesson(0, lesson)
    assert model.log_odds(features).isfinite().all()


@pytest.mark.parametrize(("number", "categories"), [(1, 1), (2, 5), (5, 12), (30, 1)])
@pytest.mark.parametrize("filled", [PRESENT, ABSENT, UNKNOWN])
def test_tiny_sets_and_uniform_columns_stay_finite(number, categories, filled):
    """More categories than images; a category known for all, absent in all, never told."""
    features, _, labels = some_images(number, categories, 12)
    labels[:, -1] = filled
    labels[0, 0] = PRESENT
    fitted = fit(features, labels)
    for values in (fitted.left_out(), fitted.model.log_odds(features), fitted.model.thresholds):
        assert values.isfinite().all()


def test_nothing_known_and_impossible_proportions_are_said():
    features, _, labels = some_images()
    with pytest.raises(DataError, match="nothing to learn from"):
        fit(features, torch.zeros_like(labels))
    with pytest.raises(UserError, match="known proportion"):
        fit(features, labels, known_proportion=1.5)


# --- names ---


def test_names_that_help_are_used_and_others_are_not():
    sizes = {"num_images": 500, "num_categories": 8, "dim": 100, "known": 0.1, "strength": 0.3}
    gained = {}
    for knowledge in (0.0, 3.0):
        features, _, labels, names = with_names(knowledge, **sizes)
        images, truth, _, of_images = with_names(knowledge, seed=1, **{**sizes, "num_images": 2000})
        model, alone = fit(features, labels, names=names).model, fit(features, labels).model
        gained[knowledge] = mean_ap(model.log_odds(images, of_images), truth) - mean_ap(alone.log_odds(images), truth)
    assert gained[3.0] > 0.05
    assert gained[0.0] > -0.035


def test_names_alone_make_a_tagger():
    features, truth, labels, names = with_names(3.0)
    fitted = fit(features, torch.zeros_like(labels), names=names)
    odds = fitted.model.log_odds(features, names)
    assert mean_ap(odds, truth) > 0.6
    assert 0.02 < float(odds.sigmoid().mean()) < 0.6
    torch.testing.assert_close(fitted.model.answers.present(fitted.left_out()), odds, rtol=1e-3, atol=1e-3)


def test_a_category_without_a_name_or_a_label_is_unlikely_everywhere():
    features, _, labels, names = with_names(3.0)
    labels[:, 2] = UNKNOWN
    named = torch.tensor([True, True, False, True])
    model = fit(features, labels, names=names, named=named).model
    assert float(model.name_factor[2]) == 0
    assert (model.log_odds(features, names)[:, 2].sigmoid() < 0.2).all()


# --- answers and lessons ---


def test_answers_that_more_are_present_raise_every_other_probability():
    features, _, labels = some_images()
    fitted = fit(features, labels)
    model, before = fitted.model, fitted.model.log_odds(features)
    rows = (labels[:, 1] == UNKNOWN).nonzero()[:40, 0]
    model.take_answers(fitted.left_out()[rows, 1], torch.ones(40, dtype=torch.long), torch.ones(40))
    after = model.log_odds(features)
    assert (after > before).all()
    assert (after - before)[:, 1].mean() > (after - before)[:, 0].mean()


def test_a_lesson_is_added_to_one_category_and_can_be_taken_back():
    features, _, labels = some_images()
    model = fit(features, labels).model
    before, inputs = model.log_odds(features), model.inputs(unit_length(features))
    lesson = Lesson(torch.randn(12, generator=torch.Generator().manual_seed(0)), torch.tensor(0.7))
    model.take_lesson(2, lesson)
    expected = before.clone()
    expected[:, 2] += lesson(inputs)
    torch.testing.assert_close(model.log_odds(features), expected, rtol=1e-4, atol=1e-4)
    model.take_lesson(2, None)
    assert torch.equal(model.log_odds(features), before)


def test_a_new_fit_forgets_answers_and_lessons():
    features, _, labels = some_images()
    model, fresh = fit(features, labels).model, fit(features, labels).model
    model.take_answers(torch.tensor([-1.0]), torch.tensor([0]), torch.tensor([True]))
    model.take_lesson(2, Lesson(torch.ones(12), torch.tensor(0.7)))
    fit_presence(model, ImageSums.of(features, labels), features, labels)
    assert torch.equal(model.log_odds(features), fresh.log_odds(features))


def test_inputs_of_lessons_have_a_length_of_about_one():
    features, _, labels = some_images()
    model = fit(features, labels).model
    assert float(model.inputs(unit_length(features)).norm(dim=1).mean()) == pytest.approx(1, rel=0.2)


# --- samples ---


def test_many_images_are_sampled_and_few_are_not(monkeypatch):
    assert torch.equal(sample_rows(10), torch.arange(10))
    features, _, labels = some_images(1500)
    whole = fit(features, labels).model.log_odds(features).sigmoid()
    monkeypatch.setattr(module, "_SAMPLE", 500)
    rows = sample_rows(1500)
    assert len(rows.unique()) == 500
    assert (fit(features, labels).model.log_odds(features).sigmoid() - whole).abs().mean() < 0.03


def test_so_many_of_each_column_are_taken_and_counted():
    mask = torch.rand(200, 3, generator=torch.Generator().manual_seed(0)) < torch.tensor([0.02, 0.3, 0.0])
    row, column, before = first_of_each(mask, 10)
    assert mask[row, column].all()
    assert len({*zip(row.tolist(), column.tolist(), strict=True)}) == len(row)
    for c, number in enumerate([min(int(mask[:, 0].sum()), 10), 10, 0]):
        assert sorted(before[column == c].tolist()) == list(range(number))


def test_a_model_that_kept_more_than_this_version_loads():
    model = Presence(3, 8)
    older = {**model.state_dict(), "uncertain": torch.tensor(0.4)}
    assert Presence(3, 8).load_state_dict(older).unexpected_keys == []
