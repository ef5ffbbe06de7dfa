"""The mathematics of `instant`: a tagger in closed form, from sums over the images, without training.

Features are brought to unit length and standardised per dimension over all images: x. With A = (X'X/N + penalty I)^-1
over all images and m_c the mean of the known positives of category c, the score is x' A m_c. If it is chance which
positives are known, the mean of the known ones is an unbiased estimate of the mean of all, and A uses no labels: labels
that nobody gave cost variance but no bias.

    statistics = DiscriminantSums(num_categories, feature_dim)
    statistics.add(features, labels)                  # batch by batch; sums of splits add up (`merge`)
    model = Discriminant.of(statistics, features, labels)
    model.scores(images); model.probabilities(images) >= model.thresholds
    model.relabel(feature, category, PRESENT); model.rerank(category, unit_length(features))
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fewtags.distributed import sum_across_ranks
from fewtags.errors import DataError, UserError
from fewtags.estimates import ScoreBins, fit_curves
from fewtags.labels import ABSENT, PRESENT, UNKNOWN
from fewtags.models.told_labels import ToldLabels

PENALTIES = (0.2, 0.4, 0.7, 1.0, 1.5, 2.5, 4.0, 7.0, 12.0, 20.0, 35.0)  # the mean eigenvalue of X'X/N is 1
_CATEGORIES_FOR_PENALTY = 256  # one number is chosen: these many categories, evenly spaced, are enough to tell it
_ENTRIES_AT_ONCE = 2**22  # scores are made for groups of categories of about this many entries: bounds the memory
_IMAGES_AT_ONCE = 8192


def unit_length(features: Tensor) -> Tensor:
    return F.normalize(features.float(), dim=-1)


class DiscriminantSums:
    """All that the closed form has to know of the images: float64 sums, which are exact under any split."""

    def __init__(self, num_categories: int, feature_dim: int):
        double = torch.float64
        self.count = torch.zeros((), dtype=double)  # N
        self.total = torch.zeros(feature_dim, dtype=double)  # sum of x
        self.second_moment = torch.zeros(feature_dim, feature_dim, dtype=double)  # sum of x x'
        self.category_count = torch.zeros(num_categories, dtype=double)  # known positives
        self.category_total = torch.zeros(num_categories, feature_dim, dtype=double)  # sum of their x

    @classmethod
    def of(cls, features: Tensor, weights: Tensor) -> DiscriminantSums:
        """Of features [N, D] at once; see `add`."""
        statistics = cls(weights.shape[1], features.shape[1])
        for rows in _slices(len(features), _IMAGES_AT_ONCE):
            statistics.add(features[rows], weights[rows])
        return statistics

    def add(self, features: Tensor, weights: Tensor) -> None:
        """Features [B, D] and their labels [B, C]; or, instead of labels, how much each image counts as a positive."""
        if not features.isfinite().all():
            raise DataError("Features should be finite; some are not.")
        x, positive = unit_length(features), weights.clamp(min=0).float()
        self.count += len(x)
        self.total += x.sum(0, dtype=torch.float64)
        self.second_moment += x.T @ x
        self.category_count += positive.sum(0, dtype=torch.float64)
        self.category_total += positive.T @ x

    def relabelled(self, features: Tensor, weights: Tensor) -> DiscriminantSums:
        """The same images with other labels: only the categories' sums are made anew, from `features` [N, D]."""
        other = copy.copy(self)
        other.category_count = weights.sum(0, dtype=torch.float64)
        other.category_total = torch.zeros_like(self.category_total)
        for rows in _slices(len(features), _IMAGES_AT_ONCE):
            other.category_total += weights[rows].T.float() @ unit_length(features[rows])
        return other

    def merge(self, other: DiscriminantSums) -> None:
        """Add what was gathered from other images."""
        for name, value in vars(other).items():
            getattr(self, name).add_(value)

    def across_ranks(self) -> DiscriminantSums:
        """The sums over all processes."""
        everyone = copy.copy(self)
        for name, value in vars(self).items():
            setattr(everyone, name, sum_across_ranks(value))
        return everyone


@dataclass(frozen=True)
class Basis:
    """Standardisation, and the eigenvectors of the standardised features' second moment, X'X/N = V diag(values) V'."""

    mean: Tensor  # [D]
    scale: Tensor  # [D]
    vectors: Tensor  # [D, D] V, one eigenvector per column
    values: Tensor  # [D]

    @classmethod
    def of(cls, statistics: DiscriminantSums) -> Basis:
        if statistics.count < 2:
            raise DataError(f"{int(statistics.count)} images are too few to standardise features over; give more.")
        mean = statistics.total / statistics.count
        covariance = statistics.second_moment / statistics.count - torch.outer(mean, mean)
        # A dimension that never changes says nothing: with an infinite scale it is 0 in every image.
        variance = covariance.diag()
        scale = torch.where(variance > 1e-12, variance.clamp(min=0).sqrt(), torch.inf)
        values, vectors = torch.linalg.eigh((covariance / scale[:, None] / scale).float())
        return cls(mean.float(), scale.float(), vectors, values.clamp(min=0))

    def rotate(self, features: Tensor) -> Tensor:
        """[N, D] features in the eigenbasis."""
        parts = (features[rows] for rows in _slices(len(features), _IMAGES_AT_ONCE))
        return torch.cat([((unit_length(part) - self.mean) / self.scale) @ self.vectors for part in parts])

    def prototypes(self, count: Tensor, total: Tensor) -> Tensor:
        """[C, D] mean of each category's known positives in the eigenbasis; 0 where there is none.

        `count` [C] is their number and `total` [C, D] the sum of their unit-length features.
        """
        count = count[:, None]
        mean = (total / count.clamp(min=1e-12)).float()
        return torch.where(count > 0, ((mean - self.mean) / self.scale) @ self.vectors, 0.0).float()

    def unrotate(self, directions: Tensor) -> Tensor:
        """[C, D] directions of the eigenbasis as weights of unit-length features."""
        return directions @ self.vectors.T / self.scale


def leave_one_out(
    rotated: Tensor, weights: Tensor, prototypes: Tensor, count: Tensor, values: Tensor, penalty: float
) -> Tensor:
    """[N, C] scores x' A m_c, where m_c is without the image's own share.

    An image of weight w in a mean of total weight k has, without itself, the score (k z - w x'Ax) / (k - w); 0 where
    nothing is left. `weights` [N, C] are those that made `prototypes` [C, D]; `count` [C] are their sums.
    """
    gain = 1 / (values + penalty)
    score = rotated @ (prototypes * gain).T
    own = rotated.square() @ gain
    rest = count - weights
    return torch.where(rest > 1e-3, (count * score - weights * own[:, None]) / rest.clamp(min=1e-3), 0.0)


class Discriminant(nn.Module):
    """Scores, probabilities and thresholds of a category's presence. All it knows is in its buffers.

    With `keeps_sums` it also carries what it needs to take in more labels: the eigenbasis, each category's sums, and
    the labels it was told (`told`), by which it knows what a changed label was before.
    """

    weights: Tensor
    mean: Tensor
    slope: Tensor
    intercept: Tensor
    known_proportion: Tensor
    thresholds: Tensor
    penalty: Tensor
    scale: Tensor
    vectors: Tensor
    values: Tensor
    category_count: Tensor
    category_total: Tensor

    def __init__(self, num_categories: int, feature_dim: int, *, keeps_sums: bool = True):
        super().__init__()
        C, D = num_categories, feature_dim
        self.keeps_sums = keeps_sums
        self.register_buffer("weights", torch.zeros(C, D))  # of unit-length features
        self.register_buffer("mean", torch.zeros(D))
        self.register_buffer("slope", torch.ones(C))  # of the log-odds of presence, given the score
        self.register_buffer("intercept", torch.zeros(C))
        self.register_buffer("known_proportion", torch.ones(C))  # share of the present labels that are known
        self.register_buffer("thresholds", torch.full((C,), 0.5))
        self.register_buffer("penalty", torch.ones(()))
        self.register_buffer("scale", torch.ones(D), persistent=keeps_sums)
        self.register_buffer("vectors", torch.eye(D), persistent=keeps_sums)
        self.register_buffer("values", torch.ones(D), persistent=keeps_sums)
        self.register_buffer("category_count", torch.zeros(C), persistent=keeps_sums)
        self.register_buffer("category_total", torch.zeros(C, D), persistent=keeps_sums)
        self.told = ToldLabels(C, D) if keeps_sums else None

    @classmethod
    def of(
        cls,
        statistics: DiscriminantSums,
        features: Tensor,
        labels: Tensor,
        known_proportion: float | Tensor | None = None,
        **options: Any,
    ) -> Discriminant:
        """A new one, fitted; see `fit`."""
        model = cls(labels.shape[1], features.shape[1])
        model.fit(statistics, features, labels, known_proportion, **options)
        if model.told is not None:
            rows, columns = (labels != UNKNOWN).nonzero(as_tuple=True)
            entries = torch.stack([rows, columns, labels[rows, columns].to(rows)], dim=1)
            model.told.remember(model.told.key(unit_length(features)), entries)
        return model

    @torch.no_grad()
    def fit(
        self,
        statistics: DiscriminantSums,
        features: Tensor,
        labels: Tensor,
        known_proportion: float | Tensor | None = None,
        weights: Tensor | None = None,
        penalties: tuple[float, ...] = PENALTIES,
        basis: Basis | None = None,
        one_curve: bool = False,
    ) -> None:
        """Choose the penalty and calibrate, by leave-one-out over `features` [N, D] with `labels` [N, C].

        The images may be some of those that made `statistics`. `weights` [N, C] are how much they counted there,
        where that is not one for each known positive. Without `known_proportion` it is estimated from the labels.
        The `basis` does not depend on labels, so that of an earlier fit to the same images may be given. With
        `one_curve` all categories share slope and intercept.
        """
        if not (labels == PRESENT).any():
            raise DataError("No label is known to be present; an instant tagger needs at least one known positive.")
        basis = Basis.of(statistics) if basis is None else basis
        evidence = _Evidence(statistics, basis, basis.rotate(features), labels, weights)
        self.penalty.fill_(evidence.best_penalty(penalties))
        for name, value in vars(basis).items():
            getattr(self, name).copy_(value)
        self.category_count.copy_(statistics.category_count)
        self.category_total.copy_(statistics.category_total)
        directions = basis.prototypes(statistics.category_count, statistics.category_total) * self._gain.cpu()
        self.weights.copy_(basis.unrotate(directions))
        self._calibrate(evidence, known_proportion, one_curve)

    @property
    def basis(self) -> Basis:
        return Basis(self.mean, self.scale, self.vectors, self.values)

    @property
    def _gain(self) -> Tensor:
        return 1 / (self.values + self.penalty)

    # --- prediction ---

    def scores(self, features: Tensor) -> Tensor:
        """[N, C]; they rank the images of a category."""
        return unit_length(features) @ self.weights.T - self.weights @ self.mean

    def forward(self, features: Tensor) -> Tensor:
        """[N, C] calibrated log-odds of presence, from pooled features [N, D]."""
        weight = self.slope[:, None] * self.weights
        return unit_length(features) @ weight.T + (self.intercept - self.slope * (self.weights @ self.mean))

    def probabilities(self, features: Tensor) -> Tensor:
        """[N, C] calibrated probability of presence."""
        return (self.scores(features) * self.slope + self.intercept).sigmoid()

    def soft_labels(self, statistics: DiscriminantSums, features: Tensor, labels: Tensor) -> Tensor:
        """[N, C]: 1 for a known presence, 0 for a known absence, else the probability of a presence nobody told of.

        `features` must be the images that made the `statistics`, with their labels: each is judged without itself.
        """
        evidence = _Evidence(statistics, self.basis, self.basis.rotate(features), labels)
        soft = torch.empty(labels.shape)
        for some in evidence.groups():
            chance = self._left_out_probabilities(evidence, some)
            soft[:, some] = soften(chance, labels[:, some], self.known_proportion[some])
        return soft

    def left_out(
        self, statistics: DiscriminantSums, features: Tensor, labels: Tensor, weights: Tensor | None = None
    ) -> ScoreBins:
        """Log-odds of images that made the `statistics`, each label judged without itself; see `fit`."""
        evidence = _Evidence(statistics, self.basis, self.basis.rotate(features), labels, weights)
        parts = []
        for some in evidence.groups():
            scores = evidence.scores(some, float(self.penalty)) * self.slope[some].cpu() + self.intercept[some].cpu()
            limits = self.thresholds[some].cpu().double().logit(eps=1e-7).numpy()
            parts.append(ScoreBins.of(scores.double().numpy(), labels[:, some].numpy(), limits))
        return ScoreBins.join(parts)

    # --- labels that change ---

    @torch.no_grad()
    def relabel(self, feature: Tensor, category: int, label: int) -> None:
        """An image of this feature [D] has the `label` 1, 0 (unknown) or -1 from now on; the scores follow at once.

        Saying the same again changes nothing: what the image's label was before is remembered. An image that was
        not among the training images is taken in. The calibration stays.
        """
        if self.told is None:
            raise UserError("This model keeps no sums, so it cannot take in single labels.")
        unit = unit_length(feature).to(self.weights)
        old = self.told.tell(unit, category, label)
        self.relabel_many(unit[None], category, torch.tensor([old]), torch.tensor([label]))

    @torch.no_grad()
    def relabel_many(self, unit_features: Tensor, category: int, old: Tensor, new: Tensor) -> None:
        """Images of these features [B, D] had the labels `old` [B] until now, as the caller knows, and have `new` [B].

        For whoever keeps the labels: images are not recognised here, so copies of one photograph count as they are.
        """
        change = ((new == PRESENT).float() - (old == PRESENT).float()).to(self.weights)
        self.category_count[category] += change.sum()
        self.category_total[category] += change @ unit_features
        one = slice(category, category + 1)
        prototype = self.basis.prototypes(self.category_count[one], self.category_total[one])
        self.weights[category] = self.basis.unrotate(prototype * self._gain)[0]

    def rerank(self, category: int, unit_features: Tensor) -> tuple[Tensor, Tensor]:
        """The images of `unit_features` (see `unit_length`) from the likeliest down, [N], and all scores, [N]."""
        weights = self.weights[category]
        scores = torch.mv(unit_features, weights) - weights @ self.mean
        return scores.argsort(descending=True), scores

    # --- calibration ---

    def _calibrate(self, evidence: _Evidence, known_proportion: float | Tensor | None, one_curve: bool) -> None:
        if known_proportion is None:
            known_proportion = evidence.known_proportion(float(self.penalty))
        self.known_proportion[:] = torch.as_tensor(known_proportion)
        if not ((self.known_proportion > 0) & (self.known_proportion <= 1)).all():
            raise UserError(f"The known proportion should be over 0 and at most 1, not {known_proportion}.")
        for some in evidence.groups():
            scores, labels = evidence.scores(some, float(self.penalty)), evidence.labels[:, some]
            proportion = self.known_proportion[some].cpu()
            if not one_curve:
                self.slope[some], self.intercept[some] = on(self.slope, *calibrate(scores, labels, proportion))
            elif some.start == 0:  # these many categories are enough to tell two numbers
                shared = calibrate(scores.reshape(-1, 1), labels.reshape(-1, 1), proportion.mean(0, keepdim=True))
                self.slope[:], self.intercept[:] = on(self.slope, *shared)
            self.thresholds[some] = expected_f1_thresholds(self._left_out_probabilities(evidence, some)).to(self.slope)

    def _left_out_probabilities(self, evidence: _Evidence, categories: slice) -> Tensor:
        scores = evidence.scores(categories, float(self.penalty))
        return (scores * self.slope[categories].cpu() + self.intercept[categories].cpu()).sigmoid()


def on(like: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(tensor.to(like) for tensor in tensors)


class _Evidence:
    """Leave-one-out scores of labelled images, made for a group of categories at a time."""

    def __init__(
        self,
        statistics: DiscriminantSums,
        basis: Basis,
        rotated: Tensor,
        labels: Tensor,
        weights: Tensor | None = None,
    ):
        self.statistics, self.basis, self.rotated, self.labels = statistics, basis, rotated, labels
        self.weights = labels == PRESENT if weights is None else weights

    def groups(self) -> Iterator[slice]:
        return _slices(self.labels.shape[1], max(_ENTRIES_AT_ONCE // max(len(self.labels), 1), 1))

    def scores(self, categories: slice, penalty: float) -> Tensor:
        count, total = self.statistics.category_count[categories], self.statistics.category_total[categories]
        prototypes, count = self.basis.prototypes(count, total), count.float()
        weights = self.weights[:, categories].float()
        return leave_one_out(self.rotated, weights, prototypes, count, self.basis.values, penalty)

    def best_penalty(self, penalties: tuple[float, ...]) -> float:
        """The one by which left-out known positives rank best among the unknown: by mean logarithm of the rank.

        Mean AP would be the measure to aim at, but with few known positives it hangs on the two or three ranked
        first, and the penalty it picks costs up to two mAP on VOC 2007 with a tenth of the labels.
        """
        categories = slice(None, None, max(self.labels.shape[1] // _CATEGORIES_FOR_PENALTY, 1))
        labels = self.labels[:, categories]
        quality = [mean_log_rank(self.scores(categories, penalty), labels) for penalty in penalties]
        return penalties[int(torch.tensor(quality).argmin())]

    def known_proportion(self, penalty: float) -> float:
        """Share of the present labels that are known, the same for all categories: a few labels each say too little."""
        if (self.labels != UNKNOWN).all():
            return 1.0
        categories = slice(None, None, max(self.labels.shape[1] // _CATEGORIES_FOR_PENALTY, 1))
        labels = self.labels[:, categories].cpu().numpy()
        return fit_curves(ScoreBins.of(self.scores(categories, penalty).cpu().numpy(), labels)).known_proportion


def mean_log_rank(scores: Tensor, labels: Tensor) -> float:
    """Of the known positives among all images not known to lack the category; the mean over categories of the mean."""
    known = labels == PRESENT
    order = scores.masked_fill(labels == ABSENT, -torch.inf).argsort(dim=0, descending=True)
    log_rank = torch.arange(1, len(scores) + 1, dtype=torch.float64).log()[:, None]
    number = known.sum(0)
    means = (log_rank * known.gather(0, order)).sum(0) / number
    return float(means[number > 0].mean())


def calibrate(scores: Tensor, labels: Tensor, known_proportion: Tensor, num_steps: int = 20) -> tuple[Tensor, Tensor]:
    """Slope and intercept [C] of the log-odds that a category is present, given its score.

    P(present) = sigmoid(slope * score + intercept), and labels are known by chance: a share `known_proportion` of the
    present ones, and a share of the absent ones that follows from their number. The likelihood of what is known and
    what is not is climbed by Fisher scoring, in half steps because whole ones can swing, for all categories at once.
    A weak prior keeps the slope per standard deviation near 2 where positives are few. A plain regression of "known"
    on the score would not do: it cannot level off at the known proportion.
    """
    mean, spread = scores.double().mean(0), scores.double().std(0).clamp(min=1e-12)
    z = (scores - mean) / spread
    slope = torch.full_like(mean, 2.0)
    share = ((labels == PRESENT).sum(0) + 0.5) / known_proportion / (len(labels) + 1)
    intercept = torch.logit(share.double().clamp(max=0.9)) - 1
    for _ in range(num_steps):
        chance = (slope * z + intercept).sigmoid()
        error = chance - soften(chance, labels, known_proportion)
        curvature = fisher_information(chance, known_proportion, known_absences(chance, labels))
        grad_slope, grad_intercept = (error * z).sum(0) + 0.5 * (slope - 2), error.sum(0)
        h_ss, h_si, h_ii = (curvature * z * z).sum(0) + 0.5, (curvature * z).sum(0), curvature.sum(0) + 1e-9
        determinant = h_ss * h_ii - h_si.square()
        slope = slope - ((h_ii * grad_slope - h_si * grad_intercept) / determinant).clamp(-1, 1) / 2
        intercept = intercept - ((h_ss * grad_intercept - h_si * grad_slope) / determinant).clamp(-2, 2) / 2
    return (slope / spread).float(), (intercept - slope * mean / spread).float()


def soften(chance: Tensor, labels: Tensor, known_proportion: Tensor) -> Tensor:
    """[N, C]: 1 for known presences, 0 for known absences, else P(present | nobody said anything).

    `chance` is P(present) [N, C].
    """
    present = (1 - known_proportion) * chance
    absent = (1 - known_absences(chance, labels)) * (1 - chance)
    hidden = present / (present + absent).clamp(min=1e-12)
    return torch.where(labels == UNKNOWN, hidden, (labels == PRESENT).to(hidden))


def known_absences(chance: Tensor, labels: Tensor) -> Tensor:
    """[C] share of the absences that are known: their number over the expected number of absences."""
    return ((labels == ABSENT).sum(0) / (1 - chance).sum(0).clamp(min=1e-6)).clamp(max=1)


def fisher_information(chance: Tensor, presences: Tensor, absences: Tensor) -> Tensor:
    """[N, C] of one label about its log-odds, where it is known to be present with probability presences * chance, to
    be absent with absences * (1 - chance), and else unknown."""
    slope = chance * (1 - chance)
    unknown = (1 - presences) * chance + (1 - absences) * (1 - chance)
    both_known = slope * (presences * (1 - chance) + absences * chance)
    return both_known + (slope * (absences - presences)).square() / unknown.clamp(min=1e-12)


def expected_f1_thresholds(probabilities: Tensor) -> Tensor:
    """[C] thresholds of best expected F1, where `probabilities` [N, C] are right: 2 sum_r P / (r + sum P) at rank r."""
    ranked = probabilities.sort(dim=0, descending=True).values.double()
    rank = torch.arange(1, len(ranked) + 1)[:, None]
    best = (2 * ranked.cumsum(0) / (rank + ranked.sum(0))).argmax(0, keepdim=True)
    below = ranked.gather(0, (best + 1).clamp(max=len(ranked) - 1))
    return ((ranked.gather(0, best) + below) / 2)[0].float()


def _slices(length: int, step: int) -> Iterator[slice]:
    return (slice(first, min(first + step, length)) for first in range(0, length, step))
