"""Pure functions: logits and labels -> one loss per image and category. The method weighs, masks and averages them.

Labels are 1 (known present), 0 (unknown) or -1 (known absent); everything that is not 1 counts as absent. Logits in
half precision give losses in single precision. Value and gradient are finite for any finite logit, because logarithms
of probabilities come from `softplus` and never from the logarithm of a sigmoid.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def assume_negative_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Binary cross-entropy where everything that is not known to be present counts as absent (AN, Eq. 2)."""
    logits = _at_least_single(logits)
    return torch.where(labels == 1, F.softplus(-logits), F.softplus(logits))


def focal_loss(logits: Tensor, labels: Tensor, gamma: float = 2.0, alpha: float | None = None) -> Tensor:
    """Focal loss (Lin et al., ICCV 2017): -(1 - p_t)^gamma log(p_t), p_t the probability given to the label.

    `alpha` weighs positives against 1 - alpha for negatives; None weighs both 1.
    """
    logits = _at_least_single(logits)
    signed = torch.where(labels == 1, logits, -logits)  # p_t = sigmoid(signed)
    loss = torch.exp(-gamma * F.softplus(signed)) * F.softplus(-signed)
    if alpha is None:
        return loss
    return loss * torch.where(labels == 1, alpha, 1 - alpha)


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
    `detach_focus` keeps the gradient out of the two powers, as its authors train.
    """
    logits = _at_least_single(logits)
    source = logits.detach() if detach_focus else logits
    focus_pos = torch.exp(-gamma_pos * F.softplus(source))
    # Not clamped at 0, where a power below 1 has an infinite slope.
    focus_neg = (source.sigmoid() - margin).clamp(min=1e-8) ** gamma_neg
    log_margin = torch.full_like(logits, math.log(margin) if margin > 0 else -math.inf)
    log_absent = torch.logaddexp(F.logsigmoid(-logits), log_margin).clamp(max=0)  # log(1 - p_m)
    return torch.where(labels == 1, focus_pos * F.softplus(-logits), -focus_neg * log_absent)


def _at_least_single(logits: Tensor) -> Tensor:
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
