"""GR loss (Chen et al., "Boosting Single Positive Multi-label Classification with Generalized Robust Loss",
IJCAI 2024).

An unknown label is trained as present with weight k and as absent with weight 1 - k, both by a robust loss between
cross-entropy (q -> 0) and mean absolute error (q = 1), and counts v in all; k and v are functions of the label's own
probability p and of the epoch, without gradient:

    v [ k (1 - p^q2) / q2 + (1 - k) (1 - (1 - p)^q3) / q3 ],    k = sigmoid(w p + b),   v = exp(-(p - mu)^2 / 2 sigma^2)

w, b, mu and sigma change linearly during training. Known labels have cross-entropy.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fewtags.contract import Batch, Outputs, Progress, StepResult
from fewtags.labels import UNKNOWN
from fewtags.methods.base import Objective
from fewtags.methods.elementwise import Elementwise
from fewtags.methods.losses import assume_negative_loss


def between(ends: tuple[float, float], share: float) -> float:
    return ends[0] + (ends[1] - ends[0]) * share


def robust_loss(log_probability: Tensor, q: float) -> Tensor:
    """(1 - P^q) / q of a probability P given by its logarithm."""
    return -torch.expm1(q * log_probability) / q


class GeneralisedRobust(Objective["GeneralisedRobust.Config"]):
    class Config(Elementwise.Config):
        slope: tuple[float, float] = (0.0, 2.0)
        """w at the beginning and at the end of training."""
        offset: tuple[float, float] = (-2.0, -2.0)
        """b at the beginning and at the end."""
        centre: tuple[float, float] = (0.5, 0.8)
        """mu at the beginning and at the end."""
        width: tuple[float, float] = (2.0, 0.5)
        """sigma at the beginning and at the end."""
        q_present: float = Field(0.01, gt=0, le=1)
        """q2, of unknown labels as present."""
        q_absent: float = Field(1.0, gt=0, le=1)
        """q3, of unknown labels as absent."""

    def loss(self, batch: Batch, outputs: Outputs, progress: Progress) -> StepResult:
        known = assume_negative_loss(outputs.logits, batch.labels)
        losses = torch.where(batch.labels == UNKNOWN, self._unknown(outputs.logits, progress), known)
        return StepResult({"observed": self.config.loss_scale * losses.mean()})

    def _unknown(self, logits: Tensor, progress: Progress) -> Tensor:
        present, weight = self.soft_label(logits.detach().sigmoid(), progress)
        as_present = robust_loss(F.logsigmoid(logits), self.config.q_present)
        as_absent = robust_loss(F.logsigmoid(-logits), self.config.q_absent)
        return weight * (present * as_present + (1 - present) * as_absent)

    def soft_label(self, p: Tensor, progress: Progress) -> tuple[Tensor, Tensor]:
        """k and v. In the authors' code the second pair of parameters is one epoch ahead of the first."""
        c, share = self.config, progress.epoch / progress.num_epochs
        ahead = (progress.epoch + 1) / progress.num_epochs
        present = torch.sigmoid(between(c.slope, share) * p + between(c.offset, share))
        weight = torch.exp(-((p - between(c.centre, ahead)) ** 2) / (2 * between(c.width, ahead) ** 2))
        return present, weight
