"""Leave-one-out scores, and what they choose: the penalty and the weight of names.

The score of an image x is z = x' A m, A = (S + penalty)^-1, with S = X'X/N over all N images and m the mean of the k
known positives of a category. Both hold a share of x itself. Without it, centring included, and with h = x' A x,

    z without x = N/(N-1) * (z' + h/(N-1)) / (1 - h/(N-1)),    z' = (k z - h) / (k - 1) for a known positive, else z

Leaving x out of m alone is not enough: with more features than images, S explains every image by itself, and the
smallest penalty always wins.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fewtags.labels import ABSENT, PRESENT

PENALTIES = (0.2, 0.5, 1.0, 1.7, 3.0, 5.0, 9.0, 16.0, 30.0, 60.0, 200.0, 1000.0)  # the mean eigenvalue is 1
NAME_WEIGHTS = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.5, 4.0, 8.0)
WINDOW_SHARES = (0.0, 0.2, 0.33, 0.5, 0.67)
WITHIN = 1.0  # log likelihood: a larger penalty that is worse by no more than this wins
_CATEGORIES = 256  # two numbers are chosen: these many categories, evenly spaced, are enough to tell them
_PAIRS = 1600  # left-out positives that are ranked, spread over these categories
_ROWS = 1000  # other images they are ranked among
_LEAST_SIGNAL = 0.02


@dataclass(frozen=True)
class Images:
    """Images in the eigenbasis of their second moment, with their known labels."""

    features: Tensor  # [N, D] pooled
    rotated: Tensor  # [N, D]
    values: Tensor  # [D] eigenvalues
    total: int  # number of images behind the eigenvalues; those here may be a sample
    labels: Tensor  # [N, C]
    names: Tensor | None = None  # [N, C] standardised name scores, 0 where a category has none
    named: Tensor | None = None  # [C] which have
    shares: Tensor | None = None  # [C] mean of the shares that the name scores are logarithms of
    best_window: Tensor | None = None  # [N, C] left-out scores of each image's best window, like those of the whole
    window_share: float = 0.0  # how much they count

    def take(self, rows: Tensor) -> Images:
        """Only these images; those behind the eigenvalues stay."""
        names, best = (None if part is None else part[rows] for part in (self.names, self.best_window))
        features, rotated, labels = self.features[rows], self.rotated[rows], self.labels[rows]
        return replace(self, features=features, rotated=rotated, labels=labels, names=names, best_window=best)


@dataclass(frozen=True)
class Reliability:
    """The reliability of a mean over k images.

    Noise adds `noise` / k to the variance of z = x' A m over the images. What is left is signal, estimated from all
    categories together. Of z in units of its standard deviation, sqrt(r) is signal, r = signal / (signal + noise / k).
    """

    signal: Tensor  # []
    noise: Tensor  # []

    @classmethod
    def of(cls, variance: Tensor, count: Tensor, values: Tensor, penalty: float) -> Reliability:
        """`variance` [C] of z over the images, `count` [C] of the positives in m."""
        noise = (values / (values + penalty)).square().sum()
        share = count / count.sum().clamp(min=1e-12)
        signal = (share * (variance - noise / count.clamp(min=1e-12))).sum()
        least = _LEAST_SIGNAL * variance[count > 0].mean() if (count > 0).any() else torch.ones(())
        return cls(torch.maximum(signal, least).clamp(min=1e-12), noise)

    def __call__(self, count: Tensor) -> Tensor:
        """r of means over `count` images; 0 where there is none."""
        return torch.where(count > 0, self.signal / (self.signal + self.noise / count.clamp(min=1e-12)), 0.0)


@dataclass(frozen=True)
class LeftOut:
    """Scores of images without their own contribution."""

    directions: Tensor  # [C, D] A m_c in the eigenbasis
    count: Tensor  # [C] positives in m_c
    values: Tensor  # [D]
    penalty: float
    total: int  # images in the second moment
    reliability: Reliability

    def scores(self, rotated: Tensor, weights: Tensor) -> Tensor:
        """[N, C] of images [N, D] that had `weights` [N, C] in the sums of the categories (absences less than 0)."""
        own = rotated.square() @ (1 / (self.values + self.penalty))
        return self._without(rotated @ self.directions.T, own[:, None], weights, self.count) * self._factor()

    def pairs(self, rotated: Tensor, category: Tensor, weights: Tensor) -> Tensor:
        """[P] likewise, of image p for its `category` [P]."""
        own = rotated.square() @ (1 / (self.values + self.penalty))
        score = torch.linalg.vecdot(rotated, self.directions[category])
        return self._without(score, own, weights, self.count[category]) * self._factor()[category]

    def windows(self, whole: Tensor, own: Tensor, score: Tensor, shared: Tensor, weights: Tensor) -> Tensor:
        """[B, L, C] of windows y of the images x, without the images' contribution.

        By x' A m `whole` [B, C], x' A x `own` [B], y' A m `score` [B, L, C], y' A x `shared` [B, L], and the images'
        `weights` [B, C].
        """
        others = max(self.total - 1, 1)
        own, shared, weights, count = own[:, None, None], shared[:, :, None], weights[:, None], self.count
        rest = count - weights.clamp(min=0)
        whole, score = (
            (count * z - weights * h) / rest.clamp(min=1e-3) for z, h in ((whole[:, None], own), (score, shared))
        )
        share = (whole + own / others) / (others - own).clamp(min=1e-3 * others)
        score = score + shared / others + (1 + shared) * share
        return torch.where(rest > 1e-3, score * self._less_reliable(weights, count), 0.0) * self._factor()

    def _without(self, score: Tensor, own: Tensor, weights: Tensor, count: Tensor) -> Tensor:
        rest = count - weights.clamp(min=0)
        score = out_of_moments((count * score - weights * own) / rest.clamp(min=1e-3), own, self.total)
        return torch.where(rest > 1e-3, score * self._less_reliable(weights, count), 0.0)

    def _less_reliable(self, weights: Tensor, count: Tensor) -> Tensor:
        """A mean without one of its images is less reliable."""
        one = self.reliability((count - 1).clamp(min=0)) / self.reliability(count).clamp(min=1e-12)
        return torch.where(weights > 0.999, one, 1.0)

    def _factor(self) -> Tensor:
        """[C] by which scores of all categories are comparable."""
        return self.reliability(self.count).sqrt() / spread(self.directions, self.values)


def spread(directions: Tensor, values: Tensor) -> Tensor:
    """[C] standard deviation over all images of their scores by `directions` [C, D] of the eigenbasis."""
    return (directions.square() @ values).clamp(min=1e-18).sqrt()


def out_of_moments(score: Tensor, own: Tensor, total: int) -> Tensor:
    """Without the image's share in the mean and the second moment of all `total` images; `own` is its x' A x."""
    others = max(total - 1, 1)
    return total / others * (score + own / others) / (1 - own / others).clamp(min=1e-3)


# --- the choice ---


@dataclass(frozen=True)
class Choice:
    penalty: float
    name_weight: float


def choose(images: Images, penalties: tuple[float, ...] = PENALTIES) -> Choice:
    """Penalty and weight of the names by which known positives, each left out, rank best.

    Each candidate gets the likelihood of these ranks under a power law, so that the more known positives there are, the
    more a difference counts. The penalty is chosen without names. Without evidence the larger one wins: it trusts the
    second moment less. For the names' weights, the mean is used.
    """
    pairs = _Pairs.of(images)
    has_names = images.named is not None and bool(images.named[pairs.category].any())
    weights = NAME_WEIGHTS if has_names else (0.0,)
    if len(penalties) * len(weights) == 1 or not len(pairs.image):
        return Choice(penalties[-1], 1.0 if has_names else 0.0)
    quality = torch.stack([pairs.evidence(pairs.log_ranks(penalty, weights)) for penalty in penalties])  # [P, W]
    by_penalty = quality[:, 0]  # names rank many first whatever the penalty; the rest is noise
    best = int((by_penalty >= by_penalty.max() - WITHIN).nonzero().max())
    chance = (quality[best] - quality[best].max()).exp()
    return Choice(penalties[best], float((chance * torch.tensor(weights)).sum() / chance.sum()))


def choose_window_share(images: Images, whole: Tensor) -> float:
    """How much the best window should count beside the whole image, given the left-out scores [N, C] of both.

    The mean over some shares, by the likelihood of the left-out positives' ranks as in `choose`.
    """
    pairs, best = _Pairs.of(images), images.best_window
    assert best is not None
    if not len(pairs.image):
        return statistics.mean(WINDOW_SHARES)
    ahead, of_windows = (
        each[pairs.rows][:, pairs.category] - each[pairs.image, pairs.category] for each in (whole, best)
    )
    quality = pairs.evidence(pairs.ranks_by(torch.lerp(ahead, of_windows, share) for share in WINDOW_SHARES))
    return float((quality.softmax(0) * torch.tensor(WINDOW_SHARES)).sum())


@dataclass(frozen=True)
class _Pairs:
    """Known positives (image, category) that are left out one at a time, and the images they are ranked among."""

    images: Images
    image: Tensor  # [P]
    category: Tensor  # [P]
    rows: Tensor  # [R]
    count: Tensor  # [C] known positives of each category

    @classmethod
    def of(cls, images: Images) -> _Pairs:
        known = images.labels == PRESENT
        count = known.sum(0)
        # Without itself, a category with a single known positive has only its name.
        useful = count > 1 if images.named is None else (count > 1) | (images.named & (count > 0))
        columns = useful.nonzero()[:, 0]
        columns = columns[:: max(-(-len(columns) // _CATEGORIES), 1)]
        each = max(_PAIRS // max(len(columns), 1), 2)
        generator = torch.Generator().manual_seed(0)
        draws = torch.rand(len(known), len(columns), generator=generator).masked_fill(~known[:, columns], 2.0)
        lowest, row = draws.topk(min(each, len(draws)), dim=0, largest=False)
        taken = lowest < 1.5
        rows = torch.randperm(len(known), generator=generator)[:_ROWS]
        return cls(images, row[taken], columns.expand(len(row), -1)[taken], rows, count)

    def log_ranks(self, penalty: float, name_weights: tuple[float, ...]) -> Tensor:
        """[W, P] of each left-out positive among the images that are not known to be positives of its category.

        All are scored by the mean without the left-out one; each is out of the second moment that scores it.
        """
        images, i, c = self.images, self.image, self.category
        gain = 1 / (images.values + penalty)
        count = self.count.float()
        columns, where = c.unique(return_inverse=True)
        known = (images.labels[:, columns] == PRESENT).float()
        prototypes = (known / count[columns]).T @ images.rotated
        mine, others = images.rotated[i], images.rotated[self.rows]
        own, own_others = mine.square() @ gain, others.square() @ gain
        shared = others @ (mine * gain).T  # x_j' A x_i
        rest = (count[c] - 1).clamp(min=1)
        score = (count[c] * ((prototypes * gain)[where] * mine).sum(1) - own) / rest
        score_others = (count[c] * (others @ (prototypes * gain).T)[:, where] - shared) / rest
        alone = max(images.total - 1, 1)
        score = score / (1 - own / alone).clamp(min=1e-3)
        score_others = score_others / (1 - own_others / alone).clamp(min=1e-3)[:, None]
        # Categories' scores are made comparable as in `Discriminant`.
        variance = (prototypes * gain).square() @ images.values
        reliability = Reliability.of(variance, count[columns], images.values, penalty)
        unit = reliability(count[c] - 1).sqrt() / score_others.std(0, correction=0).clamp(min=1e-9)
        score, score_others = score * unit, score_others * unit
        return self._ranks(score, score_others, name_weights)

    def _ranks(self, score: Tensor, score_others: Tensor, name_weights: tuple[float, ...]) -> Tensor:
        images, i, c = self.images, self.image, self.category
        lead = score_others - score
        leads = []
        for weight in name_weights:
            ahead = lead
            if images.names is not None and weight:
                ahead = lead + weight * (images.names[self.rows][:, c] - images.names[i, c])
            leads.append(ahead)
        return self.ranks_by(leads)

    def ranks_by(self, leads: Iterable[Tensor]) -> Tensor:
        """[W, P] logarithmic ranks by W times how far the others' scores are ahead [R, P]."""
        labels, c = self.images.labels, self.category
        competes = labels[self.rows][:, c] != PRESENT
        rivals = (len(labels) - self.count)[c] / competes.sum(0).clamp(min=1)  # that one of them stands for
        above = (((ahead > 0) + 0.5 * (ahead == 0)) * competes for ahead in leads)
        return torch.stack([(1 + each.sum(0) * rivals).log() for each in above])

    def evidence(self, log_ranks: Tensor) -> Tensor:
        """[W] log likelihood of the ranks; see `rank_evidence`."""
        return rank_evidence(log_ranks, self.category, len(self.images.labels), stand_for=self.count)


def rank_evidence(
    log_ranks: Tensor, category: Tensor, num_images: int, power: float = 0.0, stand_for: Tensor | None = None
) -> Tensor:
    """[...] log likelihood of left-out positives' logarithmic ranks [..., P], where a rank's density falls as a power.

    With mu the mean of log(N / rank), the density (1/mu) (rank/N)^(1/mu - 1) has a log likelihood of mu - 1 - log mu
    per rank. Categories count alike, and as many ranks count as make a mean over categories that precise. Within a
    category the mean may be a power mean: the larger `power`, the more the first ranks count, and the larger the noise.
    Ranks of a sample may `stand_for` so many of each category [C].
    """
    number = torch.bincount(category)
    used = number > 0
    ranks = log_ranks.double() if not power else (-power * log_ranks.double()).exp()
    means = torch.zeros(*ranks.shape[:-1], len(number), dtype=torch.float64).index_add_(-1, category, ranks)
    means = means[..., used] / number[used]
    mean = (means if not power else -means.log() / power).mean(-1)
    mu = (math.log(max(num_images, 2)) - mean).clamp(min=1.0)
    number = number[used] if stand_for is None else stand_for[: len(number)][used]
    return used.sum() ** 2 / (1 / number).sum() * (mu - 1 - mu.log())


def mean_log_rank(scores: Tensor, labels: Tensor) -> float:
    """Of the known positives among all images not known to lack the category; the mean over categories of the mean."""
    known = labels == PRESENT
    order = scores.masked_fill(labels == ABSENT, -torch.inf).argsort(dim=0, descending=True)
    log_rank = torch.arange(1, len(scores) + 1, dtype=torch.float64).log()[:, None]
    number = known.sum(0)
    means = (log_rank * known.gather(0, order)).sum(0) / number
    return float(means[number > 0].mean())
