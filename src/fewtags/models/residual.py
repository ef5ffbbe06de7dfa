"""What training adds to the closed form: nothing for any image at the start.

W' x + b + v_c . sum_l attention_cl y_l        x the whitened image, y_l its whitened windows
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fewtags.contract import Outputs
from fewtags.presence.ridge import Basis

WHITENING = 2.0  # added to the eigenvalues when features are whitened


class Residual(nn.Module):
    first_query: Tensor

    def __init__(self, in_channels: int, num_categories: int, *, width: int, dropout: float, prior: float):
        super().__init__()
        self.width, self.prior = min(width, in_channels), prior
        self.whiten = Whiten(in_channels, in_channels)
        self.whiten_windows = Whiten(in_channels, self.width)
        self.register_buffer("first_query", torch.zeros(num_categories, self.width))
        self.query = nn.Parameter(torch.zeros(num_categories, self.width))  # added to the initial one
        self.pooled_weight = nn.Parameter(torch.zeros(num_categories, in_channels))
        self.attended_weight = nn.Parameter(torch.zeros(num_categories, self.width))
        self.bias = nn.Parameter(torch.zeros(num_categories))
        self.dropout = nn.Dropout(dropout)

    def whitened(self, pooled: Tensor, windows: Tensor) -> tuple[Tensor, Tensor]:
        """[B, D] and [B, L, width], of features of unit length of images [B, D] and their windows [B, L, D]."""
        return self.whiten(pooled), self.whiten_windows(windows)

    def forward(self, logits: Tensor, image: Tensor, windows: Tensor) -> Outputs:
        """Added to logits [B, C], of whitened images [B, D] and windows [B, L, width]. The attention is [B, L, C]."""
        attention = (windows @ (self.first_query + self.query).T).softmax(1)
        logits = logits + self.dropout(image) @ self.pooled_weight.T + self.bias
        # The feature of a category is the mean of the windows by its attention. Its product with v_c is the mean of
        # theirs, if all categories drop the same dimensions; their features would be the largest tensor of a step.
        if self.training:
            windows = windows * self.dropout(torch.ones_like(windows[:, :1]))
        logits = logits + (attention * (windows @ self.attended_weight.T)).sum(1)
        return Outputs(logits, attention=attention, prior=self._penalty() if self.training else None)

    def _penalty(self) -> Tensor:
        return self.prior / 2 * (self.pooled_weight.square().sum() + self.attended_weight.square().sum())

    def start(self, basis: Basis, window_basis: Basis, prototypes: Tensor) -> None:
        """Whitening and first queries; `prototypes` [C, D] are the mean unit-length windows of known positives."""
        self.whiten.set(basis)
        self.whiten_windows.set(window_basis)
        prototypes = prototypes.to(self.first_query)
        query = torch.where(prototypes.any(1, keepdim=True), self.whiten_windows(prototypes), 0.0)
        self.first_query.copy_(F.normalize(query, dim=1))


class Whiten(nn.Module):
    """Features in the eigenbasis, divided by the square root of the eigenvalues: all directions have about equal
    weight."""

    mean: Tensor
    transform: Tensor

    def __init__(self, in_channels: int, width: int):
        super().__init__()
        self.register_buffer("mean", torch.zeros(in_channels))
        self.register_buffer("transform", torch.zeros(in_channels, width))

    def set(self, basis: Basis) -> None:
        width = self.transform.shape[1]
        vectors, values = basis.vectors[:, -width:], basis.values[-width:]  # eigenvalues are ascending
        self.mean.copy_(basis.mean)
        self.transform.copy_(vectors / basis.scale[:, None] / (values + WHITENING).sqrt())

    def forward(self, features: Tensor) -> Tensor:
        return (features - self.mean) @ self.transform
