"""Holds out a share of the images such that about that share of every category, even rare ones, is held out."""

from __future__ import annotations

from numbers import Real
from operator import index

import numpy as np

from fewtags.data.partial_labels import positives
from fewtags.errors import UserError


def stratified_split(labels: np.ndarray, share: float, seed: int = 0, groups: np.ndarray | None = None) -> np.ndarray:
    """Which images to hold out: bool [N], True for about `share` of the images and of each category's known positives.

    Iterative stratification (Sechidis et al., ECML 2011): categories are processed from the rarest to the most
    frequent, counting known positives among the images not yet placed; each fills up its quota on both
    sides. Images without known positives come last and complete the total. Finally, every category that has a
    known positive keeps at least one in training. With `groups` [N], images of one group go to the same side.
    """
    positive = np.asfortranarray(positives(labels))  # read by column
    if groups is not None:
        _, number = np.unique(groups, return_inverse=True)
        of_groups = np.zeros((int(number.max(initial=-1)) + 1, positive.shape[1]), dtype=bool)
        np.logical_or.at(of_groups, number, positive)
        return stratified_split(of_groups, share, seed)[number]
    if not isinstance(share, Real) or not 0 < share < 1:
        raise UserError(f"The share to hold out is {share!r}; it should be above 0 and below 1.")
    held_out = _deal(positive, float(share), _generator(seed))
    _keep_one_for_training(positive, held_out)
    return held_out


def _deal(positive: np.ndarray, share: float, random: np.random.Generator) -> np.ndarray:
    num_images = len(positive)
    held_out, placed = np.zeros(num_images, dtype=bool), np.zeros(num_images, dtype=bool)
    left = positive.sum(axis=0)  # [C] known positives not placed yet
    lacking = share * left  # [C] how many of them the held-out side still needs
    while left.any():
        category = int(np.where(left > 0, left, num_images + 1).argmin())
        rows = random.permutation(np.flatnonzero(positive[:, category] & ~placed))
        chosen = rows[: _nearest(lacking[category], len(rows))]
        held_out[chosen], placed[rows] = True, True
        left -= positive[rows].sum(axis=0)
        lacking -= positive[chosen].sum(axis=0)
    rows = random.permutation(np.flatnonzero(~placed))
    held_out[rows[: _nearest(share * num_images - held_out.sum(), len(rows))]] = True
    return held_out


def _nearest(wanted: float, available: int) -> int:
    """The whole number from 0 to `available` nearest to `wanted`; a half goes to training.

    The paper assigns image by image to the side that lacks more of the category; this is the resulting number.
    """
    return int(np.clip(np.ceil(wanted - 0.5), 0, available))


def _keep_one_for_training(positive: np.ndarray, held_out: np.ndarray) -> None:
    """Moves an image back for each category that lost all its positives; this never takes one from another category."""
    for category in np.flatnonzero(positive.any(axis=0)):
        rows = np.flatnonzero(positive[:, category])
        if held_out[rows].all():
            held_out[rows[0]] = False


def _generator(seed: int) -> np.random.Generator:
    try:
        return np.random.default_rng(index(seed))
    except (TypeError, ValueError):
        raise UserError(f"The seed is {seed!r}; it should be a non-negative integer.") from None
