"""What a method is: a head and an Objective, and the Learner that holds both.

A method is a head (in `fewtags.models`) and an Objective. Before training, a head that says `needs_start` sees the
plain training images once (`Learner.start`). One training step is

    outputs = model(batch.images)                       Outputs: logits, and features where the head gives them
    objective.observe(batch, outputs, progress)         writes state; no gradient
    objective.loss(batch, outputs, progress)            reads state -> StepResult; its named losses are summed
        objective.decide(batch, outputs, progress)      what it makes of unknown labels; the report asks for it too

What an Objective remembers is a buffer or a parameter, so that it is moved, saved and resumed with everything else;
what depends on time is a function of `progress`, so that nothing is forgotten on resume. Under several processes
state is reduced (`fewtags.distributed`) before it is written, so that it is alike on every rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn

from fewtags.contract import Batch, Outputs, Problem, Progress, Start, StepResult
from fewtags.models.classifier import Classifier
from fewtags.settings import Settings

C = TypeVar("C", bound=Settings)


class Objective(nn.Module, Generic[C]):
    """The training side of a method. Subclass it, give it a Config, write `loss`.

    `class Mine(Objective["Mine.Config"])` tells type checkers what `self.config` is.
    """

    class Config(Settings):
        pass

    needs_features: ClassVar[bool] = False  # needs Outputs.features, so a decoupled or graph head
    calibrated: bool = False  # a probability is that of presence; else it may be that of being known to be present
    trains: ClassVar[bool] = True  # False where the head's start is all there is: no epoch is trained

    def __init__(self, config: C, problem: Problem, feature_dim: int | None):
        super().__init__()
        self.config = config

    def start(self, start: Start) -> None:
        """Before the first epoch of a new run, with a head that `needs_start`; what is kept must be a buffer."""

    def start_epoch(self, progress: Progress) -> None:
        """Before the first step of an epoch (not called when resuming in the middle of one)."""

    def observe(self, batch: Batch, outputs: Outputs, progress: Progress) -> None:
        """Write state from this step's (detached) outputs; called without gradient before `loss`."""

    def loss(self, batch: Batch, outputs: Outputs, progress: Progress) -> StepResult:
        raise NotImplementedError

    def decide(self, batch: Batch, outputs: Outputs, progress: Progress) -> dict[str, Tensor]:
        """Masks [B, C] of the unknown labels that are "found" or "rejected" now; reads state, has no gradient.

        `loss` acts on them and passes them on in its StepResult. Methods that decide nothing leave this out.
        """
        return {}

    def epoch_stats(self, progress: Progress) -> Mapping[str, float]:
        """Numbers about the method's state, logged once at the end of an epoch."""
        return {}

    def category_stats(self, progress: Progress) -> Mapping[str, Tensor]:
        """The same per category, [C] each: thresholds, mean similarities, queue fill ..."""
        return {}

    def parameter_groups(self) -> list[dict[str, Any]]:
        """The objective's own parameters for the optimiser, with "lr_scale" and "weight_decay" where they differ."""
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
        """See every training image once, as feature maps [B, D, h, w] of the plain view."""
        found = self.model.head.start(batches, num_images)
        self.objective.start(found)
        return found

    def forward(self, batch: Batch, progress: Progress) -> StepResult:
        outputs: Outputs = self.model(batch.images)
        # Similarities and losses are computed in single precision whatever the backbone ran in.
        features = None if outputs.features is None else outputs.features.float()
        outputs = replace(outputs, logits=outputs.logits.float(), features=features)
        with torch.autocast(outputs.logits.device.type, enabled=False):
            with torch.no_grad():
                self.objective.observe(batch, outputs.detach(), progress)
            result = self.objective.loss(batch, outputs, progress)
        return result if outputs.prior is None else replace(result, losses={**result.losses, "prior": outputs.prior})
