"""Missing and doubtful tags, against slow versions and against the truth."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fewtags.data.annotations import Annotations
from fewtags.data.prepare import RunData
from fewtags.discovery import (
    UNDECIDED,
    BestLabels,
    LabelTable,
    decisions_about,
    discover,
    similar_positives,
)
from fewtags.engine.features import LoadedFeatures
from fewtags.engine.judge import Judge
from fewtags.engine.model_outputs import ModelOutputs
from fewtags.engine.own_images import OwnImages
from fewtags.presence.ridge import unit_length
from made_features import some_images

NUM_IMAGES, NUM_CATEGORIES, DIM = 4000, 4, 24


def outputs_of(features: torch.Tensor, unreadable: dict[int, str] | None = None) -> ModelOutputs:
    return ModelOutputs(LoadedFeatures(features[None, :, :, None, None], unreadable or {}), len(features))


class Made:
    """Images with a direction per category, a third of whose tags are known."""

    def __init__(self, seed: int = 0, known: float = 0.35):
        random = np.random.default_rng(seed)
        self.truth = (random.random((NUM_IMAGES, NUM_CATEGORIES)) < (0.08, 0.15, 0.2, 0.3)).astype(np.int8)
        directions = 2.5 * random.normal(size=(NUM_CATEGORIES, DIM)) / DIM**0.5
        features = 1.5 * (self.truth @ directions) + random.normal(size=(NUM_IMAGES, DIM))
        self.labels = (self.truth * (random.random(self.truth.shape) < known)).astype(np.int8)
        self.features = torch.from_numpy(features).half()
        self.outputs = outputs_of(self.features)

    def judge(self) -> Judge:
        return Judge.of(self.outputs, self.labels)


@pytest.fixture(scope="module")
def made() -> Made:
    return Made()


@pytest.fixture(scope="module")
def judge(made) -> Judge:
    return made.judge()


# --- what is listed ---


def test_missing_tags_are_unknown_and_sorted_and_mostly_right(made, judge):
    found = discover(made.outputs, made.labels, judge, min_probability=0.5)
    table = found.missing
    assert len(table) == found.num_missing > 50
    assert (made.labels[table.rows, table.columns] == 0).all()
    assert (np.diff(table.probabilities) <= 1e-6).all()
    promised, right = table.expected_precision(len(table)), table.precision(made.truth, len(table))
    # Log-odds are straight here and bent in photos, so without answers the promise is cautious.
    assert right - 0.2 < promised < right + 0.05


def test_answers_make_the_promise_right():
    """300 of them: they have to undo the bend, which there is in photos and not here."""
    made = Made()
    judge = made.judge()
    unknown = np.argwhere(made.labels == 0)
    asked = unknown[np.random.default_rng(1).choice(len(unknown), 900, replace=False)].T
    hopeful = judge.hidden()[asked[0], asked[1]].argsort()[-300:]
    rows, columns = asked[0][hopeful], asked[1][hopeful]
    judge.learn(rows, columns, np.where(made.truth[rows, columns], 1, -1))
    table = discover(made.outputs, made.labels, judge, min_probability=0.5).missing
    promised, right = table.expected_precision(len(table)), table.precision(made.truth, len(table))
    assert promised == pytest.approx(right, abs=0.08)


def test_by_default_what_is_more_likely_right_than_wrong_is_listed(made, judge):
    found = discover(made.outputs, made.labels, judge)
    likely = (judge.hidden() >= 0.5) & (made.labels == 0)
    assert set(zip(found.missing.rows, found.missing.columns, strict=True)) == set(
        zip(*np.nonzero(likely), strict=True)
    )


def test_a_limit_keeps_the_most_certain(made, judge):
    everything = discover(made.outputs, made.labels, judge, min_probability=0.1)
    few = discover(made.outputs, made.labels, judge, min_probability=0.1, limit=20)
    assert few.num_missing == everything.num_missing
    np.testing.assert_array_equal(few.missing.rows, everything.missing.rows[:20])
    np.testing.assert_array_equal(few.missing.columns, everything.missing.columns[:20])


def test_only_the_categories_asked_for_are_looked_at(made, judge):
    found = discover(made.outputs, made.labels, judge, columns=[2], min_probability=0.3)
    assert set(found.missing.columns.tolist()) == {2}
    assert set(found.doubtful.columns.tolist()) <= {2}


def test_a_category_that_nobody_knows_an_image_of_is_not_suggested():
    made = Made()
    made.labels[:, 1] = 0
    assert 1 not in discover(made.outputs, made.labels, made.judge(), min_probability=0.001).missing.columns


def test_unreadable_images_are_not_listed(made):
    outputs = outputs_of(made.features, {3: "broken", 7: "broken"})
    judge = Judge.of(outputs, made.labels)
    found = discover(outputs, made.labels, judge, min_probability=0.0, limit=10**6)
    assert not {3, 7} & set(found.missing.rows.tolist())


def test_the_number_of_missing_tags_is_estimated(made, judge):
    found = discover(made.outputs, made.labels, judge)
    assert found.expected == pytest.approx(int((made.truth - made.labels).sum()), rel=0.15)


def test_other_images_are_judged_by_the_same_model(made, judge):
    """Of half of the images as the run's own, and the other half, of which no tag is known."""
    own, rest = np.arange(0, NUM_IMAGES, 2), np.arange(1, NUM_IMAGES, 2)
    parts = [outputs_of(made.features[torch.from_numpy(rows)]) for rows in (own, rest)]
    judge = Judge.of(parts[0], made.labels[own])
    found = discover(parts[1], np.zeros_like(made.labels[rest]), judge, own=False)
    assert len(found.doubtful) == 0
    table = found.missing
    promised, right = table.expected_precision(len(table)), table.precision(made.truth[rest], len(table))
    assert promised < right + 0.05
    # Unknown is taken for "not tagged by these people", so some of what they would have tagged is not expected.
    present, left_by_people = (int(part[rest].sum()) for part in (made.truth, made.truth - made.labels))
    assert left_by_people < found.expected < present
    assert found.expected == pytest.approx(present, rel=0.25)


# --- doubtful tags ---


def test_wrong_tags_come_first():
    made = Made()
    random = np.random.default_rng(1)
    absent = np.argwhere(made.truth == 0)
    wrong = {tuple(place) for place in absent[random.permutation(len(absent))[:12]].tolist()}
    made.labels[tuple(np.array(sorted(wrong)).T)] = 1
    judge = made.judge()
    doubtful = discover(made.outputs, made.labels, judge).doubtful
    found = list(zip(doubtful.rows.tolist(), doubtful.columns.tolist(), strict=True))
    assert len(set(found[:15]) & wrong) >= 8
    assert (made.labels[doubtful.rows, doubtful.columns] == 1).all()


def test_a_known_tag_is_judged_as_if_nobody_had_given_it():
    """Against fitting everything again without it, on so few images that a model remembers what it was told."""
    features, _, labels = some_images(num_images=80, dim=40)
    given = labels.numpy()
    outputs = outputs_of(features.half())
    judge = Judge.of(outputs, given)
    in_sample = judge.model.log_odds(features.half().float()).numpy()
    wrong, wrong_if_seen = [], []
    for row, column in np.argwhere(given == 1)[:12]:
        without = given.copy()
        without[row, column] = 0
        expected = Judge.of(outputs, without).odds[row, column]
        wrong.append(abs(judge.odds[row, column] - expected))
        wrong_if_seen.append(abs(in_sample[row, column] - expected))
    assert np.mean(wrong) < 0.4 * np.mean(wrong_if_seen)


# --- parts ---


def test_the_best_labels_are_those_of_a_full_sort():
    random = np.random.default_rng(0)
    best = BestLabels(50)
    best_small = 2 * 100_000
    everything = []
    for piece in range(60):
        worth = np.round(random.random(5000), 3)  # with many ties
        rows, columns = np.arange(5000) + 5000 * piece, random.integers(0, 9, 5000)
        best.add(rows, columns, worth, worth)
        everything += zip((-worth).tolist(), rows.tolist(), columns.tolist(), strict=True)
        assert best.held <= best_small + 5000
    table = best.table()
    expected = sorted(everything)[:50]
    assert (
        list(zip((-table.probabilities).tolist(), table.rows.tolist(), table.columns.tolist(), strict=True)) == expected
    )
    assert best.num_added == 300_000


def test_nothing_found_is_an_empty_table():
    table = BestLabels(5).table()
    assert len(table) == 0
    assert table.depths() == []


@pytest.mark.parametrize("own", [True, False])
def test_evidence_is_the_nearest_known_positives(made, own):
    random = np.random.default_rng(0)
    rows, columns = random.integers(0, NUM_IMAGES, 40), random.integers(0, NUM_CATEGORIES, 40)
    similar = similar_positives(LabelTable(rows, columns, np.zeros(40)), made.outputs, made.outputs, made.labels, own)
    features = unit_length(made.features).numpy()
    for place, (row, column) in enumerate(zip(rows, columns, strict=True)):
        cosine = {
            other: float(features[row] @ features[other])
            for other in np.flatnonzero(made.labels[:, column] == 1)
            if not own or other != row
        }
        expected = sorted(cosine, key=lambda other: -cosine[other])[:3]
        assert similar[place].tolist() == expected


def test_fewer_known_positives_than_places_leave_blanks(made):
    labels = np.zeros_like(made.labels)
    labels[5, 0] = 1
    table = LabelTable(np.array([5, 6]), np.array([0, 0]), np.zeros(2))
    similar = similar_positives(table, made.outputs, made.outputs, labels)
    assert similar.tolist() == [[-1, -1, -1], [5, -1, -1]]


def test_decisions_are_found_by_image_and_tag():
    table = LabelTable(np.array([0, 1, 1]), np.array([1, 0, 1]), np.zeros(3))
    decided = {("b.jpg", "cat"): -1, ("b.jpg", "dog"): 0, ("c.jpg", "dog"): 1}
    assert decisions_about(table, ["a.jpg", "b.jpg"], ["cat", "dog"], decided).tolist() == [UNDECIDED, -1, 0]


def test_partly_labelled_validation_images_are_looked_at_too():
    def part(names: str, complete: bool) -> Annotations:
        return Annotations.from_tags(list(names), [["x"]] * len(names), categories=["x", "y"], complete=complete)

    train, val, test = part("abc", False), part("de", False), part("f", True)
    own = OwnImages.of(RunData(train, None, val, test))
    images, truth = own.annotations, own.truth
    assert images.images == list("abcde")
    assert truth is None
    own = OwnImages.of(RunData(train, train.labels, None, test))
    images, truth = own.annotations, own.truth
    assert images.images == list("abc")
    assert truth is not None
