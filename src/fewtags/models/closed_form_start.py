"""The start of a closed-form head: a pass over the training images, and the fit.

With windows it takes two passes; sums and samples of several processes are put together.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fewtags import distributed
from fewtags.contract import Batch, FitFacts, Start
from fewtags.errors import DataError
from fewtags.labels import PRESENT
from fewtags.presence.bursts import SAME_MOMENT, burst_leaders
from fewtags.presence.estimates import Judged
from fewtags.presence.fitting import Fitted, fit_presence, fit_windows, known_proportion_of
from fewtags.presence.observation import Observation
from fewtags.presence.ridge import Basis, ImageSums, slices, unit_length
from fewtags.presence.windows import ENTRIES, best_left_out, overlapping_by_half, unit_windows

if TYPE_CHECKING:
    from fewtags.models.closed_form import ClosedFormHead

KEEP = 2**28  # values: the pooled features kept for the regression (1 GB)
IMAGES_AT_ONCE = 8192
WINDOW_ROWS = 30_000  # windows used to compute the directions of the whitening


def start_closed_form(head: ClosedFormHead, batches: Iterable[Batch], num_images: int) -> Start:
    """In one pass over the batches; two with `windows`, so they should not be an iterator then."""
    config, model = head.config, head.presence
    window = None if head.spec.looks_at_the_average else config.window
    seen = FeatureAccumulator(head.num_categories, head.in_channels, num_images, window)
    for batch in batches:
        seen.add(batch)
    sums, features, labels, index = seen.everything()
    head.feature_norm.copy_(seen.mean_norm())
    names = _name_scores(head, features)
    fitted = fit_presence(
        model,
        sums,
        features,
        labels,
        names=names,
        named=None if head.names is None else head.names.known,
        known_proportion=config.known_proportion,
        refine=config.refine,
        groups=_units(head, features, index),
        overwrite=True,
    )
    if config.windows and seen.has_windows:
        fitted, index = _look_at_windows(head, fitted, batches, index)
    if head.residual is not None:
        head.residual.start(fitted.images.ridge.basis, *seen.windows())
    odds = fitted.left_out()
    observation = Observation(model.habit.cpu(), model.clarity.cpu())
    judged = Judged(odds, fitted.images.labels, observation, int(sums.count))
    return Start(
        known_proportion=known_proportion_of(model, odds.to(model.habit)),
        judged=judged,
        judged_images=index,
        facts=_facts(head, judged, names, labels),
    )


def _name_scores(head: ClosedFormHead, features: Tensor) -> Tensor | None:
    """[N, C] of features [N, D]; None without names."""
    if head.names is None:
        return None
    scores = torch.empty(len(features), head.num_categories)
    for rows in slices(len(features), IMAGES_AT_ONCE):
        found = head.name_scores(unit_length(features[rows]).to(head.feature_norm))
        assert found is not None
        scores[rows] = found.cpu()
    return scores


def _units(head: ClosedFormHead, features: Tensor, index: Tensor) -> Tensor | None:
    """[N] which images are judged without each other: given groups, else bursts if these are wanted."""
    if head.groups is not None or not head.finds_bursts:
        return None if head.groups is None else head.groups[index]
    return burst_leaders(unit_length(features), least=SAME_MOMENT)


def _look_at_windows(
    head: ClosedFormHead, fitted: Fitted, batches: Iterable[Batch], index: Tensor
) -> tuple[Fitted, Tensor]:
    """A second pass over the batches: of all images of the fit, or of a sample, the best window. Also which images
    these are."""
    most = max(ENTRIES // head.num_categories, 1)
    used = torch.zeros(len(index), dtype=torch.bool)
    used[torch.randperm(len(index), generator=torch.Generator().manual_seed(0))[:most]] = True
    rows, best = [], []
    for batch, windows, names in _with_windows(head, batches):
        place = torch.searchsorted(index, batch.index.cpu()).clamp(max=len(index) - 1)
        mine = (index[place] == batch.index.cpu()) & used[place]
        of_windows = None if names is None else names[mine.to(names.device)]
        rows.append(place[mine])
        best.append(best_left_out(fitted, place[mine], windows[mine.to(windows.device)], of_windows))
    everyone, scores = distributed.gather_rows(torch.cat(rows)), distributed.gather_rows(torch.cat(best))
    order = everyone.argsort()
    few = replace(fitted, images=fitted.images.take(everyone[order]))
    return fit_windows(few, scores[order], head.config.known_proportion), index[everyone[order]]


def _with_windows(head: ClosedFormHead, batches: Iterable[Batch]) -> Iterator[tuple[Batch, Tensor, Tensor | None]]:
    """Batches with their unit-length windows [B, L, D] and the windows' name scores [B, L, C]."""
    side = head.config.window
    for batch in batches:
        windows, grid = unit_windows(batch.images.float(), side)
        windows = windows[:, overlapping_by_half(grid, side)]
        names = head.name_scores(windows.flatten(0, 1))
        yield batch, windows, None if names is None else names.unflatten(0, windows.shape[:2])


def _facts(head: ClosedFormHead, judged: Judged, name_scores: Tensor | None, labels_named: Tensor) -> FitFacts:
    """`name_scores` [N, C] are of images with the labels `labels_named`."""
    labels, names = judged.labels, head.names
    doubtful: list[int] = []
    if names is not None and name_scores is not None:
        doubtful = least_agreeing(name_scores, labels_named, names.known.cpu())
    known, share = (labels == PRESENT).sum(0), None
    if known.any():
        share = float(known.sum() / (known.sum() + judged.missing().sum()))
    return FitFacts(
        num_images=judged.num_images or len(labels),
        known_positives=tuple(known.tolist()),
        known_share=share,
        share_is_given=head.config.known_proportion is not None,
        num_named=None if names is None else int(names.known.sum()),
        name_matches=() if names is None else tuple(names.sentences),
        doubtful_names=tuple(doubtful),
    )


def least_agreeing(scores: Tensor, labels: Tensor, named: Tensor) -> list[int]:
    """Categories whose name and known images disagree, worst first: by how far above the mean the name scores of these
    images are, in standard deviations."""
    present = labels == PRESENT
    count = present.sum(0)
    mean = (scores * present).sum(0) / count.clamp(min=1)
    above = (mean - scores.mean(0)) / scores.std(0).clamp(min=1e-6)
    judged = (named & (count > 0)).nonzero().flatten()
    return judged[above[judged].argsort(stable=True)].tolist()


class FeatureAccumulator:
    """Accumulates sums over all images from batches of maps, and a sample of their pooled features."""

    def __init__(self, num_categories: int, in_channels: int, num_images: int, window: int | None = None):
        """With a `window`, also sums over windows of this side."""
        self.window = window
        self.sums = ImageSums(num_categories, in_channels)
        self.norms = torch.zeros((), dtype=torch.float64)  # sum of the features' lengths
        self.window_sums = ImageSums(num_categories, in_channels if window is not None else 0)
        self.window_total = torch.zeros(num_categories, in_channels, dtype=torch.float64)
        draws = torch.rand(num_images, generator=torch.Generator().manual_seed(0))
        self.kept = draws < KEEP / in_channels / max(num_images, 1)
        self.draws = draws
        self.has_windows = False  # more than one in an image
        # Rows of the images that are kept, in their order and each at its place: to sort them would take their memory
        # twice more.
        self.place = self.kept.cumsum(0) - 1  # [N]
        number = int(self.kept.sum())
        self.features = torch.empty(number, in_channels)
        self.labels = torch.zeros(number, num_categories, dtype=torch.int8)
        self.seen = torch.zeros(number, dtype=torch.bool)

    def add(self, batch: Batch) -> None:
        pooled, labels, index = batch.images.float().mean((2, 3)).cpu(), batch.labels.cpu(), batch.index.cpu()
        self.sums.add(pooled, labels)
        self.norms += pooled.norm(dim=1).sum()
        kept = self.kept[index]
        place = self.place[index[kept]]
        self.features[place], self.labels[place], self.seen[place] = pooled[kept], labels[kept], True
        if self.window is not None:
            self._add_windows(batch.images.float(), self.window, labels, index)

    def _add_windows(self, maps: Tensor, side: int, labels: Tensor, index: Tensor) -> None:
        windows = unit_windows(maps, side)[0].cpu()  # [B, L, D]
        self.has_windows = windows.shape[1] > 1
        self.window_total += (labels == PRESENT).double().T @ windows.mean(1).double()
        sample = self.draws[index] < WINDOW_ROWS / windows.shape[1] / len(self.draws)
        rows = windows[sample].flatten(0, 1)
        self.window_sums.add(rows, torch.zeros(len(rows), len(self.window_total)))

    def everything(self) -> tuple[ImageSums, Tensor, Tensor, Tensor]:
        """Sums, features, labels and index of all processes; rows in the original order, however distributed."""
        index, features, labels = self.kept.nonzero()[:, 0], self.features, self.labels
        if not self.seen.all():  # unreadable images, and those of other processes
            index, features, labels = index[self.seen], features[self.seen], labels[self.seen]
        if distributed.world_size() > 1:
            index, features, labels = (distributed.gather_rows(part) for part in (index, features, labels))
            order = index.argsort()
            index, features, labels = index[order], features[order], labels[order]
        if not len(index):
            raise DataError("None of the training images could be read.")
        return across_ranks(self.sums), features, labels, index

    def mean_norm(self) -> Tensor:
        """Mean length of the pooled features."""
        return distributed.sum_across_ranks(self.norms) / across_ranks(self.sums).count.clamp(min=1)

    def windows(self) -> tuple[Basis, Tensor]:
        """The windows' eigenbasis and the mean window of each category's known positives [C, D]."""
        count = across_ranks(self.sums).weight
        total = distributed.sum_across_ranks(self.window_total)
        return Basis.of(across_ranks(self.window_sums)), (total / count.clamp(min=1)[:, None]).float()


def across_ranks(sums: ImageSums) -> ImageSums:
    """The sums over all processes."""
    everyone = copy.copy(sums)
    for name, value in vars(sums).items():
        setattr(everyone, name, distributed.sum_across_ranks(value))
    return everyone
