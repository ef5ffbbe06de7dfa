"""The questions of an audit are a sample with known probabilities, so that their answers need no model."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fewtags.presence.answers import Correction
from fewtags.presence.audit import (
    Answered,
    Candidates,
    Designed,
    averaged,
    by_design,
    by_model,
    choose,
    disagreement,
    inclusion_probabilities,
    one_of_each_burst,
)
from fewtags.presence.estimates import Judged, estimate
from fewtags.presence.observation import Observation


def archive(seed: int = 0, number: int = 400, columns: int = 6) -> tuple[Candidates, np.ndarray]:
    """Labels, some of which stand for several, and the truth, which the odds are wrong about."""
    rng = np.random.default_rng(seed)
    row, column = np.divmod(np.arange(number * columns), columns)
    odds = rng.normal(-3, 1.5, len(row)) - column / 2
    truth = rng.random(len(row)) < 1 / (1 + np.exp(-odds - 1.2))
    return Candidates(row, column, odds, rng.choice([1, 1, 1, 3], len(row))), truth


def answered(candidates: Candidates, truth: np.ndarray, number: int, seed: int, first: int | None = None) -> Answered:
    asked = choose(candidates, number, seed)
    said = truth[asked.rows * 6 + asked.columns][:first]
    return Answered(said, asked.inclusion[:first], asked.stands_for[:first], len(asked))


def test_a_wave_has_as_many_questions_as_asked_for_and_their_probabilities_sum_to_it():
    candidates, _ = archive()
    for seed in range(20):
        asked = choose(candidates, 50, seed)
        assert len(asked) == 50
        assert len(set(zip(asked.rows, asked.columns, strict=True))) == 50
    chance = averaged(candidates.odds)
    pi = inclusion_probabilities(chance * (1 - chance), 50)
    assert pi.sum() == pytest.approx(50)
    assert 0 < pi.min() <= pi.max() <= 1


def test_no_probability_exceeds_1_and_few_labels_are_all_asked_about():
    pi = inclusion_probabilities(np.array([100.0, 50.0, 1.0, 1.0, 1.0]), 3)
    assert pi[:2].tolist() == [1, 1]
    assert pi.sum() == pytest.approx(3)
    assert inclusion_probabilities(np.ones(4), 50).tolist() == [1, 1, 1, 1]
    assert not len(choose(Candidates(*(np.zeros(0, dtype=int) for _ in range(4)))))


def test_labels_are_drawn_as_often_as_their_probability_says():
    candidates, _ = archive(number=30)
    counts, expected = np.zeros(180), np.zeros(180)
    for seed in range(3000):
        asked = choose(candidates, 20, seed)
        place = asked.rows * 6 + asked.columns
        counts[place] += 1
        expected[place] = asked.inclusion
    seen = counts > 0
    error = np.sqrt(expected * (1 - expected) / 3000)
    assert (np.abs(counts / 3000 - expected)[seen] <= 5 * error[seen] + 1e-9).all()  # some are certain
    assert seen.mean() > 0.9  # no label is without a chance


def test_every_tag_gets_its_share_of_the_questions():
    candidates, _ = archive()
    chance = averaged(candidates.odds)
    worth = chance * (1 - chance) * candidates.stands_for
    share = np.bincount(candidates.columns, worth) / worth.sum() * 50
    for seed in range(20):
        asked = np.bincount(choose(candidates, 50, seed).columns, minlength=6)
        assert (np.abs(asked - share) < 2).all()


@pytest.mark.parametrize("first", [None, 30])
def test_the_estimate_is_unbiased_also_of_an_interrupted_wave(first):
    candidates, truth = archive()
    missing = (truth * candidates.stands_for).sum()
    found = [by_design([answered(candidates, truth, 50, seed, first)]) for seed in range(1500)]
    values = np.array([each.missing for each in found])
    assert abs(values.mean() - missing) < 3 * values.std() / np.sqrt(len(values))
    errors = np.array([each.error for each in found])
    assert 0.7 < errors.mean() / values.std() < 1.6
    inside = [each.interval.low <= missing <= each.interval.high for each in found]
    assert np.mean(inside) > 0.85


def test_a_second_wave_is_about_the_rest_and_both_count_by_their_answers():
    candidates, truth = archive(number=200)
    candidates = Candidates(candidates.rows, candidates.columns, candidates.odds, np.ones(1200, dtype=int))
    values = []
    for seed in range(800):
        asked = choose(candidates, 50, (seed, 1))
        place = asked.rows * 6 + asked.columns
        first = Answered(truth[place], asked.inclusion, asked.stands_for, 50)
        rest = np.setdiff1d(np.arange(1200), place)
        parts = (candidates.rows, candidates.columns, candidates.odds, candidates.stands_for)
        again = choose(Candidates(*(part[rest] for part in parts)), 30, (seed, 2))
        said = truth[again.rows * 6 + again.columns]
        second = Answered(said, again.inclusion, again.stands_for, 30, int(truth[place].sum()))
        values.append(by_design([first, second]).missing)
    assert abs(np.mean(values) - truth.sum()) < 3 * np.std(values) / np.sqrt(len(values))
    one, two = by_design([first]), by_design([second])
    assert by_design([first, second]).missing == pytest.approx((50 * one.missing + 30 * two.missing) / 80)
    assert by_design([first, second]).answers == 80


def test_without_answers_there_is_no_estimate_and_only_noes_leave_it_uncertain():
    assert by_design([Answered(np.zeros(0), np.zeros(0), np.zeros(0), 50)]) is None
    nothing = by_design([Answered(np.zeros(5, dtype=bool), np.full(5, 0.1), np.ones(5), 5)])
    assert nothing.missing == 0
    assert nothing.error > 5


def test_a_burst_is_asked_about_once_per_tag():
    leaders = np.array([0, 0, 2, 0])
    rows, columns = np.array([0, 1, 2, 3, 1, 3]), np.array([0, 0, 0, 0, 1, 1])
    first, number = one_of_each_burst(columns, rows, leaders)
    assert list(zip(rows[first], columns[first], number, strict=True)) == [(0, 0, 3), (2, 0, 1), (1, 1, 2)]


def test_the_running_estimate_is_the_one_of_the_other_commands():
    torch.manual_seed(0)
    odds = torch.randn(300, 4) - 2
    labels = ((torch.rand(300, 4) < odds.sigmoid()) & (torch.rand(300, 4) < 0.4)).to(torch.int8)
    judged = Judged(odds, labels, Observation.coin(0.4, 4))
    nothing = torch.zeros(0, dtype=torch.long)
    correction = Correction.of(torch.zeros(0), nothing, torch.zeros(0), torch.zeros(4))
    full, running = estimate(judged, correction), by_model(judged, correction)
    assert running.missing == pytest.approx(full.missing, rel=1e-4)
    assert running.known == pytest.approx(full.known_proportion, rel=1e-4)


def test_a_gap_between_the_two_estimates_is_said():
    odds, labels = torch.zeros(100, 1), torch.zeros(100, 1, dtype=torch.int8)
    correction = Correction.of(torch.zeros(0), torch.zeros(0, dtype=torch.long), torch.zeros(0), torch.zeros(1))
    model = by_model(Judged(odds, labels, Observation.coin(0.01, 1)), correction)
    assert disagreement(Designed(50, 10, 50), model) == ""
    assert "fewer than the model" in disagreement(Designed(10, 5, 50), model)
    assert disagreement(None, model) == ""
