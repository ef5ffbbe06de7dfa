"""Two weaker forms of assumed negatives (Cole et al., "Multi-Label Learning from Single Positive Labels", CVPR 2021).

WAN     assumed negatives count 1 / (C - 1), so that those of an image count together as much as one known positive
AN-LS   label smoothing: a label is trained as what it is with weight 1 - e, and as the contrary with weight e
"""

from __future__ import annotations

from pydantic import Field
from torch import Tensor
from torch.nn.functional import softplus

from fewtags.labels import PRESENT, UNKNOWN
from fewtags.methods.elementwise import Elementwise
from fewtags.methods.losses import assume_negative_loss


class WeakNegatives(Elementwise):
    """WAN."""

    class Config(Elementwise.Config):
        negative_weight: float | None = Field(None, ge=0)
        """Weight of an assumed negative; default: 1 / (C - 1) for C categories."""

    config: Config

    def label_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        weight = self.config.negative_weight
        if weight is None:
            weight = 1 / max(1, logits.shape[1] - 1)
        losses = assume_negative_loss(logits, labels)
        return losses.where(labels != UNKNOWN, weight * losses)  # what is known to be absent counts fully


class SmoothedNegatives(Elementwise):
    """AN-LS."""

    class Config(Elementwise.Config):
        smoothing: float = Field(0.1, ge=0, le=0.5)
        """e: 0.1 in the authors' code; their text halves it."""

    config: Config

    def label_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        as_labelled = assume_negative_loss(logits, labels)
        contrary = softplus((labels == PRESENT).to(logits) * 2 * logits - logits)  # of the other label
        return (1 - self.config.smoothing) * as_labelled + self.config.smoothing * contrary
