"""EM loss and APL (Zhou et al., "Acknowledging the Unknown for Multi-label Learning with Single Positive Labels",
ECCV 2022).

The EM loss trains an unknown label as neither present nor absent: its entropy H(p) is maximised, so that the gradient
vanishes at one half and for certain predictions. Asymmetric pseudo-labelling (APL) then turns, epoch by epoch, the
unknown labels that are most certainly absent into soft negatives, in each category as many as it takes to have a share
of 90 % of them in the end.

    known           -log p
    unknown         -alpha H(p)
    soft negative    beta (-s log p - (1 - s) log(1 - p)),   s the prediction when it was chosen

The authors predict all training images once more after each epoch; here the prediction of an image is the one of the
epoch's own step.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fewtags.contract import Batch, Outputs, Problem, Progress, StepResult
from fewtags.distributed import gather_rows
from fewtags.labels import UNKNOWN
from fewtags.methods.elementwise import Elementwise
from fewtags.methods.losses import assume_negative_loss

NONE = -1.0  # no prediction


def entropy(logits: Tensor) -> Tensor:
    """H(p) in nats: cross-entropy of p to itself."""
    return soft_loss(logits, logits.sigmoid())


def soft_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy to a probability."""
    return target * F.softplus(-logits) + (1 - target) * F.softplus(logits)


class EntropyMaximisation(Elementwise):
    """The EM loss."""

    class Config(Elementwise.Config):
        alpha: float = Field(0.2, ge=0)
        """Weight of the entropy of unknown labels; the authors have 0.2 on VOC, 0.1 on COCO and 0.01 on CUB."""

    config: Config

    def label_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        known = assume_negative_loss(logits, labels)
        return torch.where(labels == UNKNOWN, -self.config.alpha * entropy(logits), known)


class AsymmetricPseudoLabels(EntropyMaximisation):
    """The EM loss with APL."""

    class Config(EntropyMaximisation.Config):
        beta: float = Field(0.02, ge=0)
        """Weight of soft negatives; the authors have 0.02 on VOC, 0.9 on COCO, 0.2 on NUS-WIDE, 0.4 on CUB."""
        negative_share: float = Field(0.9, ge=0, le=1)
        """Share of a category's unknown labels that are soft negatives in the end."""
        warmup: float = Field(0.5, ge=0, le=1)
        """Share of the epochs before the first ones are chosen; the authors have 5 of 10 epochs."""

    config: Config
    predicted: Tensor  # [N, C] latest prediction of each unknown label, NONE before its first
    soft_negatives: Tensor  # [N, C] the soft labels of those chosen, NONE for the others
    unknown: Tensor  # [C] how many labels were unknown at the start

    def __init__(self, config: Config, problem: Problem, feature_dim: int | None):
        super().__init__(config, problem, feature_dim)
        for name in ("predicted", "soft_negatives"):
            self.register_buffer(name, torch.full(problem.labels.shape, NONE, dtype=torch.half))
        self.register_buffer("unknown", (problem.labels == UNKNOWN).sum(0))

    def start_epoch(self, progress: Progress) -> None:
        first = max(1, round(self.config.warmup * progress.num_epochs))
        if progress.epoch >= first:
            share = self.config.negative_share / max(1, progress.num_epochs - first)
            self._choose((share * self.unknown).long())

    def _choose(self, count: Tensor) -> None:
        """Makes soft negatives of the `count` [C] lowest predictions of each category among the rest of its unknown."""
        free = (self.soft_negatives == NONE) & (self.predicted != NONE)
        place = self.predicted.float().masked_fill(~free, torch.inf).argsort(0).argsort(0)  # 0 for the lowest
        chosen = free & (place < count)
        self.soft_negatives.copy_(torch.where(chosen, self.predicted, self.soft_negatives))

    def observe(self, batch: Batch, outputs: Outputs, progress: Progress) -> None:
        seen = outputs.logits.sigmoid().masked_fill(batch.labels != UNKNOWN, NONE)
        self.predicted[gather_rows(batch.index)] = gather_rows(seen).to(self.predicted)

    def loss(self, batch: Batch, outputs: Outputs, progress: Progress) -> StepResult:
        losses = self.label_loss(outputs.logits, batch.labels)
        soft = self.soft_negatives[batch.index].to(outputs.logits)
        chosen = soft != NONE
        negative = self.config.beta * soft_loss(outputs.logits, soft.masked_fill(~chosen, 0))
        losses = torch.where(chosen, negative, losses)
        return StepResult({"observed": self.config.loss_scale * losses.mean()}, {"soft_negatives": chosen.sum()})
