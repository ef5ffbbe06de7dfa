"""The queues, what is learned from a decision, and that all of it follows from the store."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from made_review import made_data

from fewtags.data.tag_tree import TagTree
from fewtags.engine.judge import Judge
from fewtags.errors import UserError
from fewtags.labels import ABSENT, PRESENT, UNKNOWN
from fewtags.presence.decisions import PRIOR, PRIOR_OF_BIAS, UNDECIDED
from fewtags.review.session import LIKELY, SCREEN, Answer, LiveQueue, ReviewSession, View
from fewtags.review.store import Conflict, DecisionStore


def decide(session, rows, label, category="dog", **options):
    return session.decide(
        [Answer(int(row), category, label) for row in np.atleast_1d(rows)], queue="missing", **options
    )


# --- learning ---


def odds_of(session, column):
    chance = session.ranker.chances(column).present
    return torch.from_numpy(chance).double().logit()


def test_decisions_teach_by_a_logistic_regression(session):
    """Against plain gradient steps, over all that counts: decided images, and a sample that stays in its place."""
    rows = session.queue(View("dog")).order
    decide(session, rows[:5], PRESENT)
    decide(session, rows[9], PRESENT)
    decide(session, rows[5:9], ABSENT)
    decide(session, rows[10], UNKNOWN)
    column, model = 1, session.ranker.model
    before = model.answers.if_unknown(torch.from_numpy(session.judge.odds[:, column]), column).double()
    kept = model.answers.if_unknown(session.judge.learner.sample_odds[:, column], column).double()
    inputs = torch.cat([session.ranker.inputs[rows[:10].copy()], session.judge.learner.kept.inputs]).double()
    odds = torch.cat([before[rows[:10].copy()], kept])
    target = torch.cat([torch.from_numpy(session.labels[rows[:10], column] == PRESENT).double(), kept.sigmoid()])
    stand_for = session.judge.learner.kept.stand_for
    weight = torch.cat([torch.ones(10), torch.full((len(kept),), UNDECIDED * stand_for)]).double()
    w, b = torch.zeros(inputs.shape[1]).double(), torch.zeros(()).double()
    for _ in range(6000):
        slope = weight * ((odds + inputs @ w + b).sigmoid() - target)
        w, b = w - 0.05 * (inputs.T @ slope + PRIOR * w), b - 0.05 * (slope.sum() + PRIOR_OF_BIAS * b)
    missing = torch.from_numpy(session.ranker.chances(column).missing).double().logit()
    torch.testing.assert_close(missing, before + session.ranker.inputs.double() @ w + b, rtol=1e-3, atol=2e-3)
    assert w.norm() > 0.1


@pytest.mark.parametrize("label", [PRESENT, ABSENT])
def test_an_answer_moves_the_images_like_it(session, label):
    rows = session.queue(View("dog", lowest=0)).order
    like = session.features @ session.features[int(rows[3])]
    nearest = [int(row) for row in like.argsort(descending=True) if int(row) in set(rows.tolist())][1:4]
    before = odds_of(session, 1)
    decide(session, nearest, label)
    decide(session, rows[3], label)
    moved = odds_of(session, 1) - before
    assert (label * moved[nearest] > 0).all()
    # All images move, as answers also say how likely the unknown labels of a tag are present; these move further.
    assert label * (moved[nearest].mean() - moved.mean()) > 0.3
    assert moved[nearest].mean().abs() > moved.abs().quantile(0.95)


def test_names_are_part_of_the_ranking():
    """A category of which only the name is known is ranked by it."""
    annotations, features = made_data(known=0.3)
    annotations.labels[:, 2] = 0
    names = torch.full((400, 3), -5.0)
    names[:, 2] = torch.linspace(-8, -1, 400)
    named = torch.tensor([False, False, True])
    everyone = np.ones(400, dtype=bool)
    judge = Judge.of_features(
        lambda rows: features[torch.from_numpy(rows)], everyone, annotations.labels, names=names, named=named
    )
    session = ReviewSession(annotations, features, DecisionStore(None), judge=judge)
    order = session.queue(View("sea", lowest=0, stacks=False)).order
    assert order[:20].tolist() == list(range(399, 379, -1))
    tag = session.tags(399)[2]
    assert tag.probability == pytest.approx(session.ranker.chances(2).missing[399], abs=1e-6)


def test_the_surest_tag_is_the_one_of_whose_next_screen_most_is_right(session):
    shares = {}
    for column, name in enumerate(session.annotations.categories):
        rows = session.queue(View(name, lowest=0, stacks=False)).order[:SCREEN]
        shares[name] = session.ranker.chances(column).missing[rows].mean()
        assert session.summary(name).next_right == pytest.approx(shares[name], rel=1e-5)
    surest = max(shares, key=shares.get)
    assert session.surest() == surest
    for _ in range(6):
        decide(session, session.queue(View(surest, lowest=0)).order[:20], ABSENT, surest)
    assert session.surest() != surest


def test_a_session_that_is_opened_again_is_where_the_last_one_was(open_session):
    first = open_session()
    rows = first.queue(View("dog", lowest=0)).order
    decide(first, rows[:8], PRESENT)
    decide(first, rows[8:12], ABSENT)
    decide(first, rows[12], UNKNOWN)
    decide(first, first.queue(View("cat")).order[0], PRESENT, "cat")
    first.undo()
    again = open_session()
    np.testing.assert_array_equal(again.labels, first.labels)
    for category in ("cat", "dog", "sea"):
        np.testing.assert_array_equal(again.queue(View(category)).order, first.queue(View(category)).order)
        assert again.summary(category).decided == first.summary(category).decided


def test_undo_brings_back_ranking_and_counts(session):
    before, summary = session.queue(View("dog")), session.summary("dog")
    for row in before.order[:4]:
        decide(session, row, PRESENT)
    decide(session, before.order[4:9], ABSENT)
    for _ in range(5):
        session.undo()
    after = session.queue(View("dog"))
    np.testing.assert_array_equal(after.order, before.order)
    assert session.summary("dog").left == summary.left
    assert session.summary("dog").expected == pytest.approx(summary.expected, rel=1e-4)
    assert session.undo() == []


def test_another_process_decides_and_this_one_takes_it_in(open_session):
    mine, theirs = open_session(), open_session()
    row = int(mine.queue(View("dog")).order[0])
    decide(theirs, row, PRESENT)
    with pytest.raises(Conflict, match="ann"):
        mine.decide([Answer(row, "dog", ABSENT, version=0)], queue="missing")
    assert mine.labels[row, 1] == PRESENT
    assert row not in mine.queue(View("dog")).order


def test_decisions_about_images_that_are_gone_do_no_harm(open_session):
    session = open_session(400)
    decide(session, 399, PRESENT)
    assert open_session(300).summary("dog").decided.decided == 0


# --- queues ---


def test_suggested_missing_are_unknown_undecided_likely_and_sorted(session):
    queue = session.queue(View("dog"))
    chances = session.ranker.chances(1).missing[queue.order]
    assert len(queue) > 5
    assert (session.given[queue.order, 1] == UNKNOWN).all()
    assert (np.diff(chances) <= 0).all()
    assert chances.min() >= LIKELY
    assert len(queue.order) == session.summary("dog").left
    decide(session, queue.order[:3], ABSENT)
    assert not set(queue.order[:3]) & set(session.queue(View("dog")).order)


def test_the_less_likely_ones_are_there_when_asked_for(session):
    everything = session.queue(View("dog", lowest=0.0))
    assert len(everything.order) == everything.out_of == (session.given[:, 1] == UNKNOWN).sum()


def test_a_wrong_tag_comes_first_among_the_doubtful(session):
    annotations, features = made_data()
    unlikely = int(session.queue(View("sea", lowest=0.0)).order[-1])
    annotations.labels[unlikely, 2] = PRESENT
    again = ReviewSession(annotations, features, DecisionStore(None))
    assert again.queue(View("sea", "doubtful")).order[0] == unlikely


def test_least_certain_are_nearest_to_one_half(session):
    queue = session.queue(View("dog", "uncertain"))
    distance = np.abs(session.ranker.chances(1).missing[queue.order] - 0.5)
    assert (np.diff(distance) >= 0).all()


def test_filters_narrow_a_queue_and_say_out_of_how_many(session):
    everything = session.queue(View("dog", lowest=0.0))
    named = session.queue(View("dog", lowest=0.0, text="003"))
    assert 0 < len(named.order) < len(everything.order)
    assert named.out_of == everything.out_of
    together = session.queue(View("dog", lowest=0.0, together_with="cat"))
    assert (session.labels[together.order, 0] == PRESENT).all()
    decide(session, everything.order[:2], PRESENT, reviewer="bob")
    decide(session, everything.order[2], ABSENT)
    assert set(session.queue(View("dog", status="decided")).order) == set(everything.order[:3])
    assert set(session.queue(View("dog", status="present")).order) == set(everything.order[:2])
    assert set(session.queue(View("dog", status="decided", reviewer="bob")).order) == set(everything.order[:2])
    assert not len(session.queue(View("dog", status="unsure")))


def test_unreadable_images_are_in_no_queue(open_session):
    readable = np.ones(400, dtype=bool)
    readable[::3] = False
    session = open_session(readable=readable)
    for name in ("missing", "doubtful", "random", "uncertain"):
        queue = session.queue(View("dog", name, lowest=0.0))
        assert len(queue)
        assert readable[queue.order].all()


def test_what_is_unknown_is_named(session):
    with pytest.raises(UserError, match="did you mean 'dog'"):
        session.queue(View("dogs"))
    with pytest.raises(UserError, match="no image 400"):
        decide(session, 400, PRESENT)
    with pytest.raises(UserError, match="not 2"):
        decide(session, 4, 2)


def test_a_live_queue_keeps_what_was_seen_in_its_place(session):
    live = LiveQueue(session, View("dog", lowest=0))
    seen = live.queue.order[:6].copy()
    decide(session, [seen[1], seen[4]], PRESENT)
    decide(session, live.queue.order[20], ABSENT)
    queue = live.follow(seen=6)
    np.testing.assert_array_equal(queue.order[:6], seen)
    fresh = [row for row in session.queue(View("dog", lowest=0)).order if row not in set(seen)]
    np.testing.assert_array_equal(queue.order[6:], fresh)


# --- bursts ---


@pytest.fixture
def bursts() -> ReviewSession:
    """With copies of images 3 and 8 that differ by a little noise."""
    annotations, features = made_data()
    rng = np.random.default_rng(1)
    for original, copy in ((3, 50), (3, 51), (8, 90)):
        noise = 0.002 * torch.from_numpy(rng.normal(size=features.shape[1])).float()
        features[copy] = torch.nn.functional.normalize(features[original] + noise, dim=0)
        annotations.labels[[original, copy]] = UNKNOWN
    return ReviewSession(annotations, features, DecisionStore(None))


def test_nearly_identical_images_are_one_stack(bursts):
    queue = bursts.queue(View("dog", lowest=0.0))
    stacks = {frozenset(queue.rows(number).tolist()) for number in range(len(queue)) if len(queue.rows(number)) > 1}
    assert stacks == {frozenset({3, 50, 51}), frozenset({8, 90})}
    apart = bursts.queue(View("dog", lowest=0.0, stacks=False))
    assert len(apart) == len(apart.order) == len(queue.order)


def test_stacks_stand_where_their_first_image_does(bursts):
    queue = bursts.queue(View("dog", lowest=0.0))
    chances = bursts.ranker.chances(1).missing
    best = [chances[queue.rows(number)].max() for number in range(len(queue))]
    assert (np.diff(best) <= 0).all()
    assert sorted(queue.order) == sorted(bursts.queue(View("dog", lowest=0.0, stacks=False)).order)


# --- the random sample ---


def test_the_random_sample_is_of_the_first_suggestions_and_stays_the_same(open_session):
    session = open_session()
    suggested = set(session.queue(View("dog")).order.tolist())
    sample = session.queue(View("dog", "random", stacks=False)).order
    assert set(sample.tolist()) == suggested
    decide(session, sample[:10], PRESENT)
    decide(session, sample[10], ABSENT)
    np.testing.assert_array_equal(session.queue(View("dog", "random", stacks=False)).order, sample[11:])
    np.testing.assert_array_equal(open_session().queue(View("dog", "random", stacks=False)).order, sample[11:])


def test_the_estimate_counts_answers_up_to_the_first_open_one(session):
    sample = session.queue(View("dog", "random", stacks=False)).order
    decide(session, sample[:4], PRESENT)
    decide(session, sample[4:6], ABSENT)
    decide(session, sample[6], UNKNOWN)
    decide(session, sample[8:11], PRESENT)  # picked, with one left open before
    estimate = session.estimate("dog")
    assert (estimate.right, estimate.seen, estimate.unsure) == (4, 6, 1)
    assert estimate.population == len(sample)
    decide(session, sample[7], PRESENT)
    assert session.estimate("dog").seen == 10


# --- one image ---


def test_the_tags_of_an_image_are_known_suggested_or_others(session):
    row = int(session.queue(View("dog")).order[0])
    dog = next(tag for tag in session.tags(row) if tag.category == "dog")
    assert dog.suggested
    assert dog.probability == pytest.approx(session.ranker.chances(1).missing[row], abs=1e-5)
    decide(session, row, ABSENT)
    dog = next(tag for tag in session.tags(row) if tag.category == "dog")
    assert not dog.suggested
    assert dog.label == ABSENT
    assert dog.decision.reviewer == "ann"


def test_evidence_is_the_nearest_known_positives(session):
    row = int(session.queue(View("dog")).order[0])
    near = session.nearest_positives(row, "dog")
    known = np.flatnonzero(session.given[:, 1] == PRESENT)
    cosine = (session.features[known] @ session.features[row]).numpy()
    assert [other for other, _ in near] == known[np.argsort(-cosine)[:3]].tolist()
    assert near[0][1] == pytest.approx(cosine.max(), abs=1e-6)


# --- trees of tags ---


@pytest.mark.parametrize(
    "implied",
    [{"cat": ("dog", "sea"), "dog": ("sea",)}, {"cat": ("dog",), "dog": ("cat",)}],
    ids=["a tree", "tags that imply each other"],
)
def test_counts_before_decisions_follow_the_tree(implied, monkeypatch):
    annotations, features = made_data()
    tree = TagTree(implied)
    annotations = replace(annotations, tree=tree, labels=tree.closed(annotations.labels, annotations.categories))
    session = ReviewSession(annotations, features, DecisionStore(None))
    computed, own = [], session.ranker.own_chances
    monkeypatch.setattr(session.ranker, "own_chances", lambda column, of: computed.append(column) or own(column, of))
    before = dict(session.ranker.before_decisions())
    if "sea" in implied["cat"]:
        assert sorted(computed) == [0, 1, 2]  # each once
    for column in range(3):
        np.testing.assert_array_equal(before[column].missing, session.ranker.chances(column).missing)
    assert (before[1].missing >= before[0].missing)[session.given[:, 0] == UNKNOWN].all()
