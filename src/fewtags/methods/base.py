"""What a method is: a head and an Objective, and the Learner that holds both.

A method is a head (in `fewtags.models`) and an Objective. Before training, a head with `needs_start` sees the
training images once, without augmentation (`Learner.start`). One training step is

    outputs = model(batch.images)                       Outputs: logits, and features if the head has them
    objective.observe(batch, outputs, progress)         writes state; no gradient
    objective.loss(batch, outputs, progress)            reads state -> StepResult; its named losses are summed
        objective.decide(batch, outputs, progress)      its decisions on unknown labels; also used by the report

The state of an Objective is in buffers and parameters, so it is moved, saved and resumed with everything else;
what depends on time is a function of `progress`, so resuming loses nothing. With several processes
state is reduced (`fewtags.distributed`) before it is written, so it is the same on every rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn

from fewtags.contract import Batch, Outputs, Problem, Progress, Start, StepResult
from fewtags.distributed import gather_rows
from fewtags.models.classifier import Classifier
from fewtags.settings import Settings

C = TypeVar("C", bound=Settings)


class Objective(nn.Module, Generic[C]):
    """The training side of a method. Subclass it, give it a Config, write `loss`.

    `class Mine(Objective["Mine.Config"])` tells type checkers what `self.config` is.
    """

    Config: ClassVar[type[Settings]] = Settings
    needs_features: ClassVar[bool] = False  # needs Outputs.features, so a decoupled or graph head
    calibrated: bool = False  # probabilities are of presence; otherwise possibly of being known to be present
    trains: ClassVar[bool] = True  # False if the head's start is everything: there are no epochs

    def __init__(self, config: C, problem: Problem, feature_dim: int | None):
        super().__init__()
        self.config = config

    @property
    def needs_start_logits(self) -> bool:
        """Does `start` need the logits of the training images, for which they are passed through once more?"""
        return False

    def start(self, start: Start) -> None:
        """Called before the first epoch of a new run, for heads with `needs_start`; what it keeps must be a buffer."""

    def start_epoch(self, progress: Progress) -> None:
        """Called before the first step of an epoch (not when resuming mid-epoch)."""

    def observe(self, batch: Batch, outputs: Outputs, progress: Progress) -> None:
        """Update state from this step's (detached) outputs; called without gradient before `loss`."""

    def loss(self, batch: Batch, outputs: Outputs, progress: Progress) -> StepResult:
        raise NotImplementedError

    def decide(self, batch: Batch, outputs: Outputs, progress: Progress) -> dict[str, Tensor]:
        """Masks [B, C] of the unknown labels that are "found" or "rejected" in this step; reads state, no gradient.

        `loss` uses them and returns them in its StepResult. Methods without decisions need not implement this.
        """
        return {}

    def epoch_stats(self, progress: Progress) -> Mapping[str, float]:
        """Statistics of the method's state, logged at the end of each epoch."""
        return {}

    def category_stats(self, progress: Progress) -> Mapping[str, Tensor]:
        """The same per category, [C] each: thresholds, mean similarities, queue fill ..."""
        return {}

    def parameter_groups(self) -> list[dict[str, Any]]:
        """The objective's own parameter groups for the optimiser, with "lr_scale" and "weight_decay" if they differ."""
        own = [p for p in self.parameters() if p.requires_grad]
        return [{"params": own}] if own else []


class Learner(nn.Module):
    """Model and objective as one module, so that wrapping, moving and saving need no special cases."""

    def __init__(self, model: Classifier, objective: Objective):
        super().__init__()
        self.model = model
        self.objective = objective

    @torch.no_grad()
    def start(self, batches: Iterable[Batch], num_images: int) -> Start:
        """Passes over the training images, as feature maps [B, D, h, w] without augmentation."""
        found = self.model.head.start(batches, num_images)
        if self.objective.needs_start_logits:
            found = replace(found, logits=self._logits(batches, num_images))
        self.objective.start(found)
        return found

    def _logits(self, batches: Iterable[Batch], num_images: int) -> Tensor:
        """[N, C] of all processes' images; NaN for those that are in no batch."""
        index, logits = [], []
        for batch in batches:
            index.append(batch.index)
            logits.append(self.model.head(batch.images.float()).logits)
        rows = gather_rows(torch.cat(logits))
        return rows.new_full((num_images, rows.shape[1]), torch.nan).index_copy(0, gather_rows(torch.cat(index)), rows)

    def forward(self, batch: Batch, progress: Progress) -> StepResult:
        images = batch.images
        outputs: Outputs = self.model(images, are_maps=True) if batch.are_maps else self.model(images)
        # Similarities and losses are computed in single precision, whatever the backbone's precision.
        features = None if outputs.features is None else outputs.features.float()
        outputs = replace(outputs, logits=outputs.logits.float(), features=features)
        with torch.autocast(outputs.logits.device.type, enabled=False):
            with torch.no_grad():
                self.objective.observe(batch, outputs.detach(), progress)
            result = self.objective.loss(batch, outputs, progress)
        return result if outputs.prior is None else replace(result, losses={**result.losses, "prior": outputs.prior})
