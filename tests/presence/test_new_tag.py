"""A tag that nobody had: learned from examples and answers, with a threshold and a forecast that hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fewtags.presence import new_tag
from fewtags.presence.new_tag import (
    FADES,
    LEAST,
    MOST,
    NEXT,
    REFUSED,
    TAIL,
    Archive,
    Curve,
    _hopeful,
    _quantiles,
    name_prior,
)
from fewtags.presence.rows import ClassShares


@pytest.fixture(scope="module")
def made() -> tuple[torch.Tensor, np.ndarray]:
    """2,000 images, a tenth of which has something in one direction."""
    rng = np.random.default_rng(0)
    truth = rng.random(2000) < 0.1
    features = 0.8 + 0.35 * rng.normal(size=(2000, 32)) + 0.9 * truth[:, None] * rng.normal(size=32)
    return torch.nn.functional.normalize(torch.from_numpy(features).float(), dim=1), truth


@pytest.fixture(scope="module")
def archive(made) -> Archive:
    return Archive.of(made[0])


def review(archive, truth, examples, number):
    """Ask `number` questions in the order it wants, answered by the truth."""
    rows = np.array(examples)
    while len(rows) < number + len(examples):
        learned = archive.learn(rows, truth[rows], examples=examples)
        open_rows = np.setdiff1d(np.arange(len(truth)), rows)
        rows = np.concatenate([rows, learned.first(learned.scores(archive.features), open_rows)[:5]])
    return rows, archive.learn(rows, truth[rows], examples=examples)


def test_one_example_finds_the_others(archive, made):
    truth = made[1]
    example = int(np.flatnonzero(truth)[0])
    rows, learned = review(archive, truth, [example], 50)
    assert truth[rows[1:]].mean() > 0.8  # by chance it were a tenth
    scores = learned.scores(archive.features)
    rest = np.setdiff1d(np.arange(len(truth)), rows)
    assert scores[torch.from_numpy(rest)][truth[rest]].mean() > scores[torch.from_numpy(rest)][~truth[rest]].mean() + 2


def test_the_threshold_keeps_what_it_promises_and_the_forecast_comes_true(archive, made):
    truth = made[1]
    rows, learned = review(archive, truth, [int(np.flatnonzero(truth)[0])], 100)
    scores, open_rows = learned.scores(archive.features), np.setdiff1d(np.arange(len(truth)), rows)
    own = learned.threshold(scores)
    given = (learned.curve(scores).sigmoid() >= own.probability).numpy()
    assert given.sum() >= LEAST
    assert truth[given].mean() == pytest.approx(own.promised, abs=0.1)
    told = learned.forecast(scores, open_rows, int(truth[rows].sum()))
    best = open_rows[np.argsort(-scores.numpy()[open_rows])[:NEXT]]
    assert told.next_found == pytest.approx(truth[best].sum(), abs=8)
    assert told.missing.low <= truth[open_rows].sum() <= told.missing.high
    assert not told.enough


def test_it_is_enough_when_hardly_any_is_missing(archive, made):
    truth = made[1]
    _, learned = review(archive, truth, [int(np.flatnonzero(truth)[0])], 300)
    rows = np.concatenate([learned.rows])
    told = learned.forecast(
        learned.scores(archive.features), np.setdiff1d(np.arange(len(truth)), rows), int(truth[rows].sum())
    )
    left = truth.sum() - truth[rows].sum()
    assert told.enough
    assert left <= 0.1 * truth.sum()


def test_what_is_missing_is_told_by_the_answers_next_to_it(archive, made):
    """And it is not known exactly even where the curve is: a chance is no certainty."""
    truth = made[1]
    _, learned = review(archive, truth, [int(np.flatnonzero(truth)[0])], TAIL + 100)
    low = learned.left_out.argsort()[:TAIL]
    scores = learned.scores(archive.features)
    alone = Curve.of(learned.left_out[low], torch.from_numpy(learned.present)[low], _quantiles(scores))
    assert torch.equal(learned.tail.weight, alone.weight)
    assert not torch.equal(learned.tail.weight, learned.curve.weight)
    sure = Curve(0.0, 1.0, torch.tensor([[0.0, 1.0]]), torch.ones(1))
    number = sure.expected(torch.full((100,), -2.0))
    chance = number.value / 100
    assert number.high - number.low == pytest.approx(2 * 1.96 * (100 * chance * (1 - chance)) ** 0.5, rel=0.05)


def test_refused_ones_count_by_their_part_of_the_answers(archive, made, monkeypatch):
    """They were asked about because they looked likely: a few among given ones say little of the others, and many that
    the tag is something else."""
    truth = made[1]
    given, refused = np.flatnonzero(truth)[:40], np.flatnonzero(~truth)

    def drop(number: int) -> float:
        """By how much refused ones are lower than if each counted as much as a given one."""
        rows = np.concatenate([given, refused[:number]])
        monkeypatch.setattr(new_tag, "REFUSED", 1.0)
        fully = archive.learn(rows, truth[rows]).scores(archive.features)[torch.from_numpy(refused[:number])].mean()
        monkeypatch.setattr(new_tag, "REFUSED", REFUSED)
        own = archive.learn(rows, truth[rows]).scores(archive.features)[torch.from_numpy(refused[:number])].mean()
        return float(fully - own)

    assert drop(4) < 2 * drop(100) < 0


def test_classes_say_half_as_much_after_so_many_answers(made, monkeypatch):
    """As if their part of the prior variance were half of what it is."""
    features, truth = made
    shares = ClassShares.of([torch.rand(len(truth), 50, generator=torch.Generator().manual_seed(0)).softmax(1)])
    rows = np.arange(FADES)
    faded = Archive.of(features, shares).learn(rows, truth[rows])
    monkeypatch.setattr(new_tag, "FADES", 1e12)
    whole = Archive.of(features, shares)
    half = whole.view.of_classes * 0.5**0.5
    background = torch.cat([whole.of_background[:, :32], whole.of_background[:, 32:] * 0.5**0.5], dim=1)
    halved = replace(
        whole,
        view=replace(whole.view, of_classes=half),
        of_background=background,
        by_classes=whole.by_classes / 2,
        seen={},
    )
    torch.testing.assert_close(faded.weights, halved.learn(rows, truth[rows]).weights, rtol=1e-3, atol=1e-4)
    assert not torch.allclose(faded.weights, whole.learn(rows, truth[rows]).weights, rtol=1e-2, atol=1e-3)


def test_after_refusals_it_asks_about_what_it_knows_less(archive, made, monkeypatch):
    truth = made[1]
    rows = np.concatenate([np.flatnonzero(truth)[:1], np.flatnonzero(~truth)[:30]])
    learned = archive.learn(rows, truth[rows], examples=rows[:1].tolist())
    scores, open_rows = learned.scores(archive.features), np.setdiff1d(np.arange(len(truth)), rows)
    pool = open_rows[np.argsort(-scores.numpy()[open_rows])[: new_tag.POOL]]

    def known(asked: np.ndarray) -> float:
        return float(archive.covariance(asked, rows).diagonal().mean())

    curious = learned.first(scores, pool)[:10]
    monkeypatch.setattr(new_tag, "MORE_CURIOUS", 0.0)
    assert known(curious) > known(learned.first(scores, pool)[:10])


def test_where_the_next_are_sure_every_tenth_question_is_about_a_doubtful_image(archive, made):
    """In one batch of 100, and if one is asked at a time."""
    truth = made[1]
    learned = archive.learn(np.flatnonzero(truth)[:5], truth[truth][:5])
    learned = replace(learned, curve=Curve(0.0, 1.0, learned.curve.grid, learned.curve.weight))
    scores, rows = torch.linspace(12, -12, len(truth)), np.arange(len(truth))
    doubtful = (learned.curve(scores).abs() < 0.5).numpy()
    batch = learned.first(scores, rows)
    assert sorted(batch) == rows.tolist()
    assert np.flatnonzero(doubtful[batch[:100]]).tolist() == list(range(0, 100, 10))  # 2,000 are left
    one_by_one = []
    for _ in range(100):
        one_by_one.append(learned.first(scores, rows)[0])
        rows = rows[rows != one_by_one[-1]]
    assert np.flatnonzero(doubtful[one_by_one]).tolist() == list(range(0, 100, 10))
    unsure = learned.first(scores - 8, np.arange(len(truth)))
    assert (unsure[:10] < 60).all()  # the likeliest


def test_look_alikes_are_not_asked_about_one_after_the_other():
    scores = torch.tensor([1.0, 0.9, 0.8])
    covariance = torch.tensor([[2.0, 1.99, 0.0], [1.99, 2.0, 0.0], [0.0, 0.0, 2.0]])
    assert _hopeful(scores, covariance) == [0, 2, 1]
    assert _hopeful(scores, 2 * torch.eye(3)) == [0, 1, 2]


def test_examples_say_how_a_tag_looks_and_not_how_often_it_is_there(archive, made):
    """Five chosen positives are no evidence that everything of their score is present."""
    truth = made[1]
    rows = np.flatnonzero(truth)[:5]
    chosen = archive.learn(rows, truth[rows], examples=rows.tolist())
    answered = archive.learn(rows, truth[rows])
    torch.testing.assert_close(chosen.weights, answered.weights)
    every = torch.ones(len(truth), dtype=torch.bool)
    expected = [learned.odds(archive.features)[every].sigmoid().sum() for learned in (chosen, answered)]
    assert expected[0] < expected[1]


def test_the_name_is_where_it_starts(archive, made):
    truth = made[1]
    prior = name_prior(torch.from_numpy(truth + 0.3 * np.random.default_rng(1).normal(size=len(truth))).float())
    nothing = np.zeros(0, dtype=np.int64)
    learned = archive.learn(nothing, nothing, prior)
    order = learned.first(learned.scores(archive.features, prior), np.arange(len(truth)))
    assert truth[order[:50]].mean() > 0.9
    assert learned.threshold(learned.scores(archive.features, prior)).promised >= 0.9


def test_thousands_of_answers_are_learned_from_in_part(archive, made):
    truth = made[1]
    rows = np.arange(1900)
    learned = archive.learn(rows, truth[rows])
    assert len(learned.rows) == MOST + min(MOST, truth[rows].sum())
    assert learned.scores(archive.features)[1900:][torch.from_numpy(truth[1900:])].mean() > 0


def test_uncertain_ones_come_before_equally_likely_known_ones(archive, made):
    truth = made[1]
    rows, learned = review(archive, truth, [int(np.flatnonzero(truth)[0])], 20)
    open_rows = np.setdiff1d(np.arange(len(truth)), rows)
    order = learned.first(learned.scores(archive.features), open_rows)
    plain = open_rows[np.argsort(-learned.scores(archive.features).numpy()[open_rows], kind="stable")]
    assert sorted(order) == sorted(plain)
    assert order[:10].tolist() != plain[:10].tolist()
    covariance = archive.covariance(np.array([plain[0], rows[0]]), rows)
    assert covariance[0, 0] > covariance[1, 1]  # what was answered is known better
