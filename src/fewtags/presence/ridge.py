"""Evidence of the whole image: ridge regression on "known to be present", in closed form, from sums over the images.

Features are scaled to unit length and standardised per dimension: x. With S = X'X/N over all N images (no label
enters) and m_c the mean of the k_c known positives, the score is x' w_c, w_c = (S + P_c)^-1 m_c. That is ridge
regression on "known", up to scale.

The penalty P_c is the category's own, by empirical Bayes: m_c = S w_c + noise, the noise of a mean over k_c images has
variance (1 - R_c^2) S/k_c, R_c^2 the share of the labels' variance that a first look explains, and w_c is drawn from a
normal distribution whose variance s_c v^0.25 along an eigenvector of value v is chosen by its likelihood. So
P_c = v^-0.25 (1 - R_c^2) / (s_c k_c): it falls as positives come in, and nothing is tuned.

    sums = ImageSums.of(features, labels)             # batch by batch with `add`; sums of splits add up
    ridge = Ridge.of(sums)
    ridge.scores(images); ridge.left_out(images, labels)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fewtags.errors import DataError

# Weights have a variance of s v^TILT along an eigenvector of value v: a little more where images differ more; 0 is
# plain ridge regression. Without names it is worth 0.2 to 0.8 mAP on VOC 2007 (results/presence-ablation).
TILT = 0.25
OWN_VARIANCE = 0.5  # standard deviation of a category's log s_c about the one that all share: a factor of 1.6
_SHARED_BY = 256  # categories, evenly spaced: enough to tell what all share
_LOG_VARIANCES = torch.arange(-16.0, 2.5, 0.5)  # of the shared s; the features' own variance is 1
_OWN = torch.arange(-1.5, 1.75, 0.25)  # log s_c less the shared one
_LEAST_RELIABLE, _LEAST_UNEXPLAINED = 0.05, 0.1
_IMAGES_AT_ONCE, _CATEGORIES_AT_ONCE = 8192, 256
_SMALL_GROUP = 64  # images, whose leverages are solved for directly
_LEAST_VARIANCE = 1e-5  # of a dimension, in parts of the mean square: below it is rounding


def unit_length(features: Tensor) -> Tensor:
    return F.normalize(features.float(), dim=-1)


def slices(length: int, step: int) -> Iterator[slice]:
    return (slice(first, min(first + step, length)) for first in range(0, length, step))


class ImageSums:
    """All the regression needs to know about the images: float64 sums, exact under any split."""

    def __init__(self, num_categories: int, feature_dim: int):
        double = torch.float64
        self.count = torch.zeros((), dtype=double)  # N
        self.total = torch.zeros(feature_dim, dtype=double)  # sum of x
        self.second_moment = torch.zeros(feature_dim, feature_dim, dtype=double)  # sum of x x'
        self.weight = torch.zeros(num_categories, dtype=double)  # of the known positives: their number
        self.weight_squared = torch.zeros(num_categories, dtype=double)  # sum of squares
        self.positive_total = torch.zeros(num_categories, feature_dim, dtype=double)  # weighted sum of their x

    @classmethod
    def of(cls, features: Tensor, weights: Tensor) -> ImageSums:
        """From features [N, D] at once; see `add`."""
        sums = cls(weights.shape[1], features.shape[1])
        for rows in slices(len(features), _IMAGES_AT_ONCE):
            sums.add(features[rows], weights[rows])
        return sums

    def add(self, features: Tensor, weights: Tensor) -> None:
        """Features [B, D] and their labels [B, C]; or, instead of labels, how much each image counts as a positive."""
        if not features.isfinite().all():
            raise DataError("Some features are not finite.")
        x, positive = unit_length(features), weights.clamp(min=0).float()
        self.count += len(x)
        self.total += x.sum(0, dtype=torch.float64)
        self.second_moment += x.T @ x
        self.weight += positive.sum(0, dtype=torch.float64)
        self.weight_squared += positive.square().sum(0, dtype=torch.float64)
        self.positive_total += positive.T @ x


@dataclass(frozen=True)
class Basis:
    """Standardisation, and the eigenvectors of the standardised features' second moment, X'X/N = V diag(values) V'."""

    mean: Tensor  # [D]
    scale: Tensor  # [D]
    vectors: Tensor  # [D, D] V, one eigenvector per column
    values: Tensor  # [D] ascending

    @classmethod
    def of(cls, sums: ImageSums) -> Basis:
        if sums.count < 1:
            raise DataError("There are no images to standardise features over.")
        mean = sums.total / sums.count
        square = sums.second_moment / sums.count
        covariance = square - torch.outer(mean, mean)
        # A constant dimension says nothing: with an infinite scale it is 0 in every image.
        variance = covariance.diag()
        varies = variance > _LEAST_VARIANCE * square.diag().mean()
        scale = torch.where(varies, variance.clamp(min=0).sqrt(), torch.inf)
        values, vectors = torch.linalg.eigh((covariance / scale[:, None] / scale).float())
        return cls(mean.float(), scale.float(), vectors, values.clamp(min=0))

    def rotate(self, features: Tensor, *, overwrite: bool = False) -> Tensor:
        """[N, D] features in the eigenbasis, in a memory of their own or in that of the features."""
        rotated = features if overwrite else self.vectors.new_empty(len(features), len(self.vectors))
        for rows in slices(len(features), _IMAGES_AT_ONCE):
            rotated[rows] = ((unit_length(features[rows]) - self.mean) / self.scale) @ self.vectors
        return rotated

    def means(self, sums: ImageSums) -> Tensor:
        """[C, D] weighted mean of each category's positives in the eigenbasis; 0 where there is none."""
        weight = sums.weight[:, None]
        mean = (sums.positive_total / weight.clamp(min=1e-12)).float()
        return torch.where(weight > 0, ((mean - self.mean) / self.scale) @ self.vectors, 0.0).float()

    def unrotate(self, directions: Tensor) -> Tensor:
        """[C, D] directions of the eigenbasis as weights of unit-length features."""
        return directions @ self.vectors.T / self.scale


@dataclass(frozen=True)
class Positives:
    """The known positives of every category, each of which may count more or less than 1."""

    weight: Tensor  # [C] its sum
    weight_squared: Tensor  # [C] the sum of its squares
    mean: Tensor  # [C, D] in the eigenbasis

    @property
    def number(self) -> Tensor:
        """[C] of images whose mean is as noisy as this weighted one."""
        return (self.weight.square() / self.weight_squared.clamp(min=1e-12)).clamp(min=1e-12)

    def recounted(self, rotated: Tensor, before: Tensor, after: Tensor, stand_for: float) -> Positives:
        """With images [M, D] counting by `after` [M, C] instead of `before`, each standing for so many."""
        weight, squared, mean = self.weight.clone(), self.weight_squared.clone(), torch.zeros_like(self.mean)
        for some in slices(len(weight), _CATEGORIES_AT_ONCE):
            more = stand_for * (after[:, some] - before[:, some])
            weight[some] += more.sum(0)
            squared[some] += (more * (after[:, some] + before[:, some])).sum(0)
            total = self.weight[some, None] * self.mean[some] + more.T @ rotated
            mean[some] = torch.where(weight[some, None] > 0, total / weight[some, None].clamp(min=1e-12), 0.0)
        return Positives(weight, squared, mean)


@dataclass(frozen=True)
class Ridge:
    """Scores of the images: standardised, times the root of how much of their variance is signal, in units of what is
    usual for that."""

    basis: Basis
    num_images: int  # N
    positives: Positives
    share: Tensor  # [C] mean of what was regressed on: positives / images
    gain: Tensor  # [C, D] 1 / (v + P_c) in the eigenbasis; 0 for a category without positives
    directions: Tensor  # [C, D] w_c in the eigenbasis
    unit: Tensor  # [C] from x' w_c to scores
    reliability: Tensor  # [C] share of the scores' variance that is signal; 0 without positives

    @classmethod
    def of(cls, sums: ImageSums) -> Ridge:
        basis = Basis.of(sums)
        positives = Positives(sums.weight.float(), sums.weight_squared.float(), basis.means(sums))
        return cls._by(basis, int(sums.count), positives)

    @classmethod
    def _by(cls, basis: Basis, num_images: int, positives: Positives) -> Ridge:
        values, used, share = basis.values, positives.weight > 0, positives.weight / num_images
        variance = weight_variances(positives.mean, positives.number, values, used)
        # A mean is as noisy as what is not explained of the labels: R^2 = p / (1 - p) w' m, by a first look.
        first = _gain(values, variance, positives.number)
        explained = share / (1 - share).clamp(min=1e-6) * (first * positives.mean.square()).sum(1)
        number = positives.number / (1 - explained).clamp(min=_LEAST_UNEXPLAINED)
        gain = torch.where(used[:, None], _gain(values, variance, number), 0.0)
        directions = positives.mean * gain
        spread = directions.square() @ values
        noise = (gain * values).square().sum(1) / number
        reliability = torch.where(used, (1 - noise / spread.clamp(min=1e-12)).clamp(min=_LEAST_RELIABLE), 0.0)
        # Log-odds per standard deviation go as the root of the reliability between tags of an archive, and between
        # archives of 60 to 5,000 photos as its fourth root (results/small-archives).
        several = positives.weight >= min(1.5, float(positives.weight.max()) / 2)  # known positives
        usual = reliability[several].mean().clamp(min=_LEAST_RELIABLE)
        unit = (reliability / usual.sqrt() / spread.clamp(min=1e-12)).sqrt() * (spread > 1e-12)
        return cls(basis, num_images, positives, share, gain, directions, unit, reliability)

    def recounted(self, rotated: Tensor, before: Tensor, after: Tensor) -> Ridge:
        """With images [M, D], all or a sample of them, counting as positives by `after` [M, C] instead of `before`."""
        positives = self.positives.recounted(rotated, before, after, self.num_images / len(rotated))
        return self._by(self.basis, self.num_images, positives)

    def weights(self) -> Tensor:
        """[C, D] such that the score of unit-length features x is weights . (x - mean)."""
        return self.basis.unrotate(self.directions * self.unit[:, None])

    def left_out(
        self,
        rotated: Tensor,
        weights: Tensor,
        categories: slice | Tensor = slice(None),
        groups: Tensor | None = None,
    ) -> Tensor:
        """[N, C'] scores of images [N, D] that counted as positives by `weights` [N, C'], each without itself; with
        `groups` [N], without all images of the same number.

        PRESS: with h the image's leverage, the regression without it predicts (fit - h y) / (1 - h).
        """
        fit, own = rotated @ self.directions[categories].T, weights.new_empty(len(rotated), weights.shape[1])
        for some in slices(len(rotated), _IMAGES_AT_ONCE):
            own[some] = rotated[some].square() @ self.gain[categories].T
        scores = self._press(fit, own, weights, categories)
        if groups is not None:
            for rows in members(groups):
                scores[rows] = self._without_group(rotated[rows], fit[rows], weights[rows], categories)
        return scores

    def _without_group(self, rotated: Tensor, fit: Tensor, weights: Tensor, which: slice | Tensor) -> Tensor:
        """[g, C'] PRESS of a whole group: without it, y - (I - H)^-1 (y - fit) is predicted, H its block of leverages.

        H = Z Z' has the rank of the features at most, so a large group costs no more than they do.
        """
        share, gain = self.share[which].double(), self.gain[which].double()
        x, weights = rotated.double(), weights.double()
        rest = (weights - share * (1 + fit.double())).T[..., None]  # y - fit, [C', g, 1]
        if len(x) <= _SMALL_GROUP:
            leverages = (1 + (x * gain[:, None]) @ x.T) / self.num_images  # [C', g, g]
            solved = torch.linalg.solve(_less(leverages), rest)
        else:
            solved = torch.stack([self._solve_large(x * root, y) for root, y in zip(gain.sqrt(), rest, strict=True)])
        predicted = weights - solved[..., 0].T
        return self._as_score(predicted.float(), weights.sum(0).expand_as(weights).float(), which, len(x))

    def _solve_large(self, x: Tensor, rest: Tensor) -> Tensor:
        """(I - Z Z')^-1 y by Woodbury's identity."""
        z = torch.cat([torch.ones_like(x[:, :1]), x], dim=1) / self.num_images**0.5
        return rest + z @ torch.linalg.solve(_less(z.T @ z), z.T @ rest)

    def left_out_pairs(self, rotated: Tensor, category: Tensor, weights: Tensor) -> Tensor:
        """[P] likewise, of image p for its `category` [P]."""
        fit = torch.linalg.vecdot(rotated, self.directions[category])
        return self._press(fit, torch.linalg.vecdot(rotated.square(), self.gain[category]), weights, category)

    def _press(self, fit: Tensor, own: Tensor, weights: Tensor, which: slice | Tensor) -> Tensor:
        """Scores without the image, by x' w `fit` and x' (S + P)^-1 x `own`."""
        share = self.share[which]
        leverage = (1 + own) / self.num_images
        excess = (share * fit - leverage * (weights - share)) / (1 - leverage).clamp(min=1e-3)
        return self._as_score(share + excess, weights, which)

    def _as_score(self, fit: Tensor, weights: Tensor, which: slice | Tensor, images: int = 1) -> Tensor:
        """Scores by the regression without so many `images` of these `weights`, from its `fit`, which is relative to
        the share of positives among the others: 0 where they have none. A mean without one of its images is less
        reliable."""
        number, reliability = self.num_images * self.share[which], self.reliability[which].clamp(min=_LEAST_RELIABLE)
        others = number - weights
        rest = others / max(self.num_images - images, 1)
        noise = number * (1 / reliability - 1)  # of one image, in parts of the signal
        less = others / (others + noise).clamp(min=1e-12) / reliability
        scores = self.unit[which] * less * (fit - rest) / rest.clamp(min=1e-12)
        return torch.where(others > 1e-3, scores, 0.0)

    def left_out_elsewhere(self, rotated: Tensor, elsewhere: Tensor, weights: Tensor) -> Tensor:
        """[B, L, C] scores of other features [B, L, D], such as an image's windows, without the image itself.

        The regression without image x predicts at y: f(y) - h(y, x) (label - f(x)) / (1 - h(x)).
        """
        share, number = self.share, self.num_images
        rest = weights - share - share * (rotated @ self.directions.T)  # label - f(x), [B, C]
        leverage = (1 + rotated.square() @ self.gain.T) / number
        scores = torch.empty(*elsewhere.shape[:2], len(share))
        for some in slices(len(share), _CATEGORIES_AT_ONCE):
            between = (elsewhere * rotated[:, None]) @ self.gain[some].T  # not by an einsum, which makes [B, L, C', D]
            pull = (1 + between) / number * (rest / (1 - leverage).clamp(min=1e-3))[:, None, some]
            fit = share[some] * (1 + elsewhere @ self.directions[some].T) - pull
            scores[..., some] = self._as_score(fit, weights[:, None, some], some)
        return scores


def _gain(values: Tensor, variance: Tensor, number: Tensor) -> Tensor:
    """[C, D] 1 / (v + P_c), by variances s_c of the weights and means over `number` images."""
    return 1 / (values + values.clamp(min=1e-6).pow(-TILT) / (variance * number)[:, None])


def _less(leverages: Tensor) -> Tensor:
    """I - H; a little more, for a group that leaves no other image."""
    return torch.eye(leverages.shape[-1], dtype=leverages.dtype) * (1 + 1e-6) - leverages


def members(groups: Tensor) -> list[Tensor]:
    """The rows of every group of at least two images."""
    _, number, counts = torch.unique(groups, return_inverse=True, return_counts=True)
    order = number.argsort(stable=True)
    return [rows for rows in order.split(counts.tolist()) if len(rows) > 1]


def weight_variances(means: Tensor, number: Tensor, values: Tensor, used: Tensor) -> Tensor:
    """[C] s_c of greatest posterior density: the likelihood of the means [C, D] over `number` [C] images each, and a
    log-normal prior about the value that all share."""
    log_s = torch.full((len(means),), float(_LOG_VARIANCES.median()))
    some = used.nonzero()[:, 0]
    varies = values > 1e-3
    if not len(some) or not varies.any():
        return log_s.exp()
    v, squares = values[varies], means[:, varies].square()

    def likelihood(log_s: Tensor, which: Tensor) -> Tensor:
        """[C'] of one log s each."""
        variance = log_s.exp()[:, None] * v ** (2 + TILT) + v / number[which][:, None]
        return -0.5 * (squares[which] / variance + variance.log()).sum(1)

    few = some[:: math.ceil(len(some) / _SHARED_BY)]
    total = torch.stack([likelihood(each.expand(len(few)), few).sum() for each in _LOG_VARIANCES])
    shared = _LOG_VARIANCES[total.argmax()]
    own = torch.stack([likelihood((shared + off).expand(len(some)), some) for off in _OWN])
    best = (own - 0.5 * (_OWN / OWN_VARIANCE).square()[:, None]).argmax(0)
    log_s[some] = shared + _OWN[best]
    return log_s.exp()
