"""Thresholds per category, against trying every threshold that there is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from conftest import TinyConfig
from fewtags.data.annotations import Annotations
from fewtags.data.prepare import split_data
from fewtags.engine.prediction import predict_files
from fewtags.engine.thresholds import choose_thresholds, f1_thresholds, known_positive_thresholds, thresholds_for
from fewtags.engine.training import train
from fewtags.models.saved import SavedModel, load_model
from fewtags.presence.thresholds import expected_f1_thresholds


def f1(probabilities: np.ndarray, truth: np.ndarray, threshold: float) -> float:
    given = probabilities >= threshold
    return 2 * (given & truth).sum() / max(given.sum() + truth.sum(), 1)


def best_f1(probabilities: np.ndarray, truth: np.ndarray) -> float:
    return max(f1(probabilities, truth, threshold) for threshold in probabilities)


@pytest.mark.parametrize("decimals", [1, 2, 8])
def test_no_threshold_has_a_better_f1(decimals):
    """With one decimal most probabilities have an equal: a cut between equals is none."""
    rng = np.random.default_rng(decimals)
    truth = rng.random((60, 25)) < 0.3
    probabilities = np.clip(0.4 * truth + 0.6 * rng.random((60, 25)), 0, 1).round(decimals).astype(np.float32)
    chosen = f1_thresholds(probabilities, truth)
    for c in range(25):
        assert f1(probabilities[:, c], truth[:, c], chosen[c]) == best_f1(probabilities[:, c], truth[:, c])


def test_the_threshold_is_between_two_probabilities():
    """Not on one, so that neither rounding nor another machine's last digit changes what is given."""
    probabilities = np.array([[0.9], [0.8], [0.4], [0.2]])
    assert f1_thresholds(probabilities, np.array([[1], [1], [0], [0]]) == 1) == pytest.approx(0.6)
    assert f1_thresholds(probabilities, np.ones((4, 1), dtype=bool)) < 0.19


def test_a_category_without_positives_keeps_one_half():
    assert f1_thresholds(np.array([[0.9, 0.7], [0.1, 0.2]]), np.array([[0, 1], [0, 0]]) == 1)[0] == 0.5


def test_half_the_mean_of_known_positives():
    """Elkan and Noto's c / 2; with no prior strength, from each category's own known positives."""
    probabilities = np.array([[0.8, 0.1], [0.4, 0.3], [0.9, 0.2]])
    labels = np.array([[1, 0], [1, 0], [0, 1]])
    chosen = known_positive_thresholds(probabilities, labels, strength=0.0)
    np.testing.assert_allclose(chosen, [0.3, 0.1])


def test_few_known_positives_are_drawn_to_the_mean_over_categories():
    rng = np.random.default_rng(0)
    probabilities = rng.random((1000, 3))
    labels = np.zeros((1000, 3), dtype=int)
    labels[:400, 0] = 1
    probabilities[:400, 0] = 0.2
    labels[0, 1] = 1
    probabilities[0, 1] = 0.9
    many, one, none = known_positive_thresholds(probabilities, labels)
    overall = probabilities[labels == 1].mean()
    assert many == pytest.approx(0.1, abs=1e-3)
    assert none == pytest.approx(overall / 2)
    assert overall / 2 < one < 0.45


def test_without_any_known_positive_one_half():
    assert known_positive_thresholds(np.random.rand(4, 2), np.zeros((4, 2))).tolist() == [0.5, 0.5]


def test_partial_labels_are_never_measured_by_f1():
    """Where a label is unknown, its probability must not move any threshold by F1."""
    probabilities = np.array([[0.8, 0.9], [0.4, 0.1]])
    partial, complete = np.array([[1, 1], [0, -1]]), np.array([[1, 1], [-1, -1]])
    np.testing.assert_array_equal(
        choose_thresholds(probabilities, partial), known_positive_thresholds(probabilities, partial)
    )
    np.testing.assert_array_equal(
        choose_thresholds(probabilities, complete), f1_thresholds(probabilities, complete == 1)
    )


def test_calibrated_probabilities_say_which_f1_to_expect():
    """Against drawing the labels from the probabilities many times."""
    rng = np.random.default_rng(0)
    probabilities = rng.beta(0.4, 0.8, (80, 2)).astype(np.float32)
    chosen = choose_thresholds(probabilities, np.zeros((80, 2)), calibrated=True)
    for c in range(2):
        truths = rng.random((800, 80)) < probabilities[:, c]
        mean = [np.mean([f1(probabilities[:, c], truth, t) for truth in truths]) for t in probabilities[:, c]]
        reached = np.mean([f1(probabilities[:, c], truth, chosen[c]) for truth in truths])
        assert reached > max(mean) - 0.005


# --- of a run ---


def fitted(method: str, patches: Annotations, folder: Path, *settings: str) -> SavedModel:
    config = TinyConfig.make(f"method={method}", "train.epochs=3", "train.lr=3e-3", *settings)
    train(config, folder, data=split_data(patches, config.data, config.seed), quiet=True)
    return load_model(folder)


def probabilities_of(saved: SavedModel, part: Annotations) -> np.ndarray:
    files = [part.path(row) for row in range(len(part))]
    return np.stack([prediction.probabilities for prediction in predict_files(saved, files)])


def partly_known(patches: Annotations, split: str) -> Annotations:
    """Every other label of a split is forgotten."""
    labels = patches.labels.copy()
    labels[np.ix_(patches.splits == split, np.arange(labels.shape[1]))] *= np.array([1, 0, 1], dtype=np.int8)
    return replace(patches, labels=labels)


def test_a_trained_model_has_thresholds_of_its_own_not_of_its_start(patches, tmp_path):
    """refined without held-out images: by the F1 that its probabilities promise on the training images."""
    saved = fitted("refined", patches, tmp_path / "run")
    train_part = patches.split("train")
    expected = expected_f1_thresholds(probabilities_of(saved, train_part))
    np.testing.assert_allclose(saved.thresholds, expected, atol=1e-4)
    at_start = saved.classifier.head.presence.thresholds.numpy()
    assert np.abs(saved.thresholds - at_start).max() > 1e-3


def test_held_out_images_come_before_training_images(patches, tmp_path):
    val = replace(patches, splits=np.where(patches.splits == "test", "val", patches.splits))
    saved = fitted("refined", partly_known(val, "val"), tmp_path / "run", "data.known=null")
    expected = expected_f1_thresholds(probabilities_of(saved, val.split("val")))
    np.testing.assert_allclose(saved.thresholds, expected, atol=1e-4)


def test_completely_labelled_held_out_images_choose_by_f1(patches, tmp_path):
    val = replace(patches, splits=np.where(patches.splits == "test", "val", patches.splits))
    saved = fitted("refined", val, tmp_path / "run")
    held_out = val.split("val")
    expected = f1_thresholds(probabilities_of(saved, held_out), held_out.labels == 1)
    np.testing.assert_allclose(saved.thresholds, expected, atol=1e-4)


def test_probabilities_of_being_known_are_halved_at_the_known_positives(patches, tmp_path):
    """`an` learns unknown as absent: its probabilities are too low to be cut at one half."""
    saved = fitted("an", patches, tmp_path / "run", "input.augment=false")
    config = TinyConfig.make()
    observed = split_data(patches, config.data, 0).train
    expected = known_positive_thresholds(probabilities_of(saved, observed), observed.labels)
    np.testing.assert_allclose(saved.thresholds, expected, atol=1e-4)


def test_the_test_set_has_no_say(patches, tmp_path):
    """Other test images and labels leave the thresholds as they are."""
    order = np.concatenate([np.arange(36), np.arange(36)[:12]])  # training images in the place of the test images
    other = replace(
        patches,
        images=[patches.images[row] for row in order],
        labels=np.concatenate([patches.labels[:36], -patches.labels[:12]]),
    )
    one, two = (fitted("refined", data, tmp_path / name) for name, data in (("a", patches), ("b", other)))
    np.testing.assert_array_equal(one.thresholds, two.thresholds)


def test_instant_keeps_what_it_chose_by_left_out_images(patches, tmp_path):
    saved = fitted("instant", patches, tmp_path / "run")
    np.testing.assert_allclose(saved.thresholds, saved.classifier.head.presence.thresholds, atol=1e-5)


# --- for a purpose ---


def made(decimals: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    truth = rng.random((60, 12)) < 0.3
    probabilities = np.clip(0.4 * truth + 0.6 * rng.random((60, 12)), 0, 1).round(decimals).astype(np.float32)
    return probabilities, truth


@pytest.mark.parametrize("decimals", [1, 2, 8])
@pytest.mark.parametrize("target", [0.5, 0.8, 0.95])
def test_no_lower_threshold_has_the_precision_and_no_higher_one_the_recall(decimals, target):
    """Against trying every threshold that there is."""
    probabilities, truth = made(decimals)
    exact = thresholds_for(probabilities, truth, precision=target, otherwise=np.full(12, 0.5))
    found = thresholds_for(probabilities, truth, recall=target, otherwise=np.full(12, 0.5))
    for c in range(12):
        p, t = probabilities[:, c], truth[:, c]
        good = [x for x in np.unique(p) if t[p >= x].mean() >= target]
        assert exact.missed[c] == (not good)
        if good:
            assert (p >= exact.values[c]).tolist() == (p >= min(good)).tolist()
        enough = [x for x in np.unique(p) if t[p >= x].sum() >= target * t.sum()]
        assert (p >= found.values[c]).tolist() == (p >= max(enough)).tolist()


def test_calibrated_probabilities_say_what_to_expect():
    """The mean of those above the threshold, and their share of the sum of all."""
    probabilities, _ = made(8)
    probabilities = probabilities.astype(float)
    exact = thresholds_for(probabilities, None, precision=0.7, otherwise=np.zeros(12)).values
    found = thresholds_for(probabilities, None, recall=0.7, otherwise=np.zeros(12)).values
    for c in range(12):
        p = probabilities[:, c]
        assert p[p >= exact[c]].mean() >= 0.7
        assert np.sort(p)[::-1][: (p >= exact[c]).sum() + 1].mean() < 0.7
        assert p[p >= found[c]].sum() >= 0.7 * p.sum()
        assert p[p > p[p >= found[c]].min()].sum() < 0.7 * p.sum()


def test_what_cannot_be_reached():
    probabilities = np.array([[0.9, 0.3], [0.8, 0.2]])
    none_right = np.zeros((2, 2), dtype=bool)
    assert thresholds_for(probabilities, none_right, precision=0.9, otherwise=np.full(2, 0.4)).values.tolist() == [1, 1]
    recall = thresholds_for(probabilities, none_right, recall=0.9, otherwise=np.full(2, 0.4))
    assert (recall.values.tolist(), recall.missed.tolist()) == ([0.4, 0.4], [True, True])
    # A calibrated probability above the target is right that often, also where no held-out image has one.
    expected = thresholds_for(probabilities, None, precision=0.5, otherwise=np.full(2, 0.4))
    assert expected.values[1] == 0.5
    assert expected.missed.tolist() == [False, True]
