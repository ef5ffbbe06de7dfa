"""The mathematics of `instant`: a tagger in closed form, from sums over the images, without training.

Features are scaled to unit length and standardised per dimension over all images: x. With A = (X'X/N + penalty I)^-1
over all images and m_c the mean of the known positives of category c, the score is x' A m_c. If the known
positives are a random sample, their mean is an unbiased estimate of the mean of all, and A uses no labels: missing
labels cost variance but no bias.

    score = reliability * x' A m_c / spread + name weight * name score        models/leave_one_out.py chooses
    P(present) = sigmoid(bent(slope * score + intercept))                     models/curves.py fits

A known absence is a positive with negative weight, which grows with how likely a presence seemed. What the
name of a category says about an image (`models.names`) is added if leave-one-out shows that it helps.

    statistics = DiscriminantSums(num_categories, feature_dim)
    statistics.add(features, labels)                  # batch by batch; sums of splits add up (`merge`)
    model = Discriminant.of(statistics, features, labels)
    model.scores(images); model.probabilities(images) >= model.thresholds
    model.relabel(feature, category, PRESENT); model.rerank(category, unit_length(features))
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fewtags.distributed import sum_across_ranks
from fewtags.errors import DataError, UserError
from fewtags.estimates import ScoreBins
from fewtags.labels import ABSENT, PRESENT, UNKNOWN
from fewtags.models.curves import (
    CREDENCE,
    LARGEST_SHARE,
    ONE_TAG_PROPORTIONS,
    SHARE_PRECISION,
    USUAL_SLOPE,
    Bins,
    Shared,
    bent,
    f1_thresholds,
    fit_curves,
    has_one_tag_each,
    intercepts_for,
    known_absences,
    one_tag_likelihood,
    shared_curve,
    soften,
    straight_curves,
    tags_prior,
)
from fewtags.models.label_memory import LabelMemory
from fewtags.models.leave_one_out import (
    PENALTIES,
    Choice,
    Images,
    LeftOut,
    Reliability,
    choose,
    choose_window_share,
    spread,
)

PUSH = 0.25  # weight of a known absence, times how likely a presence seemed
OWN_NAME_WEIGHTS = (0.0, 0.5, 1.0, 2.0)  # of a category, times the common one,
OWN_CHANCES = (0.1, 0.2, 0.5, 0.2)  # and how likely each is before its labels are seen
_ENTRIES_AT_ONCE = 2**22  # scores are computed for groups of categories with about this many entries: bounds the memory
_IMAGES_AT_ONCE = 8192
_CURVE_ENTRIES, _FEWEST_ROWS, _MOST_ROWS = 2**24, 1000, 8192  # images the curves are fitted to
_MOST_KNOWN = 2000  # known positives per category used for that
_SINCE_NAMES = (  # buffers that older models lack
    "bend", "name_weight", "name_mean", "name_factor", "absent_count", "absent_total", "push", "signal", "first_count",
    "first_weights", "first_slope", "first_intercept",
)  # fmt: skip
_ONE_TAG_IMAGES = 4000
NAME_IMAGES = 30.0  # prior weight of the usual spread of name scores, in images
THINGS_IN_A_PICTURE = 2.5  # tags that apply per tag a classifier sees, which is trained on single objects
_CATEGORIES_FOR_CURVE = 256  # enough to estimate what all share


def unit_length(features: Tensor) -> Tensor:
    return F.normalize(features.float(), dim=-1)


class DiscriminantSums:
    """All the closed form needs to know about the images: float64 sums, exact under any split."""

    def __init__(self, num_categories: int, feature_dim: int):
        double = torch.float64
        self.count = torch.zeros((), dtype=double)  # N
        self.total = torch.zeros(feature_dim, dtype=double)  # sum of x
        self.second_moment = torch.zeros(feature_dim, feature_dim, dtype=double)  # sum of x x'
        self.category_count = torch.zeros(num_categories, dtype=double)  # known positives
        self.category_total = torch.zeros(num_categories, feature_dim, dtype=double)  # sum of their x

    @classmethod
    def of(cls, features: Tensor, weights: Tensor) -> DiscriminantSums:
        """From features [N, D] at once; see `add`."""
        statistics = cls(weights.shape[1], features.shape[1])
        for rows in _slices(len(features), _IMAGES_AT_ONCE):
            statistics.add(features[rows], weights[rows])
        return statistics

    def add(self, features: Tensor, weights: Tensor) -> None:
        """Features [B, D] and their labels [B, C]; or, instead of labels, how much each image counts as a positive."""
        if not features.isfinite().all():
            raise DataError("Some features are not finite.")
        x, positive = unit_length(features), weights.clamp(min=0).float()
        self.count += len(x)
        self.total += x.sum(0, dtype=torch.float64)
        self.second_moment += x.T @ x
        self.category_count += positive.sum(0, dtype=torch.float64)
        self.category_total += positive.T @ x

    def relabelled(self, features: Tensor, weights: Tensor) -> DiscriminantSums:
        """The same images with other labels: only the categories' sums are recomputed, from `features` [N, D]."""
        other = copy.copy(self)
        other.category_count = weights.sum(0, dtype=torch.float64)
        other.category_total = torch.zeros_like(self.category_total)
        for rows in _slices(len(features), _IMAGES_AT_ONCE):
            other.category_total += weights[rows].T.float() @ unit_length(features[rows])
        return other

    def merge(self, other: DiscriminantSums) -> None:
        """Add the sums of other images."""
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
        if statistics.count < 1:
            raise DataError("There are no images to standardise features over.")
        mean = statistics.total / statistics.count
        covariance = statistics.second_moment / statistics.count - torch.outer(mean, mean)
        # A constant dimension says nothing: with an infinite scale it is 0 in every image.
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

    def centred(self, total: Tensor, weight: Tensor) -> Tensor:
        """[C, D] sums of standardised features in the eigenbasis, where `total` [C, D] are the weighted sums of
        unit-length features and `weight` [C] the sums of the weights."""
        return ((total - weight[:, None] * self.mean) / self.scale).float() @ self.vectors

    def unrotate(self, directions: Tensor) -> Tensor:
        """[C, D] directions of the eigenbasis as weights of unit-length features."""
        return directions @ self.vectors.T / self.scale


class Discriminant(nn.Module):
    """Scores, probabilities and thresholds of a category's presence. All state is in buffers.

    With `keeps_sums` it also keeps what it needs to learn more labels: the eigenbasis, each category's sums, and
    the labels it was given (`told`), to know the previous value of a changed label.
    """

    weights: Tensor
    mean: Tensor
    slope: Tensor
    intercept: Tensor
    bend: Tensor
    known_proportion: Tensor
    thresholds: Tensor
    penalty: Tensor
    name_weight: Tensor
    name_mean: Tensor
    name_factor: Tensor
    scale: Tensor
    vectors: Tensor
    values: Tensor
    category_count: Tensor
    category_total: Tensor
    absent_count: Tensor
    absent_total: Tensor
    push: Tensor
    signal: Tensor
    first_count: Tensor
    first_weights: Tensor
    first_slope: Tensor
    first_intercept: Tensor

    def __init__(self, num_categories: int, feature_dim: int, *, keeps_sums: bool = True):
        super().__init__()
        C, D = num_categories, feature_dim
        self.keeps_sums = keeps_sums
        self.register_buffer("weights", torch.zeros(C, D))  # of unit-length features
        self.register_buffer("mean", torch.zeros(D))
        self.register_buffer("slope", torch.ones(C))  # of the log-odds of presence, given the score
        self.register_buffer("intercept", torch.zeros(C))
        self.register_buffer("bend", torch.zeros(()))  # see `curves.bent`
        self.register_buffer("known_proportion", torch.ones(C))  # share of the present labels that are known
        self.register_buffer("thresholds", torch.full((C,), 0.5))
        self.register_buffer("penalty", torch.ones(()))
        self.register_buffer("name_weight", torch.zeros(C))  # of standardised name scores
        self.register_buffer("name_mean", torch.zeros(C))
        self.register_buffer("name_factor", torch.zeros(C))  # 1 / their standard deviation; 0 without a name
        kept = {
            "scale": torch.ones(D),
            "vectors": torch.eye(D),
            "values": torch.ones(D),
            "category_count": torch.zeros(C),  # of known positives
            "category_total": torch.zeros(C, D),  # sum of their unit-length features
            "absent_count": torch.zeros(C),  # sum of the weights of known absences, see `_surprise`,
            "absent_total": torch.zeros(C, D),  # and of their features, so weighted
            "push": torch.full((C,), PUSH),  # what such an absence weighs
            "signal": torch.ones(()),  # see `leave_one_out.Reliability`
            "first_count": torch.zeros(C),  # known positives when it was fitted
            "first_weights": torch.zeros(C, D),  # by these and the two below surprises are measured
            "first_slope": torch.ones(C),
            "first_intercept": torch.zeros(C),
        }
        for name, value in kept.items():
            self.register_buffer(name, value, persistent=keeps_sums)
        self.told = LabelMemory(C, D) if keeps_sums else None

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *more: Any) -> None:
        """Models from before names and reliabilities lack some buffers; they predict as before."""
        older = prefix + "bend" not in state and prefix + "weights" in state
        if older:
            for name in self._buffers.keys() - self._non_persistent_buffers_set:
                if prefix + name not in state and name in _SINCE_NAMES:
                    state[prefix + name] = torch.zeros_like(self._buffers[name])  # type: ignore[arg-type]
        super()._load_from_state_dict(state, prefix, *more)
        if older and self.keeps_sums:
            self._take_over_raw_scores()

    @torch.no_grad()
    def _take_over_raw_scores(self) -> None:
        """Scores used to be x' A m_c: convert them, and the slopes, to comparable units."""
        self.push.fill_(PUSH)
        self.first_count.copy_(self.category_count)
        self._set_signal()
        before = self.weights.norm(dim=1)
        self._set_weights(slice(None))
        factor = self.weights.norm(dim=1) / before.clamp(min=1e-12)
        self.slope.copy_(torch.where(factor > 0, self.slope / factor.clamp(min=1e-12), self.slope))
        for name in ("weights", "slope", "intercept"):
            getattr(self, f"first_{name}").copy_(getattr(self, name))

    @classmethod
    def of(
        cls,
        statistics: DiscriminantSums,
        features: Tensor,
        labels: Tensor,
        known_proportion: float | Tensor | None = None,
        **options: Any,
    ) -> Discriminant:
        """A new fitted one; see `fit`."""
        model = cls(labels.shape[1], features.shape[1])
        model.fit(statistics, features, labels, known_proportion, **options)
        if model.told is not None:
            rows, columns = (labels != UNKNOWN).nonzero(as_tuple=True)
            entries = torch.stack([rows, columns, labels[rows, columns].to(rows)], dim=1)
            model.told.remember(model.told.key(unit_length(features)), entries)
        return model

    # --- fitting ---

    @torch.no_grad()
    def fit(
        self,
        statistics: DiscriminantSums,
        features: Tensor,
        labels: Tensor,
        known_proportion: float | Tensor | None = None,
        *,
        names: Tensor | None = None,
        named: Tensor | None = None,
        penalties: tuple[float, ...] = PENALTIES,
        one_curve: bool = False,
    ) -> tuple[Images, Choice]:
        """Choose penalty and weight of names, and calibrate, by leave-one-out over `features` [N, D] with `labels`.

        The images may be some of those that made `statistics`. `names` [N, C] are name scores of the images, for the
        categories that are `named` [C]. Without `known_proportion` it is estimated from the labels. With `one_curve`
        all categories share slope and intercept.
        """
        if names is None and not (labels == PRESENT).any():
            raise DataError(
                "No label is known to be present, and no category name is known: there is nothing to learn from."
            )
        basis = Basis.of(statistics)
        for name, value in vars(basis).items():
            getattr(self, name).copy_(value)
        images = Images(
            features,
            basis.rotate(features),
            basis.values,
            int(statistics.count),
            labels,
        )
        standard, which, shares = self._standardise(names, named)
        images = replace(images, names=standard, named=which, shares=shares)
        choice = choose(images, penalties)
        self.refit(images, (labels == PRESENT).float(), statistics, choice, known_proportion, one_curve=one_curve)
        return images, choice

    def _standardise(
        self, names: Tensor | None, named: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Name scores with mean 0 and spread 1 over the images, which categories have them, and their mean share."""
        self.name_factor.zero_()
        if names is None:
            return None, None, None
        variance = names.var(0, correction=0)
        named = (variance > 1e-12) & (torch.ones_like(variance, dtype=torch.bool) if named is None else named.cpu())
        # A category absent from a few images would have a small spread, and every later image would be far above it.
        usual = variance[named].mean() if named.any() else torch.ones(())
        deviation = ((len(names) * variance + NAME_IMAGES * usual) / (len(names) + NAME_IMAGES)).sqrt()
        self.name_mean.copy_(names.mean(0))
        self.name_factor.copy_(torch.where(named, 1 / deviation.clamp(min=1e-6), 0.0))
        return self.standard_names(names.to(self.name_mean)).cpu(), named, names.exp().mean(0)

    def refit(
        self,
        images: Images,
        weights: Tensor,
        statistics: DiscriminantSums,
        choice: Choice,
        known_proportion: float | Tensor | None = None,
        *,
        one_curve: bool = False,
    ) -> None:
        """With this choice, where the `images` count as positives by `weights` [N, C], as they did in `statistics`."""
        self.penalty.fill_(choice.penalty)
        self.category_count.copy_(statistics.category_count)
        self.category_total.copy_(statistics.category_total)
        self.absent_count.zero_()
        self.absent_total.zero_()
        self.first_count.copy_(statistics.category_count)
        self._set_signal()
        self._set_weights(slice(None))
        self._calibrate(images, weights, choice, known_proportion, one_curve)
        for name in ("weights", "slope", "intercept"):
            getattr(self, f"first_{name}").copy_(getattr(self, name))
        if (images.labels == ABSENT).any():
            weights = weights - self.push.cpu() * self._take_in_absences(images)
            self._calibrate(images, weights, choice, known_proportion, one_curve)

    @torch.no_grad()
    def look_at_windows(
        self, images: Images, weights: Tensor, choice: Choice, best_window: Tensor, *, one_curve: bool = False
    ) -> tuple[Images, Tensor, Tensor]:
        """Choose how much the best window of an image counts, and calibrate again, for scores that are a mix.

        `best_window` [N, C] are the left-out scores of the best windows. Returns the images with these, scaled like the
        scores of whole images, and the scaling, [C] factors and offsets.
        """
        whole = torch.cat([self._left_out_scores(images, weights, some) for some in groups(images)], dim=1)
        factor = whole.std(0, correction=0) / best_window.std(0, correction=0).clamp(min=1e-6)
        offset = whole.mean(0) - factor * best_window.mean(0)
        images = replace(images, best_window=factor * best_window + offset)
        images = replace(images, window_share=choose_window_share(images, whole))
        proportion = self.known_proportion.clone().cpu()
        self._calibrate(images, weights, choice, proportion, one_curve, keeps_name_weights=True)
        return images, factor, offset

    def _take_in_absences(self, images: Images) -> Tensor:
        """[N, C] how surprising each known absence is.

        They count in proportion: where absences are known more often than presences, each weighs less.
        """
        labels, device, unit = images.labels, self.weights.device, unit_length(images.features)
        surprise, often = torch.zeros(labels.shape), torch.zeros(labels.shape[1])
        for some in groups(images):
            chance = self._surprise(unit.to(device), some).cpu()
            surprise[:, some] = chance * (labels[:, some] == ABSENT)
            often[some] = known_absences(chance, labels[:, some])
        self.push.copy_(PUSH * (self.known_proportion.cpu() / often.clamp(min=1e-6)).clamp(max=1))
        self.absent_count.copy_(surprise.sum(0))
        self.absent_total.copy_(surprise.T @ unit)
        self._set_weights(slice(None))
        return surprise

    def _surprise(self, unit_features: Tensor, categories: slice) -> Tensor:
        """[N, C'] how likely a presence was thought by the labels of the fit, names aside: the weight of an absence.

        It does not depend on labels given since, so labels may come in any order and be undone.
        """
        weights = self.first_weights[categories]
        score = unit_features @ weights.T - weights @ self.mean
        return (self.first_slope[categories] * score + self.first_intercept[categories]).sigmoid()

    def _set_signal(self) -> None:
        positive = self.category_count > 0
        directions = self._directions(slice(None), first=True)
        variance = directions.square() @ self.values
        values, penalty = self.values, float(self.penalty)
        self.signal.copy_(Reliability.of(variance[positive], self.category_count[positive], values, penalty).signal)

    def _directions(self, categories: slice, *, first: bool = False) -> Tensor:
        """[C', D] A m_c in the eigenbasis; 0 where no positive is known.

        The penalty falls as positives come in after the fit: what it guards against is the noise of their mean.
        """
        basis, count = self.basis, self.category_count[categories]
        push = self.push[categories]
        total = basis.centred(
            self.category_total[categories] - push[:, None] * self.absent_total[categories],
            count - push * self.absent_count[categories],
        )
        gain = 1 / (self.values + (self.penalty if first else self._own_penalty(categories)[:, None]))
        return torch.where(count[:, None] > 0, total * gain / count.clamp(min=1e-12)[:, None], 0.0)

    def _own_penalty(self, categories: slice) -> Tensor:
        """[C']"""
        return self.penalty * ((self.first_count[categories] + 1) / (self.category_count[categories] + 1)).sqrt()

    def _factor(self, categories: slice, directions: Tensor) -> Tensor:
        """[C'] by which scores of categories are comparable: their spread is what can be trusted of it."""
        count, penalty = self.category_count[categories], self._own_penalty(categories)
        noise = (self.values / (self.values + penalty[:, None])).square().sum(1)
        reliability = torch.where(count > 0, self.signal / (self.signal + noise / count.clamp(min=1e-12)), 0.0)
        return reliability.sqrt() / spread(directions, self.values)

    def _set_weights(self, categories: slice) -> None:
        directions = self._directions(categories)
        self.weights[categories] = self.basis.unrotate(directions * self._factor(categories, directions)[:, None])

    @property
    def basis(self) -> Basis:
        return Basis(self.mean, self.scale, self.vectors, self.values)

    # --- prediction ---

    def standard_names(self, names: Tensor) -> Tensor:
        """[N, C] name scores with mean 0 and spread 1 over the images of the fit; 0 where a category has no name."""
        return (names - self.name_mean) * self.name_factor

    def scores(self, features: Tensor, names: Tensor | None = None) -> Tensor:
        """[N, C]; they rank the images of a category. `names` [N, C] are their name scores, where the fit had them."""
        scores = unit_length(features) @ self.weights.T - self.weights @ self.mean
        return scores if names is None else scores + self.name_weight * self.standard_names(names)

    def log_odds(self, scores: Tensor, categories: slice | Tensor | int = slice(None)) -> Tensor:
        """Of presence, given scores [N, C'] of the categories, or [N] of a single one."""
        return bent(self.slope[categories] * scores + self.intercept[categories], self.bend)

    def chance(self, scores: Tensor, categories: slice | Tensor | int = slice(None)) -> Tensor:
        """Calibrated probability of presence, given scores."""
        return self.log_odds(scores, categories).sigmoid()

    def forward(self, features: Tensor, names: Tensor | None = None) -> Tensor:
        """[N, C] calibrated log-odds of presence, from pooled features [N, D]."""
        return self.log_odds(self.scores(features, names))

    def probabilities(self, features: Tensor, names: Tensor | None = None) -> Tensor:
        """[N, C] calibrated probability of presence."""
        return self.chance(self.scores(features, names))

    # --- images judged without themselves ---

    def without_own(self, total: int, categories: slice = slice(None)) -> LeftOut:
        """Scores (names aside) without the share that an image has in its category's sums and, `total` images being in
        it, in their second moment; on the CPU."""
        count, values, penalty = self.category_count[categories].cpu(), self.values.cpu(), float(self.penalty)
        reliability = Reliability(self.signal.cpu(), (values / (values + penalty)).square().sum())
        directions = self._directions(categories, first=True).cpu()
        return LeftOut(directions, count, values, penalty, total, reliability)

    def _left_out_scores(self, images: Images, weights: Tensor, categories: slice) -> Tensor:
        """[N, C'] of the images of a fit, in which they had these `weights` [N, C]."""
        scores = self.without_own(images.total, categories).scores(images.rotated, weights[:, categories])
        if images.names is not None:
            scores = scores + self.name_weight[categories].cpu() * images.names[:, categories]
        if images.best_window is not None:
            scores = torch.lerp(scores, images.best_window[:, categories], images.window_share)
        return scores

    def soft_labels(self, images: Images, weights: Tensor) -> Tensor:
        """[N, C]: 1 for a known presence, 0 for a known absence, else the probability that an unknown label is present.

        Each of the images of the fit, in which they had these `weights` [N, C], is judged without itself.
        """
        soft = torch.empty(images.labels.shape)
        for some in groups(images):
            chance = self.chance(self._left_out_scores(images, weights, some).to(self.slope), some).cpu()
            soft[:, some] = soften(chance, images.labels[:, some], self.known_proportion[some].cpu())
        return soft

    def left_out(self, images: Images, weights: Tensor) -> ScoreBins:
        """Log-odds of the images of a fit, each label judged without itself."""
        parts = []
        for some in groups(images):
            odds = self.log_odds(self._left_out_scores(images, weights, some).to(self.slope), some).cpu().double()
            limits = self.thresholds[some].cpu().double().logit(eps=1e-7).numpy()
            parts.append(ScoreBins.of(odds.numpy(), images.labels[:, some].numpy(), limits))
        return ScoreBins.join(parts)

    # --- labels that change ---

    @torch.no_grad()
    def relabel(self, feature: Tensor, category: int, label: int) -> None:
        """An image of this feature [D] has the `label` 1, 0 (unknown) or -1 from now on; the scores change immediately.

        Saying the same again changes nothing: what the image's label was before is remembered. An image that was
        not among the training images is added. The calibration stays.
        """
        if self.told is None:
            raise UserError("This model keeps no sums, so it cannot learn single labels.")
        unit = unit_length(feature).to(self.weights)
        old = self.told.update(unit, category, label)
        self.relabel_many(unit[None], category, torch.tensor([old]), torch.tensor([label]))

    @torch.no_grad()
    def relabel_many(self, unit_features: Tensor, category: int, old: Tensor, new: Tensor) -> None:
        """Images of these features [B, D] had the labels `old` [B] until now, as the caller knows, and have `new` [B].

        For callers that keep the labels: images are not recognised here, so copies of one photo count separately.
        """
        one, before = slice(category, category + 1), float(self.category_count[category])
        changes = [(new == kind).float() - (old == kind).float() for kind in (PRESENT, ABSENT)]
        present, absent = (change.to(self.weights) for change in changes)
        absent = absent * self._surprise(unit_features, one)[:, 0]
        self.category_count[category] += present.sum()
        self.category_total[category] += present @ unit_features
        self.absent_count[category] += absent.sum()
        self.absent_total[category] += absent @ unit_features
        self._set_weights(one)
        # The more positives are known, the less their name has to say.
        self.name_weight[category] *= (before + 1) / (float(self.category_count[category]) + 1)

    def scores_without(self, category: int, unit_features: Tensor, names: Tensor | None = None) -> Tensor:
        """[N] scores of known positives of the category, by their unit-length features [N, D], each without itself.

        `names` [N] are their name scores for this category.
        """
        one, count = slice(category, category + 1), float(self.category_count[category])
        scores = torch.zeros(len(unit_features)).to(self.weights)
        if count > 1:
            rotated, direction = self.basis.rotate(unit_features), self._directions(one)
            own = rotated.square() @ (1 / (self.values + self._own_penalty(one)))
            scores = self._factor(one, direction) * (count * (rotated @ direction[0]) - own) / (count - 1)
        return self._with_names(category, scores, names)

    def _with_names(self, category: int, scores: Tensor, names: Tensor | None) -> Tensor:
        """[N] scores of one category, with the name scores added."""
        if names is None:
            return scores
        standard = (names - self.name_mean[category]) * self.name_factor[category]
        return scores + self.name_weight[category] * standard

    def rerank(self, category: int, unit_features: Tensor, names: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The images of `unit_features` (see `unit_length`) from the likeliest down, [N], and all scores, [N].

        `names` [N] are their name scores for this category.
        """
        weights = self.weights[category]
        scores = torch.mv(unit_features, weights) - weights @ self.mean
        scores = self._with_names(category, scores, names)
        return scores.argsort(descending=True), scores

    # --- calibration ---

    def _calibrate(
        self,
        images: Images,
        weights: Tensor,
        choice: Choice,
        known_proportion: float | Tensor | None,
        one_curve: bool,
        *,
        keeps_name_weights: bool = False,
    ) -> None:
        given = None if known_proportion is None else torch.as_tensor(known_proportion, dtype=torch.float64)
        if given is not None and not ((given > 0) & (given <= 1)).all():
            raise UserError(f"The known proportion should be over 0 and at most 1, not {known_proportion}.")
        if not keeps_name_weights:
            self.name_weight.copy_(choice.name_weight * (self.name_factor > 0))
        known_share = float((images.labels == PRESENT).sum() / images.labels.numel())
        sample = _CurveSample(self, images, weights)
        few = _joined([sample.scores(some).bins(self.name_weight[some].cpu()) for some in sample.some_groups()])
        proportion = None if given is None else float(given.mean())
        if given is None and few.score.shape[1] == images.labels.shape[1] and has_one_tag_each(images.labels):
            proportion = self._one_tag_proportion(images, weights, few, known_share)
        shared = shared_curve(few, known_share, images.labels.shape[1], proportion)
        self.bend.fill_(shared.bend)
        self.known_proportion.copy_(torch.as_tensor(shared.known_proportion) if given is None else given)
        common = fit_curves(few.together(), shared)[:2] if one_curve else None
        for some in sample.groups():
            scores = sample.scores(some)
            if choice.name_weight and images.names is not None and not one_curve and not keeps_name_weights:
                self.name_weight[some] = scores.own_name_weights(choice.name_weight, shared).to(self.slope)
            bins = scores.bins(self.name_weight[some].cpu())
            slope, intercept = fit_curves(bins, shared)[:2] if common is None else common
            self.slope[some], self.intercept[some] = slope.to(self.slope), intercept.to(self.slope)
            self._curves_of_names(images, scores, some, shared)
            bins = scores.bins(self.name_weight[some].cpu())
            chance = bent(self.slope[some].cpu() * bins.score + self.intercept[some].cpu(), shared.bend).sigmoid()
            self.thresholds[some] = f1_thresholds(chance, bins.count).to(self.slope)

    def _one_tag_proportion(self, images: Images, weights: Tensor, bins: Bins, known_share: float) -> float:
        """Share of the present tags that are known if each image has a single one: the posterior mean.

        Images that show one thing only are then known completely, so that at the highest scores hardly a tag seems to
        be missing, and the likelihood that `shared_curve` goes by has the proportion far too high.
        """
        some = torch.randperm(len(images.labels), generator=torch.Generator().manual_seed(0))[:_ONE_TAG_IMAGES]
        names = None if images.names is None else images.names[some]
        sample = replace(images, rotated=images.rotated[some], labels=images.labels[some], names=names)
        scores = self._left_out_scores(sample, weights[some], slice(None)).double()
        values = []
        for proportion in ONE_TAG_PROPORTIONS:
            # A bend could be taken for more known tags.
            slope, intercept = straight_curves(bins, known_share, proportion)
            values.append(one_tag_likelihood((slope * scores + intercept).sigmoid(), sample.labels))
        proportions = torch.tensor(ONE_TAG_PROPORTIONS, dtype=torch.float64)
        prior = tags_prior(proportions, known_share, images.labels.shape[1])
        chance = (CREDENCE * torch.tensor(values, dtype=torch.float64) + prior).softmax(0)
        chance *= torch.gradient(proportions)[0]
        return float((chance * proportions).sum() / chance.sum())

    def _curves_of_names(self, images: Images, scores: _CurveScores, categories: slice, shared: Shared) -> None:
        """Categories of which only the name is known.

        Where no label is known at all, as many presences are expected as the backbone's classifier sees, times the
        number of things in a picture, as it sees one. It says little about how common categories are, so where labels
        are known, a category without any is expected as often as the others, and less the more images there are.
        """
        known, named = (images.labels == PRESENT).sum(0), self.name_factor.cpu() > 0
        only = named[categories] & (known[categories] == 0)
        if images.shares is not None and only.any():
            share = (THINGS_IN_A_PICTURE * images.shares[categories]).clamp(1e-3, 0.5)
            if known.any():
                expected = shared.known_share * len(images.labels)  # known positives of a category
                proportion = self.known_proportion[categories].cpu()
                share = shared.known_share / proportion * SHARE_PRECISION / (SHARE_PRECISION + expected)
                share = share.clamp(max=LARGEST_SHARE)
            intercept = intercepts_for(scores.bins(1.0), USUAL_SLOPE, shared.bend, share)
            for buffer, value in ((self.name_weight, 1.0), (self.slope, USUAL_SLOPE), (self.intercept, intercept)):
                buffer[categories] = torch.where(only, torch.as_tensor(value).float(), buffer[categories].cpu()).to(
                    buffer
                )


class _CurveSample:
    """The images that curves are fitted to: a sample of them, and all known positives."""

    def __init__(self, model: Discriminant, images: Images, weights: Tensor):
        self.model, self.images, self.weights = model, images, weights
        number, num_categories = images.labels.shape
        most = min(max(_CURVE_ENTRIES // max(num_categories, 1), _FEWEST_ROWS), _MOST_ROWS)
        generator = torch.Generator().manual_seed(0)
        self.rows = torch.randperm(number, generator=generator)[:most] if number > most else torch.arange(number)
        self.size = max(_ENTRIES_AT_ONCE // len(self.rows), 1)

    def groups(self) -> Iterator[slice]:
        return _slices(self.images.labels.shape[1], self.size)

    def some_groups(self) -> Iterator[slice]:
        """The first ones, enough to tell what all categories share."""
        return _slices(min(self.images.labels.shape[1], _CATEGORIES_FOR_CURVE), self.size)

    def scores(self, categories: slice) -> _CurveScores:
        images, rows = self.images, self.rows
        labels = images.labels[:, categories]
        left_out = self.model.without_own(images.total, categories)
        weights = self.weights[:, categories]
        scores, seen = left_out.scores(images.rotated[rows], weights[rows]), labels[rows]
        names = None if images.names is None else images.names[:, categories] * (1 - images.window_share)
        best = None if images.best_window is None else images.best_window[:, categories]
        if best is not None:
            scores = torch.lerp(scores, best[rows], images.window_share)
        if len(rows) == len(labels):
            return _CurveScores(scores, seen, torch.ones(()), names)
        # A sample of what is not known to be present, each for several, and the known positives themselves.
        image, category, place = first_of_each(labels == PRESENT, _MOST_KNOWN)
        shape = (int(place.max()) + 1 if len(place) else 0, labels.shape[1])
        known, worth = torch.zeros(shape), torch.zeros(shape)
        of_pairs = left_out.pairs(images.rotated[image], category, weights[image, category])
        if best is not None:
            of_pairs = torch.lerp(of_pairs, best[image, category], images.window_share)
        known[place, category] = of_pairs
        number = (labels == PRESENT).sum(0)
        worth[place, category] = (number / number.clamp(max=_MOST_KNOWN))[category]
        counts = torch.where(seen == PRESENT, 0.0, len(labels) / len(rows))
        if names is not None:
            of_known = torch.zeros(shape)
            of_known[place, category] = names[image, category]
            names = torch.cat([names[rows], of_known])
        present = torch.full(shape, PRESENT, dtype=seen.dtype)
        return _CurveScores(torch.cat([scores, known]), torch.cat([seen, present]), torch.cat([counts, worth]), names)


@dataclass(frozen=True)
class _CurveScores:
    """Of a group of categories: left-out scores, labels, how many images each stands for, standardised names."""

    scores: Tensor  # [R, C']
    labels: Tensor
    counts: Tensor
    names: Tensor | None

    def bins(self, name_weight: Tensor | float) -> Bins:
        scores = self.scores if self.names is None else self.scores + name_weight * self.names
        return Bins.of(scores, self.labels, self.counts)

    def own_name_weights(self, common: float, shared: Shared) -> Tensor:
        """[C'] what the name of each category is worth: the mean over some weights by the likelihood of its labels."""
        values = [fit_curves(self.bins(common * own), shared)[2] for own in OWN_NAME_WEIGHTS]
        chance = (torch.stack(values) + torch.tensor(OWN_CHANCES).log()[:, None]).softmax(0)
        return common * (torch.tensor(OWN_NAME_WEIGHTS)[:, None] * chance).sum(0)


def first_of_each(mask: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """Where `mask` [N, C] is set, up to `most` times in a column: row, column, and how many there were above."""
    column, row = mask.T.nonzero(as_tuple=True)
    above = torch.arange(len(column)) - torch.searchsorted(column, column)
    taken = above < most
    return row[taken], column[taken], above[taken]


def _joined(parts: list[Bins]) -> Bins:
    longest = max(len(part.score) for part in parts)
    padded = [[_padded(each, longest) for each in vars(part).values()] for part in parts]
    return Bins(*(torch.cat(column, dim=1) for column in zip(*padded, strict=True)))


def _padded(values: Tensor, length: int) -> Tensor:
    return torch.cat([values, torch.zeros(length - len(values), values.shape[1], dtype=values.dtype)])


def groups(images: Images) -> Iterator[slice]:
    return _slices(images.labels.shape[1], max(_ENTRIES_AT_ONCE // max(len(images.labels), 1), 1))


def _slices(length: int, step: int) -> Iterator[slice]:
    return (slice(first, min(first + step, length)) for first in range(0, length, step))
