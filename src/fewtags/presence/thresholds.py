"""When a tag is given: thresholds on its probability, per category. Without torch."""

from __future__ import annotations

import numpy as np

# A tag that is three times as likely wrong as right is not predicted.
LOWEST_THRESHOLD, HIGHEST_THRESHOLD = 0.25, 0.75


def expected_f1_thresholds(probabilities: np.ndarray) -> np.ndarray:
    """[C] thresholds of best expected F1, 2 sum_r P / (r + sum P) at rank r, of the images' probabilities [N, C]."""
    ranked = -np.sort(-probabilities.astype(float), axis=0)
    right = ranked.cumsum(0)
    f1 = 2 * right / np.maximum(np.arange(1, len(ranked) + 1)[:, None] + right[-1], 1e-12)
    best = f1.argmax(0)
    below = np.minimum(best + 1, len(ranked) - 1)
    columns = np.arange(ranked.shape[1])
    between = (ranked[best, columns] + ranked[below, columns]) / 2
    return np.clip(between, LOWEST_THRESHOLD, HIGHEST_THRESHOLD).astype(np.float32)
