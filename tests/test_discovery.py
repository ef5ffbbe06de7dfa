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
    ProbabilityScale,
    chance_from_hidden,
    decisions_about,
    discover,
    hidden_from_chance,
    images_with_unknown_tags,
    rising,
    similar_positives,
)
from fewtags.engine.left_out import LeftOut, left_out_scores
from fewtags.engine.model_outputs import ModelOutputs
from fewtags.models.discriminant import unit_length

NUM_IMAGES, NUM_CATEGORIES, DIM = 4000, 4, 24
THRESHOLDS = np.full(NUM_CATEGORIES, 0.5)


class Made:
    """Images with a direction per category, a third of whose tags are known; a model whose outputs are far too low."""

    def __init__(self, seed: int = 0, known: float = 0.35):
        random = np.random.default_rng(seed)
        self.truth = (random.random((NUM_IMAGES, NUM_CATEGORIES)) < (0.08, 0.15, 0.2, 0.3)).astype(np.int8)
        directions = 2.5 * random.normal(size=(NUM_CATEGORIES, DIM)) / DIM**0.5
        features = 1.5 * (self.truth @ directions) + random.normal(size=(NUM_IMAGES, DIM))
        self.labels = (self.truth * (random.random(self.truth.shape) < known)).astype(np.int8)
        guessed = directions + 0.3 * random.normal(size=directions.shape)
        logits = 4 * (features @ guessed.T) - 12.0 + 6 * self.labels  # knows the known ones by heart
        unit = unit_length(torch.from_numpy(features)).numpy().astype(np.float16)
        self.outputs = ModelOutputs(logits.astype(np.float32), unit, {})

    def judge(self) -> LeftOut:
        return LeftOut.of(self.outputs, self.labels)


@pytest.fixture(scope="module")
def made() -> Made:
    return Made()


@pytest.fixture(scope="module")
def judge(made) -> LeftOut:
    return made.judge()


@pytest.fixture(scope="module")
def scale(made, judge) -> ProbabilityScale:
    return ProbabilityScale.of(made.outputs, made.labels, judge)


# --- what is listed ---


def test_missing_tags_are_unknown_and_sorted_and_mostly_right(made, judge, scale):
    found = discover(made.outputs, made.labels, THRESHOLDS, judge, scale, min_probability=0.5)
    table = found.missing
    assert len(table) == found.num_missing > 50
    assert (made.labels[table.rows, table.columns] == 0).all()
    assert (np.diff(table.probabilities) <= 1e-6).all()
    assert table.expected_precision(len(table)) == pytest.approx(table.precision(made.truth, len(table)), abs=0.1)


def test_probabilities_do_not_depend_on_the_scale_of_the_model(made, judge, scale):
    """A model that says a tenth ranks as well as one that says nine tenths."""
    shifted = ModelOutputs(3 * made.outputs.logits + 20, made.outputs.features, {})
    other = ProbabilityScale.of(shifted, made.labels, judge)
    numbers: list[int] = []
    for outputs, by in ((made.outputs, scale), (shifted, other)):
        found = discover(outputs, made.labels, THRESHOLDS, judge, by, min_probability=0.5)
        numbers.append(len(found.missing))
    assert numbers[0] == pytest.approx(numbers[1], abs=2)
    np.testing.assert_allclose(scale.chance(made.outputs.logits), other.chance(shifted.logits), atol=1e-4)


def test_without_a_probability_the_model_s_own_thresholds_decide(made, judge, scale):
    thresholds = np.full(NUM_CATEGORIES, 0.01)
    found = discover(made.outputs, made.labels, thresholds, judge, scale)
    given = (1 / (1 + np.exp(-made.outputs.logits.astype(float))) >= 0.01) & (made.labels == 0)
    assert set(zip(found.missing.rows, found.missing.columns, strict=True)) == set(zip(*np.nonzero(given), strict=True))
    at_threshold = hidden_from_chance(scale.chance(np.full((1, 4), np.log(0.01 / 0.99))), judge.curves.known_proportion)
    np.testing.assert_allclose(found.thresholds, at_threshold[0], rtol=1e-5)


def test_a_limit_keeps_the_most_certain(made, judge, scale):
    everything = discover(made.outputs, made.labels, THRESHOLDS, judge, scale, min_probability=0.1)
    few = discover(made.outputs, made.labels, THRESHOLDS, judge, scale, min_probability=0.1, limit=20)
    assert few.num_missing == everything.num_missing
    np.testing.assert_array_equal(few.missing.rows, everything.missing.rows[:20])
    np.testing.assert_array_equal(few.missing.columns, everything.missing.columns[:20])


def test_only_the_categories_asked_for_are_looked_at(made, judge, scale):
    found = discover(made.outputs, made.labels, THRESHOLDS, judge, scale, columns=[2], min_probability=0.3)
    assert set(found.missing.columns.tolist()) == {2}
    assert set(found.doubtful.columns.tolist()) <= {2}


def test_a_category_that_nobody_knows_an_image_of_is_left_out():
    made = Made()
    made.labels[:, 1] = 0
    judge = made.judge()
    scale = ProbabilityScale.of(made.outputs, made.labels, judge)
    assert 1 not in discover(made.outputs, made.labels, THRESHOLDS, judge, scale, min_probability=0.0).missing.columns


def test_unreadable_images_are_not_listed(made):
    outputs = ModelOutputs(made.outputs.logits, made.outputs.features, {3: "broken", 7: "broken"})
    judge = LeftOut.of(outputs, made.labels)
    scale = ProbabilityScale.of(outputs, made.labels, judge)
    found = discover(outputs, made.labels, THRESHOLDS, judge, scale, min_probability=0.0, limit=10**6)
    assert not {3, 7} & set(found.missing.rows.tolist())


def test_the_number_of_missing_tags_is_estimated(made, judge, scale):
    found = discover(made.outputs, made.labels, THRESHOLDS, judge, scale)
    assert found.expected == pytest.approx(int((made.truth - made.labels).sum()), rel=0.15)


def test_other_images_are_judged_by_the_same_scale(made, judge, scale):
    other = Made(seed=0)  # the same directions, and no tag known
    found = discover(
        other.outputs, np.zeros_like(other.labels), THRESHOLDS, judge, scale, own=False, min_probability=0.5
    )
    assert len(found.doubtful) == 0
    assert found.expected == pytest.approx(int(other.truth.sum()), rel=0.25)


# --- doubtful tags ---


def test_a_label_is_judged_as_if_the_image_had_never_been_there(made, judge):
    """Against centring and inverting the second moment without it, with the same penalty and standardisation."""
    row, column = np.argwhere(made.labels == 1)[5]
    features = torch.from_numpy(made.outputs.features.astype(np.float32))
    x = judge.model.basis.rotate(features).double()
    others = torch.arange(len(x)) != row
    centre = x[others].mean(0)
    rest = x[others] - centre
    penalty = float(judge.model.penalty) * torch.eye(DIM, dtype=x.dtype)
    positives = rest[torch.from_numpy(made.labels[:, column] == 1)[others]].mean(0)
    expected = (x[row] - centre) @ torch.linalg.inv(rest.T @ rest / len(x) + penalty) @ positives
    unit = judge.model.without_own(len(x))._factor()[column]
    one = slice(row, row + 1)
    left_out = left_out_scores(judge.model, judge.num_images, features[one], made.labels[one] == 1)
    assert left_out[0, column] == pytest.approx(float(expected * unit), rel=0.01)


def test_wrong_tags_come_first():
    made = Made()
    random = np.random.default_rng(1)
    absent = np.argwhere(made.truth == 0)
    wrong = {tuple(place) for place in absent[random.permutation(len(absent))[:12]].tolist()}
    made.labels[tuple(np.array(sorted(wrong)).T)] = 1
    judge = made.judge()
    scale = ProbabilityScale.of(made.outputs, made.labels, judge)
    doubtful = discover(made.outputs, made.labels, THRESHOLDS, judge, scale).doubtful
    found = list(zip(doubtful.rows.tolist(), doubtful.columns.tolist(), strict=True))
    assert len(set(found[:15]) & wrong) >= 8
    assert (made.labels[doubtful.rows, doubtful.columns] == 1).all()


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


def test_rising_is_isotonic_regression():
    from sklearn.isotonic import IsotonicRegression

    random = np.random.default_rng(0)
    values, weights = np.linspace(0, 1, 40) + random.normal(size=40) / 4, random.random(40) + 0.1
    expected = IsotonicRegression().fit_transform(np.arange(40), values, sample_weight=weights)
    np.testing.assert_allclose(rising(values, weights), expected)


def test_hidden_and_chance_are_inverse():
    chance = np.linspace(0.01, 0.99, 9)
    hidden = hidden_from_chance(chance, 0.4)
    assert (hidden < chance).all()
    np.testing.assert_allclose(chance_from_hidden(hidden, 0.4), chance)


@pytest.mark.parametrize("own", [True, False])
def test_evidence_is_the_nearest_known_positives(made, own):
    random = np.random.default_rng(0)
    rows, columns = random.integers(0, NUM_IMAGES, 40), random.integers(0, NUM_CATEGORIES, 40)
    similar = similar_positives(LabelTable(rows, columns, np.zeros(40)), made.outputs, made.outputs, made.labels, own)
    features = made.outputs.features.astype(np.float32)
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
    images, truth = images_with_unknown_tags(RunData(train, None, val, test))
    assert images.images == list("abcde")
    assert truth is None
    images, truth = images_with_unknown_tags(RunData(train, train.labels, None, test))
    assert images.images == list("abc")
    assert truth is not None
