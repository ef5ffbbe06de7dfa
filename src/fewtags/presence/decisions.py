"""What decisions teach about a category: the one learner of the review page, `relabel` and `train --reviewed`.

    log-odds of presence = those by the labels and the answers + w' x + b

x are the leading directions of an image's feature. w and b minimise the logistic loss of the decided labels, with a
Gaussian prior that shrinks them to 0. A sample of images keeps the rest in place: each of them is expected to be
present with the probability it had. The minimum is unique: it does not depend on the order of decisions or on undos,
and the sample is part of the model, so every learner gives the same. A few Newton steps find it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

DIRECTIONS = 256  # of the features, those of most variance
SAMPLE = 1500  # images
UNDECIDED = 0.2  # weight of each undecided image; a decided one has weight 1
PRIOR = 0.25  # precision of the prior on w, where an image's x has a length of about 1
PRIOR_OF_BIAS = 0.1
_STEPS, _CLOSE = 30, 1e-6


@dataclass(frozen=True)
class Lesson:
    """What is added to the log-odds of one category."""

    weights: Tensor  # [K] w
    bias: Tensor  # [] b

    def __call__(self, inputs: Tensor) -> Tensor:
        return inputs @ self.weights + self.bias


@dataclass(frozen=True)
class Kept:
    """A sample of the images, and how many each stands for: what a lesson may not change without a reason."""

    inputs: Tensor  # [S, K]
    stand_for: float

    def learn(
        self, inputs: Tensor, present: Tensor, odds: Tensor, sample_odds: Tensor, start: Lesson | None = None
    ) -> Lesson:
        """From decisions that the tag is `present` [n] or not in images of these `inputs` [n, K] and log-odds [n]
        before.

        `sample_odds` [S] are those of the sample. A lesson to `start` from saves steps; the result is the same.
        """
        return fit_lesson(
            torch.cat([inputs, self.inputs]),
            torch.cat([present.float(), sample_odds.sigmoid()]),
            torch.cat([torch.ones(len(inputs)), torch.full((len(sample_odds),), UNDECIDED * self.stand_for)]),
            torch.cat([odds, sample_odds]),
            start,
        )


def fit_lesson(inputs: Tensor, targets: Tensor, weights: Tensor, odds: Tensor, start: Lesson | None = None) -> Lesson:
    """Minimise sum weights * cross entropy(odds + w' x + b, targets) + PRIOR / 2 |w|^2 + PRIOR_OF_BIAS / 2 b^2.

    `inputs` [n, K] are the x, `targets` [n] chances of presence, `odds` [n] log-odds before.
    """
    odds = odds.float().nan_to_num(0.0, 30.0, -30.0).clamp(-30, 30)
    x = torch.cat([inputs, torch.ones(len(inputs), 1)], dim=1)
    precision = torch.full((x.shape[1],), PRIOR)
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
    return Lesson(now[:-1], now[-1])
