"""Objectives that look at one label at a time: assume negative (AN), focal loss, asymmetric loss (ASL)."""

from __future__ import annotations

from torch import Tensor

from fewtags.contract import Batch, Outputs, Progress, StepResult
from fewtags.methods.base import Objective
from fewtags.methods.losses import assume_negative_loss, asymmetric_loss, focal_loss
from fewtags.settings import Settings


class Elementwise(Objective["Elementwise.Config"]):
    """The mean over images and categories of a loss of one logit and one label."""

    class Config(Settings):
        loss_scale: float = 1.0
        """Factor on the mean loss. It matters beside Adam's coupled weight decay and the head's prior."""

    def label_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """[B, C]"""
        raise NotImplementedError

    def loss(self, batch: Batch, outputs: Outputs, progress: Progress) -> StepResult:
        return StepResult({"observed": self.config.loss_scale * self.label_loss(outputs.logits, batch.labels).mean()})


class AssumeNegative(Elementwise):
    """Unknown labels are trained as absent."""

    def label_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return assume_negative_loss(logits, labels)


class Focal(Elementwise):
    """Assume negative, with well classified labels weighted down."""

    class Config(Elementwise.Config):
        gamma: float = 2.0
        """How strongly well classified labels are weighted down; 0 is AN."""
        alpha: float | None = None
        """Weight of positives against 1 - alpha for negatives; none weighs both 1."""

    config: Config

    def label_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return focal_loss(logits, labels, self.config.gamma, self.config.alpha)


class Asymmetric(Elementwise):
    """Assume negative, with easy negatives weighted down much more than easy positives."""

    class Config(Elementwise.Config):
        gamma_pos: float = 0.0
        """Focusing power of positives."""
        gamma_neg: float = 4.0
        """Focusing power of negatives."""
        margin: float = 0.05
        """Negatives with a probability below this cost nothing."""
        detach_focus: bool = True
        """Keep the gradient out of the focusing weights, as the authors of ASL train."""

    config: Config

    def label_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return asymmetric_loss(logits, labels, **self.config.model_dump(exclude={"loss_scale"}))
