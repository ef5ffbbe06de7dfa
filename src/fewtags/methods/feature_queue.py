"""The latest positive features of each category: the reference for the similarities of CALD, CANR and CST."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fewtags.distributed import gather_rows

Fill = Literal["zeros", "occupied"]


class FeatureQueue(nn.Module):
    """Keeps the last `size` positive features of each category as unit vectors, identical on every rank.

    `fill` says how a partly filled queue is averaged: "zeros" counts empty slots as similarity 0, as the
    authors' code does (a category warms up slowly); "occupied" ignores them, as in Eq. 6.
    """

    features: Tensor
    total: Tensor
    seen: Tensor

    def __init__(self, num_categories: int, size: int, feature_dim: int, fill: Fill = "zeros"):
        super().__init__()
        self.size = size
        self.fill = fill
        self.register_buffer("features", torch.zeros(num_categories, size, feature_dim))
        self.register_buffer("total", torch.zeros(num_categories, feature_dim))  # features summed over the queue
        self.register_buffer("seen", torch.zeros(num_categories, dtype=torch.long))  # ever added

    @torch.no_grad()
    def add(self, features: Tensor, positive: Tensor) -> None:
        """Append `features[b, c]` wherever `positive[b, c]`; the oldest entries are dropped."""
        image, category = positive.nonzero(as_tuple=True)
        new = gather_rows(F.normalize(features[image, category].to(self.features), dim=-1))
        category = gather_rows(category)

        # Position within its own category: 0, 1, 2, ... over all ranks.
        one_hot = F.one_hot(category, len(self.seen))
        place = (one_hot.cumsum(0) * one_hot).sum(1) - 1
        added = one_hot.sum(0)

        fits = place >= (added - self.size)[category]  # of more than `size`, keep the newest
        slot = (self.seen[category] + place) % self.size
        self.features[category[fits], slot[fits]] = new[fits]
        self.seen += added
        touched = added.nonzero().squeeze(1)
        self.total[touched] = self.features[touched].sum(1)

    @torch.no_grad()
    def turn(self, matrix: Tensor) -> None:
        """Map every entry to another space: v -> v @ matrix, renormalised to unit length."""
        self.features.copy_(F.normalize(self.features @ matrix, dim=-1))
        self.total.copy_(self.features.sum(1))

    def mean_cosine(self, features: Tensor) -> Tensor:
        """Average cosine similarity to each category's queue, s_c^{n,pos} in Eq. 6, [B, C]. An empty queue gives 0.

        The mean cosine to unit vectors is one dot product with their mean.
        """
        entries = self.size if self.fill == "zeros" else self.seen.clamp(min=1, max=self.size)[:, None]
        dot = torch.einsum("bcd,cd->bc", features, (self.total / entries).to(features))
        return dot / features.norm(dim=-1).clamp(min=1e-12)

    def occupied(self) -> Tensor:
        """[C] share of each queue that is filled."""
        return self.seen.clamp(max=self.size) / self.size
