"""Quality from partial labels: against slow versions, and against the truth where it is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fewtags.estimates import (
    BEND,
    Curves,
    ScoreBins,
    _Fit,
    estimate_quality,
    expected_ap,
    fit_curves,
    log_odds,
    rank_edges,
)
from fewtags.metrics import average_precision, f1_scores


def made(known: float, num_images: int = 4000, num_categories: int = 8, seed: int = 0):
    """Scores, truth and the labels that are known, in chance's choice."""
    random = np.random.default_rng(seed)
    truth = random.random((num_images, num_categories)) < np.linspace(0.03, 0.3, num_categories)
    scores = random.normal(size=truth.shape) + truth * np.linspace(1.5, 3.0, num_categories)
    labels = (truth & (random.random(truth.shape) < known)).astype(np.int8)
    return scores, truth, labels


# --- bins ---


def test_bins_hold_every_image_once_in_the_order_of_scores():
    scores, _, labels = made(0.5, num_images=500)
    labels[::7] = -1
    bins = ScoreBins.of(scores, labels, 1.0)
    assert (bins.count.sum(0) == 500).all()
    np.testing.assert_array_equal(bins.present.sum(0), (labels == 1).sum(0))
    np.testing.assert_array_equal(bins.absent.sum(0), (labels == -1).sum(0))
    np.testing.assert_array_equal((bins.count * bins.above).sum(0), (scores >= 1.0).sum(0))
    assert (np.diff(bins.score, axis=0) <= 0).all()
    np.testing.assert_allclose((bins.count * bins.score).sum(0), scores.sum(0))


def test_few_images_have_a_bin_each():
    assert rank_edges(5).tolist() == [0, 1, 2, 3, 4, 5]
    assert rank_edges(100_000)[-1] == 100_000
    assert len(rank_edges(100_000)) < 400


def test_groups_of_categories_join_to_the_whole():
    scores, _, labels = made(0.5, num_images=300)
    whole = ScoreBins.of(scores, labels, 0.5)
    parts = ScoreBins.join([ScoreBins.of(scores[:, some], labels[:, some], 0.5) for some in np.split(np.arange(8), 2)])
    for name, value in vars(whole).items():
        np.testing.assert_array_equal(getattr(parts, name), value)


# --- curves ---


def test_derivatives_are_those_of_the_likelihood():
    scores, _, labels = made(0.3, num_images=400, num_categories=3)
    labels[::9] = np.where(labels[::9] == 0, -1, labels[::9])
    fit = _Fit(ScoreBins.of(scores, labels), None, None)
    # The share of known absences follows from the curve; held where it is, it must not matter to the derivative.
    point = fit.first_point()._replace(bend=-0.3)
    denied = fit._chances(point)[2]
    chances = fit._chances
    fit._chances = lambda p: (c := chances(p)) and (  # type: ignore[method-assign]
        c[0], c[1], denied, 1 - c[1] * c[0] - denied * (1 - c[0]),
    )  # fmt: skip
    own, shared, *_ = fit._derivatives(point)

    def numeric(name: str, place: int | None = None) -> float:
        def moved(by: float) -> float:
            value = getattr(point, name)
            value = value + by if place is None else value + by * (np.arange(3) == place)
            return fit.value(point._replace(**{name: value}))

        return (moved(1e-5) - moved(-1e-5)) / 2e-5

    for c in range(3):
        assert own[c].tolist() == pytest.approx([numeric("slope", c), numeric("intercept", c)], rel=1e-4, abs=1e-4)
    assert shared.tolist() == pytest.approx([numeric("odds"), numeric("bend")], rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("known", [0.1, 0.3, 0.7])
def test_the_known_proportion_is_found(known):
    scores, _, labels = made(known, num_images=12_000)
    assert fit_curves(ScoreBins.of(scores, labels)).known_proportion == pytest.approx(known, rel=0.1)


def test_known_absences_do_not_mislead():
    scores, truth, labels = made(0.3, num_images=12_000)
    labels[~truth & (np.random.default_rng(1).random(truth.shape) < 0.2)] = -1
    assert fit_curves(ScoreBins.of(scores, labels)).known_proportion == pytest.approx(0.3, rel=0.1)


def test_a_given_known_proportion_stays():
    scores, _, labels = made(0.3)
    curves = fit_curves(ScoreBins.of(scores, labels), known_proportion=0.3)
    assert curves.known_proportion == 0.3
    prior = curves.chance(scores).mean(0)
    np.testing.assert_allclose(prior, (labels == 1).mean(0) / 0.3, rtol=0.15)


def test_log_odds_rise_more_slowly_above_the_bend():
    curves = Curves(np.ones(1), np.zeros(1), np.ones(1), bend=np.log(0.5), known_proportion=0.5)
    high, low = (np.diff(log_odds(curves.chance(np.array([x, x + 1.0])))) for x in (BEND + 6, BEND - 8))
    assert high[0] == pytest.approx(0.5, abs=0.01)
    assert low[0] == pytest.approx(1.0, abs=0.01)


# --- numbers ---


def test_expected_ap_is_the_mean_over_what_may_be_present():
    """Against AP of truths drawn from the probabilities."""
    random = np.random.default_rng(0)
    chance = np.sort(random.random((50, 1)) ** 2, axis=0)[::-1]
    scores = np.arange(50, 0, -1.0)[:, None]
    bins = ScoreBins.of(scores, np.zeros((50, 1), dtype=np.int8))
    inside = np.zeros_like(bins.count)
    inside[:50] = chance
    drawn = [average_precision(scores, random.random(chance.shape) < chance)[0] for _ in range(4000)]
    assert expected_ap(bins, inside)[0] == pytest.approx(np.nanmean(drawn), abs=0.01)


def test_precision_is_recall_times_prior_over_the_share_above():
    scores, _, labels = made(0.3)
    bins = ScoreBins.of(scores, labels, 1.5)
    estimates = estimate_quality(bins, num_draws=2)
    curves = fit_curves(bins)
    prior, share = (bins.count * curves.chance(bins.score)).sum(0) / 4000, (scores >= 1.5).mean(0)
    np.testing.assert_allclose(estimates.precision[:, 0], estimates.recall[:, 0] * prior / share, rtol=1e-9)
    known_above = ((scores >= 1.5) & (labels == 1)).sum(0) / (labels == 1).sum(0)
    np.testing.assert_allclose(estimates.recall[:, 0], known_above, atol=0.1)


@pytest.mark.parametrize("seed", range(3))
def test_estimates_agree_with_what_the_truth_measures(seed):
    scores, truth, labels = made(0.2, num_images=8000, seed=seed)
    estimates = estimate_quality(ScoreBins.of(scores, labels, 1.5), num_draws=20)
    measured = f1_scores(scores, truth, 1.5)
    assert estimates.map.value == pytest.approx(average_precision(scores, truth).mean(), abs=0.05)
    assert estimates.of1.value == pytest.approx(measured.of1, abs=0.05)
    assert estimates.cf1.value == pytest.approx(measured.cf1, abs=0.05)
    hidden = int((truth & (labels == 0)).sum())
    assert estimates.missing.value == pytest.approx(hidden, rel=0.12)
    assert estimates.map.low < estimates.map.value < estimates.map.high
    inside = (estimates.ap[:, 1] <= average_precision(scores, truth)) & (
        average_precision(scores, truth) <= estimates.ap[:, 2]
    )
    assert inside.mean() >= 0.6


def test_more_known_tags_make_narrower_intervals():
    width = {}
    for known in (0.1, 0.5):
        scores, _, labels = made(known)
        interval = estimate_quality(ScoreBins.of(scores, labels, 1.0), num_draws=20).map
        width[known] = interval.high - interval.low
    assert width[0.5] < width[0.1]


def test_few_known_tags_lean_on_curves_of_more():
    scores, truth, labels = made(0.2, num_images=8000)
    much = fit_curves(ScoreBins.of(scores, labels))
    few = ScoreBins.of(scores[:600], labels[:600])
    estimates = estimate_quality(few, much.known_proportion, much, num_draws=2)
    assert estimates.known_proportion.value == much.known_proportion
    assert estimates.map.value == pytest.approx(average_precision(scores[:600], truth[:600]).mean(), abs=0.08)


def test_a_category_without_known_positives_has_no_numbers():
    scores, _, labels = made(0.3)
    labels[:, 2] = 0
    record = estimate_quality(ScoreBins.of(scores, labels), num_draws=2).as_json(list("abcdefgh"))
    assert record["categories"]["c"] == {"ap": None, "precision": None, "recall": None, "missing_tags": None}
    assert len(record["categories"]["a"]["ap"]) == len(record["map"]) == 3
    assert "assuming" in record["assumption"]


def test_probabilities_rounded_to_one_are_finite_scores():
    assert np.isfinite(log_odds(np.array([0.0, 0.5, 1.0], dtype=np.float32))).all()


def test_a_given_known_proportion_is_as_uncertain_as_the_images_leave_it():
    """Its spread is that of the estimate over many draws of the labels; intervals count it in."""
    draws = [made(0.4, num_images=1000, seed=seed) for seed in range(12)]
    many = [ScoreBins.of(scores, labels) for scores, _, labels in draws]
    found, bins = [fit_curves(each).known_proportion for each in many], many[0]
    curves = fit_curves(bins, 0.4)
    spread = np.std(np.log(found) - np.log1p(-np.array(found)))
    assert 0.4 * spread < curves.known_spread < 2.5 * spread
    certain = estimate_quality(bins, 0.4, like=replace(curves, known_spread=0.0)).missing
    estimated = estimate_quality(bins, 0.4, like=curves).missing
    assert estimated.high - estimated.low > 1.5 * (certain.high - certain.low)
