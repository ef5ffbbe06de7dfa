"""A head that starts at the closed form of `models.discriminant`, computed in one pass over the images, and may learn
more.

    logits = instant(pooled map, names)               fixed after the start; the method `instant` is just this. With
                                                      `windows`, its scores are mixed with the best window's
           + W' x + b                                 what training adds: x is the whitened pooled feature,
           + v_c . sum_l attention_cl y_l             y_l the whitened windows of the map, attended to by each category

W, b and v start at 0 and the categories' queries at the mean of their known positives, so training begins exactly at
the closed form, and a prior shrinks towards it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fewtags import distributed
from fewtags.contract import Batch, Outputs, Problem, Start, WordVectors
from fewtags.errors import DataError
from fewtags.estimates import ScoreBins
from fewtags.labels import PRESENT, UNKNOWN
from fewtags.models.best_window import BestWindow, LeftOutWindows, overlapping_by_half, unit_windows
from fewtags.models.discriminant import Basis, Discriminant, DiscriminantSums, unit_length
from fewtags.models.heads import Head
from fewtags.models.label_memory import LabelMemory
from fewtags.models.leave_one_out import Choice
from fewtags.models.names import NameScorer
from fewtags.models.self_labelling import Round, refine
from fewtags.settings import Settings

KEEP = 2**28  # values: the pooled features kept to choose the penalty and to calibrate (1 GB)
WINDOW_ROWS = 30_000  # windows used to compute the directions of the whitening
NAME_SHARPNESS = 0.7  # classifiers are trained on one object per picture, photos show several
FEW_IMAGES = 200
MOST_NAMES_SAID = 25
WHITENING = 2.0  # added to the eigenvalues when features are whitened for the residual


class ClosedFormHead(Head["ClosedFormHead.Config"]):
    class Config(Settings):
        known_proportion: float | None = Field(None, gt=0, le=1)
        """Share of the present labels that are known; default: estimated from the labels."""
        names: str = "auto"
        """Use of the category names: "auto" uses the classifier the backbone was pretrained with, "none" uses only
        labels, and the path of a file says what individual names mean."""
        refine: bool = False
        """Fit a second time, with unknown labels weighted by their probability of being present, if it helps to rank
        held-out known labels."""
        windows: bool = False
        """Score the windows of the map too, and mix the best one's score with that of the whole image."""
        calibration: str = Field("category", pattern="^(category|shared)$")
        """From scores to probabilities with one curve per category, or one shared curve."""
        residual: bool = False
        """Train a residual on top of the closed form."""
        prior: float = Field(0.03, ge=0)
        """Precision of a Gaussian prior on the residual's weights: half of it times their squares is added to the loss
        of one image. The larger, the closer it stays to the closed form."""
        dropout: float = Field(0.5, ge=0, lt=1)
        """Dropout on the residual's inputs."""
        window: int = Field(3, ge=1)
        """Side of the windows of the map, which `windows` scores and the residual attends to."""
        width: int = Field(512, ge=1)
        """Number of directions of the windows to keep, by variance."""

    needs_start = True
    uses_names = True

    feature_norm: Tensor

    def __init__(self, config: Config, in_channels: int, num_categories: int, words: WordVectors | None = None):
        super().__init__(config, in_channels, num_categories)
        # Single labels can be added only if nothing but labels made the model: no self-labelling, no training.
        keeps_sums = not (config.residual or config.refine)
        self.assumes_random_labels = not config.refine
        self.discriminant = Discriminant(num_categories, in_channels, keeps_sums=keeps_sums)
        self.names: NameScorer | None = None
        self.register_buffer("feature_norm", torch.ones(()))  # mean length of the pooled features
        self.residual = Residual(config, in_channels, num_categories) if config.residual else None
        self.best_window = BestWindow(num_categories) if config.windows else None
        self.looks_at_the_average = self.residual is None and self.best_window is None
        self.feature_dim = self.residual.width if self.residual is not None else None
        self.categories: Sequence[str] = ()

    def use_names(self, names: NameScorer | None) -> None:
        """The name scores of an image, from its pooled feature."""
        self.names = names

    def initialise(self, problem: Problem) -> None:
        self.categories = problem.categories

    @property
    def needs_labels(self) -> bool:
        return self.names is None

    @property
    def thresholds(self) -> Tensor | None:
        """[C] chosen by expected F1 at the start; None if training changes the probabilities afterwards."""
        return self.discriminant.thresholds if self.residual is None else None

    def name_scores(self, unit_features: Tensor) -> Tensor | None:
        """[N, C] of features of length 1 [N, D]; None without names.

        All are treated as having the same length, so that stored features work too.
        """
        if self.names is None:
            return None
        return self.names.scores(unit_features * (NAME_SHARPNESS * self.feature_norm))

    def forward(self, feature_map: Tensor) -> Outputs:
        pooled = unit_length(feature_map.float().mean((2, 3)))  # [B, D]
        windows, grid = None, (1, 1)
        if self.best_window is not None or self.residual is not None:
            windows, grid = unit_windows(feature_map.float(), self.config.window)
        logits = self._closed_form(pooled, windows, grid)
        if self.residual is None:
            return Outputs(logits)
        assert windows is not None
        more, features, attention = self.residual(pooled, windows, grid)
        prior = self.residual.squared_weights() * self.config.prior / 2 if self.training else None
        return Outputs(logits + more, features, attention, prior)

    def _closed_form(self, pooled: Tensor, windows: Tensor | None, grid: tuple[int, int]) -> Tensor:
        """[B, C] log-odds, from unit-length features of the images [B, D] and of their windows [B, L, D]."""
        scores = self.discriminant.scores(pooled, self.name_scores(pooled))
        if self.best_window is not None and windows is not None:
            some = windows[:, overlapping_by_half(grid, self.config.window)]
            each = some.flatten(0, 1)
            of_windows = self.discriminant.scores(each, self.name_scores(each))
            scores = self.best_window(scores, of_windows.unflatten(0, some.shape[:2]))
        return self.discriminant.log_odds(scores)

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *more: Any) -> None:
        if prefix + "names.weight" in state and self.names is None:
            parts = {key: state[f"{prefix}names.{key}"] for key in ("weight", "bias", "members", "unit_length")}
            self.names = NameScorer.from_state_dict(parts).to(self.feature_norm.device)
        state.setdefault(prefix + "feature_norm", self.feature_norm)  # models from before names
        super()._load_from_state_dict(state, prefix, *more)

    # --- the start ---

    def start(self, batches: Iterable[Batch], num_images: int) -> Start:
        """In one pass over the batches; two with `windows`, so they should not be an iterator then."""
        model, told = self.discriminant, self.discriminant.told
        window = None if self.looks_at_the_average else self.config.window
        seen = FeatureAccumulator(self.num_categories, self.in_channels, num_images, window, told)
        for batch in batches:
            seen.add(batch)
        statistics, features, labels, index = seen.everything()
        self.feature_norm.copy_(seen.mean_norm())
        one_curve, given = self.config.calibration == "shared", self.config.known_proportion
        names = self.name_scores(unit_length(features).to(self.feature_norm))
        named = None if self.names is None else self.names.known
        images, choice = model.fit(
            statistics,
            features,
            labels,
            given,
            names=None if names is None else names.cpu(),
            named=named,
            one_curve=one_curve,
        )
        if told is not None:
            told.remember(*seen.known_labels())
        weights, how = (labels == PRESENT).float(), None
        if self.config.refine:
            how, weights = refine(model, images, statistics, choice, one_curve=one_curve)
        left_out = model.left_out(images, weights)
        if self.best_window is not None and seen.has_windows:
            windows = LeftOutWindows(model, images, weights, index)
            left_out = self._look_at_windows(self.best_window, windows, batches, choice)
        if self.residual is not None:
            self.residual.start(model.basis, *seen.windows())
        share = f"{float(model.known_proportion.mean()):.0%} of the tags that apply are known"
        about = f"penalty {choice.penalty:g}, about {share} ({'given' if given else 'estimated'})."
        if not (labels == PRESENT).any():
            about = (
                "no label is known, so tags come from their names alone, with the probabilities of the backbone's "
                "classifier. These could not be checked: review some."
            )
        sentences = [
            f"Closed form from {int(statistics.count):,} images: {about}",
            *self._about_names(choice.name_weight if (labels == PRESENT).any() else None),
            *([about_round(how)] if self.config.refine and (labels == PRESENT).any() else []),
            *self._about_windows(),
            *self._about_few_images(int(statistics.count), labels),
        ]
        return Start("\n".join(sentences), model.known_proportion.clone(), left_out)

    def _look_at_windows(
        self, best_window: BestWindow, windows: LeftOutWindows, batches: Iterable[Batch], choice: Choice
    ) -> ScoreBins:
        """A second pass over the batches. Returns the left-out log-odds with the windows."""
        rows, scores = windows.scores(self._with_windows(batches))
        model, images, weights = self.discriminant, windows.images.take(rows), windows.weights[rows]
        one_curve = self.config.calibration == "shared"
        images, factor, offset = model.look_at_windows(images, weights, choice, scores, one_curve=one_curve)
        best_window.set(images.window_share, factor, offset)
        return model.left_out(images, weights)

    def _with_windows(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, Tensor, Tensor | None]]:
        """Batches with their unit-length windows [B, L, D] and the windows' name scores [B, L, C]."""
        for batch in batches:
            windows, grid = unit_windows(batch.images.float(), self.config.window)
            windows = windows[:, overlapping_by_half(grid, self.config.window)]
            names = self.name_scores(windows.flatten(0, 1))
            yield batch, windows, None if names is None else names.unflatten(0, windows.shape[:2])

    def _about_names(self, weight: float | None) -> list[str]:
        """How each name was matched, and their common `weight` relative to the labels; None if there are no labels."""
        if self.names is None:
            return []
        sentence = (
            f"Names: {int(self.names.known.sum())} of {self.num_categories} are known to the backbone's classifier"
        )
        if weight is not None:
            sentence += f", and count {weight:.2f} times as much as the labels" if weight else ", but do not help here"
        more = len(self.names.sentences) - MOST_NAMES_SAID
        said = [f"  {each}" for each in self.names.sentences[:MOST_NAMES_SAID]]
        return [sentence + ".", *said, *([f"  and {more} more"] if more > 0 else [])]

    def _about_windows(self) -> list[str]:
        if self.best_window is None or not self.best_window.share:
            return []
        return [
            f"Windows: the best one of an image counts {float(self.best_window.share):.0%}, the whole image the rest."
        ]

    def _about_few_images(self, number: int, labels: Tensor) -> list[str]:
        """What would help most if there are few labels."""
        if number >= FEW_IMAGES:
            return []
        known = (labels == PRESENT).sum(0)
        fewest = known.argsort(stable=True)[:3].tolist()
        which = ", ".join(f"'{self.categories[c]}' ({int(known[c])} known)" for c in fewest if c < len(self.categories))
        return [
            f"{number} images are few: rankings will be rough, and of tags predicted with 70 % on average, 60 or 80 % "
            "may be right. More known tags help most" + (f", above all of {which}." if which else ".")
        ]

    # --- changing labels ---

    def relabel(self, feature: Tensor, category: int, label: int) -> None:
        """The image with this pooled feature [D] has the `label` 1, 0 or -1 from now on; see Discriminant.relabel."""
        self.discriminant.relabel(feature, category, label)


def about_round(how: Round | None) -> str:
    if how is None:
        return "Self-labelling does not help to rank held-out known labels: not used."
    return (
        f"Self-labelling: found labels count {how.soft_weight:g} times as much as known ones, with penalty "
        f"{how.penalty:.2g}, chosen on held-out known labels."
    )


class Residual(nn.Module):
    """The trained residual: zero for every image at the start."""

    first_query: Tensor

    def __init__(self, config: ClosedFormHead.Config, in_channels: int, num_categories: int):
        super().__init__()
        self.width = min(config.width, in_channels)
        self.whiten = Whiten(in_channels, in_channels)
        self.whiten_windows = Whiten(in_channels, self.width)
        self.register_buffer("first_query", torch.zeros(num_categories, self.width))
        self.query = nn.Parameter(torch.zeros(num_categories, self.width))  # added to the initial one
        self.pooled_weight = nn.Parameter(torch.zeros(num_categories, in_channels))
        self.attended_weight = nn.Parameter(torch.zeros(num_categories, self.width))
        self.bias = nn.Parameter(torch.zeros(num_categories))
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, pooled: Tensor, windows: Tensor, grid: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
        """What to add to the logits [B, C], each category's feature [B, C, width], its attention [B, C, h', w'].

        By features of unit length of the images [B, D] and of the windows [B, L, D] in a `grid` of h', w'.
        """
        windows = self.whiten_windows(windows)  # [B, L, width]
        attention = (windows @ (self.first_query + self.query).T).softmax(1).transpose(1, 2)  # [B, C, L]
        features = attention @ windows
        logits = self.dropout(self.whiten(pooled)) @ self.pooled_weight.T + self.bias
        logits = logits + torch.einsum("bcd,cd->bc", self.dropout(features), self.attended_weight)
        return logits, features, attention.unflatten(2, grid)

    def squared_weights(self) -> Tensor:
        return self.pooled_weight.square().sum() + self.attended_weight.square().sum()

    def start(self, basis: Basis, window_basis: Basis, prototypes: Tensor) -> None:
        """Whitening and first queries; `prototypes` [C, D] are the mean unit-length windows of known positives."""
        self.whiten.set(basis)
        self.whiten_windows.set(window_basis)
        prototypes = prototypes.to(self.first_query)
        query = torch.where(prototypes.any(1, keepdim=True), self.whiten_windows(prototypes), 0.0)
        self.first_query.copy_(F.normalize(query, dim=1))


class Whiten(nn.Module):
    """Features in the eigenbasis, divided by the square root of the eigenvalues: all directions have about equal
    weight."""

    mean: Tensor
    transform: Tensor

    def __init__(self, in_channels: int, width: int):
        super().__init__()
        self.register_buffer("mean", torch.zeros(in_channels))
        self.register_buffer("transform", torch.zeros(in_channels, width))

    def set(self, basis: Basis) -> None:
        width = self.transform.shape[1]
        vectors, values = basis.vectors[:, -width:], basis.values[-width:]  # eigenvalues are ascending
        self.mean.copy_(basis.mean)
        self.transform.copy_(vectors / basis.scale[:, None] / (values + WHITENING).sqrt())

    def forward(self, features: Tensor) -> Tensor:
        return (features - self.mean) @ self.transform


class FeatureAccumulator:
    """Accumulates sums over all images from batches of maps, and a sample of their pooled features."""

    def __init__(
        self,
        num_categories: int,
        in_channels: int,
        num_images: int,
        window: int | None = None,
        told: LabelMemory | None = None,
    ):
        """With a `window`, also sums over windows of this side."""
        self.window = window
        self.statistics = DiscriminantSums(num_categories, in_channels)
        self.norms = torch.zeros((), dtype=torch.float64)  # sum of the features' lengths
        self.window_statistics = DiscriminantSums(num_categories, in_channels if window is not None else 0)
        self.window_total = torch.zeros(num_categories, in_channels, dtype=torch.float64)
        draws = torch.rand(num_images, generator=torch.Generator().manual_seed(0))
        self.kept = draws < KEEP / in_channels / max(num_images, 1)
        self.draws = draws
        self.has_windows = False  # more than one in an image
        self.features: list[Tensor] = []
        self.labels: list[Tensor] = []
        self.index: list[Tensor] = []
        self.told = told
        self.known: list[tuple[Tensor, Tensor]] = []  # index and key of every image with a known label
        self.entries: list[Tensor] = []  # index, category and label of every known label

    def add(self, batch: Batch) -> None:
        pooled, labels, index = batch.images.float().mean((2, 3)).cpu(), batch.labels.cpu(), batch.index.cpu()
        self.statistics.add(pooled, labels)
        self.norms += pooled.norm(dim=1).sum()
        kept = self.kept[index]
        for held, rows in ((self.features, pooled), (self.labels, labels), (self.index, index)):
            held.append(rows[kept])
        if self.told is not None:
            self._add_known(self.told, pooled, labels, index)
        if self.window is not None:
            self._add_windows(batch.images.float(), self.window, labels, index)

    def _add_known(self, told: LabelMemory, pooled: Tensor, labels: Tensor, index: Tensor) -> None:
        known = (labels != UNKNOWN).any(1)
        self.known.append((index[known], told.key(unit_length(pooled[known])).cpu()))
        rows, columns = (labels != UNKNOWN).nonzero(as_tuple=True)
        self.entries.append(torch.stack([index[rows], columns, labels[rows, columns].to(rows)], dim=1))

    def _add_windows(self, maps: Tensor, side: int, labels: Tensor, index: Tensor) -> None:
        windows = unit_windows(maps, side)[0].cpu()  # [B, L, D]
        self.has_windows = windows.shape[1] > 1
        self.window_total += (labels == PRESENT).double().T @ windows.mean(1).double()
        sample = self.draws[index] < WINDOW_ROWS / windows.shape[1] / len(self.draws)
        rows = windows[sample].flatten(0, 1)
        self.window_statistics.add(rows, torch.zeros(len(rows), len(self.window_total)))

    def everything(self) -> tuple[DiscriminantSums, Tensor, Tensor, Tensor]:
        """Sums, features, labels and index of all processes; rows in the original order, however distributed."""
        if not self.index:
            raise DataError("None of the training images could be read.")
        index = distributed.gather_rows(torch.cat(self.index))
        order = index.argsort()
        features, labels = (distributed.gather_rows(torch.cat(part))[order] for part in (self.features, self.labels))
        return self.statistics.across_ranks(), features, labels, index[order]

    def mean_norm(self) -> Tensor:
        """Mean length of the pooled features."""
        return distributed.sum_across_ranks(self.norms) / self.statistics.across_ranks().count.clamp(min=1)

    def known_labels(self) -> tuple[Tensor, Tensor]:
        """Keys of the images with a known label, and all known labels (image, category, label), of all processes."""
        index, keys = (distributed.gather_rows(torch.cat(part)) for part in zip(*self.known, strict=True))
        entries = distributed.gather_rows(torch.cat(self.entries))
        index, order = index.sort()
        return keys[order], torch.cat([torch.searchsorted(index, entries[:, :1].contiguous()), entries[:, 1:]], dim=1)

    def windows(self) -> tuple[Basis, Tensor]:
        """The windows' eigenbasis and the mean window of each category's known positives [C, D]."""
        count = self.statistics.across_ranks().category_count
        total = distributed.sum_across_ranks(self.window_total)
        return Basis.of(self.window_statistics.across_ranks()), (total / count.clamp(min=1)[:, None]).float()
