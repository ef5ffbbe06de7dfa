"""Fits `Presence` in closed form to partial labels, by evidence in which each label is judged without itself.

ridge scores (and names, windows) left out -> regression -> bias, slopes, habits, thresholds

Twice: how likely a known label was to be known comes out of the first look, and how much it counts goes into the ridge.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fewtags.errors import DataError, UserError
from fewtags.labels import PRESENT, UNKNOWN
from fewtags.presence.decisions import SAMPLE
from fewtags.presence.model import Presence
from fewtags.presence.observation import BEND, bent
from fewtags.presence.regression import (
    MOST_POSITIVES,
    SHARED_BY,
    USUAL_NAME_SLOPE,
    USUAL_SLOPE,
    Cases,
    Prior,
    Shared,
    fit_categories,
    share_of,
    share_of_others,
    share_over,
)
from fewtags.presence.ridge import ImageSums, Ridge, members, slices, unit_length
from fewtags.presence.thresholds import expected_f1_thresholds

THINGS_IN_A_PICTURE = 2.5  # tags that apply per tag a classifier sees, which is trained on single objects
WINDOW_PART = 0.4  # of the slope, what the best window usually has
_ENTRIES_AT_ONCE = 2**22  # scores are computed for groups of categories with about this many entries: bounds the memory
_LABELS_AT_ONCE = 2**14
_SAMPLE = 4096  # images the regression is fitted to, besides the known positives
_LEAST_SLOPE = 0.05
_NO_ANSWERS = (torch.zeros(0), torch.zeros(0, dtype=torch.long), torch.zeros(0))


@dataclass(frozen=True)
class Images:
    """The images of a fit, or a sample of them, in the eigenbasis of all, and the evidence about them."""

    ridge: Ridge
    rotated: Tensor  # [N, D]
    labels: Tensor  # [N, C]
    weights: Tensor  # [N, C] how much each counts as a positive
    names: Tensor | None = None  # [N, C] standardised name scores, 0 where a category has none
    name_weight: Tensor | None = None  # [C] with which they are part of the scores; else they are their own evidence
    best_window: Tensor | None = None  # [N, C] left-out scores of each image's best window, names included
    without_groups: Tensor | None = None  # [N, C] ridge scores without the image's group, where there are groups

    def take(self, rows: Tensor) -> Images:
        each = ("rotated", "labels", "weights", "names", "best_window", "without_groups")
        parts = {name: getattr(self, name) for name in each}
        return replace(self, **{name: part[rows] for name, part in parts.items() if part is not None})

    def leaving_out(self, groups: Tensor | None) -> Images:
        """With whole groups [N] left out instead of single images."""
        if groups is None or not members(groups):
            return self
        return replace(self, without_groups=self.ridge.left_out(self.rotated, self.weights, groups=groups))

    def scores(self, categories: slice | Tensor, rows: Tensor | slice = slice(None)) -> Tensor:
        """[N', C'] without the image itself, or without its group."""
        if self.without_groups is not None:
            scores = self.without_groups[:, categories][rows]
        else:
            scores = self.ridge.left_out(self.rotated[rows], self.weights[:, categories][rows], categories)
        if self.names is None or self.name_weight is None:
            return scores
        return scores + self.name_weight[categories] * self.names[:, categories][rows]

    def scores_of(self, row: Tensor, category: Tensor) -> Tensor:
        """[P] likewise, of single labels."""
        if self.without_groups is not None:
            scores = self.without_groups[row, category]
        else:
            scores = self.ridge.left_out_pairs(self.rotated[row], category, self.weights[row, category])
        if self.names is None or self.name_weight is None:
            return scores
        return scores + self.name_weight[category] * self.names[row, category]

    def other_evidence(self) -> list[Tensor]:
        """[N, C] each, beside the scores."""
        names = self.names if self.name_weight is None else None
        return [part for part in (names, self.best_window) if part is not None]

    def evidence_of(self, row: Tensor, category: Tensor) -> Tensor:
        """[P, J] of single labels."""
        others = (part[row, category] for part in self.other_evidence())
        return torch.stack([self.scores_of(row, category), *others], dim=-1)

    def cases(self, categories: Tensor, rows: Tensor) -> Cases:
        """What the regression of these categories is fitted to: `rows` as a sample of the images, and positives."""
        labels, others = self.labels[:, categories], self.other_evidence()
        evidence = [self.scores(categories, rows), *(part[:, categories][rows] for part in others)]
        row, column, place = first_of_each(labels == PRESENT, MOST_POSITIVES)
        number = (labels == PRESENT).sum(0).float()
        shape = (int(place.max()) + 1 if len(place) else 0, len(categories))
        positives, counts = torch.zeros(*shape, len(evidence)), torch.zeros(shape)
        positives[place, column] = self.evidence_of(row, categories[column])
        counts[place, column] = (number / number.clamp(max=MOST_POSITIVES))[column]
        return Cases.of(positives, counts, torch.stack(evidence, dim=-1), labels[rows], len(self.labels) / len(rows))


@dataclass(frozen=True)
class Fitted:
    """A model and the images it was fitted to, each of whose labels can be judged without itself."""

    model: Presence
    images: Images

    def left_out(self) -> Tensor:
        """[N, C] log-odds of presence, whatever the label."""
        odds = torch.empty(self.images.labels.shape)
        for some in category_groups(odds):
            odds[:, some] = self.left_out_of(some).cpu()
        return odds

    def left_out_of(self, categories: slice) -> Tensor:
        """[N, C'] likewise, of some categories."""
        images, model = self.images, self.model
        window = None if images.best_window is None else images.best_window[:, categories]
        return model.base_odds(images.scores(categories).to(model.slope), window, categories)


@torch.no_grad()
def fit_presence(
    model: Presence,
    sums: ImageSums,
    features: Tensor,
    labels: Tensor,
    *,
    names: Tensor | None = None,
    named: Tensor | None = None,
    known_proportion: float | None = None,
    refine: bool = False,
    groups: Tensor | None = None,
    overwrite: bool = False,
) -> Fitted:
    """To `features` [N, D] with `labels`, which may be some of those that made `sums`.

    `names` [N, C] are name scores of the images, for the categories that are `named` [C]. With `refine` it is
    fitted once more, with unknown labels counting as positives by their probability. With `groups` [N], labels
    are judged without all images of the same number. With `overwrite` the memory of the features is used for what is
    made of them.
    """
    has_labels = bool((labels == PRESENT).any())
    if names is None and not has_labels:
        raise DataError(
            "No label is known to be present, and no category name is known: there is nothing to learn from."
        )
    if known_proportion is not None and not 0 < known_proportion <= 1:
        raise UserError(f"The known proportion should be over 0 and at most 1, not {known_proportion}.")
    standard = _standardise_names(model, names, named)
    for buffer in (model.window_slope, model.lesson_weights, model.lesson_bias):  # of an earlier fit
        buffer.zero_()
    ridge = Ridge.of(sums)
    _keep_sample(model, ridge, features, int(sums.count))
    rotated = ridge.basis.rotate(features, overwrite=overwrite)
    images = Images(ridge, rotated, labels, (labels == PRESENT).float(), standard)
    if not has_labels:
        assert names is not None
        return _fit_names_alone(model, images, names)
    slopes = [USUAL_SLOPE] if standard is None else [USUAL_SLOPE, USUAL_NAME_SLOPE]
    first = _shared_of(images, slopes, known_proportion)
    images = _by_propensity(images, first).leaving_out(groups)
    fitted = regress(model, images, _shared_of(images, slopes, known_proportion, first))
    return _fit_again(fitted, known_proportion, groups) if refine else fitted


def fit_windows(fitted: Fitted, best_window: Tensor, known_proportion: float | None = None) -> Fitted:
    """With the left-out scores [N, C] of each image's best window as further evidence."""
    has_labels = fitted.images.ridge.reliability > 0
    # Both kinds of scores in units of the one evidence there was before.
    usual = float(fitted.model.slope.cpu()[has_labels].mean()) if has_labels.any() else 1.0
    slopes = [(1 - WINDOW_PART) * usual, WINDOW_PART * usual]
    images = replace(fitted.images, best_window=best_window)
    return regress(fitted.model, images, _shared_of(images, slopes, known_proportion))


def known_proportion_of(model: Presence, odds: Tensor) -> Tensor:
    """[C] the share of each category's presences that are known, over images with base log-odds [N, C]."""
    answers, shares = model.answers, torch.empty_like(odds[0])
    for some in category_groups(odds):
        known = odds[:, some].sigmoid() * answers.observation.known(odds[:, some], some)
        shares[some] = known.sum(0) / answers.present(odds[:, some], some).sigmoid().sum(0).clamp(min=1e-12)
    return shares.clamp(max=1)


def _by_propensity(images: Images, shared: Shared) -> Images:
    """With known labels counting as 1 / P(known | present), so that they stand for all presences: people leave out what
    is small more often than what is large (inverse propensity weights; Bekker et al., ECML 2019). In each category 1 on
    average."""
    row, category = (images.labels == PRESENT).nonzero(as_tuple=True)
    weight = torch.empty(len(row))
    for some in slices(len(row), _LABELS_AT_ONCE):
        evidence = images.evidence_of(row[some], category[some]).double()
        odds = bent(shared.mean[0] + evidence @ shared.mean[1:-1])
        weight[some] = (1 + (-shared.mean[-1] - shared.clarity * odds).exp()).float()
    weights = images.weights.clone()
    weights[row, category] = weight
    return _recounted(images, weights * (images.weights.sum(0) / weights.sum(0).clamp(min=1e-12)))


def _recounted(images: Images, weights: Tensor) -> Images:
    """Counting as positives by other `weights` [N, C]."""
    ridge = images.ridge.recounted(images.rotated, images.weights, weights)
    return replace(images, ridge=ridge, weights=weights, without_groups=None)


def _fit_again(fitted: Fitted, known_proportion: float | None, groups: Tensor | None) -> Fitted:
    """With the labels that were found. Names count as much as before: found labels say what names do."""
    model, images = fitted.model, fitted.images
    hidden = model.answers.if_unknown(fitted.left_out().to(model.slope)).sigmoid().cpu()
    # The noisier the mean of the known positives, the more the others count. Names alone are not trusted so.
    noise = torch.where((images.labels == PRESENT).any(0), 1 - images.ridge.reliability, 0.0)
    found = torch.where(images.labels == UNKNOWN, noise * hidden, images.weights)
    images = _recounted(images, found).leaving_out(groups)
    return regress(model, images, _shared_of(images, [USUAL_SLOPE], known_proportion))


def regress(model: Presence, images: Images, shared: Shared) -> Fitted:
    """By all left-out evidence, and what all categories share."""
    labels, rows = images.labels, sample_rows(len(images.labels))
    several, others = _several_and_others(labels)
    kinds = [(several, shared)]
    if len(others):
        kinds.append((others, share_of_others(images.cases(_some(others), rows), shared)))
    theta = torch.empty(labels.shape[1], len(shared.mean), dtype=torch.float64)
    for categories, usual in kinds:
        for part in categories.split(max(2**19 // max(len(rows), 1), 1)):
            theta[part] = fit_categories(images.cases(part, rows), usual)
    _set(model, images.ridge, theta.float(), shared.clarity)
    if images.best_window is not None:
        model.window_slope.copy_(theta[:, 2].float().clamp(min=0))
    elif images.names is not None and images.name_weight is None:
        slope = torch.where(images.ridge.reliability > 0, theta[:, 1].float(), 1.0).clamp(min=_LEAST_SLOPE)
        model.slope.copy_(slope)
        model.name_weight.copy_(theta[:, 2].float() / slope)
    return _with_thresholds(Fitted(model, replace(images, name_weight=model.name_weight.cpu().clone())))


def _shared_of(
    images: Images, slopes: list[float], known_proportion: float | None, earlier: Shared | None = None
) -> Shared:
    """What all categories share, of which `slopes` are usual. How tags come to be known is taken from an `earlier`
    look, where there was one."""
    labels, several = images.labels, _some(_several_and_others(images.labels)[0])
    tags = float((labels == PRESENT).sum()) / len(labels)
    prior = Prior.of(slopes, tags, labels.shape[1])
    cases = images.cases(several, sample_rows(len(labels)))
    if earlier is None:
        return share_of(cases, prior, known_proportion)
    return share_over(cases, prior.with_habit(earlier.mean[-1]), [(earlier.habit_spread, earlier.clarity)])


def _several_and_others(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Categories with several known labels, and others: without its only known positive nothing is known of one."""
    known = (labels == PRESENT).sum(0)
    enough = known >= min(2, int(known.max()))
    return enough.nonzero()[:, 0], (~enough).nonzero()[:, 0]


def _some(categories: Tensor) -> Tensor:
    """As many as are enough to tell what they share, evenly over all."""
    return categories[:: max(len(categories) // SHARED_BY, 1)][:SHARED_BY]


def _set(model: Presence, ridge: Ridge, theta: Tensor, clarity: float) -> None:
    """What the regressions found, `theta` [C, J + 2] the second one, and no answers yet."""
    model.weights.copy_(ridge.weights())
    model.mean.copy_(ridge.basis.mean)
    model.bias.copy_(theta[:, 0])
    model.slope.copy_(theta[:, 1].clamp(min=_LEAST_SLOPE))
    model.habit.copy_(theta[:, -1])
    model.clarity.fill_(clarity)
    model.bend.fill_(BEND)
    model.take_answers(*_NO_ANSWERS)


def _keep_sample(model: Presence, ridge: Ridge, features: Tensor, num_images: int) -> None:
    """What decisions are learned with."""
    basis = ridge.basis
    strongest = basis.vectors[:, -model.directions.shape[1] :]  # ascending eigenvalues
    size = max(float(torch.isfinite(basis.scale).sum()), 1.0)
    model.directions.copy_(strongest / basis.scale[:, None] / size**0.5)
    rows = torch.randperm(len(features), generator=torch.Generator().manual_seed(0))[:SAMPLE].sort().values
    model.sample = unit_length(features[rows]).half().to(model.sample.device)
    model.num_images.fill_(num_images)


def _standardise_names(model: Presence, names: Tensor | None, named: Tensor | None) -> Tensor | None:
    """Name scores with mean 0 and spread 1 over the images."""
    model.name_factor.zero_()
    model.name_weight.zero_()
    if names is None:
        return None
    variance = names.var(0, correction=0)
    named = (variance > 1e-12) & (torch.ones_like(variance, dtype=torch.bool) if named is None else named.cpu())
    model.name_mean.copy_(names.mean(0))
    model.name_factor.copy_(torch.where(named, 1 / variance.sqrt().clamp(min=1e-6), 0.0))
    return model.standard_names(names.to(model.name_mean)).cpu()


def _fit_names_alone(model: Presence, images: Images, names: Tensor) -> Fitted:
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
    named = model.name_factor.cpu() > 0
    bias, ones = torch.where(named, low, -8.0), torch.ones(len(named))
    _set(model, images.ridge, torch.stack([bias, ones, -8 * ones], dim=1), clarity=0.0)
    model.name_weight.copy_(slope * named)
    return _with_thresholds(Fitted(model, replace(images, name_weight=model.name_weight.cpu().clone())))


def _with_thresholds(fitted: Fitted) -> Fitted:
    """After choosing the thresholds of best expected F1 by a sample of the images."""
    model, images = fitted.model, fitted.images
    rows = sample_rows(len(images.labels))
    few = Fitted(model, images.take(rows)) if len(rows) < len(images.labels) else fitted
    for some in category_groups(few.images.labels):
        present = model.answers.present(few.left_out_of(some), some).sigmoid()
        model.thresholds[some] = torch.from_numpy(expected_f1_thresholds(present.cpu().numpy())).to(model.thresholds)
    return fitted


def category_groups(entries: Tensor) -> Iterator[slice]:
    """Columns of `entries` [N, C], so many that scores of all their rows fit in memory."""
    return slices(entries.shape[1], max(_ENTRIES_AT_ONCE // max(len(entries), 1), 1))


def sample_rows(number: int) -> Tensor:
    if number <= _SAMPLE:
        return torch.arange(number)
    return torch.randperm(number, generator=torch.Generator().manual_seed(0))[:_SAMPLE].sort().values


def first_of_each(mask: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """Where `mask` [N, C] is set, up to `most` times in a column, at random: row, column, and how many were before."""
    column, row = mask.T.nonzero(as_tuple=True)
    order = torch.randperm(len(column), generator=torch.Generator().manual_seed(0))
    order = order[column[order].argsort(stable=True)]
    column, row = column[order], row[order]
    before = torch.arange(len(column)) - torch.searchsorted(column, column)
    taken = before < most
    return row[taken], column[taken], before[taken]
