"""Estimates from partial labels: how many tags are missing, how complete the labels are, how good a model is.

Every number is an expectation over the probabilities that unknown labels are present, and its interval comes from what
is not known about these: the answers' posterior, or without answers its prior (`answers`). So before anybody answered,
intervals are wide, and each answer narrows them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fewtags.labels import PRESENT, UNKNOWN
from fewtags.presence.answers import Answers, Correction, Shift
from fewtags.presence.observation import Observation, bent
from fewtags.presence.regression import USUAL_SLOPE, Cases, Prior, fit_categories, share_of
from fewtags.presence.summary import assumption

DRAWS = 60
_ENTRIES = 2**21  # labels of the images that estimates are computed from; more stand for the rest
TINY = 1e-12


class Interval(NamedTuple):
    """A number and its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Judged:
    """Labels of images with their log-odds of presence, each judged without having been learned from."""

    odds: Tensor  # [M, C] by the labels alone, whatever the label is
    labels: Tensor  # [M, C]
    observation: Observation
    num_images: int | None = None  # that the M stand for

    @property
    def stand_for(self) -> float:
        return (self.num_images or len(self.labels)) / max(len(self.labels), 1)

    def sample(self, entries: int = _ENTRIES) -> Judged:
        """Fewer images, standing for the same number."""
        most = max(entries // max(self.labels.shape[1], 1), 1)
        if len(self.labels) <= most:
            return self
        rows = torch.randperm(len(self.labels), generator=torch.Generator().manual_seed(0))[:most].sort().values
        number = self.num_images or len(self.labels)
        return Judged(self.odds[rows], self.labels[rows], self.observation, number)

    def hidden(self, shift: Shift) -> Tensor:
        """[M, C] P(present | unknown), corrected by answers."""
        return Answers(self.observation, shift).if_unknown(self.odds).sigmoid()

    def missing(self) -> Tensor:
        """[C] how many of the M are expected to have the tag unknown, by the labels alone."""
        expected = torch.zeros(self.labels.shape[1])
        for column in range(len(expected)):
            chance = self.observation.if_unknown(self.odds[:, column], column).sigmoid()
            expected[column] = chance[self.labels[:, column] == UNKNOWN].sum()
        return expected


def judge_scores(
    scores: np.ndarray, labels: np.ndarray, known_proportion: float | None = None, num_images: int | None = None
) -> Judged:
    """Log-odds of presence from the scores [N, C] of any model for images it was not trained on.

    If the known proportion was estimated elsewhere, from more images of the same kind, pass it.
    """
    values, said = torch.from_numpy(np.asarray(scores, dtype=np.float64)), torch.from_numpy(np.asarray(labels))
    spread = values.std(0, correction=0).clamp(min=1e-9)
    evidence = ((values - values.mean(0)) / spread)[..., None]
    known = said == PRESENT
    shape = (int(known.sum(0).max()) if len(known) else 0, said.shape[1])
    positives, counts = torch.zeros(*shape, 1, dtype=torch.float64), torch.zeros(shape, dtype=torch.float64)
    column, row = known.T.nonzero(as_tuple=True)
    place = torch.arange(len(column)) - torch.searchsorted(column, column)
    positives[place, column], counts[place, column] = evidence[row, column], 1.0
    cases = Cases.of(positives, counts, evidence, said)
    tags = float(known.sum(1).double().mean()) if len(known) else 0.0
    shared = share_of(cases, Prior.of([USUAL_SLOPE], tags, said.shape[1]), known_proportion)
    theta = fit_categories(cases, shared)
    odds = bent(theta[:, 0] + theta[:, 1] * evidence[..., 0]).float()
    return Judged(odds, said, Observation(theta[:, -1].float(), shared.clarity), num_images)


@dataclass(frozen=True)
class Estimates:
    """Estimated quality on partly labelled images. Arrays [C, 3] hold value, low and high of each category, and NaN for
    a category without known positives."""

    num_images: int
    answers: int  # labels that were asked about
    known_proportion: Interval
    missing: Interval  # present but unlabelled tags
    map: Interval
    of1: Interval
    cf1: Interval
    op: Interval
    or_: Interval
    cp: Interval
    cr: Interval
    ap: np.ndarray
    precision: np.ndarray
    recall: np.ndarray
    missing_tags: np.ndarray

    def as_json(self, categories: list[str] | tuple[str, ...]) -> dict[str, Any]:
        """For result.json: numbers are [value, low, high]; categories by name, null if nothing is known."""
        values = asdict(self)
        per_category = {key: values.pop(key) for key in PER_CATEGORY}
        record = {key: _rounded(value) if isinstance(value, tuple) else value for key, value in values.items()}
        record["categories"] = {
            name: {key: _rounded(columns[c]) for key, columns in per_category.items()}
            for c, name in enumerate(categories)
        }
        return {**record, "assumption": assumption(self.answers)}


def estimate(
    judged: Judged, correction: Correction, thresholds: np.ndarray | float = 0.5, scores: np.ndarray | None = None
) -> Estimates:
    """Of the images that `judged` stands for, ranked and tagged by the probability of presence, or by the `scores`
    [M, C] of another model with these `thresholds`."""
    few = judged if scores is not None else judged.sample()
    by = few.odds.sigmoid().numpy() if scores is None else scores
    ranking = _Ranking(by, few.labels.numpy(), np.asarray(thresholds, dtype=float), few.stand_for)
    value = ranking.numbers(few.hidden(correction.shift).numpy())
    draws = np.stack([ranking.numbers(few.hidden(drawn).numpy()) for drawn in correction.draws(DRAWS)])
    low, high = np.quantile(draws, [0.025, 0.975], axis=0) if len(draws) else (value, value)
    table = np.stack([value, np.minimum(low, value), np.maximum(high, value)], axis=1)
    shared, per_category = table[: len(SHARED)], table[len(SHARED) :].reshape(len(PER_CATEGORY), -1, 3)
    numbers: dict[str, Any] = {name: Interval(*row.tolist()) for name, row in zip(SHARED, shared, strict=True)}
    numbers.update(zip(PER_CATEGORY, per_category, strict=True))
    return Estimates(num_images=judged.num_images or len(judged.labels), answers=correction.number, **numbers)


SHARED = ("known_proportion", "missing", "map", "of1", "cf1", "op", "or_", "cp", "cr")
PER_CATEGORY = ("ap", "precision", "recall", "missing_tags")


class _Ranking:
    """Images ranked by a score, category by category, so that only chances change from draw to draw."""

    def __init__(self, scores: np.ndarray, labels: np.ndarray, thresholds: np.ndarray, stand_for: float):
        self.order = np.argsort(-scores, axis=0, kind="stable")
        self.labels = np.take_along_axis(labels, self.order, axis=0)
        self.given = np.take_along_axis(scores >= thresholds, self.order, axis=0)
        self.rank = np.arange(1, len(scores) + 1)[:, None]
        self.use = (labels == PRESENT).any(0)
        self.stand_for = stand_for

    def numbers(self, hidden: np.ndarray) -> np.ndarray:
        """SHARED, then PER_CATEGORY of every category, as one vector. `hidden` [M, C] is P(present | unknown)."""
        hidden = np.take_along_axis(hidden.astype(float), self.order, axis=0)
        chance = np.where(self.labels == UNKNOWN, hidden, self.labels == PRESENT)
        above = chance.cumsum(0) - chance
        # A present image at rank r has the precision (1 + the expected number present above it) / r.
        ap = (chance * (above + 1) / self.rank).sum(0) / np.maximum(chance.sum(0), TINY)
        right, given, true = (chance * self.given).sum(0), self.given.sum(0), chance.sum(0)
        precision, recall = right / np.maximum(given, 1), right / np.maximum(true, TINY)
        missing = self.stand_for * (hidden * (self.labels == UNKNOWN)).sum(0)
        use = self.use
        per_category = np.where(use, np.stack([ap, precision, recall, missing]), np.nan)
        known = self.stand_for * (self.labels == PRESENT).sum()
        op, or_ = right[use].sum() / max(given[use].sum(), 1), right[use].sum() / max(true[use].sum(), TINY)
        cp, cr, mean_ap = (float(x[use].mean()) if use.any() else np.nan for x in (precision, recall, ap))
        of1, cf1 = (2 * x * y / (x + y) if x + y > 0 else 0.0 for x, y in ((op, or_), (cp, cr)))
        shared = [known / max(known + missing.sum(), TINY), missing.sum(), mean_ap, of1, cf1, op, or_, cp, cr]
        return np.concatenate([shared, per_category.ravel()])


def log_odds(probabilities: np.ndarray) -> np.ndarray:
    """Probabilities as scores, finite even if a probability was rounded to 0 or 1."""
    inside = np.clip(probabilities.astype(float), 1e-7, 1 - 1e-7)
    return np.log(inside) - np.log1p(-inside)


def _rounded(values: Any) -> list[float] | None:
    numbers = [float(value) for value in values]
    return None if np.isnan(numbers).any() else [round(number, 4) for number in numbers]
