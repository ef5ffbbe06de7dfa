"""Which unknown labels to ask about, and how many tags are missing by the answers alone, whatever the model.

A wave of questions is a random sample: label i is in it with probability

    pi_i  proportional to  m_i (1 - m_i),    m_i the mean of P(present | unknown) over what is not known about it

so that answers which are hard to foresee are asked for more often, and no label has no chance. The sample is systematic
in the order of tags and probabilities: rare tags and all levels of probability get their share of it. Hence

    missing = sum over the present ones of 1 / pi_i                                  (Horvitz and Thompson, 1952)

is unbiased even if every probability is wrong. Questions are asked in random order: the first k of n are a sample too,
with pi_i k / n. A label may stand for a whole burst of nearly identical images.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fewtags.labels import PRESENT, UNKNOWN
from fewtags.presence.answers import OFFSET, OWN_OFFSET, Correction, Shift
from fewtags.presence.estimates import DRAWS, Interval, Judged

WAVE = 50  # questions
DISAGREE = 2.0  # standard errors
_POINTS = 7  # of the Gauss-Hermite quadrature
_ENTRIES = 2**19  # labels that intervals are computed from after every answer


# --- choosing ---


def averaged(odds: np.ndarray, deviation: float = math.hypot(OFFSET, OWN_OFFSET)) -> np.ndarray:
    """Mean of sigmoid(odds + e) over a normal e."""
    points, weights = np.polynomial.hermite.hermgauss(_POINTS)
    parts = zip(points, weights / weights.sum(), strict=True)
    each = (w / (1 + np.exp(-(odds + math.sqrt(2) * deviation * x).clip(-30, 30))) for x, w in parts)
    return sum(each, np.zeros_like(odds))


def inclusion_probabilities(weight: np.ndarray, number: int) -> np.ndarray:
    """Proportional to `weight` [M] and at most 1; their sum is `number`, or M if there are fewer labels."""
    if number >= len(weight):
        return np.ones(len(weight))
    weight = np.maximum(weight.astype(float), 1e-12 * max(float(weight.max()), 1e-300))  # every label has a chance
    certain = np.zeros(len(weight), dtype=bool)
    while True:
        pi = np.where(certain, 1.0, 0.0)
        pi[~certain] = weight[~certain] * (number - certain.sum()) / weight[~certain].sum()
        if not (pi > 1).any():
            return pi
        certain |= pi >= 1


def systematic_sample(inclusion: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Places drawn with these probabilities, evenly over the order they are in."""
    number = round(float(inclusion.sum()))
    total = inclusion.cumsum()
    total *= number / max(total[-1], 1e-300) if number else 0.0  # rounding must not cost a question
    return np.searchsorted(total, rng.random() + np.arange(number), side="right").clip(max=len(inclusion) - 1)


@dataclass(frozen=True)
class Candidates:
    """Labels [M] that may be asked about."""

    rows: np.ndarray
    columns: np.ndarray
    odds: np.ndarray  # of presence, unknown as they are
    stands_for: np.ndarray  # how many labels have the same answer


@dataclass(frozen=True)
class Questions:
    """Labels [n] to ask about, in this order."""

    rows: np.ndarray
    columns: np.ndarray
    inclusion: np.ndarray
    stands_for: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)


def choose(candidates: Candidates, number: int = WAVE, seed: int | Sequence[int] = 0) -> Questions:
    """A wave of questions."""
    if not len(candidates.rows):
        nothing = np.zeros(0, dtype=np.int64)
        return Questions(nothing, nothing, np.zeros(0), nothing)
    rng = np.random.default_rng(seed)
    chance = averaged(candidates.odds)
    order = np.lexsort((candidates.rows, chance, candidates.columns))
    inclusion = inclusion_probabilities((chance * (1 - chance) * candidates.stands_for)[order], number)
    drawn = rng.permutation(np.unique(systematic_sample(inclusion, rng)))
    chosen = order[drawn]
    return Questions(
        candidates.rows[chosen], candidates.columns[chosen], inclusion[drawn], candidates.stands_for[chosen]
    )


def one_of_each_burst(columns: np.ndarray, rows: np.ndarray, leaders: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of labels (row, column): places of the first one of each burst and category, and how many there are of it.

    `leaders` [N] is the first image of every image's burst.
    """
    key = columns.astype(np.int64) * len(leaders) + leaders[rows]
    _, first, number = np.unique(key, return_index=True, return_counts=True)
    return first, number


# --- estimating ---


@dataclass(frozen=True)
class Answered:
    """A wave as far as it is answered."""

    present: np.ndarray  # [k] what the answers were
    inclusion: np.ndarray  # [k]
    stands_for: np.ndarray  # [k]
    asked: int  # questions of the wave, n; the rest is open or nobody could tell
    found: int = 0  # missing tags that were found before


@dataclass(frozen=True)
class Designed:
    """Missing tags by the design of the sample."""

    missing: float
    error: float  # standard error
    answers: int

    @property
    def interval(self) -> Interval:
        return Interval(self.missing, max(self.missing - 1.96 * self.error, 0.0), self.missing + 1.96 * self.error)


def by_design(waves: Sequence[Answered]) -> Designed | None:
    """The Horvitz-Thompson estimate of the number of missing tags, including those found meanwhile.

    Each wave has its own, about what was open then; they are averaged by their number of answers. None without answers.
    """
    each = [(len(wave.present), *_of_wave(wave)) for wave in waves if len(wave.present)]
    if not each:
        return None
    number, missing, error = (np.array(part, dtype=float) for part in zip(*each, strict=True))
    share = number / number.sum()
    # A later wave is drawn anew given the earlier answers, so their errors are uncorrelated.
    return Designed(float(share @ missing), float(np.sqrt((share**2) @ error**2)), int(number.sum()))


def _of_wave(wave: Answered) -> tuple[float, float]:
    """Estimate and standard error (Hajek's approximation, which is too large rather than too small here)."""
    k = len(wave.present)
    inclusion = wave.inclusion * k / max(wave.asked, k)
    weight = wave.stands_for / inclusion
    part = wave.present * weight
    variance = ((1 - inclusion) * (part - part.mean()) ** 2).sum() * k / max(k - 1, 1)
    # All the same answer does not mean that nothing is uncertain: as if one of average weight had been another.
    least = ((1 - inclusion) * weight).mean()
    return wave.found + float(part.sum()), max(math.sqrt(variance), float(least))


@dataclass(frozen=True)
class Running:
    """Missing tags and the share of known ones, by the model."""

    missing: Interval
    known: Interval

    @property
    def width(self) -> float:
        return self.known.high - self.known.low


def by_model(judged: Judged, correction: Correction) -> Running:
    """As `estimates.estimate` says it, but fast enough to be said after every answer."""
    few = judged.sample()
    number = few.stand_for * _expected(few, correction.shift)
    fewer = few.sample(_ENTRIES)
    scale = number / max(_expected(fewer, correction.shift), 1e-9)
    draws = np.array([scale * _expected(fewer, drawn) for drawn in correction.draws(DRAWS)])
    given = few.stand_for * float((few.labels == PRESENT).sum())
    return Running(_around(number, draws), _around(given / max(given + number, 1e-9), given / (given + draws + 1e-9)))


def _around(value: float, draws: np.ndarray) -> Interval:
    low, high = np.quantile(draws, [0.025, 0.975]).tolist()
    return Interval(value, min(low, value), max(high, value))


def _expected(judged: Judged, shift: Shift) -> float:
    hidden = judged.hidden(shift)
    return float(torch.where(judged.labels == UNKNOWN, hidden, 0.0).sum(dtype=torch.float64))


def disagreement(design: Designed | None, model: Running) -> str:
    """A sentence if the two estimates are further apart than chance explains, else nothing."""
    if design is None or abs(design.missing - model.missing.value) <= DISAGREE * design.error:
        return ""
    more = "more" if design.missing > model.missing.value else "fewer"
    return (
        f"The answers alone say {more} than the model ({design.missing:,.0f} and {model.missing.value:,.0f} missing "
        "tags), by over two standard errors: go by the answers, and ask another wave."
    )
