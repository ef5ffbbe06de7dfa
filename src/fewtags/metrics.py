"""AP, mAP and the overall and per-category F1 scores, as pure functions of scores and truth.

`scores` is a float matrix [N, C], `truth` a matrix [N, C] of 0/1 or bool, `mask` a bool matrix [N, C]: entries where it
is False (unknown labels) are excluded from every count and may have any truth. Every image counts once.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import index
from typing import NamedTuple

import numpy as np

from fewtags.errors import UserError

_ENTRIES_AT_ONCE = 2**20  # categories are sorted in groups of about this many scores: bounds the memory


class F1Scores(NamedTuple):
    op: float  # overall precision
    or_: float  # overall recall
    of1: float
    cp: float  # mean precision over categories
    cr: float  # mean recall over categories
    cf1: float


@dataclass(frozen=True)
class Scores:
    """The metrics of one model on one set of images. All but the counts are between 0 and 1, or NaN."""

    map: float  # mean of the plain AP
    map_voc12: float  # mean of the interpolated AP
    of1: float
    cf1: float
    op: float
    or_: float
    cp: float
    cr: float
    of1_top3: float
    cf1_top3: float
    per_category: list[float]  # plain AP of each category, NaN if it has no positives
    num_images: int
    num_categories_left_out: int  # categories without positives: not in map, cp, cr


def average_precision(
    scores: np.ndarray, truth: np.ndarray, interpolated: bool = False, mask: np.ndarray | None = None
) -> np.ndarray:
    """Average precision of each category, [C]; NaN for a category without positives.

    Plain: the sum of (R_k - R_{k-1}) P_k over the distinct scores from high to low, as in scikit-learn.
    Interpolated: P_k is replaced by the best precision at that recall or a higher one (all-point interpolation,
    VOC 2010 and later; the paper's mAP). Equal scores are one threshold in both, so the order of the images
    never matters.
    """
    scores, truth, mask = _checked(scores, truth, mask)
    plain, envelope = _average_precisions(scores, truth, mask)
    return envelope if interpolated else plain


def mean_average_precision(
    scores: np.ndarray, truth: np.ndarray, interpolated: bool = False, mask: np.ndarray | None = None
) -> float:
    """Mean of `average_precision` over the categories with positives; NaN if there are none."""
    return _mean(average_precision(scores, truth, interpolated, mask))


def f1_scores(
    scores: np.ndarray,
    truth: np.ndarray,
    threshold: float | np.ndarray = 0.5,
    top: int | None = None,
    mask: np.ndarray | None = None,
) -> F1Scores:
    """Overall and per-category precision, recall and F1, as the paper defines them.

    Scores are probabilities; a label is predicted if its score >= threshold (one, or one per category [C]) and,
    with `top`, it is also among the image's `top` highest (ties: the first categories). With N_c
    correct, N_p predicted and N_g true labels of a category,

        OP = sum N_c / sum N_p     OR = sum N_c / sum N_g     CP = mean N_c / N_p     CR = mean N_c / N_g

    and OF1, CF1 are the harmonic means of OP, OR and of CP, CR. Edge cases:

    - A category that is never predicted has precision 0. The research code gets the same CP by setting its N_p to 1,
      but then adds that 1 to the sum in OP as well; here OP is the formula as printed.
    - CP and CR are means over the categories with a true label (the research code divides by zero for the others).
      Wrong predictions of the others still count in OP.
    - Nothing predicted at all: OP = 0. No true label at all: everything but OP is NaN.
    """
    scores, truth, mask = _checked(scores, truth, mask)
    predicted = _predicted(scores, mask, threshold, top)
    correct, guessed, true = ((x & mask).sum(axis=0) for x in (predicted & truth, predicted, truth))  # N_c, N_p, N_g
    op = float(correct.sum() / max(guessed.sum(), 1))
    or_ = float(correct.sum() / true.sum()) if true.any() else float("nan")
    seen = true > 0
    cp = _mean(correct[seen] / np.maximum(guessed[seen], 1))
    cr = _mean(correct[seen] / true[seen])
    return F1Scores(op, or_, _harmonic_mean(op, or_), cp, cr, _harmonic_mean(cp, cr))


def evaluate_scores(
    scores: np.ndarray, truth: np.ndarray, mask: np.ndarray | None = None, threshold: float | np.ndarray = 0.5
) -> Scores:
    """Everything above at once. Scores are probabilities."""
    scores, truth, mask = _checked(scores, truth, mask)
    plain, interpolated = _average_precisions(scores, truth, mask)
    f1 = f1_scores(scores, truth, threshold, mask=mask)
    top3 = f1_scores(scores, truth, threshold, top=3, mask=mask)
    return Scores(
        map=_mean(plain),
        map_voc12=_mean(interpolated),
        of1=f1.of1,
        cf1=f1.cf1,
        op=f1.op,
        or_=f1.or_,
        cp=f1.cp,
        cr=f1.cr,
        of1_top3=top3.of1,
        cf1_top3=top3.cf1,
        per_category=plain.tolist(),
        num_images=len(scores),
        num_categories_left_out=int(np.isnan(plain).sum()),
    )


def _average_precisions(scores: np.ndarray, truth: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    num_images, num_categories = scores.shape
    both = np.full((2, num_categories), np.nan)
    step = max(_ENTRIES_AT_ONCE // max(num_images, 1), 1)
    for first in range(0, num_categories if num_images else 0, step):
        some = np.s_[:, first : first + step]
        both[some] = _areas(scores[some].T, truth[some].T, mask[some].T)
    return both[0], both[1]


def _areas(scores: np.ndarray, truth: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Plain and interpolated AP from category-major [C, N] matrices."""
    negated = np.where(mask, -scores, np.inf)  # masked entries sort last and do not count
    order = negated.argsort(axis=1)
    negated = np.take_along_axis(negated, order, axis=1)
    hits = np.take_along_axis(truth & mask, order, axis=1).cumsum(axis=1, dtype=np.int32)
    ranks = np.take_along_axis(mask, order, axis=1).cumsum(axis=1, dtype=np.int32)

    # Only the last of equal scores is a threshold. Hits never fall, so a running maximum carries those of
    # the threshold before.
    last = np.ones(negated.shape, dtype=bool)
    last[:, :-1] = negated[:, 1:] != negated[:, :-1]
    hits_before = np.zeros_like(hits)
    hits_before[:, 1:] = np.maximum.accumulate(np.where(last, hits, 0), axis=1)[:, :-1]
    gained = np.where(last, hits - hits_before, 0)

    precision = np.where(last, hits / np.maximum(ranks, 1), 0.0)
    envelope = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    positives = np.where(hits[:, -1] > 0, hits[:, -1], np.nan)
    return (gained * precision).sum(axis=1) / positives, (gained * envelope).sum(axis=1) / positives


def _predicted(scores: np.ndarray, mask: np.ndarray, threshold: float | np.ndarray, top: int | None) -> np.ndarray:
    num_categories = scores.shape[1]
    limit = _float_array(threshold, "The threshold").astype(scores.dtype)  # 0.7 and a float32 score of 0.7 are equal
    if limit.shape not in ((), (num_categories,)):
        raise UserError(
            f"Thresholds of shape {limit.shape} do not match {num_categories} categories; pass one, or one for each."
        )
    predicted = scores >= limit
    return predicted if top is None else predicted & _among_top(np.where(mask, scores, -np.inf), top)


def _among_top(scores: np.ndarray, top: int) -> np.ndarray:
    """Is a score one of its row's `top` highest? Exactly `top` are; ties go to the first ones."""
    try:
        top = index(top)
    except TypeError:
        raise UserError(f"top={top!r} should be a whole number of labels per image.") from None
    if top < 1:
        raise UserError(f"top={top} should be at least 1 label per image.")
    if top >= scores.shape[1]:
        return np.ones(scores.shape, dtype=bool)
    lowest = -np.partition(-scores, top - 1, axis=1)[:, top - 1 : top]  # the lowest score among them
    above, equal = scores > lowest, scores == lowest
    places = top - above.sum(axis=1, keepdims=True)
    return above | (equal & (equal.cumsum(axis=1) <= places))


def _checked(
    scores: np.ndarray, truth: np.ndarray, mask: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Float scores, bool truth and bool mask of one shape [N, C], or a UserError."""
    scores, truth = _float_array(scores, "Scores"), np.asarray(truth)
    if scores.ndim != 2:
        raise UserError(f"Scores should be a matrix [images, categories]; their shape is {scores.shape}.")
    mask = np.ones(scores.shape, dtype=bool) if mask is None else np.asarray(mask)
    for name, matrix in (("Truth", truth), ("The mask", mask)):
        if matrix.shape != scores.shape:
            raise UserError(
                f"{name} has shape {matrix.shape}, but the scores have {scores.shape}; they should be equal."
            )
    if mask.dtype != bool:
        raise UserError(f"The mask has dtype {mask.dtype}; it should be bool, True where the label counts.")
    if truth.dtype != bool:
        wrong = ~np.isin(truth, (0, 1)) & mask
        if wrong.any():
            raise UserError(f"Truth contains {truth[wrong][0]}; it should be 0 or 1 wherever the mask is True.")
        truth = truth == 1
    return scores, truth, mask


def _float_array(values: np.ndarray | float, name: str) -> np.ndarray:
    try:
        array = np.asarray(values)
        array = array if array.dtype in (np.float32, np.float64) else array.astype(np.float64)
    except (TypeError, ValueError):
        raise UserError(f"{name} should be numbers.") from None
    if not np.isfinite(array).all():
        raise UserError(f"{name} should be finite; found {array[~np.isfinite(array)].flat[0]}.")
    return array


def _mean(values: np.ndarray) -> float:
    """Over the values that are not NaN; NaN when there are none."""
    values = values[~np.isnan(values)]
    return float(values.mean()) if len(values) else float("nan")


def _harmonic_mean(a: float, b: float) -> float:
    return 0.0 if a + b == 0 else 2 * a * b / (a + b)
