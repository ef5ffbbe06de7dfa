"""Estimates of quality, and of the number of missing tags, from partial labels.

Precision cannot be measured if a wrong tag and an unlabelled one look the same. But if the known positives
are a random subset of all positives, those in images the model was not trained on are a fair sample, and with
`known_proportion`, the share of positives that are known,

    recall at a threshold     = share of the known positives above it
    prior of a category       = known positives / images / known_proportion
    precision at a threshold  = recall x prior / share of all images above it

Computed directly from the known positives, these numbers are too noisy: with 10 % of the tags of VOC 2007 known,
the error of mAP has a standard deviation of five points. So a curve is fitted, the probability given the score,

    P(present | score) = sigmoid(bent(eta)),  eta = slope_c * score + intercept_c

with two parameters per category, and a bend and a known proportion shared by all categories, by maximum likelihood
of which labels are known and which are not. The bend matters: log-odds rise more slowly at the top; with straight
ones the known proportion is up to 17 % too low and mAP up to 13 points too high (COCO; VOC 2007: 4 % and 4).

All of it works on scores binned by rank (`ScoreBins`), so its cost does not depend on the number of images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

import numpy as np

from fewtags.labels import ABSENT, PRESENT

ASSUMPTION = (
    "Estimated, not measured, assuming that the known tags are a random subset of all present ones, "
    "in the same proportion for every tag."
)

SINGLE_RANKS = 64  # the first ranks have a bin each: they decide most of AP
GROWTH = 1.03  # after that each bin spans 3 % of the ranks above it
BEND = -2.0  # log-odds above which they rise more slowly
USUAL_BEND, BEND_PRECISION = -0.5, 30.0  # logarithm of the factor on the slope there: -0.5 on VOC 2007, -0.9 on COCO
USUAL_SLOPE, SLOPE_PRECISION = 2.0, 0.5  # of log-odds per standard deviation of the score; a weak prior
KNOWN_PRIOR = 1.0  # prior counts: this many known and unknown present labels
MOST_STEPS = 60
TINY = 1e-12


# --- scores in bins ---


@dataclass(frozen=True)
class ScoreBins:
    """Scores of images not trained on, binned by rank: [B, C], highest score of each category first."""

    score: np.ndarray  # mean score of the bin
    count: np.ndarray  # its images; 0 if a category needs fewer bins
    present: np.ndarray  # of these, known to be present
    absent: np.ndarray  # of these, known to be absent
    num_above: np.ndarray  # [C] number of bins above the threshold

    @classmethod
    def of(cls, scores: np.ndarray, labels: np.ndarray, thresholds: np.ndarray | float = np.inf) -> ScoreBins:
        """From `scores` [N, C] and `labels` [N, C]; a tag is predicted if its score reaches its threshold."""
        num_images, num_categories = scores.shape
        edges = rank_edges(num_images)
        shape = (len(edges), num_categories)  # one extra bin: the threshold may split one
        score, count, present, absent = (np.zeros(shape) for _ in range(4))
        num_above = np.zeros(num_categories, dtype=int)
        limits = np.broadcast_to(np.asarray(thresholds, dtype=scores.dtype), num_categories)
        for c in range(num_categories):
            order = np.argsort(-scores[:, c], kind="stable")
            ranked, known = scores[order, c].astype(float), labels[order, c]
            cut = int((ranked >= limits[c]).sum())
            own = np.union1d(edges, [cut])
            bins = len(own) - 1
            score[:, c] = ranked[-1]
            count[:bins, c] = np.diff(own)
            score[:bins, c] = np.add.reduceat(ranked, own[:-1]) / count[:bins, c]
            present[:bins, c] = np.add.reduceat(known == PRESENT, own[:-1], dtype=float)
            absent[:bins, c] = np.add.reduceat(known == ABSENT, own[:-1], dtype=float)
            num_above[c] = np.searchsorted(own, cut)
        return cls(score, count, present, absent, num_above)

    @classmethod
    def join(cls, parts: Sequence[ScoreBins]) -> ScoreBins:
        """Concatenates the bins of groups of categories."""
        return cls(*(np.concatenate([getattr(part, field.name) for part in parts], axis=-1) for field in fields(cls)))

    @property
    def unknown(self) -> np.ndarray:
        return self.count - self.present - self.absent

    @property
    def num_images(self) -> int:
        return int(self.count[:, :1].sum())

    @property
    def above(self) -> np.ndarray:
        """[B, C] does the bin reach the threshold?"""
        return np.arange(len(self.count))[:, None] < self.num_above

    def drawn_again(self, random: np.random.Generator) -> ScoreBins:
        """A resample of the same size (Poisson bootstrap)."""
        present, absent, unknown = (random.poisson(n) * 1.0 for n in (self.present, self.absent, self.unknown))
        return ScoreBins(self.score, present + absent + unknown, present, absent, self.num_above)


def rank_edges(num_images: int) -> np.ndarray:
    """Ranks at which bins begin, and the number of images."""
    edges = list(range(min(SINGLE_RANKS, num_images) + 1))
    while edges[-1] < num_images:
        edges.append(min(max(int(edges[-1] * GROWTH), edges[-1] + 1), num_images))
    return np.array(edges)


def log_odds(probabilities: np.ndarray) -> np.ndarray:
    """Probabilities as scores, finite even if a probability was rounded to 0 or 1."""
    inside = np.clip(probabilities.astype(float), 1e-7, 1 - 1e-7)
    return np.log(inside) - np.log1p(-inside)


# --- the probability of presence, given the score ---


@dataclass(frozen=True)
class Curves:
    slope: np.ndarray  # [C] of the log-odds in the score, below the bend
    intercept: np.ndarray  # [C]
    spread: np.ndarray  # [C] standard deviation of the scores, to make slopes comparable
    bend: float  # logarithm of the factor by which slopes are smaller above the bend
    known_proportion: float  # share of the present tags that are known
    known_spread: float = 0.0  # standard deviation of its log-odds

    def chance(self, scores: np.ndarray) -> np.ndarray:
        """P(present) of scores [.., C]."""
        return _sigmoid(bent(self.slope * scores + self.intercept, self.bend))

    def hidden(self, scores: np.ndarray) -> np.ndarray:
        """P(present | unknown), if no absence is known."""
        chance = self.chance(scores)
        return (1 - self.known_proportion) * chance / np.maximum(1 - self.known_proportion * chance, TINY)


def bent(eta: np.ndarray, bend: float) -> np.ndarray:
    """Log-odds whose slope changes smoothly from 1 far below BEND to exp(bend) far above it."""
    return eta + (np.exp(bend) - 1) * np.logaddexp(0, eta - BEND)


def fit_curves(
    bins: ScoreBins,
    known_proportion: float | None = None,
    like: Curves | None = None,
    start: Curves | None = None,
    most_steps: int = MOST_STEPS,
) -> Curves:
    """Maximum likelihood curves, by damped Fisher scoring.

    Without `known_proportion` it is fitted too. `like` are curves of another model on more of the same data: if few
    tags are known, slopes and bend are shrunk towards those. `start` is an initial point.
    """
    fit = _Fit(bins, known_proportion, like)
    point = fit.first_point() if start is None else fit.point_of(start)
    damping, value = 1e-3, fit.value(point)
    for _ in range(most_steps):
        step = fit.direction(point)
        while True:
            moved = step(damping)
            gained = fit.value(moved) - value
            if gained >= 0 or damping > 1e6:
                break
            damping *= 4
        if gained < 0:
            break
        point, value, damping = moved, value + gained, max(damping / 10, 1e-6)
        if gained < 1e-5:
            break
    return fit.curves(point)


class _Point(NamedTuple):
    slope: np.ndarray  # [C] per standard deviation of the score
    intercept: np.ndarray  # [C] at the mean score
    odds: float  # logarithm of known_proportion / (1 - known_proportion)
    bend: float


class _Fit:
    """Likelihood of the bins with its first derivatives and expected second ones; priors included.

    A label is known to be present with probability k p, known to be absent with a (1 - p), else unknown; p is the
    chance of presence, k the known proportion, a the share of a category's absences that are known.
    """

    def __init__(self, bins: ScoreBins, known_proportion: float | None, like: Curves | None):
        self.bins, self.given = bins, known_proportion
        self.use = bins.present.sum(0) > 0  # a category without known positives carries no information
        number = np.maximum(bins.count.sum(0), 1)
        self.mean = (bins.count * bins.score).sum(0) / number
        self.spread = np.sqrt((bins.count * (bins.score - self.mean) ** 2).sum(0) / number).clip(TINY)
        self.z = (bins.score - self.mean) / self.spread
        self.usual_slope, self.usual_bend = USUAL_SLOPE, USUAL_BEND
        if like is not None:
            self.usual_slope, self.usual_bend = float(np.mean(like.slope * like.spread)), like.bend

    # --- points ---

    def first_point(self) -> _Point:
        known = 0.2 if self.given is None else self.given
        prior = (self.bins.present.sum(0) + 0.5) / known / (self.bins.count.sum(0) + 1)
        slope = np.full(len(prior), self.usual_slope)
        return _Point(slope, np.log(prior.clip(1e-6, 0.6)) - 1, _log_odds(known), self.usual_bend)

    def point_of(self, curves: Curves) -> _Point:
        odds = _log_odds(curves.known_proportion if self.given is None else self.given)
        return _Point(curves.slope * self.spread, curves.intercept + curves.slope * self.mean, odds, curves.bend)

    def curves(self, point: _Point) -> Curves:
        slope = point.slope / self.spread
        known = float(_sigmoid(np.array(point.odds))) if self.given is None else self.given
        intercept = point.intercept - slope * self.mean
        return Curves(slope, intercept, self.spread, point.bend, known, self.known_spread(point))

    def known_spread(self, point: _Point) -> float:
        """How uncertain the log-odds of the known proportion are, by the information about them."""
        _, _, blocks, shared_block, coupling = self._derivatives(point, known_is_free=True)
        reduced = shared_block - np.einsum("cik,cil->kl", coupling, np.linalg.solve(blocks, coupling))
        return float(np.sqrt(max(np.linalg.pinv(reduced)[0, 0], 0.0)))

    # --- value ---

    def value(self, point: _Point) -> float:
        chance, known, denied, unsaid = self._chances(point)
        log = (
            self.bins.present * np.log(np.maximum(known * chance, TINY))
            + self.bins.absent * np.log(np.maximum(denied * (1 - chance), TINY))
            + self.bins.unknown * np.log(unsaid)
        )
        off_slope, off_bend = point.slope - self.usual_slope, point.bend - self.usual_bend
        prior = SLOPE_PRECISION / 2 * np.square(off_slope)[self.use].sum() + BEND_PRECISION / 2 * off_bend**2
        return float(log[:, self.use].sum() - prior + KNOWN_PRIOR * np.log(known * (1 - known)))

    def _chances(self, point: _Point) -> tuple[np.ndarray, float, np.ndarray, np.ndarray]:
        """p [B, C], k, a [C] and the probability of a label being unknown [B, C]."""
        chance = _sigmoid(bent(point.slope * self.z + point.intercept, point.bend)).clip(TINY, 1 - TINY)
        known = float(_sigmoid(np.array(point.odds)))
        absences = np.maximum((self.bins.count * (1 - chance)).sum(0), TINY)
        denied = np.minimum(self.bins.absent.sum(0) / absences, 1)
        return chance, known, denied, np.maximum(1 - known * chance - denied * (1 - chance), TINY)

    # --- the next point ---

    def direction(self, point: _Point) -> Any:
        """A function from the damping to the next point.

        Slope and intercept of a category interact with the others only through the two shared numbers: with blocks H
        of the categories, their coupling X to the shared ones and the shared block S, the system is solved by
        (S - sum X' H^-1 X) d_shared = g_shared - sum X' H^-1 g.
        """
        own, shared, blocks, shared_block, coupling = self._derivatives(point)

        def move(damping: float) -> _Point:
            damped = blocks * (1 + damping * np.eye(2))
            solved = np.linalg.solve(damped, np.concatenate([own[:, :, None], coupling], axis=2))  # [C, 2, 3]
            reduced = shared_block * (1 + damping * np.eye(2)) - np.einsum("cik,cil->kl", coupling, solved[:, :, 1:])
            step = np.linalg.solve(reduced, shared - np.einsum("cik,ci->k", coupling, solved[:, :, 0]))
            mine = (solved[:, :, 0] - solved[:, :, 1:] @ step) * self.use[:, None]
            return _Point(
                point.slope + mine[:, 0], point.intercept + mine[:, 1], point.odds + step[0], point.bend + step[1]
            )

        return move

    def _derivatives(self, point: _Point, known_is_free: bool = False) -> tuple[np.ndarray, ...]:
        bins, eta = self.bins, point.slope * self.z + point.intercept
        p, k, a, unsaid = self._chances(point)
        # Of the log-likelihood by p, and the expected information about p and about k with p.
        by_p = bins.present / p - bins.absent / (1 - p) + bins.unknown * (a - k) / unsaid
        info = bins.count * (k / p + a / (1 - p) + (a - k) ** 2 / unsaid)
        k_slope = k * (1 - k)
        by_odds = k_slope * (bins.present / k - bins.unknown * p / unsaid)
        info_odds = k_slope**2 * bins.count * (p / k + p**2 / unsaid)
        info_odds_p = k_slope * bins.count * (1 - p * (a - k) / unsaid)
        # Of p by slope, intercept and bend.
        factor = np.exp(point.bend)
        p_eta = p * (1 - p) * (1 + (factor - 1) * _sigmoid(eta - BEND))
        p_bend = p * (1 - p) * factor * np.logaddexp(0, eta - BEND)
        p_own = np.stack([p_eta * self.z, p_eta])  # [2, B, C]

        use = self.use
        own = (p_own * by_p).sum(1).T
        own[:, 0] -= SLOPE_PRECISION * (point.slope - self.usual_slope)
        blocks = np.einsum("ibc,jbc,bc->cij", p_own, p_own, info)
        blocks[:, 0, 0] += SLOPE_PRECISION
        blocks[:, 1, 1] += 1e-9
        blocks[~use] = np.eye(2)
        coupling = np.stack([(p_own * info_odds_p).sum(1).T, (p_own * p_bend * info).sum(1).T], axis=2)
        coupling[~use] = 0
        bend_pull = BEND_PRECISION * (point.bend - self.usual_bend)
        odds_pull = KNOWN_PRIOR * (1 - 2 * k)
        shared = np.array([by_odds[:, use].sum() + odds_pull, (p_bend * by_p)[:, use].sum() - bend_pull])
        both = (p_bend * info_odds_p)[:, use].sum()
        bend_info = (p_bend**2 * info)[:, use].sum() + BEND_PRECISION
        odds_info = info_odds[:, use].sum() + 2 * KNOWN_PRIOR * k_slope + 1e-9
        shared_block = np.array([[odds_info, both], [both, bend_info]])
        if self.given is not None and not known_is_free:  # the known proportion stays
            coupling[:, :, 0], shared[0], shared_block[0], shared_block[:, 0] = 0, 0, (1, 0), (1, 0)
        return own, shared, blocks, shared_block, coupling


# --- estimates ---


class Interval(NamedTuple):
    """A number and its 95 % interval: twice its spread over bootstrap samples to either side."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Estimates:
    """Estimated quality on partly labelled images. Arrays [C, 3] hold value, low and high of each category, and NaN for
    a category without known positives."""

    num_images: int
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
        per_category = {key: values.pop(key) for key in ("ap", "precision", "recall", "missing_tags")}
        record = {key: _rounded(value) if isinstance(value, tuple) else value for key, value in values.items()}
        record["categories"] = {
            name: {key: _rounded(columns[c]) for key, columns in per_category.items()}
            for c, name in enumerate(categories)
        }
        return {**record, "assumption": ASSUMPTION}


def estimate_lines(record: dict[str, Any]) -> list[str]:
    """The result of `Estimates.as_json` as a few lines of text."""

    def share(key: str, name: str) -> str:
        value, low, high = (100 * number for number in record[key])
        return f"{name} {value:.0f} ({low:.0f} to {high:.0f})"

    lines = []
    if record.get("map"):
        quality = ", ".join(share(key, name) for key, name in (("map", "mAP"), ("of1", "OF1"), ("cf1", "CF1")))
        lines.append(f"estimated: {quality}")
    if record.get("missing"):
        value, low, high = record["missing"]
        known = 100 * record["known_proportion"][0]
        missing = f"about {value:,.0f} tags are missing ({low:,.0f} to {high:,.0f})"
        lines.append(f"{missing}; {known:.0f} % of those that apply are known")
    return [*lines, record["assumption"]]


def estimate_quality(
    bins: ScoreBins,
    known_proportion: float | None = None,
    like: Curves | None = None,
    num_draws: int = 40,
    seed: int = 0,
) -> Estimates:
    """Estimates with bootstrap intervals, for scores of images the model was not trained on.

    If the known proportion was estimated elsewhere, pass it: it is the number that determines all others, and a
    few known tags do not determine it. The intervals then include its uncertainty, as large as it is for the images
    that `like` was fitted to, or else for these.
    """
    curves = fit_curves(bins, known_proportion, like)
    spread = (like or curves).known_spread
    random = np.random.default_rng(seed)
    draws = []
    for _ in range(num_draws):
        sample, known = bins.drawn_again(random), known_proportion
        if known is not None:
            known = float(_sigmoid(np.array(_log_odds(known) + spread * random.standard_normal())))
        draws.append(_numbers(sample, fit_curves(sample, known, like, start=curves, most_steps=6)))
    value, half = _numbers(bins, curves), 1.96 * np.stack(draws).std(0)
    table = np.stack([value, value - half, value + half], axis=1)  # [numbers, 3]
    shared, per_category = table[: len(SHARED)], table[len(SHARED) :].reshape(len(PER_CATEGORY), -1, 3)
    for name, numbers in (*zip(SHARED, shared, strict=True), *zip(PER_CATEGORY, per_category, strict=True)):
        np.clip(numbers, 0, None if name.startswith("missing") else 1, out=numbers)
    fields_by_name: dict[str, Any] = {n: Interval(*row.tolist()) for n, row in zip(SHARED, shared, strict=True)}
    fields_by_name.update(zip(PER_CATEGORY, per_category, strict=True))
    return Estimates(num_images=bins.num_images, **fields_by_name)


SHARED = ("known_proportion", "missing", "map", "of1", "cf1", "op", "or_", "cp", "cr")
PER_CATEGORY = ("ap", "precision", "recall", "missing_tags")


def _numbers(bins: ScoreBins, curves: Curves) -> np.ndarray:
    """SHARED, then PER_CATEGORY of every category, as one vector."""
    use = bins.present.sum(0) > 0
    chance = curves.chance(bins.score)
    expected = bins.count * chance  # of present ones in each bin
    correct, given, true = (expected * bins.above).sum(0), (bins.count * bins.above).sum(0), expected.sum(0)
    precision, recall = correct / np.maximum(given, 1), correct / np.maximum(true, TINY)
    absences = np.maximum((bins.count * (1 - chance)).sum(0), TINY)
    denied = np.minimum(bins.absent.sum(0) / absences, 1)
    unsaid = np.maximum(1 - curves.known_proportion * chance - denied * (1 - chance), TINY)
    missing = (bins.unknown * (1 - curves.known_proportion) * chance / unsaid).sum(0)
    per_category = np.where(use, np.stack([expected_ap(bins, chance), precision, recall, missing]), np.nan)
    ap, precision, recall, missing = per_category
    op, or_ = correct[use].sum() / max(given[use].sum(), 1), correct[use].sum() / max(true[use].sum(), TINY)
    cp, cr = (float(np.nanmean(x)) if use.any() else np.nan for x in (precision, recall))
    of1, cf1 = (2 * x * y / (x + y) if x + y > 0 else 0.0 for x, y in ((op, or_), (cp, cr)))
    mean_ap = float(np.nanmean(ap)) if use.any() else np.nan
    shared = [curves.known_proportion, np.nansum(missing), mean_ap, of1, cf1, op, or_, cp, cr]
    return np.concatenate([shared, per_category.ravel()])


def expected_ap(bins: ScoreBins, chance: np.ndarray) -> np.ndarray:
    """[C] expected average precision if images are positive with probability `chance` [B, C] of their bin.

    An image at rank r that is present has the precision (1 + the expected number present above it) / r; within a bin
    the middle rank represents all.
    """
    expected = bins.count * chance
    before, rank = np.cumsum(expected, axis=0) - expected, np.cumsum(bins.count, axis=0) - bins.count
    middle = np.maximum(bins.count - 1, 0) / 2
    precision = (before + chance * middle + 1) / (rank + middle + 1)
    return (expected * precision).sum(0) / np.maximum(expected.sum(0), TINY)


# --- helpers ---


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-np.clip(x, -500, 500)))


def _log_odds(share: float) -> float:
    share = min(max(share, 1e-6), 1 - 1e-6)
    return float(np.log(share / (1 - share)))


def _rounded(values: Any) -> list[float] | None:
    numbers = [float(value) for value in values]
    return None if np.isnan(numbers).any() else [round(number, 4) for number in numbers]
