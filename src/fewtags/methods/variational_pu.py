"""PU-MLC's variational loss (Yuan et al., "Positive Label Is All You Need for Multi-Label Classification", ICME 2024,
arXiv 2306.16016), which applies VPU (Chen et al., NeurIPS 2020) to every category.

    L = sum over categories of   w log mean[s]  -  mean over known positives [log s],     s = sigmoid(z / t)

No label is assumed negative: the first term pushes all images down together, the second pulls known positives up.
PU-MLC adds two things of a category that depend on the batch, without gradient: a temperature t = min(1, alpha std[z]),
and a weight w = mean[s]^gamma, which balances the many images that do not show it.

VPU is determined up to a factor of s; its mixup term removes that: the prediction for a mixture of two images has the
logarithm of the mixture of their targets (1 for known positives, else the prediction). The authors mix images; here the
logits are mixed, which for a linear classifier is mixing its features. Their global branch is a different network and
is not part of this.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fewtags.contract import Batch, Outputs, Progress, StepResult
from fewtags.labels import PRESENT
from fewtags.methods.base import Objective
from fewtags.settings import Settings


class VariationalPU(Objective["VariationalPU.Config"]):
    class Config(Settings):
        gamma: float = Field(0.85, ge=0)
        """Exponent of the weight w; the authors have 0.85 on VOC and 0.55 on COCO."""
        alpha: float = Field(2.0, gt=0)
        """Temperature, per standard deviation of a category's logits in the batch; 2 on VOC and 1 on COCO."""
        least_temperature: float = Field(0.1, gt=0)
        """Minimum of the temperature; logits that are all alike have no deviation."""
        mixup: float = Field(0.3, ge=0)
        """Parameter of the beta distribution of mixtures; 0 disables the term."""
        loss_scale: float = 1.0
        """Factor on the mean over categories. It matters relative to Adam's coupled weight decay and the head's
        prior."""

    def loss(self, batch: Batch, outputs: Outputs, progress: Progress) -> StepResult:
        losses = {"variational": self._variational(outputs.logits, batch.labels == PRESENT)}
        if self.config.mixup and len(outputs.logits) > 1:
            losses["mixup"] = self._mixed(outputs.logits, batch.labels == PRESENT)
        return StepResult({name: self.config.loss_scale * loss for name, loss in losses.items()})

    def _variational(self, logits: Tensor, known: Tensor) -> Tensor:
        spread = logits.detach().std(0, correction=0)
        temperature = (self.config.alpha * spread).clamp(self.config.least_temperature, 1.0)
        log_s = F.logsigmoid(logits / temperature)
        log_mean = log_s.logsumexp(0) - math.log(len(log_s))
        weight = (self.config.gamma * log_mean.detach()).exp()
        of_known = (log_s * known).sum(0) / known.sum(0).clamp(min=1)
        return (weight * log_mean - of_known).mean()

    def _mixed(self, logits: Tensor, known: Tensor) -> Tensor:
        half = len(logits) // 2
        first, second = torch.randperm(half, device=logits.device), torch.arange(half, 2 * half, device=logits.device)
        share = torch.distributions.Beta(self.config.mixup, self.config.mixup).sample().to(logits)
        target = logits.sigmoid().masked_fill(known, 1)
        mixed = share * target[first] + (1 - share) * target[second]
        predicted = F.logsigmoid(share * logits[first] + (1 - share) * logits[second])
        return (mixed.clamp(min=1e-10).log() - predicted).square().mean()
