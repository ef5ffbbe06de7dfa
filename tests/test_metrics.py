"""The metrics against scikit-learn and against slow loops written from the formulas."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict
from fractions import Fraction

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from fewtags import metrics
from fewtags.errors import UserError
from fewtags.metrics import average_precision, evaluate_scores, f1_scores, mean_average_precision

SEEDS = range(25)


def problem(seed: int, ties: bool = True, images: int | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random scores (rounded, so that many are equal), truth with an empty category now and then, and a mask."""
    rng = np.random.default_rng(seed)
    shape = (images or int(rng.integers(1, 60)), int(rng.integers(1, 9)))
    scores = rng.random(shape)
    if ties:
        scores = scores.round(int(rng.integers(0, 3)))
    truth = rng.random(shape) < rng.choice([0.05, 0.3, 0.7], shape[1])
    return scores, truth, rng.random(shape) < 0.7


def slow_average_precision(scores, truth, interpolated: bool) -> Fraction | float:
    """Of one category: recall and precision at every distinct score, in exact fractions."""
    positives = sum(truth)
    if positives == 0:
        return math.nan
    points = []
    for threshold in sorted(set(scores), reverse=True):
        chosen = [bool(y) for s, y in zip(scores, truth, strict=True) if s >= threshold]
        points.append((Fraction(sum(chosen), int(positives)), Fraction(sum(chosen), len(chosen))))
    area, recall_before = Fraction(0), Fraction(0)
    for k, (recall, precision) in enumerate(points):
        if interpolated:
            precision = max(p for _, p in points[k:])
        area += (recall - recall_before) * precision
        recall_before = recall
    return area


def slow_f1_scores(scores, truth, threshold, top, mask) -> list[float]:
    num_images, num_categories = scores.shape
    correct, predicted, true = [0] * num_categories, [0] * num_categories, [0] * num_categories
    for n in range(num_images):
        allowed = [c for c in range(num_categories) if mask[n, c]]
        best = sorted(allowed, key=lambda c: (-scores[n, c], c))[:top]
        for c in allowed:
            guess = scores[n, c] >= threshold[c] and c in best
            correct[c] += guess and truth[n, c]
            predicted[c] += guess
            true[c] += truth[n, c]
    seen = [c for c in range(num_categories) if true[c]]
    op = sum(correct) / sum(predicted) if sum(predicted) else 0.0
    or_ = sum(correct) / sum(true) if seen else math.nan
    cp = sum(correct[c] / predicted[c] if predicted[c] else 0.0 for c in seen) / len(seen) if seen else math.nan
    cr = sum(correct[c] / true[c] for c in seen) / len(seen) if seen else math.nan

    def f1(p: float, r: float) -> float:
        return 2 * p * r / (p + r) if p + r else 0.0

    return [op, or_, f1(op, or_), cp, cr, f1(cp, cr)]


def assert_same(actual, expected) -> None:
    np.testing.assert_allclose(np.array(actual, float), np.array(expected, float), rtol=0, atol=1e-12)


# --- average precision ---


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("ties", [True, False])
def test_plain_average_precision_equals_scikit_learn(seed, ties):
    scores, truth, _ = problem(seed, ties, images=200)
    expected = [
        average_precision_score(truth[:, c], scores[:, c]) if truth[:, c].any() else math.nan
        for c in range(truth.shape[1])
    ]
    np.testing.assert_allclose(average_precision(scores, truth), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("interpolated", [False, True])
def test_average_precision_follows_the_formula(seed, interpolated):
    scores, truth, mask = problem(seed)
    expected = [slow_average_precision(*column, interpolated) for column in zip(scores.T, truth.T, strict=True)]
    assert_same(average_precision(scores, truth, interpolated), expected)
    masked = [
        slow_average_precision(scores[mask[:, c], c], truth[mask[:, c], c], interpolated) for c in range(truth.shape[1])
    ]
    assert_same(average_precision(scores, truth, interpolated, mask), masked)


def test_average_precision_by_hand():
    """Ranked hit, miss, hit, miss, hit: precision 1, 2/3, 3/5. A better precision later lifts the earlier one."""
    scores = np.array([[0.9, 0.9], [0.8, 0.8], [0.7, 0.7], [0.6, 0.6], [0.5, 0.5]])
    truth = np.array([[1, 0], [0, 1], [1, 1], [0, 1], [1, 0]])
    assert_same(average_precision(scores, truth), [(1 + 2 / 3 + 3 / 5) / 3, (1 / 2 + 2 / 3 + 3 / 4) / 3])
    assert_same(average_precision(scores, truth, interpolated=True), [(1 + 2 / 3 + 3 / 5) / 3, 3 / 4])


def test_one_score_for_all_gives_the_share_of_positives():
    truth = np.arange(10)[:, None] < 3
    for interpolated in (False, True):
        assert_same(average_precision(np.full((10, 1), 0.5), truth, interpolated), [0.3])


@pytest.mark.parametrize("seed", SEEDS)
def test_interpolation_never_lowers_and_everything_is_a_share(seed):
    scores, truth, mask = problem(seed)
    plain = average_precision(scores, truth, mask=mask)
    interpolated = average_precision(scores, truth, True, mask)
    assert (np.isnan(plain) == np.isnan(interpolated)).all()
    known = ~np.isnan(plain)
    assert (plain[known] <= interpolated[known] + 1e-12).all()
    assert ((plain[known] > 0) & (interpolated[known] <= 1)).all()


def test_only_the_ranking_matters():
    """AP is the same on logits and on their probabilities, negative or not."""
    logits, truth, _ = problem(3, ties=False, images=100)
    logits = 10 * logits - 5
    assert_same(average_precision(logits, truth), average_precision(1 / (1 + np.exp(-logits)), truth))


def test_a_category_without_positives_is_nan_and_left_out_of_the_mean():
    scores, truth = np.array([[0.9, 0.1], [0.2, 0.3]]), np.array([[0, 0], [1, 0]])
    assert_same(average_precision(scores, truth), [0.5, math.nan])
    assert mean_average_precision(scores, truth) == 0.5
    assert math.isnan(mean_average_precision(scores, np.zeros((2, 2))))
    assert math.isnan(mean_average_precision(np.zeros((0, 2)), np.zeros((0, 2))))


def test_categories_do_not_depend_on_how_they_are_grouped(monkeypatch):
    scores, truth, mask = problem(4, images=50)
    expected = average_precision(scores, truth, mask=mask)
    monkeypatch.setattr(metrics, "_ENTRIES_AT_ONCE", 60)  # one category at a time
    np.testing.assert_equal(average_precision(scores, truth, mask=mask), expected)


# --- F1 ---


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("top", [None, 1, 3])
def test_f1_scores_follow_the_formulas(seed, top):
    scores, truth, mask = problem(seed)
    num_categories = truth.shape[1]
    everything = np.ones_like(mask)
    thresholds = np.random.default_rng(seed).random(num_categories).round(1)
    assert_same(
        f1_scores(scores, truth, top=top), slow_f1_scores(scores, truth, [0.5] * num_categories, top, everything)
    )
    assert_same(f1_scores(scores, truth, thresholds, top, mask), slow_f1_scores(scores, truth, thresholds, top, mask))


def test_f1_scores_by_hand():
    scores = np.array([[0.9, 0.6, 0.1], [0.8, 0.2, 0.1], [0.3, 0.7, 0.1]])
    truth = np.array([[1, 0, 0], [1, 1, 0], [1, 1, 1]])
    f1 = f1_scores(scores, truth)
    # N_c = 2, 1, 0; N_p = 2, 2, 0; N_g = 3, 2, 1. The third category is never predicted: precision 0.
    assert (f1.op, f1.or_) == (3 / 4, 3 / 6)
    assert f1.cp == pytest.approx((1 + 1 / 2 + 0) / 3)
    assert f1.cr == pytest.approx((2 / 3 + 1 / 2 + 0) / 3)
    assert f1.of1 == pytest.approx(2 * (3 / 4) * (1 / 2) / (3 / 4 + 1 / 2))
    assert f1.cf1 == pytest.approx(2 * f1.cp * f1.cr / (f1.cp + f1.cr))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("threshold", [0.1, 0.5, 0.7])
def test_a_score_equal_to_the_threshold_is_predicted(dtype, threshold):
    scores = np.array([[threshold]], dtype=dtype)
    assert f1_scores(scores, [[1]], threshold).of1 == 1
    assert f1_scores(scores, [[1]], np.array([threshold])).of1 == 1
    assert f1_scores(scores, [[1]], np.nextafter(dtype(threshold), dtype(1))).of1 == 0


def test_top_keeps_the_highest_and_the_threshold_still_holds():
    scores = np.array([[0.9, 0.8, 0.7, 0.6], [0.9, 0.4, 0.3, 0.2]])
    everything = np.ones((2, 4))
    assert f1_scores(scores, everything, top=3).or_ == (3 + 1) / 8
    assert f1_scores(scores, everything, top=4).or_ == f1_scores(scores, everything, top=9).or_ == (4 + 1) / 8


def test_of_equal_scores_the_first_categories_are_among_the_top():
    assert_same(f1_scores(np.full((2, 4), 0.9), [[1, 1, 0, 0]] * 2, top=2), [1, 1, 1, 1, 1, 1])


def test_a_masked_score_takes_no_place_among_the_top():
    scores, truth = np.array([[0.9, 0.8, 0.7]]), np.array([[0, 0, 1]])
    assert f1_scores(scores, truth, top=1, mask=np.array([[False, False, True]])).of1 == 1


def test_wrong_predictions_of_a_category_without_positives_count_in_op_only():
    scores, truth = np.array([[0.9, 0.9]]), np.array([[1, 0]])
    f1 = f1_scores(scores, truth)
    assert (f1.op, f1.or_, f1.cp, f1.cr) == (0.5, 1, 1, 1)


def test_nothing_predicted_is_zero_and_nothing_true_is_nan():
    assert f1_scores([[0.1, 0.2]], [[1, 1]]) == (0, 0, 0, 0, 0, 0)
    assert_same(f1_scores([[0.9, 0.2]], [[0, 0]]), [0] + [math.nan] * 5)


# --- both ---


@pytest.mark.parametrize("seed", SEEDS)
def test_the_order_of_the_images_does_not_matter(seed):
    scores, truth, mask = problem(seed)
    order = np.random.default_rng(seed).permutation(len(scores))
    shuffled = evaluate_scores(scores[order], truth[order], mask[order])
    np.testing.assert_equal(asdict(shuffled), asdict(evaluate_scores(scores, truth, mask)))


def test_masked_entries_may_hold_any_truth_and_change_nothing():
    scores, truth, mask = problem(7, images=40)
    unknown = np.where(mask, truth, -1)
    result = evaluate_scores(scores, unknown, mask)
    np.testing.assert_equal(asdict(result), asdict(evaluate_scores(scores, truth & mask, mask)))
    rows = np.arange(40) % 2 == 0
    mask = np.broadcast_to(rows[:, None], truth.shape)
    assert_same(average_precision(scores, truth, mask=mask), average_precision(scores[rows], truth[rows]))
    assert_same(f1_scores(scores, truth, mask=mask), f1_scores(scores[rows], truth[rows]))


def test_evaluate_scores_gathers_the_single_functions():
    scores, truth, mask = problem(2, images=30)
    truth[:, 0] = False
    result = evaluate_scores(scores, truth, mask, threshold=0.4)
    f1, top3 = f1_scores(scores, truth, 0.4, mask=mask), f1_scores(scores, truth, 0.4, top=3, mask=mask)
    assert result.map == mean_average_precision(scores, truth, mask=mask)
    assert result.map_voc12 == mean_average_precision(scores, truth, True, mask)
    assert (result.op, result.or_, result.of1, result.cp, result.cr, result.cf1) == f1
    assert (result.of1_top3, result.cf1_top3) == (top3.of1, top3.cf1)
    np.testing.assert_equal(result.per_category, average_precision(scores, truth, mask=mask).tolist())
    assert result.num_images == 30
    assert result.num_categories_left_out == int((~(truth & mask).any(0)).sum()) >= 1


def test_inputs_are_not_written_to():
    arrays = problem(1)
    before = [array.copy() for array in arrays]
    evaluate_scores(*arrays)
    assert all((a == b).all() for a, b in zip(arrays, before, strict=True))


def processor_seconds(work: Callable[[], object]) -> float:
    """The best of three, in processor time: other work on the machine hardly shows in it."""
    times = []
    for _ in range(3):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def test_all_of_cocos_scores_cost_a_few_sorts():
    """3.4 were measured."""
    rng = np.random.default_rng(0)
    scores, truth = rng.random((40_504, 80), dtype=np.float32), rng.random((40_504, 80)) < 0.036
    one_sort = processor_seconds(lambda: np.argsort(scores, axis=0))
    assert processor_seconds(lambda: evaluate_scores(scores, truth)) < 10 * one_sort


GOOD = np.full((3, 2), 0.5)
BAD = {
    "scores of one row": ((np.zeros(3), np.zeros(3)), r"\[images, categories\]"),
    "other shape of truth": ((GOOD, np.zeros((2, 3))), "should be equal"),
    "other shape of mask": ((GOOD, np.zeros((3, 2)), np.ones((3, 1), bool)), "should be equal"),
    "mask of numbers": ((GOOD, np.zeros((3, 2)), np.ones((3, 2))), "should be bool"),
    "NaN score": ((np.where([[1, 0]] * 3, np.nan, GOOD), np.zeros((3, 2))), "finite; found nan"),
    "NaN score under the mask": ((GOOD * np.nan, np.zeros((3, 2)), np.zeros((3, 2), bool)), "finite; found nan"),
    "infinite score": ((GOOD * np.inf, np.zeros((3, 2))), "finite; found inf"),
    "scores of text": (([["a", "b"]], np.zeros((1, 2))), "should be numbers"),
    "truth of -1": ((GOOD, -np.ones((3, 2), int)), "Truth contains -1; it should be 0 or 1"),
    "truth of 0.5": ((GOOD, GOOD), "Truth contains 0.5"),
    "truth of NaN": ((GOOD, GOOD * np.nan), "Truth contains nan"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_told_in_one_sentence(case):
    (scores, truth, *mask), message = BAD[case]
    for measure in (average_precision, mean_average_precision, f1_scores, evaluate_scores):
        with pytest.raises(UserError, match=message):
            measure(scores, truth, mask=mask[0] if mask else None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top": 0}, "at least 1"),
        ({"top": 2.5}, "whole number"),
        ({"threshold": [0.5] * 3}, "do not match 2 categories"),
        ({"threshold": math.nan}, "finite"),
        ({"threshold": "half"}, "should be numbers"),
    ],
)
def test_bad_options_are_told_in_one_sentence(options, message):
    with pytest.raises(UserError, match=message):
        f1_scores(GOOD, np.zeros((3, 2)), **options)
