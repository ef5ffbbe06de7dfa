"""Pure functions: logits and labels -> one loss per image and category. The method weighs, masks and averages them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def assume_negative_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Binary cross-entropy where everything that is not known to be present counts as absent (AN, Eq. 2)."""
    return torch.where(labels == 1, F.softplus(-logits), F.softplus(logits))
