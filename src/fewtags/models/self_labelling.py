"""One round of self-labelling for the closed form, if held-out labels show that it helps.

Every unknown label counts as a positive with its probability times a weight, and the closed form is refitted. How much
they count, and with which penalty, differs between datasets (thousands of small probabilities
can outweigh a rare category's few known positives), so it is chosen by cross-validation: a fold of the known positives
is hidden, the round is made without them, and their ranks are measured. Leaving out one at a time would not work, as
the soft labels of the others would have seen it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from fewtags.labels import PRESENT, UNKNOWN
from fewtags.models.curves import soften
from fewtags.models.discriminant import Discriminant, DiscriminantSums, first_of_each
from fewtags.models.leave_one_out import Choice, Images, LeftOut, Reliability, rank_evidence

SHARPER = 3.0  # labels are guessed with a penalty smaller by this factor: more labels, and more rare ones
SOFT_WEIGHTS = (0.03, 0.1, 0.3, 1.0)
PENALTY_FACTORS = (0.1, 0.3, 1.0)  # of the second fit, which has more data
LEAST_PENALTY = 0.3
FOLDS = 8  # cross-validation folds of the known positives
POWER = 0.15  # the target, mean average precision, depends more on the first ranks
CONVINCING = 2.0  # log likelihood by which a round must be better than none
_CATEGORIES, _ROWS, _HIDDEN = 128, 4000, 640  # enough for the choice
_PAIRS_AT_ONCE = 2048


@dataclass(frozen=True)
class Round:
    """How a round is made."""

    soft_weight: float
    penalty: float


def refine(
    model: Discriminant,
    images: Images,
    statistics: DiscriminantSums,
    choice: Choice,
    *,
    one_curve: bool = False,
) -> tuple[Round | None, Tensor]:
    """Fit `model` again with guessed labels.

    Returns what was chosen, or None if it stays as `choice` made it, and the weight of every label [N, C].

    `images` are the result of `model.fit` for these `statistics`.
    """
    known = (images.labels == PRESENT).float()
    proportion = model.known_proportion.clone().cpu()
    before = {name: value.clone() for name, value in model.named_buffers()}
    sharp = Choice(choice.penalty / SHARPER, choice.name_weight)
    model.refit(images, known, statistics, sharp, proportion, one_curve=one_curve)
    best = _best_round(model, images, choice)
    if best is None:
        for name, value in model.named_buffers():
            value.copy_(before[name])
        return None, known
    soft = model.soft_labels(images, known)
    weights = torch.where(images.labels == PRESENT, 1.0, best.soft_weight * soft)
    second = Choice(best.penalty, choice.name_weight)
    again = statistics.relabelled(images.features, weights)
    model.refit(images, weights, again, second, proportion, one_curve=one_curve)
    return best, weights


def _best_round(model: Discriminant, images: Images, choice: Choice) -> Round | None:
    """The best way to refit on labels guessed by `model`; None if none is convincing."""
    columns = (images.labels == PRESENT).sum(0).nonzero()[:, 0]
    if not len(columns):
        return None
    columns = columns[:: max(-(-len(columns) // _CATEGORIES), 1)]
    generator = torch.Generator().manual_seed(0)
    fold = torch.randint(FOLDS, (len(images.labels), len(columns)), generator=generator)
    rows = torch.randperm(len(images.labels), generator=generator)[:_ROWS]
    ranks: dict[Round | None, list[Tensor]] = {}
    categories: list[Tensor] = []
    for number in range(FOLDS):
        held_back = (images.labels[:, columns] == PRESENT) & (fold == number)
        trial = _Trial.of(model, images, columns, held_back, rows)
        if trial is None:
            continue
        categories.append(trial.hidden[:, 1])
        for how, log_ranks in trial.all_rounds(choice):
            ranks.setdefault(how, []).append(log_ranks)
    if not ranks:
        return None
    category = torch.cat(categories)
    value = {how: float(rank_evidence(torch.cat(each), category, len(fold), POWER)) for how, each in ranks.items()}
    best = max((how for how in value if how is not None), key=lambda how: value[how])
    return best if value[best] > value[None] + CONVINCING else None


@dataclass(frozen=True)
class _Trial:
    """Hidden known positives, the labels guessed without them, and the images they are ranked among."""

    model: Discriminant
    images: Images
    columns: Tensor
    labels: Tensor  # [N, C'] without the hidden ones
    soft: Tensor  # [N, C']
    hidden: Tensor  # [P, 2] image and column
    rows: Tensor  # [R]
    known_total: Tensor  # [C', D] of the eigenbasis
    soft_total: Tensor

    @classmethod
    def of(cls, model: Discriminant, images: Images, columns: Tensor, held_back: Tensor, rows: Tensor) -> _Trial | None:
        labels = images.labels[:, columns].masked_fill(held_back, UNKNOWN)
        known = (labels == PRESENT).float()
        # Hiding a label says nothing about a category with none left.
        row, column, _ = first_of_each(held_back & known.any(0), max(_HIDDEN // len(columns), 2))
        hidden = torch.stack([row, column], dim=1)
        if not len(hidden):
            return None
        known_total = known.T @ images.rotated
        first = _left_out(known_total, known.sum(0), images, float(model.penalty))
        scores = first.scores(images.rotated, known)
        if images.names is not None:
            scores = scores + model.name_weight[columns].cpu() * images.names[:, columns]
        chance = model.chance(scores.to(model.slope), columns).cpu()
        share = (1 - 1 / FOLDS) * model.known_proportion[columns].cpu()
        soft = soften(chance, labels, share)
        soft_total = torch.where(labels == PRESENT, 0.0, soft).T @ images.rotated
        return cls(model, images, columns, labels, soft, hidden, rows, known_total, soft_total)

    def all_rounds(self, choice: Choice) -> Iterator[tuple[Round | None, Tensor]]:
        """Every way to refit, with none first, and the hidden positives' logarithmic ranks [P]."""
        yield None, self._log_ranks(0.0, choice.penalty, choice.name_weight)
        penalties = sorted({max(choice.penalty * factor, LEAST_PENALTY) for factor in PENALTY_FACTORS})
        for weight, penalty in product(SOFT_WEIGHTS, penalties):
            yield Round(weight, penalty), self._log_ranks(weight, penalty, choice.name_weight)

    def _log_ranks(self, soft_weight: float, penalty: float, name_weight: float) -> Tensor:
        return self._ranks(*self._scores(soft_weight, penalty), name_weight)

    def _scores(self, soft_weight: float, penalty: float) -> tuple[Tensor, Tensor]:
        """[P] of the hidden ones, [R, C'] of the images they are ranked among; names aside."""
        weights = torch.where(self.labels == PRESENT, 1.0, soft_weight * self.soft)
        total = self.known_total + soft_weight * self.soft_total
        left_out = _left_out(total, weights.sum(0), self.images, penalty)
        image, column = self.hidden.T
        score = left_out.pairs(self.images.rotated[image], column, weights[image, column])
        return score, left_out.scores(self.images.rotated[self.rows], weights[self.rows])

    def _ranks(self, score: Tensor, others: Tensor, name_weight: float) -> Tensor:
        image, column = self.hidden.T
        if name_weight and self.images.names is not None:
            names = self.images.names[:, self.columns]
            score, others = score + name_weight * names[image, column], others + name_weight * names[self.rows]
        unknown = self.labels == UNKNOWN
        competes = unknown[self.rows]
        above = torch.empty(len(score))
        for some in torch.arange(len(score)).split(_PAIRS_AT_ONCE):
            rivals = others[:, column[some]] > score[some]
            above[some] = (rivals & competes[:, column[some]]).sum(0).float()
        stands_for = unknown.sum(0) / competes.sum(0).clamp(min=1)
        return (1 + above * stands_for[column]).log()


def _left_out(total: Tensor, count: Tensor, images: Images, penalty: float) -> LeftOut:
    """By sums [C, D] of standardised features in the eigenbasis."""
    directions = total / count.clamp(min=1e-12)[:, None] / (images.values + penalty)
    variance = directions.square() @ images.values
    reliability = Reliability.of(variance, count, images.values, penalty)
    return LeftOut(directions, count, images.values, penalty, images.total, reliability)
