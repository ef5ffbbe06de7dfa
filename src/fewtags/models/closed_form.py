"""A head that starts at the closed form of `presence`, computed in one pass over the images, and may learn more.

    logits = presence(pooled map, names, windows)     fixed after the start; the method `instant` is just this
           + residual                                 what training adds, 0 at the start

So training begins exactly at the closed form, and a prior shrinks towards it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from pydantic import Field, model_validator
from torch import Tensor

from fewtags.contract import Batch, Outputs, Problem, Start, WordVectors
from fewtags.errors import UserError
from fewtags.models.closed_form_of_0_1 import current_state
from fewtags.models.closed_form_start import start_closed_form
from fewtags.models.heads import Head, HeadSpec
from fewtags.models.names import NameScorer
from fewtags.models.relabelled import Relabelled, with_relabelled
from fewtags.models.residual import Residual
from fewtags.presence.model import Presence
from fewtags.presence.ridge import unit_length
from fewtags.presence.windows import overlapping_by_half, unit_windows
from fewtags.settings import Settings

NAME_SHARPNESS = 0.7  # classifiers are trained on one object per picture, photos show several


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

    def __init__(self, config: Config, in_channels: int, num_categories: int, words: WordVectors | None = None):
        super().__init__(config, in_channels, num_categories)
        self.presence = Presence(num_categories, in_channels)
        self.groups: Tensor | None = None  # [N] of the training images, see contract.Problem
        self.register_buffer("feature_norm", torch.ones(()))  # mean length of the pooled features
        self.relabelled = Relabelled(in_channels)  # what `relabel` was given
        self.residual = None
        if config.residual:
            self.residual = Residual(
                in_channels, num_categories, width=config.width, dropout=config.dropout, prior=config.prior
            )
        average = not config.residual and not config.windows
        self.spec = replace(self.spec, looks_at_the_average=average, settles=config.residual)

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

    # --- prediction ---

    def forward(self, feature_map: Tensor) -> Outputs:
        pooled = unit_length(feature_map.float().mean((2, 3)))  # [B, D]
        windows, grid = None, (1, 1)
        if self.config.windows or self.residual is not None:
            windows, grid = unit_windows(feature_map.float(), self.config.window)
        logits = self._closed_form(pooled, windows, grid)
        if self.residual is None:
            return Outputs(logits)
        assert windows is not None
        outputs = self.residual(logits, *self.residual.whitened(pooled, windows))
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
        return replace(self.residual(logits, image, parts.unflatten(1, (-1, self.residual.width))), attention=None)

    def _closed_form(self, pooled: Tensor, windows: Tensor | None, grid: tuple[int, int]) -> Tensor:
        """[B, C] log-odds, from unit-length features of the images [B, D] and of their windows [B, L, D]."""
        best = None
        if self.config.windows and windows is not None:
            some = windows[:, overlapping_by_half(grid, self.config.window)]
            each = some.flatten(0, 1)
            best = self.presence.scores(each, self.name_scores(each)).unflatten(0, some.shape[:2]).amax(1)
        return self.presence.odds_of(pooled, self.presence.scores(pooled, self.name_scores(pooled)), best)

    @torch.no_grad()
    def log_odds(self, unit_features: Tensor, category: int) -> Tensor:
        """[N] log-odds of presence in images of which the pooled features [N, D] are kept."""
        one, model = slice(category, category + 1), self.presence
        scores = model.scores(unit_features, self.name_scores(unit_features), one)
        return model.odds_of(unit_features, scores, scores, one)[:, 0]

    # --- learning ---

    def initialise(self, problem: Problem) -> None:
        self.groups = problem.groups

    def start(self, batches: Iterable[Batch], num_images: int) -> Start:
        self.relabelled.learner = None  # of the fit before
        return start_closed_form(self, batches, num_images)

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
        rows = features.reshape(-1, self.in_channels)
        columns, new = (torch.as_tensor(each).reshape(-1) for each in (categories, labels))
        changed = self.relabelled.remember(rows, columns, new, given, odds)
        self.relabelled.teach(model, self._base_odds, changed)

    def _base_odds(self, unit_features: Tensor) -> Tensor:
        """[N, C] by the labels alone."""
        scores = self.presence.scores(unit_features, self.name_scores(unit_features))
        return self.presence.base_odds(scores, scores)  # the whole image is the only window there is

    # --- saved models ---

    # pyrefly: ignore[bad-override]  # torch calls it by position
    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *more: Any) -> None:
        if prefix + "names.weight" in state and self.names is None:
            parts = {key: state[f"{prefix}names.{key}"] for key in ("weight", "bias", "members", "unit_length")}
            self.names = NameScorer.from_state_dict(parts).to(self.feature_norm.device)
        state.setdefault(prefix + "feature_norm", self.feature_norm)  # models from before names
        super()._load_from_state_dict(state, prefix, *more)

    @classmethod
    def current_state(cls, state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
        return with_relabelled(current_state(state, prefix), prefix)
