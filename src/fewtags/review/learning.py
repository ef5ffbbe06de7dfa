"""Learns from decisions: a correction to the closed form's log-odds, one category at a time.

    log-odds of presence = those of the closed form on the given labels + w' x + b

x are the leading directions of an image's feature. w and b minimise the logistic loss of the decided labels, with a
Gaussian prior that shrinks them to 0. A sample of the undecided images keeps the rest in place: each
of them is expected to be present with the closed form's probability. The minimum is unique: it does not depend on the
order of decisions or on undos. A few Newton steps find it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fewtags.models.discriminant import Basis

DIRECTIONS = 256  # of the features, those of most variance
SAMPLE = 1500  # undecided images
UNDECIDED = 0.2  # weight of each of them; a decided one has weight 1
PRIOR = 0.25  # precision of the prior on w, times the mean squared length of a standardised feature
PRIOR_OF_BIAS = 0.1
_ROWS_AT_ONCE = 8192
_STEPS, _CLOSE = 30, 1e-6


@dataclass(frozen=True)
class Correction:
    """A correction to the log-odds of one category."""

    weights: Tensor  # [K] w
    bias: Tensor  # [] b

    def __call__(self, inputs: Tensor) -> Tensor:
        return inputs @ self.weights + self.bias


class Learner:
    """Learns corrections from decisions about images; keeps their leading directions."""

    def __init__(self, unit_features: Tensor, basis: Basis, seed: int = 0):
        strongest = basis.vectors[:, -DIRECTIONS:]  # ascending eigenvalues
        parts = unit_features.split(_ROWS_AT_ONCE)
        self.inputs = torch.cat([((part - basis.mean) / basis.scale) @ strongest for part in parts])  # [N, K]
        self.prior = PRIOR * float(torch.isfinite(basis.scale).sum())
        generator = torch.Generator().manual_seed(seed)
        self.sample = torch.randperm(len(unit_features), generator=generator)[:SAMPLE]

    def learn(
        self, rows: Tensor, present: Tensor, undecided: Tensor, odds: Tensor, start: Correction | None
    ) -> Correction:
        """From decisions that the tag is `present` [n] or not in the images `rows` [n].

        For all images: which are `undecided` [N], and the closed form's log-odds [N], for unknown labels those of a
        presence that was not labelled. A correction to `start` from saves steps; the result is the same.
        """
        held = self.sample[undecided[self.sample]]
        weight = UNDECIDED * float(undecided.sum()) / max(len(held), 1)
        every = torch.cat([rows, held])
        return fit_correction(
            self.inputs[every],
            torch.cat([present.float(), odds[held].sigmoid()]),
            torch.cat([torch.ones(len(rows)), torch.full((len(held),), weight)]),
            odds[every],
            self.prior,
            start,
        )


def fit_correction(
    inputs: Tensor, targets: Tensor, weights: Tensor, odds: Tensor, prior: float, start: Correction | None = None
) -> Correction:
    """Minimise sum weights * cross entropy(odds + w' x + b, targets) + prior / 2 |w|^2 + PRIOR_OF_BIAS / 2 b^2.

    `inputs` [n, K] are the x, `targets` [n] chances of presence, `odds` [n] log-odds before.
    """
    x = torch.cat([inputs, torch.ones(len(inputs), 1)], dim=1)
    precision = torch.full((x.shape[1],), prior)
    precision[-1] = PRIOR_OF_BIAS
    now = torch.zeros(x.shape[1]) if start is None else torch.cat([start.weights, start.bias[None]])

    def loss(at: Tensor) -> float:
        logits = odds + x @ at
        entropy = weights * (F.softplus(logits) - targets * logits)
        return float(entropy.sum(dtype=torch.float64) + (precision * at.square()).sum(dtype=torch.float64) / 2)

    value = loss(now)
    for _ in range(_STEPS):
        chance = (odds + x @ now).sigmoid()
        gradient = x.T @ (weights * (chance - targets)) + precision * now
        curvature = (x * (weights * chance * (1 - chance))[:, None]).T @ x + precision.diag()
        step = torch.linalg.solve(curvature, gradient)
        decrease = float(step @ gradient) / 2  # expected
        length = 1.0
        while (after := loss(now - length * step)) > value + 1e-4 * abs(decrease) and length > 1e-3:
            length /= 2  # the Newton step may be too long far from the minimum
        now, value = now - length * step, after
        if decrease < _CLOSE:
            break
    return Correction(now[:-1], now[-1])
