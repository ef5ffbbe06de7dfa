"""Stratified splits: every category in its share, deterministic, known positives only."""

from __future__ import annotations

import time

import numpy as np
import pytest

from fewtags.data.splitting import stratified_split
from fewtags.errors import UserError


def long_tail(images: int = 1000, categories: int = 30, seed: int = 0) -> np.ndarray:
    """Three-state labels: a few frequent categories, many rare ones, some known absent, many unknown."""
    rng = np.random.default_rng(seed)
    present = rng.random((images, categories)) < np.geomspace(0.004, 0.3, categories)
    absent = rng.random((images, categories)) < 0.2
    return np.where(present, 1, np.where(absent, -1, 0)).astype(np.int8)


def imbalance(labels: np.ndarray, held_out: np.ndarray, share: float) -> float:
    """How far the held-out share of a category's known positives is from `share`, averaged over categories."""
    positive = labels == 1
    counts = positive.sum(0)
    some = counts > 0
    return float(np.abs(positive[held_out].sum(0)[some] / counts[some] - share).mean())


@pytest.mark.parametrize("share", [0.1, 0.2, 0.5])
def test_categories_are_more_even_than_after_a_random_split(share):
    rng = np.random.default_rng(0)
    for seed in range(5):
        labels = long_tail(seed=seed)
        random = [imbalance(labels, rng.permutation(len(labels)) < share * len(labels), share) for _ in range(20)]
        assert imbalance(labels, stratified_split(labels, share, seed), share) < 0.6 * min(random)


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 0.8])
def test_about_that_share_of_the_images_is_held_out(share):
    held_out = stratified_split(long_tail(), share)
    assert held_out.dtype == bool
    assert held_out.mean() == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize("share", [0.125, 0.25, 0.5, 0.75])
def test_one_category_is_dealt_as_the_paper_deals_image_by_image(share):
    for num_images in range(2, 40):
        lacks = {True: share * num_images, False: (1 - share) * num_images}
        for _ in range(num_images):
            lacks[lacks[True] > lacks[False]] -= 1  # to the side that lacks more of the category
        assert stratified_split(np.ones((num_images, 1)), share).sum() == share * num_images - lacks[True]


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_every_category_with_a_known_positive_keeps_one_in_training(share):
    for seed in range(20):
        labels = long_tail(images=60, seed=seed)
        positive = labels == 1
        held_out = stratified_split(labels, share, seed)
        assert (positive[~held_out].any(0) == positive.any(0)).all()


def test_only_known_positives_count():
    labels = long_tail()
    assert (stratified_split(labels, 0.2) == stratified_split(labels == 1, 0.2)).all()


def test_the_split_depends_on_the_seed_alone():
    labels = long_tail()
    first = stratified_split(labels, 0.2, seed=3)
    assert (first == stratified_split(labels, 0.2, seed=3)).all()
    assert (first != stratified_split(labels, 0.2, seed=4)).any()


def test_images_without_known_tags_are_split_too():
    labels = np.zeros((100, 3), dtype=np.int8)
    assert stratified_split(labels, 0.2).sum() == 20
    labels[:10, 0] = 1
    held_out = stratified_split(labels, 0.2)
    assert (held_out[:10].sum(), held_out[10:].sum()) == (2, 18)


def test_no_images_or_no_categories():
    assert stratified_split(np.zeros((0, 3)), 0.2).shape == (0,)
    assert stratified_split(np.zeros((10, 0)), 0.2).sum() == 2


def test_time_grows_with_the_number_of_images_not_with_its_square():
    """As a ratio: a slow or busy machine slows both. Ten times the images are 10 times the work, 100 if squared."""
    labels = np.random.default_rng(0).random((100_000, 200)) < np.geomspace(1e-4, 0.3, 200)
    small, large = (min(seconds_of(labels[:number]) for _ in range(3)) for number in (10_000, 100_000))
    assert large < 30 * small


def seconds_of(labels: np.ndarray) -> float:
    start = time.process_time()
    stratified_split(labels, 0.1)
    return time.process_time() - start


@pytest.mark.parametrize("share", [0, 1, -0.5, 20, float("nan"), "0.2"])
def test_a_wrong_share_is_told(share):
    with pytest.raises(UserError, match="above 0 and below 1"):
        stratified_split(long_tail(), share)


def test_wrong_labels_and_seeds_are_told():
    with pytest.raises(UserError, match=r"\[images, categories\]"):
        stratified_split(np.zeros(3), 0.5)
    with pytest.raises(UserError, match="found 2"):
        stratified_split(np.array([[2]]), 0.5)
    with pytest.raises(UserError, match="non-negative integer"):
        stratified_split(long_tail(), 0.5, seed=-1)
