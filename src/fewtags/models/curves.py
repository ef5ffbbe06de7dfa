"""From scores to probabilities: one curve per category, fitted to labels of which only some are known.

    P(present | score) = sigmoid(bent(slope_c * score + intercept_c))

A label is known to be present with probability k P, known to be absent with a_c (1 - P), and else unknown; k is the
share of the present labels that are known. Slopes are positive and `bent` is increasing: probabilities rank images as
scores do. Everything works on scores binned by rank, so the cost hardly depends on the number of images.

A hundred photos do not determine all this, so every parameter has a prior in units that do not depend on the data: the
shared slope per standard deviation of the score, a category's slope about it, a category's share of the images about
the mean share, the bend by how noisy the scores are, and k by how many tags an image usually has (paper-notes 51).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fewtags.estimates import BEND
from fewtags.labels import ABSENT, PRESENT, UNKNOWN

KNOWN_PROPORTIONS = (0.02, 0.04, 0.07, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
BENDS = (0.0, -0.4, -0.8, -1.2)
BEND_OF_NOISE, BEND_PRECISION = -0.8, 11.0  # of scores that are all noise; a standard deviation of 0.3
SINGLE_RANKS, GROWTH = 32, 1.08  # the first ranks have a bin each; from there on bins reach over 8 % of those above
# Log-odds per standard deviation of the score. VOC 2007 and COCO have 1.1 to 2.4, with names and without, whatever the
# number of images; the standard deviations of these priors are 0.5 and 0.4.
USUAL_SLOPE, SHARED_PRECISION = 1.5, 4.0
SLOPE_PRECISION = 6.0  # of a category's slope about the shared one
LOWEST_SLOPE = 0.1
LEAST_SPREAD = 0.03
SHARE_PRECISION = 0.7  # of the log-odds of a category's share of the images: by a factor of three to the mean share
LARGEST_SHARE = 0.8
# Tags per image, in roots of the number of categories: 0.33 on VOC 2007 and on COCO, 0.21 on NUS-WIDE, 0.76 on VG-200,
# 0.56 in our generated pictures. The deviation is of the logarithm: a factor of two.
TAGS_OF_ONE_CATEGORY, TAGS_DEVIATION = 0.4, 0.7
CREDENCE = 0.15  # how much a log likelihood counts in the choice of k and bend: no curve is quite of this form
LOWEST_THRESHOLD, HIGHEST_THRESHOLD = 0.25, 0.75  # a tag that is three times as likely wrong as right is not predicted
ONE_TAG_SHARE = 0.9  # share of images with exactly one known tag above which this is how they were tagged
ONE_TAG_PROPORTIONS = (0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
SHARED_BY = 64  # number of categories enough to estimate what all share
TINY = 1e-12


@dataclass(frozen=True)
class Bins:
    """Scores of a category from the highest down, in bins: [B, C] mean score, and how many labels of which kind."""

    score: Tensor
    present: Tensor
    absent: Tensor
    unknown: Tensor

    @classmethod
    def of(cls, scores: Tensor, labels: Tensor, counts: Tensor | float = 1.0) -> Bins:
        """Of `scores` [R, C] with their `labels` [R, C], each of which stands for `counts` labels."""
        counts = torch.as_tensor(counts, dtype=torch.float64).expand(scores.shape)
        order = scores.argsort(dim=0, descending=True)
        ranked, labels, counts = (part.gather(0, order) for part in (scores.double(), labels, counts))
        kinds = [counts * (labels == kind) for kind in (PRESENT, ABSENT, UNKNOWN)]
        edges = rank_edges(len(scores))
        sums = [_between(edges, part) for part in (ranked * counts, *kinds)]
        number = sums[1] + sums[2] + sums[3]
        score = torch.where(number > 0, sums[0] / number.clamp(min=TINY), ranked[edges[:-1]])
        return cls(score, sums[1], sums[2], sums[3])

    @property
    def count(self) -> Tensor:
        return self.present + self.absent + self.unknown

    def of_categories(self, categories: Tensor) -> Bins:
        return Bins(*(part[:, categories] for part in (self.score, self.present, self.absent, self.unknown)))

    def spread(self) -> float:
        """Standard deviation of the scores within a category."""
        return float(self.variance().mean().sqrt().clamp(min=LEAST_SPREAD))

    def mean(self) -> Tensor:
        """[C]"""
        return (self.count * self.score).sum(0) / self.count.sum(0).clamp(min=1)

    def variance(self) -> Tensor:
        """[C]"""
        return (self.count * (self.score - self.mean()).square()).sum(0) / self.count.sum(0).clamp(min=1)

    def together(self) -> Bins:
        """All categories pooled."""
        return Bins(*(part.reshape(-1, 1) for part in (self.score, self.present, self.absent, self.unknown)))


def rank_edges(number: int) -> Tensor:
    """Ranks at which bins begin, and the last one's end."""
    edges = list(range(min(SINGLE_RANKS, number) + 1))
    while edges[-1] < number:
        edges.append(min(max(int(edges[-1] * GROWTH), edges[-1] + 1), number))
    return torch.tensor(edges)


def _between(edges: Tensor, values: Tensor) -> Tensor:
    """[B, C] sums of the rows between neighbouring edges."""
    sums = torch.cat([torch.zeros_like(values[:1]), values.cumsum(0)])
    return sums[edges[1:]] - sums[edges[:-1]]


@dataclass(frozen=True)
class Shared:
    """What all categories share."""

    slope: float
    bend: float
    known_proportion: float
    known_share: float  # share of all labels that are known to be present
    spread: float  # standard deviation of the scores: the unit of slopes


def bent(eta: Tensor, bend: Tensor | float) -> Tensor:
    """Log-odds whose slope changes smoothly from 1 far below BEND to exp(bend) far above it."""
    factor = torch.as_tensor(bend).to(eta).exp() - 1
    return eta + factor * F.softplus(eta - BEND)


def shared_curve(bins: Bins, known_share: float, num_categories: int, known_proportion: float | None = None) -> Shared:
    """Slope, bend and known proportion by their posterior mean over a grid of the latter two; that of the proportion is
    a geometric mean.

    `bins` may be of some of the `num_categories`; of all their labels a `known_share` is known to be present.
    """
    known = bins.present.sum(0).nonzero()[:, 0]
    if not len(known):
        return Shared(USUAL_SLOPE, 0.0, known_proportion or 0.5, known_share, 1.0)
    bins = bins.of_categories(known[:: max(-(-len(known) // SHARED_BY), 1)])
    spread = bins.spread()
    complete = not bool(bins.unknown.any())
    proportions = (1.0 if complete else known_proportion,) if complete or known_proportion else KNOWN_PROPORTIONS
    grid = torch.cartesian_prod(
        torch.tensor(proportions, dtype=torch.float64), torch.tensor(BENDS, dtype=torch.float64)
    )
    proportion, bend = grid.T
    slope, _, likelihood = _fit_shared_slopes(bins, known_share, proportion[:, None], bend[:, None])
    usual_bend = BEND_OF_NOISE * max(1 - spread**2, 0.0)  # the variance of scores is what can be trusted of them
    prior = tags_prior(proportion, known_share, num_categories) - BEND_PRECISION / 2 * (bend - usual_bend).square()
    width = torch.gradient(torch.tensor(proportions))[0] if len(proportions) > 1 else torch.ones(1)
    chance = (CREDENCE * likelihood + prior).softmax(0) * width.repeat_interleave(len(BENDS))
    chance /= chance.sum()
    mean = [float((chance * each).sum()) for each in (slope, bend, proportion.log())]
    return Shared(mean[0], mean[1], known_proportion or math.exp(mean[2]), known_share, spread)


def tags_prior(proportion: Tensor, known_share: float, num_categories: int) -> Tensor:
    """[G] log density of known proportions [G], by how many tags an image then has on average."""
    tags = known_share * num_categories / proportion
    off = (tags / (TAGS_OF_ONE_CATEGORY * math.sqrt(num_categories))).log() / TAGS_DEVIATION
    return -off.square() / 2 - proportion.log()


# --- one known tag per image ---


def straight_curves(bins: Bins, known_share: float, known_proportion: float) -> tuple[Tensor, Tensor]:
    """Slopes and intercepts [C] of curves without a bend, whose slopes are drawn to one they share."""
    bins_of_known = bins.of_categories(bins.present.sum(0).nonzero()[:, 0])
    point = torch.tensor([[known_proportion]], dtype=torch.float64)
    slope = _fit_shared_slopes(bins_of_known, known_share, point, torch.zeros_like(point))[0]
    return fit_curves(bins, Shared(float(slope), 0.0, known_proportion, known_share, bins_of_known.spread()))[:2]


def has_one_tag_each(labels: Tensor) -> bool:
    """Does nearly every image have one known tag, and none two? Then the known tags are not a random sample."""
    number = (labels == PRESENT).sum(1)
    return bool((number <= 1).all()) and float((number == 1).float().mean()) >= ONE_TAG_SHARE


def one_tag_likelihood(chance: Tensor, labels: Tensor) -> float:
    """Log likelihood of which tag is the known one, if each image has a single one, any of those present.

    With S the number of other tags that are present, it is tag c with probability P_c E[1 / (1 + S)], in images that
    have any; and E[1 / (1 + S)] is the integral of prod(1 - P + P t) over t from 0 to 1, the product over the others.
    """
    known = labels == PRESENT
    has_one = known.any(1)
    chance, known = chance[has_one].double().clamp(TINY, 1 - 1e-6), known[has_one]
    points, weights = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(8))
    others = torch.zeros(len(chance), dtype=torch.float64)
    for point, weight in zip((points + 1) / 2, weights / 2, strict=True):
        others += weight * (1 - chance + chance * point).masked_fill(known, 1.0).log().sum(1).exp()
    any_present = 1 - (1 - chance).log().sum(1).exp()
    return float((chance[known].log() + others.log() - any_present.clamp(min=TINY).log()).sum())


def _fit_shared_slopes(
    bins: Bins, known_share: float, known: Tensor, bend: Tensor, steps: int = 10
) -> tuple[Tensor, Tensor, Tensor]:
    """For each of G pairs of `known` proportion and `bend` [G, 1]: slope [G], intercepts [G, C], log likelihood [G]
    less the priors."""
    spread = bins.spread()
    usual_slope, precision = USUAL_SLOPE / spread, SHARED_PRECISION * spread**2
    slope = torch.full((len(known), 1), usual_slope, dtype=torch.float64)
    usual, share_precision = usual_intercept(bins, known_share / known, slope)
    intercept = usual.clone()
    for _ in range(steps):
        by_eta, info = _Likelihood(bins, slope, intercept, known, bend).derivatives()
        by_slope, by_intercept = (by_eta * bins.score).sum(1), by_eta.sum(1)
        ss, si, ii = (info * bins.score.square()).sum(1), (info * bins.score).sum(1), info.sum(1)
        by_intercept = by_intercept + share_precision * (intercept - usual)
        ii = ii + share_precision
        gradient = (by_slope - si * by_intercept / ii).sum(1, keepdim=True) + precision * (slope - usual_slope)
        curvature = (ss - si.square() / ii).sum(1, keepdim=True) + precision
        step = (gradient / curvature).clamp(-0.5 / spread, 0.5 / spread)
        intercept = intercept - ((by_intercept - si * step) / ii).clamp(-2, 2)
        slope = (slope - step).clamp(min=LOWEST_SLOPE / spread)
        usual, share_precision = usual_intercept(bins, known_share / known, slope)
    prior = (share_precision * (intercept - usual).square()).sum(1) + precision * (slope[:, 0] - usual_slope).square()
    return slope[:, 0], intercept, _Likelihood(bins, slope, intercept, known, bend).value().sum(1) - prior / 2


def fit_curves(bins: Bins, shared: Shared, steps: int = 20) -> tuple[Tensor, Tensor, Tensor]:
    """Slopes and intercepts [C] of the categories, and their log likelihoods less the priors [C]."""
    known, bend = (torch.full((1, 1), each, dtype=torch.float64) for each in (shared.known_proportion, shared.bend))
    spread, precision = shared.spread, SLOPE_PRECISION * shared.spread**2
    slope = torch.full((1, bins.score.shape[1]), shared.slope, dtype=torch.float64)
    usual, share_precision = usual_intercept(bins, shared.known_share / known, slope)
    intercept = usual.clone()
    for _ in range(steps):
        by_eta, info = _Likelihood(bins, slope, intercept, known, bend).derivatives()
        by_slope = (by_eta * bins.score).sum(1) + precision * (slope - shared.slope)
        by_intercept = by_eta.sum(1) + share_precision * (intercept - usual)
        ss = (info * bins.score.square()).sum(1) + precision
        si, ii = (info * bins.score).sum(1), info.sum(1) + share_precision
        determinant = ss * ii - si.square()
        step = ((ii * by_slope - si * by_intercept) / determinant).clamp(-0.5 / spread, 0.5 / spread)
        slope = (slope - step / 2).clamp(min=LOWEST_SLOPE / spread)
        intercept = intercept - ((ss * by_intercept - si * by_slope) / determinant).clamp(-2, 2) / 2
    value = _Likelihood(bins, slope, intercept, known, bend).value()
    value = value - precision / 2 * (slope - shared.slope).square()
    value = value - share_precision / 2 * (intercept - usual).square()
    return slope[0], intercept[0], value[0]


def usual_intercept(bins: Bins, share: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    """[G, C] intercepts by which categories are present in a `share` [G, 1] of the images, and the precision of the
    prior about them.

    The mean of sigmoid(eta) over a normal eta is about sigmoid(mean / factor), factor = sqrt(1 + pi/8 variance).
    """
    factor = (1 + math.pi / 8 * slope.square() * bins.variance()).sqrt()
    intercept = factor * torch.logit(share.clamp(max=LARGEST_SHARE)) - slope * bins.mean()
    return intercept, SHARE_PRECISION / factor.square()


def intercepts_for(bins: Bins, slope: float, bend: float, share: Tensor) -> Tensor:
    """[C] intercepts by which a `share` [C] of the images is expected to be present."""
    low, high = (torch.full_like(share, side, dtype=torch.float64) for side in (-50.0, 50.0))
    for _ in range(40):
        middle = (low + high) / 2
        expected = (bins.count * bent(slope * bins.score + middle, bend).sigmoid()).sum(0) / bins.count.sum(0)
        low, high = torch.where(expected < share, middle, low), torch.where(expected < share, high, middle)
    return (low + high) / 2


class _Likelihood:
    """Of the bins [B, C], for G points: slope [G, 1] or [G, C], intercept [G, C], known proportion and bend [G, 1]."""

    def __init__(self, bins: Bins, slope: Tensor, intercept: Tensor, known: Tensor, bend: Tensor):
        self.bins, self.known = bins, known[:, None]
        eta = slope[:, None] * bins.score + intercept[:, None]  # [G, B, C]
        factor = bend.exp()[:, None] - 1
        self.rise = 1 + factor * (eta - BEND).sigmoid()
        self.chance = chance = (eta + factor * F.softplus(eta - BEND)).sigmoid().clamp(TINY, 1 - 1e-9)
        absences = (bins.count * (1 - chance)).sum(1, keepdim=True)
        self.denied = (bins.absent.sum(0) / absences.clamp(min=1e-6)).clamp(max=1)  # [G, 1, C]
        self.unsaid = (1 - self.known * chance - self.denied * (1 - chance)).clamp(min=TINY)

    def value(self) -> Tensor:
        """[G, C] log likelihood."""
        each = self.bins.present * (self.known * self.chance).clamp(min=TINY).log()
        each = each + self.bins.absent * (self.denied * (1 - self.chance)).clamp(min=TINY).log()
        return (each + self.bins.unknown * self.unsaid.log()).sum(1)

    def derivatives(self) -> tuple[Tensor, Tensor]:
        """[G, B, C] of -log likelihood by slope * score + intercept, and the expected second ones."""
        bins, p = self.bins, self.chance
        hidden = (1 - self.known) * p / self.unsaid
        error = bins.present * (p - 1) + bins.absent * p + bins.unknown * (p - hidden)
        return self.rise * error, self.rise.square() * bins.count * fisher_information(p, self.known, self.denied)


# --- labels and probabilities ---


def soften(chance: Tensor, labels: Tensor, known_proportion: Tensor) -> Tensor:
    """[N, C]: 1 for known presences, 0 for known absences, else P(present | unknown).

    `chance` is P(present) [N, C].
    """
    present = (1 - known_proportion) * chance
    absent = (1 - known_absences(chance, labels)) * (1 - chance)
    hidden = present / (present + absent).clamp(min=TINY)
    return torch.where(labels == UNKNOWN, hidden, (labels == PRESENT).to(hidden))


def known_absences(chance: Tensor, labels: Tensor) -> Tensor:
    """[C] share of the absences that are known: their number over the expected number of absences."""
    return ((labels == ABSENT).sum(0) / (1 - chance).sum(0).clamp(min=1e-6)).clamp(max=1)


def fisher_information(chance: Tensor, presences: Tensor, absences: Tensor) -> Tensor:
    """Of one label about its log-odds, where it is known to be present with probability presences * chance, to be
    absent with absences * (1 - chance), and else unknown."""
    slope = chance * (1 - chance)
    unknown = (1 - presences) * chance + (1 - absences) * (1 - chance)
    both_known = slope * (presences * (1 - chance) + absences * chance)
    return both_known + (slope * (absences - presences)).square() / unknown.clamp(min=TINY)


def f1_thresholds(chance: Tensor, count: Tensor) -> Tensor:
    """[C] thresholds of best expected F1, 2 sum_r P / (r + sum P) at rank r, within sensible limits.

    `chance` [B, C] falls from bin to bin; a bin has `count` [B, C] images.
    """
    total = (chance * count).sum(0)
    f1 = 2 * (chance * count).cumsum(0) / (count.cumsum(0) + total).clamp(min=TINY)
    best = f1.argmax(0, keepdim=True)
    below = chance.gather(0, (best + 1).clamp(max=len(chance) - 1))
    return ((chance.gather(0, best) + below) / 2)[0].clamp(LOWEST_THRESHOLD, HIGHEST_THRESHOLD).float()


def expected_f1_thresholds(probabilities: Tensor) -> Tensor:
    """[C] likewise, from the probabilities of all images [N, C]."""
    ranked = probabilities.sort(dim=0, descending=True).values.double()
    return f1_thresholds(ranked, torch.ones_like(ranked))
