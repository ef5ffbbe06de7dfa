"""Elementwise objectives: assume negative (AN), focal loss, asymmetric loss (ASL)."""

from __future__ import annotations

from torch import Tensor

from fewtags.contract import Batch, Outputs, Progress, StepResult
from fewtags.methods.base import Objective
from fewtags.methods.losses import assume_negative_loss, asymmetric_loss, focal_loss
from fewtags.settings import Settings


class Elementwise(Objective["Elementwise.Config"]):
    """The mean of an elementwise loss over images and categories."""

    class Config(Settings):
        loss_scale: float = 1.0
        """Factor on the mean loss. It matters relative to Adam's coupled weight decay and the head's prior."""

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
    """Assume negative, with well-classified labels down-weighted."""

    class Config(Elementwise.Config):
        gamma: float = 2.0
        """How strongly well-classified labels are down-weighted; 0 is AN."""
        alpha: float | None = None
        """Weight of positives; negatives get 1 - alpha. None: both have weight 1."""

    config: Config

    def label_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return focal_loss(logits, labels, self.config.gamma, self.config.alpha)


class Asymmetric(Elementwise):
    """Assume negative, with easy negatives down-weighted much more than easy positives."""

    class Config(Elementwise.Config):
        gamma_pos: float = 0.0
        """Focusing exponent for positives."""
        gamma_neg: float = 4.0
        """Focusing exponent for negatives."""
        margin: float = 0.05
        """Negatives with a probability below this have zero loss."""
        detach_focus: bool = True
        """No gradient through the focusing weights, as in the ASL authors' training."""

    config: Config

    def label_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return asymmetric_loss(logits, labels, **self.config.model_dump(exclude={"loss_scale"}))
