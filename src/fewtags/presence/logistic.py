"""Logistic regression with a normal prior, by Newton's method: for answers and for lessons."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

_STEPS, _CLOSE = 40, 1e-6
_SHORTEST = 1e-3  # part of a Newton step


class Regression(NamedTuple):
    """sum weights * cross entropy(odds + inputs @ w, targets) + sum precision / 2 * (w - prior)^2, to minimise over w.

    The minimum is unique, so it does not depend on where the search starts.
    """

    odds: Tensor  # [n] before
    inputs: Tensor  # [n, K]
    targets: Tensor  # [n] chances
    weights: Tensor  # [n]
    prior: Tensor  # [K]
    precision: Tensor  # [K]

    def loss(self, w: Tensor) -> float:
        logits = self.odds + self.inputs @ w
        entropy = self.weights * (F.softplus(logits) - self.targets * logits)
        away = self.precision * (w - self.prior).square() / 2
        return float(entropy.sum(dtype=torch.float64) + away.sum(dtype=torch.float64))

    def fit(self, start: Tensor | None = None) -> Tensor:
        """[K] w."""
        now = self.prior if start is None else start
        value = self.loss(now)
        for _ in range(_STEPS):
            chance = self.chance(now)
            gradient = self.inputs.T @ (self.weights * (chance - self.targets)) + self.precision * (now - self.prior)
            step = torch.linalg.solve(self.information(chance), gradient)
            decrease = float(step @ gradient) / 2  # expected
            length = 1.0  # the whole step may be too long far from the minimum
            while (after := self.loss(now - length * step)) > value + 1e-4 * abs(decrease) and length > _SHORTEST:
                length /= 2
            now, value = now - length * step, after
            if decrease < _CLOSE:
                break
        return now

    def chance(self, w: Tensor) -> Tensor:
        """[n]"""
        return (self.odds + self.inputs @ w).sigmoid()

    def information(self, chance: Tensor) -> Tensor:
        """[K, K] the second derivatives, where these chances are: at the minimum, the inverse of the posterior's
        covariance."""
        return (self.inputs * (self.weights * chance * (1 - chance))[:, None]).T @ self.inputs + self.precision.diag()
