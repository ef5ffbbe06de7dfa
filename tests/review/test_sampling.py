"""The estimate of precision from a random sample, and when it is enough."""

from __future__ import annotations

import numpy as np
import pytest

from fewtags.review.sampling import Precision


def test_wilson_interval_of_a_small_part():
    """The textbook value for 8 of 10, from a population so large that the sample is a drop in it."""
    low, high = Precision(8, 10, 10**9).interval
    assert low == pytest.approx(0.4902, abs=1e-3)
    assert high == pytest.approx(0.9433, abs=1e-3)


def test_nothing_seen_tells_nothing_and_everything_seen_tells_all():
    assert Precision(0, 0, 50).interval == (0.0, 1.0)
    assert not Precision(0, 0, 50).enough
    assert Precision(40, 50, 50).interval == (0.8, 0.8)
    assert Precision(40, 48, 50, unsure=2).enough


def test_the_interval_holds_the_truth_about_95_times_in_100():
    rng = np.random.default_rng(0)
    population, right, seen = 300, 240, 60
    draws = rng.hypergeometric(right, population - right, seen, size=2000)
    inside = 0
    for number in draws:
        low, high = Precision(int(number), seen, population).interval
        inside += low <= right / population <= high
    assert 0.93 <= inside / len(draws) <= 0.98


def test_the_number_still_needed_is_enough_when_reached():
    sample = Precision(18, 20, 5000)
    more = sample.still_needed
    assert Precision(round(0.9 * (20 + more)), 20 + more, 5000).enough
    assert 50 < more < 250
    assert Precision(0, 0, 30).still_needed <= 30
