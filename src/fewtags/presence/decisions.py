"""What decisions teach about a category: the one learner of the review page, `relabel` and `train --reviewed`.

    log-odds of presence = those by the labels and the answers + w' x + b

x are the leading directions of an image's feature. w and b minimise the logistic loss of the decided labels, with a
Gaussian prior that shrinks them to 0. A sample of images keeps the rest in place: each of them is expected to be
present with the probability it had. The minimum is unique: it does not depend on the order of decisions or on undos,
and the sample is part of the model, so every learner gives the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fewtags.presence.logistic import Regression

DIRECTIONS = 256  # of the features, those of most variance
SAMPLE = 1500  # images
UNDECIDED = 0.2  # weight of each undecided image; a decided one has weight 1
PRIOR = 0.25  # precision of the prior on w, where an image's x has a length of about 1
PRIOR_OF_BIAS = 0.1


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
    x = torch.cat([inputs, torch.ones(len(inputs), 1)], dim=1)
    precision = torch.full((x.shape[1],), PRIOR)
    precision[-1] = PRIOR_OF_BIAS
    odds = odds.float().nan_to_num(0.0, 30.0, -30.0).clamp(-30, 30)
    regression = Regression(odds, x, targets, weights, torch.zeros(x.shape[1]), precision)
    found = regression.fit(None if start is None else torch.cat([start.weights, start.bias[None]]))
    return Lesson(found[:-1], found[-1])
