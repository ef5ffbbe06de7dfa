"""A head that starts at the closed form of `presence`, computed in one pass over the images, and may learn more.

    logits = presence(pooled map, names, windows)     fixed after the start; the method `instant` is just this
           + W' x + b                                 what training adds: x is the whitened pooled feature,
           + v_c . sum_l attention_cl y_l             y_l the whitened windows of the map, attended to by each category

W, b and v start at 0 and the categories' queries at the mean of their known positives, so training begins exactly at
the closed form, and a prior shrinks towards it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from fewtags import distributed
from fewtags.contract import Batch, FitFacts, Outputs, Problem, Start, WordVectors
from fewtags.errors import DataError, UserError
from fewtags.labels import PRESENT, UNKNOWN
from fewtags.models.closed_form_of_0_1 import current_state
from fewtags.models.heads import Head, HeadSpec
from fewtags.models.names import NameScorer
from fewtags.presence.bursts import SAME_MOMENT, burst_leaders
from fewtags.presence.estimates import Judged
from fewtags.presence.model import Fitted, Presence
from fewtags.presence.observation import Observation
from fewtags.presence.ridge import Basis, ImageSums, unit_length
from fewtags.presence.windows import ENTRIES, best_left_out, overlapping_by_half, unit_windows
from fewtags.settings import Settings

KEEP = 2**28  # values: the pooled features kept for the regression (1 GB)
WINDOW_ROWS = 30_000  # windows used to compute the directions of the whitening
NAME_SHARPNESS = 0.7  # classifiers are trained on one object per picture, photos show several
WHITENING = 2.0  # added to the eigenvalues when features are whitened for the residual
SAME_IMAGE = 0.02  # unit-length features closer than this are of the same image


class ClosedFormHead(Head["ClosedFormHead.Config"]):
    class Config(Settings):
        known_proportion: float | None = Field(None, gt=0, le=1)
        """Share of the present labels that are known; default: estimated from the labels."""
        names: str = "auto"
        """Use of the category names: "auto" uses the classifier the backbone was pretrained with, "none" uses only
        labels, and the path of a file says what individual names mean."""
        bursts: bool = False
        """Find bursts by the features, and judge a photo without its whole burst; where the data has groups, these are
        used in any case."""
        refine: bool = False
        """Fit a second time, with unknown labels counting as positives by their probability of being present."""
        windows: bool = False
        """Score the windows of the map too: what fills a part of an image is diluted in the average over all of it."""
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

        @model_validator(mode="before")
        @classmethod
        def without_calibration(cls, values: Any) -> Any:
            """Version 0.1 had a setting for one curve for all categories."""
            return (
                {key: value for key, value in values.items() if key != "calibration"}
                if isinstance(values, dict)
                else values
            )

    spec = HeadSpec(uses_names=True, needs_start=True, assumes_random_labels=True, calibrated=True)

    feature_norm: Tensor
    told_features: Tensor
    told_labels: Tensor
    told_odds: Tensor

    def __init__(self, config: Config, in_channels: int, num_categories: int, words: WordVectors | None = None):
        super().__init__(config, in_channels, num_categories)
        self.presence = Presence(num_categories, in_channels)
        self.names: NameScorer | None = None
        self.groups: Tensor | None = None  # [N] of the training images, see contract.Problem
        self.register_buffer("feature_norm", torch.ones(()))  # mean length of the pooled features
        # Decisions that `relabel` was told: of which image, and [n, 4] its place there, category, label, label before.
        self.register_buffer("told_features", torch.zeros(0, in_channels))
        self.register_buffer("told_labels", torch.zeros(0, 4, dtype=torch.int32))
        self.register_buffer("told_odds", torch.zeros(0))  # [n] before, judged without itself; NaN: new image
        self.residual = Residual(config, in_channels, num_categories) if config.residual else None
        average = not config.residual and not config.windows
        self.spec = replace(self.spec, looks_at_the_average=average, settles=config.residual)

    def use_names(self, names: NameScorer | None) -> None:
        """The name scores of an image, from its pooled feature."""
        self.names = names

    @property
    def name_scorer(self) -> NameScorer | None:
        return self.names

    @property
    def needs_labels(self) -> bool:
        return self.names is None

    @property
    def thresholds(self) -> Tensor | None:
        """[C] chosen by expected F1 at the start; None if training changes the probabilities afterwards."""
        return self.presence.thresholds if self.residual is None else None

    def name_scores(self, unit_features: Tensor) -> Tensor | None:
        """[N, C] of features of length 1 [N, D]; None without names.

        All are treated as having the same length, so that stored features work too.
        """
        if self.names is None:
            return None
        return self.names.scores(unit_features.to(self.feature_norm) * (NAME_SHARPNESS * self.feature_norm))

    def forward(self, feature_map: Tensor) -> Outputs:
        pooled = unit_length(feature_map.float().mean((2, 3)))  # [B, D]
        windows, grid = None, (1, 1)
        if self.config.windows or self.residual is not None:
            windows, grid = unit_windows(feature_map.float(), self.config.window)
        logits = self._closed_form(pooled, windows, grid)
        if self.residual is None:
            return Outputs(logits)
        assert windows is not None
        outputs = self._with_residual(logits, *self.residual.whitened(pooled, windows))
        assert outputs.attention is not None
        return replace(outputs, attention=outputs.attention.transpose(1, 2).unflatten(2, grid))

    def settled(self, feature_map: Tensor) -> Tensor:
        """The closed form's logits, the whitened image and its whitened windows, in a row."""
        assert self.residual is not None
        pooled = unit_length(feature_map.float().mean((2, 3)))
        windows, grid = unit_windows(feature_map.float(), self.config.window)
        image, parts = self.residual.whitened(pooled, windows)
        return torch.cat([self._closed_form(pooled, windows, grid), image, parts.flatten(1)], dim=1)

    def from_settled(self, settled: Tensor) -> Outputs:
        assert self.residual is not None
        logits, image, parts = settled.tensor_split(
            (self.num_categories, self.num_categories + self.in_channels), dim=1
        )
        outputs = self._with_residual(logits, image, parts.unflatten(1, (-1, self.residual.width)))
        return replace(outputs, attention=None)

    def _with_residual(self, logits: Tensor, image: Tensor, windows: Tensor) -> Outputs:
        assert self.residual is not None
        more, attention = self.residual(image, windows)
        prior = self.residual.squared_weights() * self.config.prior / 2 if self.training else None
        return Outputs(logits + more, attention=attention, prior=prior)

    def _closed_form(self, pooled: Tensor, windows: Tensor | None, grid: tuple[int, int]) -> Tensor:
        """[B, C] log-odds, from unit-length features of the images [B, D] and of their windows [B, L, D]."""
        best = None
        if self.config.windows and windows is not None:
            some = windows[:, overlapping_by_half(grid, self.config.window)]
            each = some.flatten(0, 1)
            best = self.presence.scores(each, self.name_scores(each)).unflatten(0, some.shape[:2]).amax(1)
        return self.presence.odds_of(pooled, self.presence.scores(pooled, self.name_scores(pooled)), best)

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *more: Any) -> None:
        if prefix + "names.weight" in state and self.names is None:
            parts = {key: state[f"{prefix}names.{key}"] for key in ("weight", "bias", "members", "unit_length")}
            self.names = NameScorer.from_state_dict(parts).to(self.feature_norm.device)
        for name in ("feature_norm", "told_features", "told_labels"):  # models from before names, or before these
            state.setdefault(prefix + name, getattr(self, name))
        told = state[prefix + "told_labels"]
        state[prefix + "told_labels"] = F.pad(told, (0, 4 - told.shape[1]), value=UNKNOWN)  # version 0.3 had no fourth
        state.setdefault(prefix + "told_odds", torch.full((len(told),), torch.nan))
        for name in ("told_features", "told_labels", "told_odds"):  # as many as were saved
            setattr(self, name, torch.empty_like(state[prefix + name], device=self.feature_norm.device))
        super()._load_from_state_dict(state, prefix, *more)

    @classmethod
    def current_state(cls, state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
        return current_state(state, prefix)

    # --- the start ---

    def initialise(self, problem: Problem) -> None:
        self.groups = problem.groups

    @property
    def finds_bursts(self) -> bool:
        return self.config.bursts

    def units(self, features: Tensor, groups: Tensor | None) -> Tensor | None:
        """[N] which images are judged without each other: given `groups`, else bursts if these are wanted."""
        if groups is not None or not self.finds_bursts:
            return groups
        return burst_leaders(unit_length(features), least=SAME_MOMENT)

    def start(self, batches: Iterable[Batch], num_images: int) -> Start:
        """In one pass over the batches; two with `windows`, so they should not be an iterator then."""
        seen = FeatureAccumulator(
            self.num_categories,
            self.in_channels,
            num_images,
            None if self.spec.looks_at_the_average else self.config.window,
        )
        for batch in batches:
            seen.add(batch)
        sums, features, labels, index = seen.everything()
        self.feature_norm.copy_(seen.mean_norm())
        names = self.name_scores(unit_length(features).to(self.feature_norm))
        fitted = self.presence.fit(
            sums,
            features,
            labels,
            names=None if names is None else names.cpu(),
            named=None if self.names is None else self.names.known,
            known_proportion=self.config.known_proportion,
            refine=self.config.refine,
            groups=self.units(features, None if self.groups is None else self.groups[index]),
        )
        if self.config.windows and seen.has_windows:
            fitted, index = self._look_at_windows(fitted, batches, index)
        if self.residual is not None:
            self.residual.start(fitted.images.ridge.basis, *seen.windows())
        odds = fitted.left_out()
        model = self.presence
        observation = Observation(model.habit.cpu(), model.clarity.cpu())
        judged = Judged(odds, fitted.images.labels, observation, float(model.uncertain), int(sums.count))
        proportion = self.presence.known_proportion(odds.to(self.presence.habit))
        return Start(
            known_proportion=proportion.clone(),
            judged=judged,
            judged_images=index,
            facts=self._facts(judged, names, labels),
        )

    def _look_at_windows(self, fitted: Fitted, batches: Iterable[Batch], index: Tensor) -> tuple[Fitted, Tensor]:
        """A second pass over the batches: of all images of the fit, or of a sample, the best window. Also which images
        these are."""
        most = max(ENTRIES // self.num_categories, 1)
        used = torch.zeros(len(index), dtype=torch.bool)
        used[torch.randperm(len(index), generator=torch.Generator().manual_seed(0))[:most]] = True
        rows, best = [], []
        for batch, windows, names in self._with_windows(batches):
            place = torch.searchsorted(index, batch.index.cpu()).clamp(max=len(index) - 1)
            mine = (index[place] == batch.index.cpu()) & used[place]
            of_windows = None if names is None else names[mine.to(names.device)]
            rows.append(place[mine])
            best.append(best_left_out(fitted, place[mine], windows[mine.to(windows.device)], of_windows))
        everyone, scores = distributed.gather_rows(torch.cat(rows)), distributed.gather_rows(torch.cat(best))
        order = everyone.argsort()
        few = Fitted(self.presence, fitted.images.take(everyone[order]), fitted.shared)
        return self.presence.fit_windows(few, scores[order], self.config.known_proportion), index[everyone[order]]

    def _with_windows(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, Tensor, Tensor | None]]:
        """Batches with their unit-length windows [B, L, D] and the windows' name scores [B, L, C]."""
        for batch in batches:
            windows, grid = unit_windows(batch.images.float(), self.config.window)
            windows = windows[:, overlapping_by_half(grid, self.config.window)]
            names = self.name_scores(windows.flatten(0, 1))
            yield batch, windows, None if names is None else names.unflatten(0, windows.shape[:2])

    def _facts(self, judged: Judged, name_scores: Tensor | None, labels_named: Tensor) -> FitFacts:
        """`name_scores` [N, C] are of images with the labels `labels_named`."""
        labels, names = judged.labels, self.names
        doubtful: list[int] = []
        if names is not None and name_scores is not None:
            doubtful = least_agreeing(name_scores.cpu(), labels_named.cpu(), names.known.cpu())
        known, share = (labels == PRESENT).sum(0), None
        if known.any():
            share = float(known.sum() / (known.sum() + judged.hidden()[labels == UNKNOWN].sum()))
        return FitFacts(
            num_images=judged.num_images or len(labels),
            known_positives=tuple(known.tolist()),
            known_share=share,
            share_is_given=self.config.known_proportion is not None,
            num_named=None if names is None else int(names.known.sum()),
            name_matches=() if names is None else tuple(names.sentences),
            doubtful_names=tuple(doubtful),
        )

    # --- changing labels ---

    @torch.no_grad()
    def relabel(
        self,
        features: Tensor,
        categories: Tensor | int,
        labels: Tensor | int,
        *,
        given: Tensor | None = None,
        odds: Tensor | None = None,
    ) -> None:
        """Images with these pooled features [n, D] have the `labels` [n] 1, 0 (undecided) or -1 of `categories` [n].

        Saying the same again changes nothing: what was said of an image is remembered, and 0 takes it back. Answers
        about unknown labels also say how likely those of all categories are present. `given`, `odds`: see `Head`.
        """
        model = self.presence
        if self.residual is not None or not (model.num_images > 0 or model.directions.any()):
            raise UserError(
                "This model cannot learn single labels; a model of the method `instant` can, if this version fitted it."
            )
        said = {(row, column): (*label, odd) for row, column, *label, odd in self._told()}
        rows = features.reshape(-1, self.in_channels)
        columns, new = (torch.as_tensor(each).reshape(-1).tolist() for each in (categories, labels))
        before = [UNKNOWN] * len(new) if given is None else given.tolist()
        judged = [math.nan] * len(new) if odds is None else odds.tolist()
        for feature, category, *told in zip(rows, columns, new, before, judged, strict=True):
            said[self._place(unit_length(feature).to(self.feature_norm)), category] = tuple(told)
        earlier, device = set(self.told_labels[:, 1].tolist()), self.feature_norm.device
        entries = [(*place, *told) for place, told in said.items() if told[0] != UNKNOWN]
        self.told_labels = torch.tensor([entry[:4] for entry in entries], dtype=torch.int32).view(-1, 4).to(device)
        self.told_odds = torch.tensor([entry[4] for entry in entries]).to(device)
        self._learn(earlier | set(self.told_labels[:, 1].tolist()))

    def _told(self) -> Iterator[tuple[int, int, int, int, float]]:
        """Place, category, label, label before, and log-odds before of what was told."""
        for told, odds in zip(self.told_labels.tolist(), self.told_odds.tolist(), strict=True):
            yield (*told, odds)

    def _place(self, unit_feature: Tensor) -> int:
        """Of an image among those that were told of; a new one comes last."""
        if len(self.told_features):
            distance, nearest = (self.told_features - unit_feature).square().sum(1).min(0)
            if float(distance) < SAME_IMAGE**2:
                return int(nearest)
        self.told_features = torch.cat([self.told_features, unit_feature[None]])
        return len(self.told_features) - 1

    def _learn(self, categories: set[int]) -> None:
        """From all that was told: how likely unknown labels are present, and what each of the `categories` looks
        like."""
        model = self.presence
        place, column, label, given = self.told_labels.long().unbind(1)
        told, present, unknown = self.told_features[place], label == PRESENT, given == UNKNOWN
        now = self._base_odds(told).gather(1, column[:, None])[:, 0]
        odds = torch.where(self.told_odds.isnan(), now, self.told_odds)
        if model.is_of_this_version:
            model.take_answers(odds[unknown].cpu(), column[unknown].cpu(), present[unknown].cpu())
        sample_odds, kept, inputs = self._base_odds(model.sample.float()), model.kept(), model.inputs(told)
        for category in sorted(categories):
            mine = column == category
            lesson = None
            if mine.any():
                before = model.answers.before(odds[mine], unknown[mine], category)
                of_sample = model.answers.if_unknown(sample_odds[:, category], category)
                lesson = kept.learn(inputs[mine].cpu(), present[mine].cpu(), before.cpu(), of_sample.cpu())
            model.take_lesson(category, lesson)

    def _base_odds(self, unit_features: Tensor) -> Tensor:
        """[N, C] by the labels alone."""
        scores = self.presence.scores(unit_features, self.name_scores(unit_features))
        return self.presence.base_odds(scores, scores)  # the whole image is the only window there is

    @torch.no_grad()
    def log_odds(self, unit_features: Tensor, category: int) -> Tensor:
        """[N] log-odds of presence in images of which the pooled features [N, D] are kept."""
        one, model = slice(category, category + 1), self.presence
        scores = model.scores(unit_features, self.name_scores(unit_features), one)
        return model.odds_of(unit_features, scores, scores, one)[:, 0]


def least_agreeing(scores: Tensor, labels: Tensor, named: Tensor) -> list[int]:
    """Categories whose name and known images disagree, worst first: by how far above the mean the name scores of these
    images are, in standard deviations."""
    present = labels == PRESENT
    count = present.sum(0)
    mean = (scores * present).sum(0) / count.clamp(min=1)
    above = (mean - scores.mean(0)) / scores.std(0).clamp(min=1e-6)
    judged = (named & (count > 0)).nonzero().flatten()
    return judged[above[judged].argsort(stable=True)].tolist()


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

    def whitened(self, pooled: Tensor, windows: Tensor) -> tuple[Tensor, Tensor]:
        """[B, D] and [B, L, width], of features of unit length of images [B, D] and their windows [B, L, D]."""
        return self.whiten(pooled), self.whiten_windows(windows)

    def forward(self, image: Tensor, windows: Tensor) -> tuple[Tensor, Tensor]:
        """What to add to the logits [B, C], and each category's attention [B, L, C], by whitened images and windows."""
        attention = (windows @ (self.first_query + self.query).T).softmax(1)
        logits = self.dropout(image) @ self.pooled_weight.T + self.bias
        # The feature of a category is the mean of the windows by its attention. Its product with v_c is the mean of
        # theirs, if all categories drop the same dimensions; their features would be the largest tensor of a step.
        if self.training:
            windows = windows * self.dropout(torch.ones_like(windows[:, :1]))
        return logits + (attention * (windows @ self.attended_weight.T)).sum(1), attention

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
        self.features: list[Tensor] = []
        self.labels: list[Tensor] = []
        self.index: list[Tensor] = []

    def add(self, batch: Batch) -> None:
        pooled, labels, index = batch.images.float().mean((2, 3)).cpu(), batch.labels.cpu(), batch.index.cpu()
        self.sums.add(pooled, labels)
        self.norms += pooled.norm(dim=1).sum()
        kept = self.kept[index]
        for held, rows in ((self.features, pooled), (self.labels, labels), (self.index, index)):
            held.append(rows[kept])
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
        if not self.index:
            raise DataError("None of the training images could be read.")
        index = distributed.gather_rows(torch.cat(self.index))
        order = index.argsort()
        features, labels = (distributed.gather_rows(torch.cat(part))[order] for part in (self.features, self.labels))
        return across_ranks(self.sums), features, labels, index[order]

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
