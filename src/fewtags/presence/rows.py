"""Features of many images, used like a tensor [N, D] but not always in memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch import Tensor

AT_ONCE = 8192


class FeatureRows(Protocol):
    """A tensor is one, too."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any, /) -> Tensor: ...

    def split(self, size: int, /) -> Iterable[Tensor]: ...

    def __matmul__(self, weights: Tensor, /) -> Tensor: ...


def mean_and_spread(features: FeatureRows) -> tuple[Tensor, Tensor]:
    """[D] each, over all rows."""
    number, total, squares = max(len(features), 1), torch.zeros(()), torch.zeros(())
    for part in features.split(AT_ONCE):
        total = total + part.sum(0, dtype=torch.float64)
        squares = squares + part.square().sum(0, dtype=torch.float64)
    mean = total / number
    return mean.float(), (squares / number - mean.square()).clamp(min=0).sqrt().float()
