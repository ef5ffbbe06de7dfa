"""Thresholds per category, against trying every threshold that there is."""

from __future__ import annotations

import numpy as np
import pytest

from fewtags.engine.thresholds import choose_thresholds, f1_thresholds, known_positive_thresholds


def f1(probabilities: np.ndarray, truth: np.ndarray, threshold: float) -> float:
    given = probabilities >= threshold
    return 2 * (given & truth).sum() / max(given.sum() + truth.sum(), 1)


def best_f1(probabilities: np.ndarray, truth: np.ndarray) -> float:
    return max(f1(probabilities, truth, threshold) for threshold in probabilities)


@pytest.mark.parametrize("decimals", [1, 2, 8])
def test_no_threshold_has_a_better_f1(decimals):
    """With one decimal most probabilities have an equal: a cut between equals is none."""
    rng = np.random.default_rng(decimals)
    truth = rng.random((60, 25)) < 0.3
    probabilities = np.clip(0.4 * truth + 0.6 * rng.random((60, 25)), 0, 1).round(decimals).astype(np.float32)
    chosen = f1_thresholds(probabilities, truth)
    for c in range(25):
        assert f1(probabilities[:, c], truth[:, c], chosen[c]) == best_f1(probabilities[:, c], truth[:, c])


def test_the_threshold_is_between_two_probabilities():
    """Not on one, so that neither rounding nor another machine's last digit changes what is given."""
    probabilities = np.array([[0.9], [0.8], [0.4], [0.2]])
    assert f1_thresholds(probabilities, np.array([[1], [1], [0], [0]]) == 1) == pytest.approx(0.6)
    assert f1_thresholds(probabilities, np.ones((4, 1), dtype=bool)) < 0.19


def test_a_category_without_positives_keeps_one_half():
    assert f1_thresholds(np.array([[0.9, 0.7], [0.1, 0.2]]), np.array([[0, 1], [0, 0]]) == 1)[0] == 0.5


def test_half_the_mean_of_known_positives():
    """Elkan and Noto's c / 2; with no prior strength, from each category's own known positives."""
    probabilities = np.array([[0.8, 0.1], [0.4, 0.3], [0.9, 0.2]])
    labels = np.array([[1, 0], [1, 0], [0, 1]])
    chosen = known_positive_thresholds(probabilities, labels, strength=0.0)
    np.testing.assert_allclose(chosen, [0.3, 0.1])


def test_few_known_positives_are_drawn_to_the_mean_over_categories():
    rng = np.random.default_rng(0)
    probabilities = rng.random((1000, 3))
    labels = np.zeros((1000, 3), dtype=int)
    labels[:400, 0] = 1
    probabilities[:400, 0] = 0.2
    labels[0, 1] = 1
    probabilities[0, 1] = 0.9
    many, one, none = known_positive_thresholds(probabilities, labels)
    overall = probabilities[labels == 1].mean()
    assert many == pytest.approx(0.1, abs=1e-3)
    assert none == pytest.approx(overall / 2)
    assert overall / 2 < one < 0.45


def test_without_any_known_positive_one_half():
    assert known_positive_thresholds(np.random.rand(4, 2), np.zeros((4, 2))).tolist() == [0.5, 0.5]


def test_partial_labels_are_never_measured_by_f1():
    """Where a label is unknown, its probability must not move any threshold by F1."""
    probabilities = np.array([[0.8, 0.9], [0.4, 0.1]])
    partial, complete = np.array([[1, 1], [0, -1]]), np.array([[1, 1], [-1, -1]])
    np.testing.assert_array_equal(
        choose_thresholds(probabilities, partial), known_positive_thresholds(probabilities, partial)
    )
    np.testing.assert_array_equal(
        choose_thresholds(probabilities, complete), f1_thresholds(probabilities, complete == 1)
    )
