"""Pure functions: logits and labels -> one loss per image and category. Methods weight, mask and average them.

Labels are 1 (known present), 0 (unknown) or -1 (known absent); everything but 1 counts as absent. Logits in
half precision give losses in single precision. Value and gradient are finite for any finite logit, because log
probabilities come from `softplus`, never from the log of a sigmoid.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from fewtags.labels import PRESENT


def assume_negative_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Binary cross-entropy; everything not known to be present counts as absent (AN, Eq. 2)."""
    logits = _at_least_single(logits)
    return torch.where(labels == PRESENT, F.softplus(-logits), F.softplus(logits))


def focal_loss(logits: Tensor, labels: Tensor, gamma: float = 2.0, alpha: float | None = None) -> Tensor:
    """Focal loss (Lin et al., ICCV 2017): -(1 - p_t)^gamma log(p_t), p_t the probability given to the label.

    `alpha` is the weight of positives, 1 - alpha that of negatives; None: both have weight 1.
    """
    logits = _at_least_single(logits)
    signed = torch.where(labels == PRESENT, logits, -logits)  # p_t = sigmoid(signed)
    loss = torch.exp(-gamma * F.softplus(signed)) * F.softplus(-signed)
    if alpha is None:
        return loss
    return loss * torch.where(labels == PRESENT, alpha, 1 - alpha)


def asymmetric_loss(
    logits: Tensor,
    labels: Tensor,
    gamma_pos: float = 0.0,
    gamma_neg: float = 4.0,
    margin: float = 0.05,
    detach_focus: bool = False,
) -> Tensor:
    """Asymmetric loss (Ridnik et al., ICCV 2021): focus negatives harder and drop the easiest.

    With p_m = max(p - margin, 0): -(1 - p)^gamma_pos log(p) for positives, -p_m^gamma_neg log(1 - p_m) for the others.
    `detach_focus` stops the gradient through the two powers, as in the authors' training.
    """
    logits = _at_least_single(logits)
    source = logits.detach() if detach_focus else logits
    focus_pos = torch.exp(-gamma_pos * F.softplus(source))
    # Not clamped at 0, where a power below 1 has infinite slope.
    focus_neg = (source.sigmoid() - margin).clamp(min=1e-8) ** gamma_neg
    log_margin = torch.full_like(logits, math.log(margin) if margin > 0 else -math.inf)
    log_absent = torch.logaddexp(F.logsigmoid(-logits), log_margin).clamp(max=0)  # log(1 - p_m)
    return torch.where(labels == PRESENT, focus_pos * F.softplus(-logits), -focus_neg * log_absent)


def _at_least_single(logits: Tensor) -> Tensor:
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
