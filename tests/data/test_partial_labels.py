"""The partial-label protocol: one draw, nested proportions, golden values."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from fewtags.data.partial_labels import MOST_TAGS, TAGGERS, hide_labels, single_positive, tagged_by
from fewtags.errors import UserError

PROPORTIONS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


def random_truth(images: int = 300, categories: int = 20, seed: int = 5) -> np.ndarray:
    return (np.random.default_rng(seed).random((images, categories)) < 0.3).astype(np.int64)


def test_golden_values():
    """The draw with seed 0 must never change: every published number stands on it."""
    truth = np.array([[1, 0, 1, 1, 1], [0, 0, 0, 0, 0], [1, 1, 1, -1, 1]])
    assert hide_labels(truth, 0.4).tolist() == [[0, 0, 1, 0, 0], [0, 0, 0, 0, 0], [1, 0, 0, 0, 0]]
    assert hide_labels(truth, 0.5).tolist() == [[1, 0, 1, 1, 0], [0, 0, 0, 0, 0], [1, 1, 1, 0, 0]]
    assert hide_labels(truth, 0.9).tolist() == [[1, 0, 1, 1, 1], [0, 0, 0, 0, 0], [1, 1, 1, 0, 0]]
    assert hide_labels(np.ones((4, 3)), 0.5, seed=7).tolist() == [[0, 1, 0], [1, 1, 1], [1, 0, 0], [0, 1, 1]]
    assert single_positive(truth).tolist() == [[0, 0, 1, 0, 0], [0, 0, 0, 0, 0], [1, 0, 0, 0, 0]]
    kept = [int(hide_labels(np.ones((1000, 20)), p).sum()) for p in (0.1, 0.5, 0.9)]
    assert kept == [2012, 9871, 17896]


def test_follows_the_protocol_entry_by_entry():
    truth, p = random_truth(), 0.3
    draw = np.random.RandomState(0).random_sample(truth.shape)
    expected = [
        [int(y == 1 and u >= 1 - p) for y, u in zip(*rows, strict=True)] for rows in zip(truth, draw, strict=True)
    ]
    assert hide_labels(truth, p).tolist() == expected


def test_known_labels_are_nested_across_proportions():
    known = [hide_labels(random_truth(), p) for p in PROPORTIONS]
    for fewer, more in pairwise(known):
        assert (fewer <= more).all()
        assert fewer.sum() < more.sum()


def test_everything_is_known_at_one_and_nothing_is_invented():
    truth = random_truth()
    assert (hide_labels(truth, 1) == truth).all()
    assert (hide_labels(truth, 0.5) <= truth).all()


def test_a_label_is_kept_independently_of_the_other_labels():
    truth, changed = random_truth(seed=1), random_truth(seed=2)
    both = (truth == 1) & (changed == 1)
    assert (hide_labels(truth, 0.5)[both] == hide_labels(changed, 0.5)[both]).all()


def test_the_kept_share_is_the_proportion():
    truth = np.ones((2000, 50))
    for p in PROPORTIONS:
        assert hide_labels(truth, p).mean() == pytest.approx(p, abs=0.006)  # four standard deviations at p = 0.5


def test_ways_to_write_absent_are_alike():
    truth = random_truth()
    expected = hide_labels(truth, 0.4)
    assert expected.dtype == np.int8
    for other in (truth.astype(bool), np.where(truth == 1, 1, -1), truth.astype(np.float32), truth.tolist()):
        assert (hide_labels(other, 0.4) == expected).all()


def test_the_truth_is_not_written_to():
    truth = random_truth()
    before = truth.copy()
    hide_labels(truth, 0.1)
    single_positive(truth)
    assert (truth == before).all()


def test_single_positive_keeps_one_true_label_of_every_image_that_has_any():
    truth = random_truth(categories=4)
    known = single_positive(truth)
    assert (known <= truth).all()
    assert (known.sum(1) == truth.any(1)).all()
    assert not truth.any(1).all()  # the set holds images without positives, which keep none


def test_single_positive_chooses_evenly():
    known = single_positive(np.ones((20_000, 4)))
    assert known.mean(0) == pytest.approx([0.25] * 4, abs=0.0125)  # four standard deviations


def test_single_positive_is_the_label_that_hiding_keeps_longest():
    truth = random_truth()
    for p in PROPORTIONS:
        known = hide_labels(truth, p)
        kept = known.any(1)
        assert (single_positive(truth)[kept] <= known[kept]).all()


def test_another_seed_keeps_others():
    truth = random_truth()
    assert (hide_labels(truth, 0.5, seed=1) != hide_labels(truth, 0.5, seed=2)).any()
    assert (single_positive(truth, seed=1) != single_positive(truth, seed=2)).any()


@pytest.mark.parametrize("proportion", [0, -0.1, 1.01, float("nan"), 50, "0.5", None])
def test_a_wrong_proportion_is_told(proportion):
    with pytest.raises(UserError, match="above 0 and at most 1"):
        hide_labels(random_truth(), proportion)


@pytest.mark.parametrize("truth", [[[0, 2]], [[0.5, 1]], [[np.nan, 1]], [["yes", "no"]], [[None, 1]]])
def test_a_wrong_value_is_told_with_its_place(truth):
    with pytest.raises(UserError, match=r"found .* at image 0, category"):
        hide_labels(truth, 0.5)


@pytest.mark.parametrize("truth", [[0, 1], np.zeros((2, 2, 2)), 1, "cat"])
def test_a_wrong_shape_is_told(truth):
    with pytest.raises(UserError, match=r"\[images, categories\]"):
        single_positive(truth)


@pytest.mark.parametrize("seed", [-1, 2**32, 1.5, "zero", None])
def test_a_wrong_seed_is_told(seed):
    with pytest.raises(UserError, match="whole number"):
        hide_labels(random_truth(), 0.5, seed=seed)


# --- taggers that do not toss coins ---


def a_truth(rows: int = 4000, columns: int = 8) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    truth = rng.random((rows, columns)) < 0.5
    return truth, np.where(truth, rng.random((rows, columns)), 0.0)


@pytest.mark.parametrize("tagger", TAGGERS)
def test_a_tagger_knows_only_what_is_there_and_the_seed_decides(tagger):
    truth, shares = a_truth()
    known = tagged_by(tagger, truth, 3, shares)
    assert known.dtype == np.int8
    assert not known[~truth].any()
    assert (known == tagged_by(tagger, truth, 3, shares)).all()
    if tagger not in MOST_TAGS:
        assert (known != tagged_by(tagger, truth, 4, shares)).any()


def test_habits_differ_by_tag_and_not_by_size():
    truth, shares = a_truth()
    known = tagged_by("habit", truth, 0).astype(bool)
    rates = known.sum(0) / truth.sum(0)
    assert rates.max() - rates.min() > 0.2
    assert abs(shares[known].mean() - shares[truth].mean()) < 0.02
    many = np.ones((60, 3000), dtype=bool)
    assert tagged_by("habit", many, 0).mean() == pytest.approx(1 / 3, abs=0.02)  # the mean of Beta(1.5, 3)


def test_salience_follows_its_formula():
    shares = np.repeat([[0.01, 0.09, 0.25, 1.0]], 20_000, axis=0)
    known = tagged_by("salience", np.ones(shares.shape, dtype=bool), 0, shares)
    assert known.mean(0) == pytest.approx([0.16, 0.48, 0.8, 0.95], abs=0.012)


def test_both_is_habit_times_size():
    shares = np.repeat([[0.04, 0.16]], 20_000, axis=0).repeat(5, axis=1)
    truth = np.ones(shares.shape, dtype=bool)
    rate = np.random.default_rng(7).beta(1.5, 3, 10)
    expected = np.minimum(4 * rate * np.sqrt(shares[0]), 0.98)
    assert tagged_by("both", truth, 7, shares).mean(0) == pytest.approx(expected, abs=0.012)
    assert tagged_by("hasty", truth, 7, shares).mean(0) == pytest.approx(rate * np.sqrt(shares[0]), abs=0.012)


@pytest.mark.parametrize(("tagger", "most"), [("five", 5), ("largest", 1)])
def test_a_tagger_who_stops_tags_the_largest(tagger, most):
    truth, shares = a_truth()
    known = tagged_by(tagger, truth, 0, shares).astype(bool)
    assert (known.sum(1) == np.minimum(truth.sum(1), most)).all()
    more = truth.sum(1) > most
    smallest = np.where(known, shares, 2.0).min(1)
    largest_left = np.where(truth & ~known, shares, -1.0).max(1)
    assert (smallest[more] >= largest_left[more]).all()


def test_a_tagger_who_goes_by_size_needs_sizes_and_a_name():
    with pytest.raises(UserError, match="how large things are"):
        tagged_by("both", np.ones((2, 2), dtype=bool))
    with pytest.raises(UserError, match="no tagger 'habits'"):
        tagged_by("habits", np.ones((2, 2), dtype=bool))
