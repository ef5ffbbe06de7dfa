"""Objectives that look at one label at a time: assume negative (AN)."""

from __future__ import annotations

from fewtags.methods.base import Batch, Objective, Outputs, Progress, StepResult
from fewtags.methods.losses import assume_negative_loss
from fewtags.settings import Settings


class AssumeNegative(Objective):
    """Unknown labels are trained as absent."""

    class Config(Settings):
        loss_scale: float = 1.0
        """Factor on the mean loss. It matters beside Adam's coupled weight decay."""

    def loss(self, batch: Batch, outputs: Outputs, progress: Progress) -> StepResult:
        return StepResult({"observed": self.config.loss_scale * assume_negative_loss(outputs.logits, batch.labels).mean()})
