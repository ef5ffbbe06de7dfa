"""From scores to probabilities: with few labels, with many, and where each image has one known tag."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from fewtags.labels import PRESENT
from fewtags.models.curves import (
    TAGS_OF_ONE_CATEGORY,
    USUAL_SLOPE,
    Bins,
    fit_curves,
    has_one_tag_each,
    one_tag_likelihood,
    shared_curve,
    tags_prior,
)


def by_counting(chances, labels):
    """The same by looking at everything that an image may show."""
    value = torch.zeros(())
    for chance, label in zip(chances, labels, strict=True):
        as_known, any_present = 0.0, 0.0
        for shown in product((0, 1), repeat=len(chance)):
            shown = torch.tensor(shown)
            probability = float(torch.where(shown == 1, chance, 1 - chance).prod())
            any_present += probability * bool(shown.any())
            if bool(shown[label == PRESENT].all()):
                as_known += probability / int(shown.sum())
        value += torch.tensor(as_known / any_present).log()
    return float(value)


def test_the_likelihood_of_the_tag_that_is_known_is_that_of_one_drawn_from_all_present():
    chances = torch.rand(6, 5, generator=torch.Generator().manual_seed(0)).double()
    labels = torch.zeros(6, 5, dtype=torch.int8)
    labels[torch.arange(6), torch.tensor([0, 4, 2, 2, 1, 3])] = PRESENT
    assert one_tag_likelihood(chances, labels) == pytest.approx(by_counting(chances, labels), rel=1e-6)


def test_images_without_a_known_tag_tell_nothing():
    chances = torch.full((3, 4), 0.3)
    labels = torch.zeros(3, 4, dtype=torch.int8)
    labels[0, 1] = PRESENT
    assert one_tag_likelihood(chances, labels) == pytest.approx(one_tag_likelihood(chances[:1], labels[:1]))


def test_one_tag_each_is_one_and_never_two():
    labels = torch.eye(4, dtype=torch.int8).repeat(5, 1)
    assert has_one_tag_each(labels)
    labels[0, 1] = PRESENT
    assert not has_one_tag_each(labels)
    labels[0] = 0
    assert has_one_tag_each(labels)  # one image of twenty shows nothing
    labels[:4] = 0
    assert not has_one_tag_each(labels)


# --- few labels ---


def scores_and_labels(num_images: int, known: float, num_categories: int = 20, seed: int = 0):
    """Scores of spread 1, and labels that are present with log-odds 2 s - 4 and then known with probability `known`."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(num_images, num_categories, generator=generator).double()
    present = torch.rand(scores.shape, generator=generator) < (2 * scores - 4).sigmoid()
    labels = (present & (torch.rand(scores.shape, generator=generator) < known)).to(torch.int8)
    return scores, labels


def fitted(scores, labels):
    bins = Bins.of(scores, labels)
    share = float((labels == PRESENT).float().mean())
    shared = shared_curve(bins, share, labels.shape[1])
    return shared, *fit_curves(bins, shared)[:2]


@pytest.mark.parametrize("num_images", [20, 200])
def test_curves_do_not_depend_on_the_unit_of_scores(num_images):
    """Priors are in standard deviations of the score; above 1 nothing else depends on it."""
    scores, labels = scores_and_labels(num_images, 0.5)
    chances = []
    for unit in (1.5, 15.0):
        _, slope, intercept = fitted(unit * scores, labels)
        chances.append((slope * unit * scores + intercept).sigmoid())
    torch.testing.assert_close(*chances, rtol=1e-4, atol=1e-6)


def test_noisy_scores_are_trusted_less_at_the_top():
    """A spread far below 1 says that little of the scores is signal; then log-odds rise more slowly at the top."""
    scores, labels = scores_and_labels(50, 0.5)
    assert fitted(0.1 * scores, labels)[0].bend < fitted(1.5 * scores, labels)[0].bend - 0.3


def test_without_evidence_a_curve_is_the_usual_one():
    """One known positive in twenty images: a slope per standard deviation as elsewhere, and shares near the mean."""
    scores, labels = scores_and_labels(20, 0.5)
    labels.zero_()
    labels[scores[:, 3].argsort()[-4], 3] = PRESENT
    shared, slope, intercept = fitted(scores, labels)
    assert shared.slope * shared.spread == pytest.approx(USUAL_SLOPE, rel=0.15)
    expected = (slope * scores + intercept).sigmoid().mean(0)
    assert float(expected.median()) == pytest.approx(1 / 400 / shared.known_proportion, rel=0.6)


@pytest.mark.parametrize("known", [0.1, 0.5, 1.0])
def test_many_labels_overrule_what_is_usual(known):
    """These images have 3 tags where 1.8 are usual for 20 categories, and slopes of 2 where 1.5 is."""
    scores, labels = scores_and_labels(20_000, known)
    shared, slope, _ = fitted(scores, labels)
    assert shared.known_proportion == pytest.approx(known, rel=0.15)
    assert float(slope.median()) == pytest.approx(2.0, rel=0.15)


def test_few_labels_say_little_about_how_many_are_missing():
    """Nine tags of twenty photos: that 1.8 tags are usual counts more than where the nine happen to be."""
    usual = 9 / 20 / (TAGS_OF_ONE_CATEGORY * 20**0.5)
    estimates = []
    for seed in range(8):
        scores, labels = scores_and_labels(20, 0.3, seed=seed)
        places = (labels == PRESENT).nonzero()
        labels.zero_()
        labels[tuple(places[:9].T)] = PRESENT
        estimates.append(fitted(scores, labels)[0].known_proportion)
    assert usual / 2 < min(estimates) < max(estimates) < 2 * usual


def test_the_prior_of_tags_is_highest_where_an_image_has_the_usual_number():
    proportions = torch.linspace(0.05, 1, 96, dtype=torch.float64)
    density = tags_prior(proportions, 0.03, 20) + proportions.log()  # per logarithm of the proportion
    usual = 0.03 * 20 / (TAGS_OF_ONE_CATEGORY * 20**0.5)
    assert float(proportions[density.argmax()]) == pytest.approx(usual, abs=0.011)
