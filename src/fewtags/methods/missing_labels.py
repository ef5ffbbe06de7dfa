"""Hill and SPLC (Zhang et al., "Simple and Robust Loss Design for Multi-Label Learning with Missing Labels", 2021).

    Hill    an assumed negative has the loss (l - p) p^2, which falls again where p is near 1: such a label is probably
            a missing one, and the network is believed
    SPLC    self-paced loss correction: from the second epoch on, an unknown label with p above t is trained as present

Positives of both have the focal loss with a margin, -(1 - p_m)^gamma log p_m with p_m = sigmoid(logit - m); what SPLC
finds has no margin. The authors sum over images and categories where this takes the mean.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from fewtags.contract import Batch, Outputs, Progress, StepResult
from fewtags.labels import PRESENT, UNKNOWN
from fewtags.methods.base import Objective
from fewtags.methods.elementwise import Elementwise
from fewtags.methods.losses import focal_loss


class Hill(Elementwise):
    class Config(Elementwise.Config):
        peak: float = Field(1.5, ge=1)
        """l: the loss of an assumed negative is highest at p = 2 l / 3; with 1.5 that is 1, and its slope falls from
        p = 1/2 on."""
        margin: float = 1.0
        """m, subtracted from the logits of known positives."""
        gamma: float = Field(2.0, ge=0)
        """Focusing exponent of known positives."""

    config: Config

    def label_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        c = self.config
        p = logits.sigmoid()
        return torch.where(labels == PRESENT, focal_loss(logits - c.margin, labels, c.gamma), (c.peak - p) * p**2)


class SelfPaced(Objective["SelfPaced.Config"]):
    """SPLC."""

    class Config(Elementwise.Config):
        threshold: float = Field(0.6, gt=0, lt=1)
        """t: unknown labels with a higher probability are trained as present."""
        from_epoch: int = Field(1, ge=0)
        """First epoch (0-based) that does so."""
        margin: float = 1.0
        """m, subtracted from the logits of known positives."""
        gamma: float = Field(2.0, ge=0)
        """Focusing exponent of all labels."""

    def loss(self, batch: Batch, outputs: Outputs, progress: Progress) -> StepResult:
        found = self.decide(batch, outputs, progress)["found"]
        logits = outputs.logits - self.config.margin * (batch.labels == PRESENT)
        losses = focal_loss(logits, batch.labels.masked_fill(found, 1), self.config.gamma)
        return StepResult({"observed": self.config.loss_scale * losses.mean()}, decisions={"found": found})

    def decide(self, batch: Batch, outputs: Outputs, progress: Progress) -> dict[str, Tensor]:
        certain = outputs.logits.detach().sigmoid() > self.config.threshold
        return {"found": (batch.labels == UNKNOWN) & certain & (progress.epoch >= self.config.from_epoch)}
