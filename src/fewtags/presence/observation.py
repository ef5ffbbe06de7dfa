"""How a present tag comes to be known: by habit, and the more clearly it is seen, the more often.

    P(known | present) = sigmoid(habit_c + clarity * o),    o the log-odds of presence

A coin that hides labels has clarity 0 and one habit for all tags. People tag by habit (another rate for every tag) and
what is large and central; on VOC 2007, where boxes tell the size of things, taggers who go by size have a clarity of
0.15. A label is then in one of these states, and every probability of this package follows from the table:

    known to be present                                     P e                  P = P(present), e = P(known | present)
    unknown                                                 1 - P e - a (1 - P)
    unknown, and then found to be present                   P (1 - e)
    unknown, and then found to be absent                    (1 - a) (1 - P)
    known to be absent from the beginning                   a (1 - P)            a: the same share of all absences

So an unknown label is present with log-odds o + log(1 - e) - log(1 - a): lower than o, because it might have been
known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fewtags.labels import ABSENT, PRESENT, UNKNOWN

# Where left-out scores are compared with the truth, log-odds rise more slowly above -2 than below it, since a present
# thing may be small: by e^-0.45 on VOC 2007 and e^-0.7 to e^-1 on COCO (1,000 photos and all). Known labels cannot
# tell: with a grid of bends they preferred the weakest on COCO.
BEND_AT, BEND = -2.0, -0.65
TINY = 1e-12


def bent(eta: Tensor, bend: Tensor | float = BEND) -> Tensor:
    """Log-odds whose slope changes smoothly from 1 far below BEND_AT to exp(bend) far above it."""
    factor = torch.as_tensor(bend).to(eta).exp() - 1
    return eta + factor * F.softplus(eta - BEND_AT)


def rise(eta: Tensor) -> Tensor:
    """The derivative of `bent`."""
    return 1 + (torch.tensor(BEND).exp().to(eta) - 1) * (eta - BEND_AT).sigmoid()


@dataclass(frozen=True)
class Observation:
    habit: Tensor  # [C] log-odds of being known, of a presence as likely as not
    clarity: Tensor | float  # how they rise with the log-odds of presence

    @classmethod
    def coin(cls, known_proportion: Tensor | float, num_categories: int) -> Observation:
        """The same share of each category's presences is known, whichever they are."""
        share = torch.as_tensor(known_proportion).float().expand(num_categories)
        return cls(share.logit(eps=1e-6), 0.0)

    def known(self, odds: Tensor, categories: slice | Tensor | int = slice(None)) -> Tensor:
        """P(known | present), given log-odds of presence [..., C']."""
        return (self.habit[categories] + self.clarity * odds).sigmoid()

    def if_unknown(self, odds: Tensor, categories: slice | Tensor | int = slice(None)) -> Tensor:
        """Log-odds of presence of labels that are unknown, where no absence is known from the beginning."""
        return odds + F.logsigmoid(-(self.habit[categories] + self.clarity * odds))


def soften(chance: Tensor, labels: Tensor, known_proportion: Tensor) -> Tensor:
    """[N, C]: 1 for known presences, 0 for known absences, else P(present | unknown), by a coin.

    `chance` is P(present) [N, C].
    """
    odds = chance.double().clamp(TINY, 1 - 1e-9).logit() + torch.log1p(-known_proportion.double().clamp(max=1 - 1e-9))
    return torch.where(labels == UNKNOWN, odds.sigmoid().to(chance), (labels == PRESENT).to(chance))


def known_absences(chance: Tensor, labels: Tensor) -> Tensor:
    """[C] share of the absences that are known: their number over the expected number of absences."""
    return ((labels == ABSENT).sum(0) / (1 - chance).sum(0).clamp(min=1e-6)).clamp(max=1)


class Derivatives(NamedTuple):
    """Of the log likelihood of labels in their states, by o (log-odds of presence) and r (those of being known)."""

    by_odds: Tensor
    by_known: Tensor
    info: Tensor  # expected second derivatives, by o and o,
    info_known: Tensor  # r and r,
    info_both: Tensor  # o and r


def log_likelihood(odds: Tensor, known: Tensor, counts: Tensor) -> Tensor:
    """Of `counts` [..., 4] labels that are: known present, unknown, found present, found or known absent.

    `odds` and `known` [...] are o and r. Absences known from the beginning count as found: how many are known of them
    is the same for all, and drops out.
    """
    present, unknown, found, absent = counts.unbind(-1)
    is_present, is_known = F.logsigmoid(odds), F.logsigmoid(known)
    both = (is_present + is_known).exp().clamp(max=1 - 1e-9)
    value = present * (is_present + is_known) + unknown * torch.log1p(-both)
    # log(1 - sigmoid(x)) = log sigmoid(x) - x
    return value + found * (is_present + is_known - known) + absent * (is_present - odds)


def derivatives(odds: Tensor, known: Tensor, counts: Tensor) -> Derivatives:
    """Of `log_likelihood`."""
    present, unknown, found, absent = counts.unbind(-1)
    p, e = odds.sigmoid(), known.sigmoid()
    both = (p * e).clamp(max=1 - 1e-9)
    not_p, not_e, ratio = 1 - p, 1 - e, both / (1 - both)
    missed = unknown * ratio
    by_odds = (present + found - missed) * not_p - absent * p
    by_known = (present - missed) * not_e - found * e
    seen = (present + unknown) * ratio
    info = not_p * (seen * not_p + (found + absent) * p)
    info_known = not_e * (seen * not_e + found * e) + TINY
    return Derivatives(by_odds, by_known, info, info_known, seen * not_p * not_e)
