"""The evidence of whole images: against regression written out, under splits, and on features that say nothing."""

from __future__ import annotations

import pytest
import torch
from left_out_slowly import refitted, score, score_without

from fewtags.errors import DataError
from fewtags.labels import PRESENT
from fewtags.presence.ridge import TILT, Basis, ImageSums, Ridge, unit_length, weight_variances
from made_features import some_images


def fitted(number=80, dim=12, known=0.8):
    """A ridge, the images in its eigenbasis, and their labels as weights."""
    features, _, labels = some_images(number, 4, dim, known=known)
    labels[:2] = PRESENT  # every category has some
    ridge = Ridge.of(ImageSums.of(features, labels))
    return ridge, ridge.basis.rotate(features), labels.float()


def test_scores_are_those_of_a_regression_on_what_is_known():
    ridge, rotated, labels = fitted()
    features = some_images(80, 4, 12, known=0.8)[0]
    scores = (unit_length(features) - ridge.basis.mean) @ ridge.weights().T
    for category in range(4):
        intercept, weights = refitted(ridge, rotated, labels, category, torch.arange(80))
        expected = score(ridge, category, intercept + rotated.double() @ weights).float()
        torch.testing.assert_close(scores[:, category], expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("number", "dim"), [(80, 12), (20, 40)])
def test_a_left_out_score_is_that_of_the_regression_without_the_image(number, dim):
    """Also with more features than images, and where unknown labels count a little."""
    ridge, rotated, labels = fitted(number, dim)
    left_out = ridge.left_out(rotated, labels)
    for image in range(0, number, number // 5):
        for category in range(4):
            expected = score_without(ridge, rotated, labels, category, image, rotated[image])
            torch.testing.assert_close(left_out[image, category], expected, rtol=2e-3, atol=2e-3)


def test_left_out_scores_of_images_that_count_in_part():
    features, _, labels = some_images(60, 4, 12)
    weights = torch.where(labels == PRESENT, 1.0, torch.rand(60, 4, generator=torch.Generator().manual_seed(0)))
    ridge = Ridge.of(ImageSums.of(features, weights))
    rotated = ridge.basis.rotate(features)
    for image in (0, 17, 59):
        expected = score_without(ridge, rotated, weights, 1, image, rotated[image])
        # Weights at random have no signal, and the unit of scores (2e5 here) enlarges what rounding leaves.
        scores = ridge.left_out(rotated, weights)[image, 1]
        torch.testing.assert_close(scores / ridge.unit[1], expected / ridge.unit[1], rtol=2e-3, atol=6e-8)


def test_pairs_and_groups_of_categories_have_the_same_left_out_scores():
    ridge, rotated, labels = fitted()
    left_out = ridge.left_out(rotated, labels)
    image, category = (labels == PRESENT).nonzero(as_tuple=True)
    of_pairs = ridge.left_out_pairs(rotated[image], category, labels[image, category])
    torch.testing.assert_close(of_pairs, left_out[image, category], rtol=1e-4, atol=1e-4)
    for some in (slice(1, 3), torch.tensor([3, 0])):
        torch.testing.assert_close(ridge.left_out(rotated, labels[:, some], some), left_out[:, some])


@pytest.mark.parametrize(("size", "dim"), [(1, 12), (3, 12), (5, 40), (70, 12)])
def test_a_group_is_judged_by_the_regression_without_the_group(size, dim):
    """Small ones by their block of leverages, large ones by Woodbury's identity."""
    ridge, rotated, labels = fitted(150, dim)
    groups = torch.arange(150)
    groups[10 : 10 + size] = 10
    left_out = ridge.left_out(rotated, labels, groups=groups)
    rest = torch.cat([torch.arange(10), torch.arange(10 + size, 150)])
    for category in range(4):
        intercept, weights = refitted(ridge, rotated, labels, category, rest)
        predicted = (intercept + rotated[10 : 10 + size].double() @ weights).float()
        own = labels[10 : 10 + size, category].sum().expand(size)
        expected = ridge._as_score(predicted, own, category, size)
        torch.testing.assert_close(left_out[10 : 10 + size, category], expected, rtol=5e-3, atol=5e-3)


def test_images_without_twins_are_judged_as_before():
    ridge, rotated, labels = fitted()
    assert torch.equal(ridge.left_out(rotated, labels, groups=torch.arange(80)), ridge.left_out(rotated, labels))
    groups = torch.arange(80)
    groups[:4] = 0
    assert torch.equal(ridge.left_out(rotated, labels, groups=groups)[4:], ridge.left_out(rotated, labels)[4:])


def test_elsewhere_is_scored_by_the_regression_without_the_image():
    ridge, rotated, labels = fitted()
    windows = rotated[:6, None] + torch.randn(6, 3, 12, generator=torch.Generator().manual_seed(1))
    scores = ridge.left_out_elsewhere(rotated[:6], windows, labels[:6])
    for image in range(6):
        for category in range(4):
            expected = score_without(ridge, rotated, labels, category, image, windows[image])
            torch.testing.assert_close(scores[image, :, category], expected, rtol=2e-3, atol=2e-3)


def test_an_image_elsewhere_than_nowhere_has_its_own_left_out_score():
    ridge, rotated, labels = fitted()
    at_itself = ridge.left_out_elsewhere(rotated, rotated[:, None], labels)[:, 0]
    torch.testing.assert_close(at_itself, ridge.left_out(rotated, labels), rtol=1e-3, atol=1e-3)


def test_sums_of_splits_add_up():
    features, _, labels = some_images()
    whole, parts = ImageSums.of(features, labels), [ImageSums(4, 12) for _ in range(3)]
    for number, rows in enumerate(torch.arange(300).split(47)):
        parts[number % 3].add(features[rows], labels[rows])
    for name, value in vars(whole).items():
        total = sum(getattr(part, name) for part in parts)
        torch.testing.assert_close(total, value, rtol=1e-5, atol=1e-4)


def test_known_absences_are_no_positives_of_less_than_nothing():
    features, truth, labels = some_images()
    told = torch.where(truth, labels, -1)
    for name, value in vars(ImageSums.of(features, labels)).items():
        torch.testing.assert_close(getattr(ImageSums.of(features, told), name), value)


def test_images_that_count_otherwise_make_the_same_regression_as_from_the_start():
    """Also if only those are given that do, each of which stands for two."""
    features, _, labels = some_images()
    weights = torch.rand(labels.shape, generator=torch.Generator().manual_seed(2))
    twice = torch.cat([features, features])
    ridge = Ridge.of(ImageSums.of(twice, torch.cat([labels, labels])))
    other = ridge.recounted(ridge.basis.rotate(features), (labels == PRESENT).float(), weights)
    expected = Ridge.of(ImageSums.of(twice, torch.cat([weights, weights])))
    for name in ("share", "reliability"):
        torch.testing.assert_close(getattr(other, name), getattr(expected, name), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(other.weights(), expected.weights(), rtol=1e-3, atol=1e-3)


def test_the_penalty_falls_as_positives_come_in():
    """And with it the noise: a category of more positives is more reliable."""
    features, truth, _ = some_images(2000, 3, 24, strength=0.7)
    labels = torch.zeros_like(truth, dtype=torch.int8)
    for category, number in enumerate((4, 40, 400)):
        labels[truth[:, category].nonzero()[:number, 0], category] = PRESENT
    ridge = Ridge.of(ImageSums.of(features, labels))
    penalty = (1 / ridge.gain - ridge.basis.values).mean(1)
    assert penalty[0] > 2 * penalty[1] > 4 * penalty[2] > 0
    assert ridge.reliability.diff().min() > 0


def test_means_are_as_noisy_as_what_is_not_explained_of_the_labels():
    """The share that a first regression explains, counted over the images."""
    features, _, labels = some_images(400, 3, 24, strength=2.0, known=0.8)
    ridge = Ridge.of(ImageSums.of(features, labels))
    rotated, values = ridge.basis.rotate(features), ridge.basis.values
    positives = ridge.positives
    variance = weight_variances(positives.mean, positives.number, values, positives.weight > 0)
    for category in range(3):
        known = (labels[:, category] == PRESENT).float()
        penalty = values**-TILT / (variance[category] * known.sum())
        fit = known.mean() * rotated @ (positives.mean[category] / (values + penalty))
        explained = torch.cov(torch.stack([fit, known]), correction=0)[0, 1] / known.var(correction=0)
        assert 0.1 < explained < 0.9
        found = 1 / ridge.gain[category] - values
        torch.testing.assert_close(found, (1 - explained) * penalty, rtol=1e-2, atol=1e-4)


def test_the_variance_of_weights_is_found():
    """Means m = S w + noise over `number` images, of weights w drawn with a known variance."""
    generator = torch.Generator().manual_seed(0)
    values, number = torch.linspace(0.2, 3, 60), torch.full((80,), 20.0)
    for log_s in (-4.0, -1.0):
        spread = (torch.tensor(log_s).exp() * values**TILT).sqrt()
        weights = spread * torch.randn(80, 60, generator=generator)
        noise = (values / 20).sqrt() * torch.randn(80, 60, generator=generator)
        found = weight_variances(values * weights + noise, number, values, number > 0).log()
        assert float(found.mean()) == pytest.approx(log_s, abs=0.5)


def test_a_category_without_positives_has_no_opinion():
    features, _, labels = some_images()
    labels[:, 2] = 0
    ridge = Ridge.of(ImageSums.of(features, labels))
    assert (ridge.weights()[2] == 0).all()
    assert (ridge.left_out(ridge.basis.rotate(features), labels.float())[:, 2] == 0).all()
    assert float(ridge.reliability[2]) == 0


def test_a_constant_dimension_changes_nothing():
    features, _, labels = some_images()
    unit = unit_length(features)
    padded = torch.cat([unit, torch.zeros(len(unit), 1)], dim=1)
    plain, same = (Ridge.of(ImageSums.of(each, labels)) for each in (unit, padded))
    torch.testing.assert_close(same.weights()[:, :-1], plain.weights(), rtol=1e-3, atol=1e-3)
    assert (same.weights()[:, -1] == 0).all()


def degenerate():
    one = torch.rand(1, 12, generator=torch.Generator().manual_seed(0))
    some = some_images(30)[0]
    return {
        "one image": one,
        "copies of one image": one.repeat(30, 1),
        "copies that differ by a thousandth": one * (1 + 1e-3 * some),
        "constant": torch.ones(30, 12),
        "zero": torch.zeros(30, 12),
        "zero but one": torch.cat([torch.zeros(29, 12), one]),
        "two images": some[:2],
        "one dimension": some[:, :1],
        "huge": 1e30 * some,
        "tiny": 1e-30 * some,
    }


@pytest.mark.parametrize("which", degenerate())
def test_features_that_say_nothing_give_finite_scores(which):
    features = degenerate()[which]
    labels = torch.zeros(len(features), 3, dtype=torch.int8)
    labels[0, 0] = labels[-1, 1] = PRESENT
    ridge = Ridge.of(ImageSums.of(features, labels))
    rotated = ridge.basis.rotate(features)
    assert ridge.weights().isfinite().all()
    assert ridge.left_out(rotated, labels.float()).isfinite().all()
    assert ridge.left_out_elsewhere(rotated, rotated[:, None], labels.float()).isfinite().all()


@pytest.mark.parametrize("which", ["copies of one image", "copies that differ by a thousandth", "constant"])
def test_copies_of_one_image_are_not_told_apart(which):
    features = degenerate()[which]
    labels = torch.zeros(len(features), 1, dtype=torch.int8)
    labels[:5] = PRESENT
    assert (Ridge.of(ImageSums.of(features, labels)).weights() == 0).all()


def test_no_images_and_features_that_are_not_numbers_are_said():
    with pytest.raises(DataError, match="no images"):
        Basis.of(ImageSums(2, 3))
    with pytest.raises(DataError, match="not finite"):
        ImageSums.of(torch.full((3, 4), torch.nan), torch.zeros(3, 2))
