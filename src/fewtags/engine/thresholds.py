"""From which probability on a tag is given, per category."""

from __future__ import annotations

import numpy as np
import torch

from fewtags.labels import PRESENT, UNKNOWN
from fewtags.models.curves import expected_f1_thresholds


def choose_thresholds(probabilities: np.ndarray, labels: np.ndarray, *, calibrated: bool = False) -> np.ndarray:
    """[C] thresholds of best F1: as measured where all labels are known, else as expected.

    Without known absences F1 cannot be measured. Probabilities that are `calibrated` say what it will be. Others do
    not: if which positives are known is chance, a classifier that was trained with unknown as absent gives
    c * P(present), with c its mean output on positives (Elkan and Noto, KDD 2008), and c / 2 is where P(present) is one
    half.
    """
    if (labels != UNKNOWN).all():
        return f1_thresholds(probabilities, labels == PRESENT)
    if calibrated:
        return expected_f1_thresholds(torch.from_numpy(probabilities)).numpy()
    return known_positive_thresholds(probabilities, labels)


def f1_thresholds(probabilities: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """[C] the threshold of best F1, half-way to the next lower probability; 0.5 for a category without positives."""
    order = np.argsort(-probabilities, axis=0, kind="stable")
    ranked = np.take_along_axis(probabilities, order, axis=0).astype(float)
    below = np.concatenate([ranked[1:], np.zeros_like(ranked[:1])])
    hits = np.take_along_axis(truth, order, axis=0).cumsum(0)
    f1 = 2 * hits / (np.arange(1, len(truth) + 1)[:, None] + truth.sum(0))
    f1[ranked == below] = -1  # no threshold tells equal probabilities apart
    best, category = f1.argmax(0), np.arange(truth.shape[1])
    return np.where(truth.any(0), (ranked[best, category] + below[best, category]) / 2, 0.5)


def known_positive_thresholds(probabilities: np.ndarray, labels: np.ndarray, strength: float = 5.0) -> np.ndarray:
    """[C] half the mean probability of known positives, drawn to the mean over categories where there are few."""
    known = labels == 1
    if not known.any():
        return np.full(labels.shape[1], 0.5)
    overall = probabilities[known].mean()
    mean = ((probabilities * known).sum(0) + strength * overall) / (known.sum(0) + strength)
    return np.minimum(mean / 2, 0.5)
