"""EPR (Cole et al., CVPR 2021): known positives, and a number of positives per image; nothing is assumed negative.

    L = mean over images and categories of [known] -log p  +  ((mean number of positives - k) / C)^2

k is the expected number of positives of an image, and the mean is over the batch of the summed probabilities. ROLE
adds estimated labels to it.
"""

from __future__ import annotations

from torch import Tensor

from fewtags.contract import Batch, Outputs, Problem, Progress, StepResult
from fewtags.labels import UNKNOWN
from fewtags.methods.base import Objective
from fewtags.methods.losses import assume_negative_loss
from fewtags.methods.role import expected_positives
from fewtags.settings import Settings


class ExpectedCount(Objective["ExpectedCount.Config"]):
    class Config(Settings):
        expected_positives: float | None = None
        """Mean number of tags that truly apply to an image (published: VOC 1.5, COCO 2.9). None: an estimate from the
        known labels, which is too low if many are missing, so set it if you can."""
        loss_scale: float = 1.0
        """Factor on the loss. It matters relative to Adam's coupled weight decay and the head's prior."""

    def __init__(self, config: Config, problem: Problem, feature_dim: int | None):
        super().__init__(config, problem, feature_dim)
        chosen = config.expected_positives
        self.expected_positives = expected_positives(problem) if chosen is None else chosen

    def loss(self, batch: Batch, outputs: Outputs, progress: Progress) -> StepResult:
        losses = {
            "known": known_only(assume_negative_loss(outputs.logits, batch.labels), batch.labels).mean(),
            "count": count_penalty(outputs.logits, self.expected_positives),
        }
        return StepResult({name: self.config.loss_scale * loss for name, loss in losses.items()})


def known_only(losses: Tensor, labels: Tensor) -> Tensor:
    return losses.masked_fill(labels == UNKNOWN, 0)


def count_penalty(logits: Tensor, expected: float) -> Tensor:
    return ((logits.sigmoid().sum(1).mean() - expected) / logits.shape[1]) ** 2
