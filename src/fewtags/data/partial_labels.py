"""The protocol of the experiments: from complete labels to the few a method may see."""

from __future__ import annotations

from numbers import Real
from operator import index
from typing import Literal, get_args

import numpy as np

from fewtags.errors import UserError, did_you_mean
from fewtags.labels import ABSENT, PRESENT, UNKNOWN

TaggerName = Literal["salience", "habit", "both", "hasty", "five", "largest"]  # see `tagged_by`
TAGGERS = get_args(TaggerName)
MOST_TAGS = {"five": 5, "largest": 1}


def hide_labels(truth: np.ndarray, proportion: float, seed: int = 0) -> np.ndarray:
    """Keep each positive with probability `proportion`: int8 [N, C], 1 known present and 0 unknown.

    `truth` is the complete matrix [N, C] of 1 (or True) for present, and 0, -1 or False for absent. Every
    entry has one random number, drawn for the whole matrix regardless of the truth, so that

    - what is known at 10 % is also known at 20 % (with the same seed and shape), and
    - whether a label is kept does not depend on any other label.

    An image that loses all its positives stays in the training set. Negatives are
    never known.
    """
    positive = positives(truth)
    if not isinstance(proportion, Real) or not 0 < proportion <= 1:
        raise UserError(f"The proportion of known labels is {proportion!r}; it should be above 0 and at most 1.")
    return (positive & (_draw(positive.shape, seed) >= 1 - proportion)).astype(np.int8)


def single_positive(truth: np.ndarray, seed: int = 0) -> np.ndarray:
    """Keep exactly one positive per image, chosen uniformly: int8 [N, C], 1 known and 0 unknown.

    An image without positives is kept with none. With the same seed the positive kept is the
    one that `hide_labels` keeps longest as the proportion falls.
    """
    positive = positives(truth)
    known = np.zeros(positive.shape, dtype=np.int8)
    rows = np.flatnonzero(positive.any(axis=1))
    if len(rows):
        number = np.where(positive, _draw(positive.shape, seed), -1.0)[rows]
        known[rows, number.argmax(axis=1)] = 1
    return known


def tagged_by(tagger: str, truth: np.ndarray, seed: int = 0, shares: np.ndarray | None = None) -> np.ndarray:
    """What people might have tagged, who do not toss coins: int8 [N, C], 1 known present and 0 unknown.

    - habit: each tag has its own rate, drawn from Beta(1.5, 3);
    - salience: the larger a thing is, the more often it is tagged: 1.6 sqrt(share), at most 0.95;
    - both: 4 rate sqrt(share), at most 0.98;
    - hasty: as both, a quarter as often;
    - five: the five largest things of an image are tagged;
    - largest: only the largest is.

    `shares` [N, C] is the part of the picture that the largest object of each present tag covers; habit needs none.
    """
    positive = positives(truth)
    if tagger not in TAGGERS:
        raise UserError(f"There is no tagger '{tagger}'; {did_you_mean(tagger, TAGGERS)}")
    if tagger != "habit" and (shares is None or shares.shape != positive.shape):
        raise UserError(f"The tagger '{tagger}' goes by how large things are, which these labels do not tell.")
    draw = _draw((len(positive) + 1, *positive.shape[1:]), seed)[1:]  # unlike those of `hide_labels`
    rate = np.random.default_rng(_whole(seed)).beta(1.5, 3, positive.shape[1])
    if tagger == "habit":
        return (positive & (draw < rate)).astype(np.int8)
    assert shares is not None
    if tagger in MOST_TAGS:
        size = np.where(positive, shares + 1e-9 * draw, -1.0)  # of equal ones, any
        rank = np.argsort(np.argsort(-size, axis=1, kind="stable"), axis=1, kind="stable")
        return (positive & (rank < MOST_TAGS[tagger])).astype(np.int8)
    root = np.sqrt(shares.clip(0, 1))
    chance = {
        "salience": np.minimum(1.6 * root, 0.95),
        "both": np.minimum(4 * rate * root, 0.98),
        "hasty": rate * root,
    }
    return (positive & (draw < chance[tagger])).astype(np.int8)


def positives(labels: np.ndarray) -> np.ndarray:
    """Which entries of a label matrix of 1, 0, -1 or bool are present: bool [N, C]. Raises UserError for other
    matrices."""
    labels = np.asarray(labels)
    if labels.ndim != 2:
        raise UserError(f"Labels should be a matrix [images, categories]; their shape is {labels.shape}.")
    if labels.dtype == bool:
        return labels
    wrong = (labels != ABSENT) & (labels != UNKNOWN) & (labels != PRESENT)  # np.isin takes twenty times as long
    if wrong.any():
        image, category = np.argwhere(wrong)[0]
        found = labels[image, category]
        raise UserError(f"Labels are 1, 0 or -1; found {found} at image {image}, category {category} (counted from 0).")
    return labels == PRESENT


def _draw(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """U of the protocol: one uniform number per entry, from NumPy's legacy generator as in the paper's own code."""
    try:
        return np.random.RandomState(_whole(seed)).random_sample(shape)
    except ValueError:
        raise _not_a_seed(seed) from None


def _whole(seed: int) -> int:
    try:
        return index(seed)
    except TypeError:
        raise _not_a_seed(seed) from None


def _not_a_seed(seed: object) -> UserError:
    return UserError(f"The seed is {seed!r}; it should be a whole number from 0 to {2**32 - 1}.")
