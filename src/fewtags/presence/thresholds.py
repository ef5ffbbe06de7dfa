"""When a tag is given: thresholds on its probability, per category. Without torch."""

from __future__ import annotations

import numpy as np

# A tag that is three times as likely wrong as right is not predicted.
LOWEST_THRESHOLD, HIGHEST_THRESHOLD = 0.25, 0.75


def expected_f1_thresholds(probabilities: np.ndarray) -> np.ndarray:
    """[C] thresholds of best expected F1, 2 sum_r P / (r + sum P) at rank r, of the images' probabilities [N, C]."""
    ranked = np.sort(probabilities.T.astype(float), axis=1)[:, ::-1]  # a category's are side by side: sorted faster
    right = ranked.cumsum(1)
    f1 = 2 * right / np.maximum(np.arange(1, ranked.shape[1] + 1) + right[:, -1:], 1e-12)
    best = f1.argmax(1)
    below = np.minimum(best + 1, ranked.shape[1] - 1)
    each = np.arange(len(ranked))
    between = (ranked[each, best] + ranked[each, below]) / 2
    return np.clip(between, LOWEST_THRESHOLD, HIGHEST_THRESHOLD).astype(np.float32)
