"""Large loss matters (Kim et al., CVPR 2022): an assumed negative with a large loss is probably a missed positive.

The largest losses among the unknown labels of a batch are ignored (LL-R), trained as positives in this step (LL-Ct), or
turned into positives permanently (LL-Cp). Labels known to be absent are never among them. With several processes each
ranks its own part of the batch.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from fewtags.contract import Batch, Outputs, Problem, Progress, StepResult
from fewtags.distributed import gather_rows
from fewtags.labels import UNKNOWN
from fewtags.methods.base import Objective
from fewtags.methods.losses import assume_negative_loss
from fewtags.settings import Settings


def share_count(num_labels: int, percent: float) -> int:
    """ceil(num_labels * percent / 100), robust to rounding when the product is an integer."""
    return math.ceil(num_labels * percent / 100 - 1e-9)


def largest(losses: Tensor, among: Tensor, count: int) -> Tensor:
    """Mask of exactly the `count` largest losses among the marked ones (or all, if fewer); ties are broken by
    position."""
    candidates = losses.masked_fill(~among, -math.inf).flatten()
    chosen = torch.zeros_like(candidates, dtype=torch.bool)
    chosen[candidates.topk(min(count, candidates.numel())).indices] = True
    return chosen.view_as(among) & among


class LargeLoss(Objective["LargeLoss.Config"]):
    """Common to all three: the share of a batch's unknown labels that is doubted grows every epoch."""

    class Config(Settings):
        delta_rel: float = 0.2
        """Percent of a batch's labels by which the doubted share grows each epoch; the first epoch doubts none."""
        loss_scale: float = 1.0
        """Factor on the mean loss. It matters relative to Adam's coupled weight decay and the head's prior."""

    def doubted(self, batch: Batch, outputs: Outputs, progress: Progress) -> Tensor:
        losses = assume_negative_loss(outputs.logits.detach(), batch.labels)
        count = share_count(losses.numel(), progress.epoch * self.config.delta_rel)
        return largest(losses, batch.labels == UNKNOWN, count)

    def loss(self, batch: Batch, outputs: Outputs, progress: Progress) -> StepResult:
        """Found labels are trained as present."""
        decisions = self.decide(batch, outputs, progress)
        losses = assume_negative_loss(outputs.logits, batch.labels.masked_fill(decisions["found"], 1))
        return StepResult({"observed": self.config.loss_scale * losses.mean()}, decisions=decisions)


class LargeLossRejection(LargeLoss):
    """LL-R: doubted labels are excluded from the loss."""

    class Config(LargeLoss.Config):
        average_over: Literal["all", "kept"] = "all"
        """Divide the sum of the kept losses by the number of all labels (as the authors do) or of the kept ones."""

    config: Config

    def decide(self, batch: Batch, outputs: Outputs, progress: Progress) -> dict[str, Tensor]:
        return {"rejected": self.doubted(batch, outputs, progress)}

    def loss(self, batch: Batch, outputs: Outputs, progress: Progress) -> StepResult:
        rejected = self.decide(batch, outputs, progress)["rejected"]
        kept = assume_negative_loss(outputs.logits, batch.labels).masked_fill(rejected, 0)
        mean = kept.mean() if self.config.average_over == "all" else kept.sum() / (~rejected).sum().clamp(min=1)
        return StepResult({"observed": self.config.loss_scale * mean}, decisions={"rejected": rejected})


class LargeLossTemporary(LargeLoss):
    """LL-Ct: doubted labels are trained as positives in this step."""

    def decide(self, batch: Batch, outputs: Outputs, progress: Progress) -> dict[str, Tensor]:
        return {"found": self.doubted(batch, outputs, progress)}


class LargeLossPermanent(LargeLoss):
    """LL-Cp: starting with the second epoch, the largest losses of each batch become positives permanently."""

    class Config(LargeLoss.Config):
        delta_rel: float = 0.1
        """Percent of a batch's labels: this many unknown ones become positives, starting with the second epoch."""
        strict: bool = False
        """Only those with a strictly larger loss than the last of them, as in the authors' code: one fewer, so none at
        all if the share is a single label, as in small batches with few categories."""

    config: Config
    corrected: Tensor  # [N, C] the labels that became positives

    def __init__(self, config: Config, problem: Problem, feature_dim: int | None):
        super().__init__(config, problem, feature_dim)
        self.register_buffer("corrected", torch.zeros(problem.labels.shape, dtype=torch.bool))

    def observe(self, batch: Batch, outputs: Outputs, progress: Progress) -> None:
        if progress.epoch == 0:
            return
        losses = assume_negative_loss(outputs.logits, batch.labels)
        unknown = (batch.labels == UNKNOWN) & ~self.corrected[batch.index]
        top = largest(losses, unknown, share_count(losses.numel(), self.config.delta_rel))
        if self.config.strict:
            top &= losses > losses.masked_fill(~top, math.inf).min()
        row, category = top.nonzero(as_tuple=True)
        self.corrected[gather_rows(batch.index[row]), gather_rows(category)] = True

    def decide(self, batch: Batch, outputs: Outputs, progress: Progress) -> dict[str, Tensor]:
        return {"found": (batch.labels == UNKNOWN) & self.corrected[batch.index]}

    def epoch_stats(self, progress: Progress) -> dict[str, float]:
        return {"corrected": float(self.corrected.sum())}
