"""What answers teach about all other labels: how likely an unknown label is present.

That a tag is *known* is a fact, and its probability s is learned from the labels whoever chose them. That an *unknown*
tag is present is not: it depends on who left tags out, and why. Answers about unknown labels say it, whatever the order
in which they were asked for, as long as that depended on the scores only:

    log-odds of an unknown label = l + offset + offset_c + slope (l + 1) + doubt (habit_c - mean habit),
    P(present) = s + (1 - s) P(present | unknown),                                 l and the habits by `observation`

by a logistic regression with normal priors. The last term asks whether habits differ as much as they seem to: a tag whose
surest images are often without it may have a tagger who skips it, or a look that deceives. With a coin `doubt` is over
1, and with taggers who differ in habits near 0. Without any answer the priors' means are used, and their spreads say how
far the numbers can be off.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fewtags.presence.observation import Observation

# What answers may find, as mean and standard deviation, in log-odds: by what complete answers find with all taggers of
# results/selection, on 1,000 photos and on all, of VOC 2007 and of COCO.
OFFSET, OWN_OFFSET = 0.9, 0.6
USUAL_SLOPE, SLOPE = -0.05, 0.12
USUAL_DOUBT, DOUBT = 0.7, 0.6
CENTRE = -1.0  # log-odds that the slope does not change
_STEPS, _CLOSE = 40, 1e-7


@dataclass(frozen=True)
class Answers:
    """Corrects log-odds of presence by what answers said; changes nothing where there are none."""

    observation: Observation
    offset: Tensor  # [C]
    slope: Tensor  # []

    def if_unknown(self, odds: Tensor, categories: slice | Tensor | int = slice(None)) -> Tensor:
        """Log-odds of presence of unknown labels, given those by the labels alone [..., C']."""
        before = self.observation.if_unknown(odds, categories)
        return before + self.offset[categories] + self.slope * (before - CENTRE)

    def present(self, odds: Tensor, categories: slice | Tensor | int = slice(None)) -> Tensor:
        """Log-odds of presence of images about which nobody said anything.

        Of P = s + (1 - s) q, with s = P e: odds of P = (s + (1 - s) q) / ((1 - s) (1 - q)).
        """
        known = F.logsigmoid(odds) + F.logsigmoid(self.observation.habit[categories] + self.observation.clarity * odds)
        unknown = log1mexp(known)
        hidden = self.if_unknown(odds, categories)
        present = torch.logaddexp(known, unknown + F.logsigmoid(hidden))
        return present - unknown - F.logsigmoid(-hidden)


def log1mexp(x: Tensor) -> Tensor:
    """log(1 - exp(x)) of x < 0."""
    return torch.log((-torch.expm1(x.clamp(max=-1e-7))).clamp(min=1e-30))


@dataclass(frozen=True)
class Correction:
    """Offset, slope, doubt and a category's own offsets, with their covariance."""

    mean: Tensor  # [C + 3]
    covariance: Tensor  # [C + 3, C + 3]
    habits: Tensor  # [C] less their mean
    number: int  # of answers

    @classmethod
    def of(
        cls, odds: Tensor, category: Tensor, present: Tensor, habit: Tensor, uncertain: float = 0.0
    ) -> Correction:
        """From answers `present` [n] about unknown labels of these log-odds [n] and `category` [n].

        `habit` [C] and how `uncertain` it is are those of the observation model.
        """
        habits = habit.detach().cpu().double() - habit.double().mean().cpu()
        size = len(habits) + 3
        inputs = torch.zeros(len(odds), size, dtype=torch.float64)
        inputs[:, 0], inputs[:, 1], inputs[:, 2] = 1.0, odds.double() - CENTRE, habits[category]
        inputs[torch.arange(len(odds)), 3 + category] = 1.0
        prior, spread = torch.zeros(size, dtype=torch.float64), torch.full((size,), OWN_OFFSET, dtype=torch.float64)
        prior[1], prior[2] = USUAL_SLOPE, USUAL_DOUBT
        spread[0], spread[1], spread[2] = math.hypot(OFFSET, uncertain), SLOPE, DOUBT
        precision, mean, said = spread.pow(-2), prior.clone(), present.double()
        information = torch.diag(precision)
        for _ in range(_STEPS):
            chance = (odds.double() + inputs @ mean).sigmoid()
            information = (inputs * (chance * (1 - chance))[:, None]).T @ inputs + torch.diag(precision)
            step = torch.linalg.solve(information, inputs.T @ (said - chance) - precision * (mean - prior)).clamp(-1, 1)
            mean = mean + step
            if float(step.abs().max()) < _CLOSE:
                break
        return cls(mean, torch.linalg.inv(information), habits, len(odds))

    @property
    def offset(self) -> Tensor:
        """[C]"""
        return self._offset(self.mean)

    @property
    def slope(self) -> Tensor:
        return self.mean[1].float()

    def draws(self, number: int, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Offsets [C] and slopes as likely as they may be, for intervals."""
        generator = torch.Generator().manual_seed(seed)
        root = torch.linalg.cholesky(self.covariance)
        for _ in range(number):
            drawn = self.mean + root @ torch.randn(len(self.mean), generator=generator, dtype=torch.float64)
            yield self._offset(drawn), drawn[1].float()

    def _offset(self, values: Tensor) -> Tensor:
        return (values[0] + values[2] * self.habits + values[3:]).float()
