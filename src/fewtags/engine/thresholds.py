"""Per-category thresholds on the probability."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fewtags.labels import PRESENT, UNKNOWN
from fewtags.presence.thresholds import expected_f1_thresholds


def choose_thresholds(probabilities: np.ndarray, labels: np.ndarray, *, calibrated: bool = False) -> np.ndarray:
    """[C] thresholds of best F1: measured if all labels are known, else expected.

    Without known absences F1 cannot be measured. Probabilities that are `calibrated` give its expectation. Others do
    not: if the known positives are a random sample, a classifier trained with unknown as absent outputs
    c * P(present), with c its mean output on positives (Elkan and Noto, KDD 2008), and c / 2 is where P(present) is one
    half.
    """
    if (labels != UNKNOWN).all():
        return f1_thresholds(probabilities, labels == PRESENT)
    if calibrated:
        return expected_f1_thresholds(probabilities)
    return known_positive_thresholds(probabilities, labels)


def f1_thresholds(probabilities: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """[C] the threshold of best F1, halfway to the next lower probability; 0.5 for a category without positives."""
    order = np.argsort(-probabilities, axis=0, kind="stable")
    ranked = np.take_along_axis(probabilities, order, axis=0).astype(float)
    below = np.concatenate([ranked[1:], np.zeros_like(ranked[:1])])
    hits = np.take_along_axis(truth, order, axis=0).cumsum(0)
    f1 = 2 * hits / (np.arange(1, len(truth) + 1)[:, None] + truth.sum(0))
    f1[ranked == below] = -1  # no threshold separates equal probabilities
    best, category = f1.argmax(0), np.arange(truth.shape[1])
    return np.where(truth.any(0), (ranked[best, category] + below[best, category]) / 2, 0.5)


def known_positive_thresholds(probabilities: np.ndarray, labels: np.ndarray, strength: float = 5.0) -> np.ndarray:
    """[C] half the mean probability of known positives, shrunk towards the mean over categories if there are few."""
    known = labels == PRESENT
    if not known.any():
        return np.full(labels.shape[1], 0.5)
    overall = probabilities[known].mean()
    mean = ((probabilities * known).sum(0) + strength * overall) / (known.sum(0) + strength)
    return np.minimum(mean / 2, 0.5)


# --- for a purpose ---


@dataclass(frozen=True)
class PurposeThresholds:
    values: np.ndarray  # [C]
    missed: np.ndarray  # [C] bool: no threshold reaches the target; `values` is the nearest that can be said


def thresholds_for(
    probabilities: np.ndarray,
    truth: np.ndarray | None,
    *,
    precision: float | None = None,
    recall: float | None = None,
    otherwise: np.ndarray,
) -> PurposeThresholds:
    """The lowest thresholds with this precision, or the highest with this recall, per category.

    Judged by the truth [N, C] of held-out images; without it by their probabilities, which must be calibrated: the
    mean of those above a threshold is the precision to expect, and their share of the sum of all is the recall.
    A category without positives keeps the threshold in `otherwise` where recall is asked for.
    """
    order = np.argsort(-probabilities, axis=0, kind="stable")
    ranked = np.take_along_axis(probabilities, order, axis=0).astype(float)
    below = np.concatenate([ranked[1:], np.zeros_like(ranked[:1])])
    weights = ranked if truth is None else np.take_along_axis(truth.astype(float), order, axis=0)
    hits = weights.cumsum(0)
    categories = np.arange(ranked.shape[1])
    if precision is not None:
        good = (hits >= precision * np.arange(1, len(ranked) + 1)[:, None] - 1e-9) & (ranked > below) & (hits > 0)
        place = len(good) - 1 - good[::-1].argmax(0)  # the last one, so the lowest threshold
        fallback = np.ones(len(categories)) if truth is not None else np.full(len(categories), precision)
    else:
        total = hits[-1]
        good = (hits >= (recall or 0.0) * total - 1e-9) & (ranked > below) & (total > 0)
        place, fallback = good.argmax(0), otherwise.astype(float)
    missed = np.logical_not(good.any(axis=0))
    between = (ranked[place, categories] + below[place, categories]) / 2
    return PurposeThresholds(np.where(missed, fallback, between), missed)
