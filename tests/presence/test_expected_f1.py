"""Thresholds by expected F1, against trying every cut."""

from __future__ import annotations

import numpy as np
import pytest

from fewtags.presence.thresholds import HIGHEST_THRESHOLD, LOWEST_THRESHOLD, expected_f1_thresholds


def expected_f1(chance, given):
    return 2 * chance[given].sum() / (given.sum() + chance.sum())


def test_no_cut_has_a_better_expected_f1():
    chance = np.random.default_rng(0).beta(0.5, 0.7, (60, 8))
    chosen = expected_f1_thresholds(chance)
    for c in range(8):
        assert LOWEST_THRESHOLD < chosen[c] < HIGHEST_THRESHOLD  # or the limits would hide the choice
        best = max(expected_f1(chance[:, c], chance[:, c] >= cut) for cut in chance[:, c])
        assert expected_f1(chance[:, c], chance[:, c] >= chosen[c]) == pytest.approx(best)


def test_the_threshold_is_between_two_probabilities():
    assert expected_f1_thresholds(np.array([[0.9], [0.7], [0.1], [0.05]])) == pytest.approx(0.4)


@pytest.mark.parametrize(("chance", "threshold"), [(0.01, LOWEST_THRESHOLD), (0.99, HIGHEST_THRESHOLD)])
def test_a_threshold_is_never_far_from_one_half(chance, threshold):
    assert expected_f1_thresholds(np.full((20, 1), chance)) == pytest.approx(threshold)


def test_one_image_has_a_threshold():
    assert np.isfinite(expected_f1_thresholds(np.array([[0.5, 0.0, 1.0]]))).all()
