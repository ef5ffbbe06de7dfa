"""What answers teach about all other labels: how likely an unknown label is present.

That a tag is *known* is a fact, and its probability s is learned from the labels whoever chose them. That an *unknown*
tag is present is not: it depends on who left tags out, and why. Answers about unknown labels say it, whatever the order
in which they were asked for, as long as that depended on the scores only:

    log-odds of an unknown label = l + offset + offset_c + slope (l + 1) + tail max(l - 1, 0)
                                   + doubt (habit_c - mean habit),                 l and the habits by `observation`
    P(present) = s + (1 - s) P(present | unknown)

by a logistic regression with normal priors. `tail` says how right the surest are: a tag that is sure to be seen, and
yet nobody gave it, is often something that only looks like it. `doubt` asks whether habits differ as much as they seem
to: a tag whose surest images are often without it may have a tagger who skips it, or a look that deceives. With a coin
`doubt` is over 1, and with taggers who differ in habits near 0. Without any answer the priors' means are used, and
their spreads say how far the numbers can be off.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fewtags.presence.logistic import Regression
from fewtags.presence.observation import Observation

# What answers may find, as mean and standard deviation, in log-odds: by what complete answers find with all taggers of
# results/selection, on 1,000 photos and on all, of VOC 2007 and of COCO.
OFFSET, OWN_OFFSET = 0.9, 1.2
# Complete answers find a tail of -0.34 (-0.10 to -0.56) on all photos, and of -0.05 (-0.6 to 1) on 1,000, where fewer
# are so sure. A review of the surest alone learns it, instead of an offset for all labels (results/after-decisions).
USUAL_TAIL, TAIL = -0.2, 0.3
# Narrow: a review asks about the surest suggestions, and tags differ in how sure and how right these are. A slope that
# could explain this, instead of the tags' own offsets, would lift the many unlikely labels that nobody asked about
# (COCO, seven answers a tag: 236,000 missing tags estimated for 20,000; results/after-decisions).
SLOPE = 0.12
USUAL_DOUBT, DOUBT = 0.4, 0.5
CENTRE = -1.0  # log-odds that the slope does not change
TAIL_AT = 1.0  # log-odds from which on the tail does
_LEAST_RISE = 0.1  # of the log-odds: a label that looks surer is not less likely


class Shift(NamedTuple):
    """How answers move the log-odds of unknown labels."""

    offset: Tensor  # [C]
    slope: Tensor  # []
    tail: Tensor  # []

    def __call__(self, odds: Tensor, categories: slice | Tensor | int = slice(None)) -> Tensor:
        """[..., C'] log-odds after the answers, given those before them."""
        rise = self.slope * (odds - CENTRE) + self.tail * (odds - TAIL_AT).clamp(min=0)
        return odds + self.offset[categories] + rise


@dataclass(frozen=True)
class Answers:
    """Corrects log-odds of presence by what answers said."""

    observation: Observation
    shift: Shift

    def if_unknown(self, odds: Tensor, categories: slice | Tensor | int = slice(None)) -> Tensor:
        """Log-odds of presence of unknown labels, given those by the labels alone [..., C']."""
        return self.shift(self.observation.if_unknown(odds, categories), categories)

    def before(self, odds: Tensor, unknown: Tensor, category: int) -> Tensor:
        """[n] log-odds of labels of a category before they are decided, given those by the labels alone [n]: of
        `unknown` ones, and of given ones as if nothing were known."""
        return torch.where(unknown, self.if_unknown(odds, category), self.present(odds, category))

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
    """Offset, slope, tail, doubt and the own offsets of the S categories that were asked about, with their covariance.

    The others have the prior's own offset: 0, with its spread.
    """

    mean: Tensor  # [4 + S]
    covariance: Tensor  # [4 + S, 4 + S]
    asked: Tensor  # [S] categories
    habits: Tensor  # [C] less their mean
    number: int  # of answers

    @classmethod
    def of(cls, odds: Tensor, category: Tensor, present: Tensor, habit: Tensor) -> Correction:
        """From answers `present` [n] about unknown labels of these log-odds [n] and `category` [n].

        `habit` [C] is the observation model's.
        """
        habits = (habit - habit.mean()).double().cpu()
        asked, place = category.unique(return_inverse=True)
        odds, said = odds.double(), present.double()
        own = F.one_hot(place, len(asked)) if len(asked) else torch.zeros(0, 0)
        above = (odds - TAIL_AT).clamp(min=0)
        shared = torch.stack([torch.ones_like(odds), odds - CENTRE, above, habits[category]], dim=1)
        inputs = torch.cat([shared, own], dim=1)
        prior = torch.tensor([0.0, 0.0, USUAL_TAIL, USUAL_DOUBT] + [0.0] * len(asked)).double()
        spread = torch.tensor([OFFSET, SLOPE, TAIL, DOUBT] + [OWN_OFFSET] * len(asked)).double()
        regression = Regression(odds, inputs, said, torch.ones_like(odds), prior, spread.pow(-2))
        mean = regression.fit()
        return cls(mean, torch.linalg.inv(regression.information(regression.chance(mean))), asked, habits, len(odds))

    @property
    def shift(self) -> Shift:
        return self._shift(self.mean, torch.zeros_like(self.habits))

    def draws(self, number: int, seed: int = 0) -> Iterator[Shift]:
        """As likely as they may be, for intervals."""
        generator = torch.Generator().manual_seed(seed)
        root = torch.linalg.cholesky(self.covariance)
        for _ in range(number):
            drawn = self.mean + root @ torch.randn(len(self.mean), generator=generator, dtype=torch.float64)
            others = OWN_OFFSET * torch.randn(len(self.habits), generator=generator, dtype=torch.float64)
            yield self._shift(drawn, others)

    def _shift(self, values: Tensor, own: Tensor) -> Shift:
        """`own` [C] are the own offsets of categories that nobody was asked about."""
        offset, slope, tail, doubt = values[:4]
        offsets = offset + doubt * self.habits + own.index_copy(0, self.asked, values[4:])
        return Shift(offsets.float(), slope.float(), tail.clamp(min=_LEAST_RISE - 1 - slope).float())
