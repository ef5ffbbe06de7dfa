"""The labels a model was given, so that a repeated label counts once and a changed one replaces the old one.

An image is recognised by its feature: two computations for one image differ in the last digits, those
of two photos by a hundred times more. To save memory a feature is stored as a few random
projections. Two copies of one photo count as one image.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fewtags.labels import UNKNOWN

PROJECTIONS = 16
SAME = 0.02  # unit-length features closer than this are of the same image


class LabelMemory(nn.Module):
    directions: Tensor
    keys: Tensor
    entries: Tensor

    def __init__(self, num_categories: int, feature_dim: int):
        super().__init__()
        self.num_categories = num_categories
        generator = torch.Generator().manual_seed(0)
        directions = torch.randn(feature_dim, PROJECTIONS, generator=generator) / PROJECTIONS**0.5
        self.register_buffer("directions", directions, persistent=False)  # preserves distances on average
        self.register_buffer("keys", torch.zeros(0, PROJECTIONS))
        self.register_buffer("entries", torch.zeros(0, 3, dtype=torch.int32))  # image, category, label
        self._labels: dict[tuple[int, int], int] | None = None  # the entries by image and category, built when needed

    def key(self, unit_features: Tensor) -> Tensor:
        """[N, D] or [D] -> the key of an image, [N, PROJECTIONS] or [PROJECTIONS]."""
        return unit_features.to(self.directions) @ self.directions

    def remember(self, keys: Tensor, entries: Tensor) -> None:
        """Store images by their keys [N, PROJECTIONS], and their known labels: rows (image, category, label).

        Replaces everything stored before.
        """
        self.keys = keys.to(self.directions)
        self.entries = entries.to(self.keys.device, torch.int32)
        self._labels = None

    def update(self, unit_feature: Tensor, category: int, label: int) -> int:
        """Store a label of one image [D]; returns the previous one."""
        if self._labels is None:
            self._labels = {(image, column): value for image, column, value in self.entries.tolist()}
        image = self._find(unit_feature)
        old = self._labels.get((image, category), UNKNOWN)
        if label != old:
            self._labels[image, category] = label
            entry = torch.tensor([[image, category, label]]).to(self.entries)
            self.entries = torch.cat([self.entries, entry])  # the last entry about a label counts
        return old

    def _find(self, unit_feature: Tensor) -> int:
        """The image's index; a new one if it was not seen before."""
        key = self.key(unit_feature)
        if len(self.keys):
            distance, nearest = (self.keys - key).square().sum(1).min(0)
            if float(distance) < SAME**2:
                return int(nearest)
        self.keys = torch.cat([self.keys, key[None]])
        return len(self.keys) - 1

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *more: Any) -> None:
        for name in ("keys", "entries"):  # as many as were saved
            if prefix + name in state:
                setattr(
                    self, name, state[prefix + name].new_zeros(state[prefix + name].shape).to(self.directions.device)
                )
        self._labels = None
        super()._load_from_state_dict(state, prefix, *more)
