"""Numbers from partial labels: against drawing the truth, and against measuring it where it is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fewtags.labels import ABSENT, PRESENT, UNKNOWN
from fewtags.metrics import average_precision, f1_scores
from fewtags.presence.answers import Correction, Shift
from fewtags.presence.estimates import Judged, _Ranking, estimate, judge_scores, log_odds
from fewtags.presence.observation import Observation
from fewtags.presence.summary import NOT_AUDITED, estimate_lines


def made(known=0.3, num_images=2000, num_categories=8, seed=0):
    """Scores, truth and the labels that are known, in chance's choice."""
    random = np.random.default_rng(seed)
    truth = random.random((num_images, num_categories)) < np.linspace(0.05, 0.25, num_categories)
    scores = random.normal(size=truth.shape) + truth * np.linspace(2.0, 3.5, num_categories)
    return scores, truth, (truth & (random.random(truth.shape) < known)).astype(np.int8)


def answers(judged, truth, number, seed=0):
    """About unknown labels, drawn at random."""
    unknown = np.argwhere(judged.labels.numpy() == UNKNOWN)
    rows, columns = np.random.default_rng(seed).permutation(unknown)[:number].T
    category = torch.from_numpy(columns)
    odds = judged.observation.if_unknown(judged.odds[rows, columns], category)
    present = torch.from_numpy(truth[rows, columns])
    return Correction.of(odds, category, present, judged.observation.habit)


def test_expected_numbers_are_means_over_truths_that_may_be():
    """Some labels are known; of the others, a truth is drawn many times from their probabilities."""
    random = np.random.default_rng(0)
    scores, hidden = random.normal(size=(60, 2)), random.random((60, 2)) ** 2
    labels = np.where(random.random((60, 2)) < 0.2, np.where(random.random((60, 2)) < 0.7, PRESENT, ABSENT), UNKNOWN)
    numbers = _Ranking(scores, labels, np.array(0.3), stand_for=1.0).numbers(hidden)
    found = dict(zip(("known_proportion", "missing", "map", "of1", "cf1", "op", "or_"), numbers, strict=False))
    ap, precision, recall, missing = numbers[9:].reshape(4, 2)
    drawn_ap, right, present, drawn_missing = [], [], [], []
    for _ in range(1000):
        truth = np.where(labels == UNKNOWN, random.random((60, 2)) < hidden, labels == PRESENT).astype(bool)
        drawn_ap.append(average_precision(scores, truth))
        right.append((truth & (scores >= 0.3)).sum(0))
        present.append(truth.sum(0))
        drawn_missing.append((truth & (labels == UNKNOWN)).sum(0))
    np.testing.assert_allclose(ap, np.mean(drawn_ap, axis=0), atol=0.01)
    np.testing.assert_allclose(precision, np.mean(right, axis=0) / (scores >= 0.3).sum(0), atol=0.01)
    np.testing.assert_allclose(recall, np.mean(right, axis=0) / np.mean(present, axis=0), atol=0.01)
    np.testing.assert_allclose(missing, np.mean(drawn_missing, axis=0), atol=0.5)
    assert found["missing"] == pytest.approx(missing.sum())
    assert found["map"] == pytest.approx(ap.mean())
    known = (labels == PRESENT).sum()
    assert found["known_proportion"] == pytest.approx(known / (known + missing.sum()))


def test_complete_labels_give_what_is_measured():
    scores, truth, _ = made(num_images=500)
    judged = judge_scores(scores, np.where(truth, PRESENT, ABSENT))
    estimates = estimate(judged, nothing(8), 1.5, scores)
    measured = f1_scores(scores, truth, 1.5)
    np.testing.assert_allclose(estimates.ap, np.stack([average_precision(scores, truth)] * 3, axis=1), rtol=1e-6)
    assert estimates.map.value == pytest.approx(average_precision(scores, truth).mean())
    assert estimates.of1.value == pytest.approx(measured.of1)
    assert estimates.cf1.value == pytest.approx(measured.cf1)
    assert estimates.missing == (0, 0, 0)
    assert estimates.known_proportion.value == 1


def nothing(num_categories):
    """No answers."""
    empty = torch.zeros(0)
    return Correction.of(empty, empty.long(), empty, torch.zeros(num_categories))


def test_estimates_are_near_what_the_truth_measures():
    scores, truth, labels = made(0.3)
    judged = judge_scores(scores, labels)
    estimates = estimate(judged, nothing(8), 1.5, scores)
    measured = average_precision(scores, truth).mean()
    assert estimates.map.value == pytest.approx(measured, abs=0.08)
    assert estimates.map.low < measured < estimates.map.high
    assert estimates.missing.low < (truth & (labels == 0)).sum() < estimates.missing.high


def test_intervals_shrink_with_answers_and_hold_the_truth():
    scores, truth, labels = made(0.3)
    judged = judge_scores(scores, labels)
    hidden, width = (truth & (labels == 0)).sum(), []
    for number in (0, 60, 3000):
        missing = estimate(judged, answers(judged, truth, number), 1.5, scores).missing
        width.append(missing.high - missing.low)
    assert width[2] < 0.5 * width[1] < 0.5 * width[0]
    assert missing.value == pytest.approx(hidden, rel=0.15)


def test_a_sample_of_images_stands_for_all():
    scores, _, labels = made(0.3, num_images=3000)
    judged = judge_scores(scores, labels)
    few = judged.sample(8 * 1000)
    assert len(few.labels) == 1000
    assert few.stand_for == 3
    whole, part = (estimate(each, nothing(8)) for each in (judged, few))
    assert part.num_images == whole.num_images == 3000
    assert part.missing.value == pytest.approx(whole.missing.value, rel=0.15)
    assert part.map.value == pytest.approx(whole.map.value, abs=0.05)


def test_the_unknown_are_less_likely_present_than_all():
    judged = Judged(torch.zeros(5, 2), torch.zeros(5, 2), Observation.coin(torch.tensor([0.0, 0.5]), 2))
    nothing = Shift(torch.zeros(2), torch.zeros(()), torch.zeros(()))
    before = judged.hidden(nothing)
    torch.testing.assert_close(before[0], torch.tensor([0.5, 1 / 3]), rtol=1e-4, atol=1e-4)
    moved = judged.hidden(nothing._replace(offset=torch.tensor([1.0, 0.0])))
    assert moved[0, 0] > 0.6
    assert torch.equal(moved[:, 1], before[:, 1])


def test_a_category_without_known_positives_has_no_numbers():
    scores, _, labels = made(0.3, num_images=500)
    labels[:, 2] = 0
    record = estimate(judge_scores(scores, labels), nothing(8), 0.5, scores).as_json(list("abcdefgh"))
    assert record["categories"]["c"] == {"ap": None, "precision": None, "recall": None, "missing_tags": None}
    assert len(record["categories"]["a"]["ap"]) == len(record["map"]) == 3


def test_what_estimates_rest_on_is_said():
    scores, truth, labels = made(0.3, num_images=500)
    judged = judge_scores(scores, labels)
    for number, sentence in ((0, NOT_AUDITED), (40, "Checked by 40 answers about unknown labels.")):
        lines = estimate_lines(estimate(judged, answers(judged, truth, number), 0.5, scores).as_json(list("abcdefgh")))
        assert lines[-1] == sentence
        assert len(lines) == 3


@pytest.mark.parametrize("number", [1, 3])
def test_a_few_images_have_finite_numbers(number):
    scores, labels = np.zeros((number, 2)), np.zeros((number, 2), dtype=np.int8)
    labels[0, 0] = PRESENT
    judged = judge_scores(scores, labels)
    assert judged.odds.isfinite().all()
    assert np.isfinite(estimate(judged, nothing(2), 0.5, scores).map).all()


def test_probabilities_rounded_to_one_are_finite_scores():
    assert np.isfinite(log_odds(np.array([0.0, 0.5, 1.0], dtype=np.float32))).all()
