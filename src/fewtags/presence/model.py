"""The presence of tags in images: evidence -> log-odds -> probabilities, fitted in closed form to partial labels.

score = ridge score of the whole image + name weight * what the name says            `ridge`, `models.names`
o = bent(bias + slope * score + window slope * score of the best window)             `regression`
o of an unknown label is lower: it might have been known                             `observation`
answers move these, and with them P(present) of every other image                    `answers`

model = Presence(num_categories, feature_dim)
fitted = model.fit(ImageSums.of(features, labels), features, labels)
model.log_odds(images)                             # of other images
fitted.left_out()                                  # of its own, each label judged without itself
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from fewtags.errors import DataError, UserError
from fewtags.labels import PRESENT, UNKNOWN
from fewtags.presence.answers import Answers, Correction
from fewtags.presence.decisions import DIRECTIONS, SAMPLE, Kept, Lesson
from fewtags.presence.observation import BEND, Observation, bent
from fewtags.presence.regression import (
    MOST_POSITIVES,
    USUAL_NAME_SLOPE,
    USUAL_SLOPE,
    Cases,
    Prior,
    Shared,
    fit_categories,
    share_of,
)
from fewtags.presence.ridge import ImageSums, Ridge, members, slices, unit_length
from fewtags.presence.thresholds import expected_f1_thresholds

NAME_IMAGES = 30.0  # prior weight of the usual spread of name scores, in images
THINGS_IN_A_PICTURE = 2.5  # tags that apply per tag a classifier sees, which is trained on single objects
WINDOW_PART = 0.4  # of the slope, what the best window usually has
_ENTRIES_AT_ONCE = 2**22  # scores are computed for groups of categories with about this many entries: bounds the memory
_SAMPLE = 4096  # images the regression is fitted to, besides the known positives
_LEAST_SLOPE = 0.05
_NO_ANSWERS = (torch.zeros(0), torch.zeros(0, dtype=torch.long), torch.zeros(0))


@dataclass(frozen=True)
class Images:
    """The images of a fit, or a sample of them, in the eigenbasis of all."""

    ridge: Ridge
    rotated: Tensor  # [N, D]
    labels: Tensor  # [N, C]
    weights: Tensor  # [N, C] how much each counts as a positive
    names: Tensor | None = None  # [N, C] standardised name scores, 0 where a category has none
    best_window: Tensor | None = None  # [N, C] left-out scores of each image's best window, names included
    without_groups: Tensor | None = None  # [N, C] ridge scores without the image's group, where there are groups

    def take(self, rows: Tensor) -> Images:
        more = (None if part is None else part[rows] for part in (self.names, self.best_window, self.without_groups))
        return Images(self.ridge, self.rotated[rows], self.labels[rows], self.weights[rows], *more)

    def leaving_out(self, groups: Tensor | None) -> Images:
        """With whole groups [N] left out instead of single images."""
        if groups is None or not members(groups):
            return self
        return replace(self, without_groups=self.ridge.left_out(self.rotated, self.weights, groups=groups))

    def left_out(self, categories: slice | Tensor, rows: Tensor | slice = slice(None)) -> Tensor:
        """[N', C'] ridge scores without the image, or without its group."""
        if self.without_groups is not None:
            return self.without_groups[rows][:, categories]
        return self.ridge.left_out(self.rotated[rows], self.weights[rows][:, categories], categories)

    def left_out_pairs(self, row: Tensor, category: Tensor) -> Tensor:
        """[P] likewise."""
        if self.without_groups is not None:
            return self.without_groups[row, category]
        return self.ridge.left_out_pairs(self.rotated[row], category, self.weights[row, category])

    def groups(self) -> Iterator[slice]:
        """Categories, so many that scores of all images fit in memory."""
        return slices(self.labels.shape[1], max(_ENTRIES_AT_ONCE // max(len(self.labels), 1), 1))


@dataclass(frozen=True)
class Fitted:
    """A model and the images it was fitted to, each of whose labels can be judged without itself."""

    model: Presence
    images: Images
    shared: Shared

    def scores(self, categories: slice) -> Tensor:
        """[N, C'] left-out scores of whole images."""
        images, model = self.images, self.model
        scores = images.left_out(categories)
        if images.names is not None:
            scores = scores + model.name_weight[categories].cpu() * images.names[:, categories]
        return scores

    def left_out(self) -> Tensor:
        """[N, C] log-odds of presence, whatever the label."""
        odds = torch.empty(self.images.labels.shape)
        best = self.images.best_window
        for some in self.images.groups():
            window = None if best is None else best[:, some]
            odds[:, some] = self.model.base_odds(self.scores(some).to(self.model.slope), window, some).cpu()
        return odds


class Presence(nn.Module):
    """All state is in buffers; a saved model needs nothing else."""

    weights: Tensor
    mean: Tensor
    name_weight: Tensor
    name_mean: Tensor
    name_factor: Tensor
    slope: Tensor
    window_slope: Tensor
    bias: Tensor
    bend: Tensor
    habit: Tensor
    clarity: Tensor
    uncertain: Tensor
    answer_offset: Tensor
    answer_slope: Tensor
    thresholds: Tensor
    lesson_weights: Tensor
    lesson_bias: Tensor
    directions: Tensor
    sample: Tensor
    num_images: Tensor

    def __init__(self, num_categories: int, feature_dim: int):
        super().__init__()
        each = torch.zeros(num_categories)
        self.register_buffer("weights", torch.zeros(num_categories, feature_dim))  # of unit-length features, less
        self.register_buffer("mean", torch.zeros(feature_dim))  # their mean
        self.register_buffer("name_weight", each.clone())  # of standardised name scores
        self.register_buffer("name_mean", each.clone())
        self.register_buffer("name_factor", each.clone())  # 1 / their standard deviation; 0 without a name
        self.register_buffer("slope", each + 1)
        self.register_buffer("window_slope", each.clone())
        self.register_buffer("bias", each.clone())
        self.register_buffer("bend", torch.tensor(BEND))  # models of version 0.1 have others
        self.register_buffer("habit", each.clone())  # see `observation`
        self.register_buffer("clarity", torch.zeros(()))
        self.register_buffer("uncertain", torch.zeros(()))  # see `regression.Shared`
        self.register_buffer("answer_offset", each.clone())  # see `answers`
        self.register_buffer("answer_slope", torch.zeros(()))
        self.register_buffer("thresholds", each + 0.5)
        self.register_buffer("lesson_weights", torch.zeros(num_categories, feature_dim))  # of unit-length features, see
        self.register_buffer("lesson_bias", each.clone())  # `decisions`; and what they are learned with:
        self.register_buffer("directions", torch.zeros(feature_dim, min(DIRECTIONS, feature_dim)))
        self.register_buffer("sample", torch.zeros(0, feature_dim, dtype=torch.half))  # images, of unit length
        self.register_buffer("num_images", torch.zeros(()))
        self._kept: Kept | None = None  # see `kept`

    # --- prediction ---

    def standard_names(self, names: Tensor) -> Tensor:
        """[N, C] name scores with mean 0 and spread 1 over the images of the fit; 0 where a category has no name."""
        return (names - self.name_mean) * self.name_factor

    def scores(self, unit_features: Tensor, names: Tensor | None = None, categories: slice = slice(None)) -> Tensor:
        """[N, C'] of pooled features of unit length [N, D]; `names` [N, C] are their name scores, where the fit had
        them."""
        weights = self.weights[categories]
        scores = unit_features @ weights.T - weights @ self.mean
        if names is None:
            return scores
        return scores + self.name_weight[categories] * self.standard_names(names)[:, categories]

    def base_odds(
        self, scores: Tensor, best_window: Tensor | None = None, categories: slice | int = slice(None)
    ) -> Tensor:
        """Log-odds of presence by the labels alone, given scores of whole images and of their best windows."""
        eta = self.bias[categories] + self.slope[categories] * scores
        if best_window is not None:
            eta = eta + self.window_slope[categories] * best_window.to(eta)
        return bent(eta, self.bend)

    def odds_of(
        self,
        unit_features: Tensor,
        scores: Tensor,
        best_window: Tensor | None = None,
        categories: slice = slice(None),
    ) -> Tensor:
        """[N, C'] log-odds of presence by labels, answers and decisions, of images about which nobody was asked."""
        odds = self.answers.present(self.base_odds(scores, best_window, categories), categories)
        return odds + unit_features @ self.lesson_weights[categories].T + self.lesson_bias[categories]

    def log_odds(self, features: Tensor, names: Tensor | None = None) -> Tensor:
        """[N, C] likewise, from pooled features [N, D] and their name scores."""
        unit_features = unit_length(features)
        return self.odds_of(unit_features, self.scores(unit_features, names))

    forward = log_odds

    @property
    def observation(self) -> Observation:
        return Observation(self.habit, self.clarity)

    @property
    def answers(self) -> Answers:
        return Answers(self.observation, self.answer_offset, self.answer_slope)

    def known_proportion(self, odds: Tensor) -> Tensor:
        """[C] the share of each category's presences that are known, over images with base log-odds [N, C]."""
        known = odds.sigmoid() * self.observation.known(odds)
        return (known.sum(0) / self.answers.present(odds).sigmoid().sum(0).clamp(min=1e-12)).clamp(max=1)

    # --- fitting ---

    @torch.no_grad()
    def fit(
        self,
        sums: ImageSums,
        features: Tensor,
        labels: Tensor,
        *,
        names: Tensor | None = None,
        named: Tensor | None = None,
        known_proportion: float | None = None,
        refine: bool = False,
        groups: Tensor | None = None,
    ) -> Fitted:
        """To `features` [N, D] with `labels`, which may be some of those that made `sums`.

        `names` [N, C] are name scores of the images, for the categories that are `named` [C]. With `refine` it is
        fitted a second time, with unknown labels counting as positives by their probability. With `groups` [N], labels
        are judged without all images of the same number.
        """
        if names is None and not (labels == PRESENT).any():
            raise DataError(
                "No label is known to be present, and no category name is known: there is nothing to learn from."
            )
        if known_proportion is not None and not 0 < known_proportion <= 1:
            raise UserError(f"The known proportion should be over 0 and at most 1, not {known_proportion}.")
        standard = self._standardise(names, named)
        self._forget()
        ridge = self._take_ridge(sums)
        images = Images(ridge, ridge.basis.rotate(features), labels, (labels == PRESENT).float(), standard)
        images = images.leaving_out(groups)
        if names is not None and not (labels == PRESENT).any():
            fitted = self._fit_names_only(images, names)
        else:
            fitted = self._fit_scores(images, known_proportion)
        self._keep(fitted.images.ridge, features, int(sums.count))
        if not refine or not (labels == PRESENT).any():
            return fitted
        hidden = self.answers.if_unknown(fitted.left_out().to(self.slope)).sigmoid().cpu()
        known = (labels == PRESENT).float()
        # The noisier the mean of the known positives, the more the others count. Names alone are not trusted so.
        noise = torch.where(known.any(0), 1 - ridge.reliability, 0.0)
        found = torch.where(labels == UNKNOWN, noise * hidden, known)
        again = sums.relabelled(features, found)
        share = float(sums.count) / len(features)  # the images may be a sample of those behind the sums
        again.weight, again.weight_squared = again.weight * share, again.weight_squared * share
        again.positive_total = again.positive_total * share
        ridge = self._take_ridge(again)
        images = Images(ridge, ridge.basis.rotate(features), labels, found, standard).leaving_out(groups)
        return self._fit_again(images, known_proportion)

    def _take_ridge(self, sums: ImageSums) -> Ridge:
        ridge = Ridge.of(sums)
        self.weights.copy_(ridge.weights())
        self.mean.copy_(ridge.basis.mean)
        return ridge

    def _forget(self) -> None:
        """What decisions have taught, and windows."""
        for name in ("window_slope", "lesson_weights", "lesson_bias"):
            getattr(self, name).zero_()

    def _keep(self, ridge: Ridge, features: Tensor, num_images: int) -> None:
        """What decisions are learned with."""
        basis = ridge.basis
        strongest = basis.vectors[:, -self.directions.shape[1] :]  # ascending eigenvalues
        size = max(float(torch.isfinite(basis.scale).sum()), 1.0)
        self.directions.copy_(strongest / basis.scale[:, None] / size**0.5)
        rows = torch.randperm(len(features), generator=torch.Generator().manual_seed(0))[:SAMPLE].sort().values
        self.sample = unit_length(features[rows]).half().to(self.sample.device)
        self.num_images.fill_(num_images)
        self._kept = None

    def _fit_scores(self, images: Images, known_proportion: float | None) -> Fitted:
        """By the ridge scores and names of the images."""
        slopes = [USUAL_SLOPE] if images.names is None else [USUAL_SLOPE, USUAL_NAME_SLOPE]
        theta, shared = self._regress(images, slopes, known_proportion)
        self._set(theta, shared)
        if images.names is not None:
            has_labels = images.ridge.reliability > 0
            slope = torch.where(has_labels, theta[:, 1].float(), 1.0).clamp(min=_LEAST_SLOPE)
            self.slope.copy_(slope)
            self.name_weight.copy_(theta[:, 2].float() / slope)
        fitted = Fitted(self, images, shared)
        self._choose_thresholds(fitted)
        return fitted

    def _fit_again(self, images: Images, known_proportion: float | None) -> Fitted:
        """With other ridge scores, beside which names count as much as before: found labels say what names do."""
        theta, shared = self._regress(images, [USUAL_SLOPE], known_proportion, adds_names=True)
        self._set(theta, shared)
        fitted = Fitted(self, images, shared)
        self._choose_thresholds(fitted)
        return fitted

    def fit_windows(self, fitted: Fitted, best_window: Tensor, known_proportion: float | None = None) -> Fitted:
        """With the left-out scores [N, C] of each image's best window as further evidence."""
        images = replace(fitted.images, best_window=best_window)
        whole = torch.cat([fitted.scores(some) for some in images.groups()], dim=1)
        # Both kinds of scores in units of the one evidence there was before.
        slope = self.slope.cpu()
        usual = float(slope[images.ridge.reliability > 0].mean()) if (images.ridge.reliability > 0).any() else 1.0
        theta, shared = self._regress(
            replace(images, names=None), [(1 - WINDOW_PART) * usual, WINDOW_PART * usual], known_proportion, whole=whole
        )
        self._set(theta, shared)
        self.window_slope.copy_(theta[:, 2].float().clamp(min=0))
        again = Fitted(self, images, shared)
        self._choose_thresholds(again)
        return again

    def _set(self, theta: Tensor, shared: Shared) -> None:
        theta = theta.float()
        self.bias.copy_(theta[:, 0])
        self.slope.copy_(theta[:, 1].clamp(min=_LEAST_SLOPE))
        self.habit.copy_(theta[:, -1])
        self.clarity.fill_(shared.clarity)
        self.uncertain.fill_(shared.uncertain)
        self.bend.fill_(BEND)
        self.take_answers(*_NO_ANSWERS)

    def _regress(
        self,
        images: Images,
        slopes: list[float],
        known_proportion: float | None,
        *,
        whole: Tensor | None = None,
        adds_names: bool = False,
    ) -> tuple[Tensor, Shared]:
        """[C, J + 2] by the left-out evidence: ridge scores or those of the `whole`, names, best windows. Names are an
        evidence of their own, or are added to the ridge scores as they are in `scores`."""
        labels = images.labels
        known_tags = float((labels == PRESENT).sum(1).float().mean())
        prior = Prior.of(slopes, known_tags, labels.shape[1], known_proportion)
        sample = _Sample(images, whole, self.name_weight.cpu() if adds_names else None)
        known = (labels == PRESENT).sum(0)
        # Without its only known positive nothing is known of a category.
        few = (known >= min(2, int(known.max()))).nonzero()[:, 0]
        few = few[:: max(len(few) // 64, 1)][:64]
        shared = share_of(sample.cases(few), prior, given=known_proportion is not None)
        size = max(2**19 // max(len(sample.rows), 1), 1)
        parts = [
            fit_categories(sample.cases(torch.arange(part.start, part.stop)), shared)
            for part in slices(labels.shape[1], size)
        ]
        return torch.cat(parts), shared

    def _standardise(self, names: Tensor | None, named: Tensor | None) -> Tensor | None:
        """Name scores with mean 0 and spread 1 over the images."""
        self.name_factor.zero_()
        self.name_weight.zero_()
        if names is None:
            return None
        variance = names.var(0, correction=0)
        named = (variance > 1e-12) & (torch.ones_like(variance, dtype=torch.bool) if named is None else named.cpu())
        # A category absent from a few images would have a small spread, and every later image would be far above it.
        usual = variance[named].mean() if named.any() else torch.ones(())
        deviation = ((len(names) * variance + NAME_IMAGES * usual) / (len(names) + NAME_IMAGES)).sqrt()
        self.name_mean.copy_(names.mean(0))
        self.name_factor.copy_(torch.where(named, 1 / deviation.clamp(min=1e-6), 0.0))
        return self.standard_names(names.to(self.name_mean)).cpu()

    def _fit_names_only(self, images: Images, names: Tensor) -> Fitted:
        """No label is known at all: as many presences are expected as the backbone's classifier sees, times the
        number of things in a picture, as it sees one."""
        assert images.names is not None
        slope = 2 * USUAL_NAME_SLOPE
        share = (THINGS_IN_A_PICTURE * names.exp().mean(0)).clamp(1e-3, 0.5)
        low, high = torch.full_like(share, -30.0), torch.full_like(share, 30.0)
        for _ in range(40):
            middle = (low + high) / 2
            below = bent(slope * images.names + middle).sigmoid().mean(0) < share
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        named = self.name_factor.cpu() > 0
        self.bias.copy_(torch.where(named, low, -8.0))
        self.slope.fill_(1.0)
        self.name_weight.copy_(slope * named)
        self.habit.fill_(-8.0)
        self.clarity.zero_()
        fitted = Fitted(self, images, Shared(torch.zeros(4), 0.0, 0.0, 1.0))
        self.uncertain.fill_(1.0)
        self.take_answers(*_NO_ANSWERS)
        self._choose_thresholds(fitted)
        return fitted

    def _choose_thresholds(self, fitted: Fitted) -> None:
        rows = sample_rows(len(fitted.images.labels))
        few = Fitted(self, fitted.images.take(rows), fitted.shared) if len(rows) < len(fitted.images.labels) else fitted
        present = self.answers.present(few.left_out().to(self.habit)).sigmoid()
        self.thresholds.copy_(torch.from_numpy(expected_f1_thresholds(present.cpu().numpy())))

    # --- decisions ---

    def inputs(self, unit_features: Tensor) -> Tensor:
        """[N, K] what lessons are learned from."""
        return (unit_features - self.mean) @ self.directions

    def kept(self) -> Kept:
        """What a lesson may not change; computed once for a fit."""
        if self._kept is None:
            number = max(len(self.sample), 1)
            self._kept = Kept(self.inputs(self.sample.float()).cpu(), float(self.num_images) / number)
        return self._kept

    @property
    def is_of_this_version(self) -> bool:
        """Models of version 0.1 were calibrated for a coin, with other bends: answers do not correct them."""
        return abs(float(self.bend) - BEND) < 1e-6

    def take_answers(self, odds: Tensor, category: Tensor, present: Tensor) -> Correction:
        """Learn from answers `present` [n] about unknown labels, of these base odds [n] and `category` [n]."""
        observation = Observation(self.habit.cpu(), self.clarity.cpu())
        before = observation.if_unknown(odds, category)
        correction = Correction.of(before, category, present, self.habit, float(self.uncertain))
        self.answer_offset.copy_(correction.offset)
        self.answer_slope.copy_(correction.slope)
        return correction

    def take_lesson(self, category: int, lesson: Lesson | None) -> None:
        """Add a lesson to the log-odds of a category; None takes it back."""
        self.lesson_weights[category] = 0.0 if lesson is None else self.directions @ lesson.weights.to(self.directions)
        self.lesson_bias[category] = 0.0 if lesson is None else lesson.bias - self.mean @ self.lesson_weights[category]

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *more: Any) -> None:
        for name, value in self._buffers.items():  # a model that is older than a buffer does without it
            state.setdefault(prefix + name, value)
        self.sample = torch.empty_like(state[prefix + "sample"], device=self.sample.device)  # as many as were saved
        super()._load_from_state_dict(state, prefix, *more)
        self._kept = None


def sample_rows(number: int) -> Tensor:
    if number <= _SAMPLE:
        return torch.arange(number)
    return torch.randperm(number, generator=torch.Generator().manual_seed(0))[:_SAMPLE].sort().values


class _Sample:
    """The images the regression is fitted to: a sample of them, and known positives."""

    def __init__(self, images: Images, whole: Tensor | None, name_weight: Tensor | None):
        self.images, self.whole, self.name_weight = images, whole, name_weight
        self.rows = sample_rows(len(images.labels))
        names = images.names if name_weight is None else None
        self.others = [part for part in (names, images.best_window) if part is not None]

    def cases(self, categories: Tensor) -> Cases:
        images, rows = self.images, self.rows
        labels = images.labels[:, categories]
        evidence = [self._whole(categories), *(part[rows][:, categories] for part in self.others)]
        row, column, place = first_of_each(labels == PRESENT, MOST_POSITIVES)
        number = (labels == PRESENT).sum(0).float()
        shape = (int(place.max()) + 1 if len(place) else 0, len(categories))
        positives, counts = torch.zeros(*shape, len(evidence)), torch.zeros(shape)
        of_pairs = [
            self._whole_pairs(row, categories[column]),
            *(part[row, categories[column]] for part in self.others),
        ]
        positives[place, column] = torch.stack(of_pairs, dim=-1)
        counts[place, column] = (number / number.clamp(max=MOST_POSITIVES))[column]
        return Cases.of(positives, counts, torch.stack(evidence, dim=-1), labels[rows], len(images.labels) / len(rows))

    def _whole(self, categories: Tensor) -> Tensor:
        images, rows = self.images, self.rows
        if self.whole is not None:
            return self.whole[rows][:, categories]
        scores = images.left_out(categories, rows)
        if self.name_weight is not None and images.names is not None:
            scores = scores + self.name_weight[categories] * images.names[rows][:, categories]
        return scores

    def _whole_pairs(self, row: Tensor, category: Tensor) -> Tensor:
        images = self.images
        if self.whole is not None:
            return self.whole[row, category]
        scores = images.left_out_pairs(row, category)
        if self.name_weight is not None and images.names is not None:
            scores = scores + self.name_weight[category] * images.names[row, category]
        return scores


def first_of_each(mask: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """Where `mask` [N, C] is set, up to `most` times in a column, at random: row, column, and how many were before."""
    column, row = mask.T.nonzero(as_tuple=True)
    order = torch.randperm(len(column), generator=torch.Generator().manual_seed(0))
    order = order[column[order].argsort(stable=True)]
    column, row = column[order], row[order]
    before = torch.arange(len(column)) - torch.searchsorted(column, column)
    taken = before < most
    return row[taken], column[taken], before[taken]
