"""How likely every label of a review is present, by all that is known now.

The run's own tags are judged by the given labels once (`engine.judge`); decisions add what they teach beyond it: how
likely unknown labels are present (`presence.answers`), and what a tag looks like (`presence.decisions`). A tag that
reviewers added is learned from its answers alone (`presence.new_tag`). All of it follows from the labels as they are,
so that a review that is opened again is where the last one was.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewtags.engine.judge import Judge
from fewtags.labels import ABSENT, PRESENT, UNKNOWN
from fewtags.presence.answers import Answers, Correction
from fewtags.presence.decisions import Lesson
from fewtags.presence.estimates import Interval
from fewtags.presence.new_tag import NEXT, Archive, Forecast, Learned, name_prior
from fewtags.presence.rows import ClassShares, FeatureRows
from fewtags.review.labels import LabelState
from fewtags.review.tag_book import EXAMPLE

LIKELY = 0.5  # what is more likely right than wrong is a suggestion
_CATEGORIES_KEPT = 4  # whose chances are cached: one per window
_ROWS_AT_ONCE = 8192
_DRAWS = 40


@dataclass(frozen=True)
class Chances:
    """Probabilities of one category for all images."""

    present: np.ndarray  # [N] probability of presence, whatever the label
    missing: np.ndarray  # [N] probability of presence if the label is unknown
    # [N] how much the picture speaks for a given tag: below 0.5 it looks less like it than a random image does. Unlike
    # the probability this does not depend on how rare the tag is.
    evidence: np.ndarray


class Ranker:
    def __init__(
        self,
        state: LabelState,
        judge: Judge,
        unit_features: FeatureRows,
        readable: np.ndarray,
        *,
        seed: int = 0,
        word: Callable[[str], Tensor | None] = lambda text: None,
        shares: Callable[[], ClassShares | None] = lambda: None,
        inputs: Callable[[], Tensor] | None = None,
    ):
        """`word` gives the name scores [N] of a phrase, or None where nothing is known of it; `shares`, what a
        classifier sees in the images; `inputs`, what lessons are about."""
        self.state, self.judge, self.model, self.features = state, judge, judge.model, unit_features
        self.readable, self.seed, self.word = readable, seed, word
        self._make_shares, self._make_inputs = shares, inputs
        self.correction: Correction = judge.learn([], [], [])
        self._changes = 0  # of labels, up to which it was learned from decisions
        self._lessons: dict[int, tuple[int, Lesson | None]] = {}  # column -> changes, what the decisions teach
        self._learned: dict[int, tuple[int, Learned]] = {}
        self._priors: dict[int, Tensor | None] = {}
        self._chances: OrderedDict[int, tuple[int, Chances]] = OrderedDict()
        self._age = state.age
        self._above = state.annotations.tree.above(state.annotations.categories)  # column -> columns that it implies
        self._below: dict[int, list[int]] = {}
        for column, others in self._above.items():
            for other in others:
                self._below.setdefault(other, []).append(column)

    @cached_property
    def inputs(self) -> Tensor:
        """[N, K] what lessons are about; made for the first of them, as it takes seconds for 100,000 images."""
        if self._make_inputs is not None:
            return self._make_inputs()
        return torch.cat([self.model.inputs(part) for part in self.features.split(_ROWS_AT_ONCE)])

    def follow(self) -> None:
        """After the labels changed: what decisions about unknown labels say about all others. The rest is computed on
        demand."""
        if self._age != self.state.age:
            self._age = self.state.age
            for kept in (self._lessons, self._learned, self._priors, self._chances):
                kept.clear()
        changes = sum(self.state.stamps)
        if changes == self._changes:
            return
        decided = self.state.decided[: self.state.book.own]
        said = [(row, column, d.new) for column, of in enumerate(decided) for row, d in of.items()]
        rows, columns, labels = zip(*said, strict=True) if said else ((), (), ())
        self.correction, self._changes = self.judge.learn(rows, columns, labels), changes

    @property
    def answers(self) -> Answers:
        return self.model.answers

    # --- probabilities ---

    def chances(self, column: int) -> Chances:
        """Chances from all that is known now. Those of the most recent categories are cached until a decision."""
        before, found = self._chances.get(column, (None, None))
        if found is None or before != self._changes:
            found = self._of_new(column) if self.is_new(column) else self._of_own(column)
            self._chances[column] = (self._changes, found)
        _keep_last(self._chances, column)
        return found

    def before_decisions(self) -> Iterator[tuple[int, Chances]]:
        """Of every tag of the run, by the given labels alone; a tag comes after those that imply it."""
        highest: dict[int, np.ndarray] = {}  # of all that implies a tag
        columns = range(len(self.state.annotations.categories))
        for column in sorted(columns, key=lambda column: -len(self._above.get(column, ()))):
            chances, others = self.own_chances(column, None), self._above.get(column, [])
            if others:
                mine = self._unless_known(column, chances.missing)
                highest |= {other: np.maximum(mine, highest.get(other, 0)) for other in others}
            for other in others:
                if column in self._above.get(other, ()):  # they imply each other, so neither comes after the other
                    mine = self._unless_known(other, self.own_chances(other, None).missing)
                    chances = _raised(chances, mine)
            yield column, _raised(chances, highest.pop(column, None))

    def _of_own(self, column: int) -> Chances:
        """No tag is more probable than one that it implies."""
        chances = self.own_chances(column, self.lesson(column))
        for below in self._below.get(column, ()):
            of_below = self.own_chances(below, self.lesson(below)).missing
            chances = _raised(chances, self._unless_known(below, of_below))
        return chances

    def _unless_known(self, column: int, missing: np.ndarray) -> np.ndarray:
        """[N] chances of a tag that implies others, as decided; else none, where one of the others is absent."""
        mine = self.state.labels[:, column]
        denied = (self.state.labels[:, self._above[column]] == ABSENT).any(1) & ~self.state.is_decided(column)
        return np.where((mine == UNKNOWN) & ~denied, missing, (mine == PRESENT) & ~denied).astype(np.float32)

    def own_chances(self, column: int, lesson: Lesson | None) -> Chances:
        base = torch.from_numpy(self.judge.odds[:, column])
        more = torch.zeros(()) if lesson is None else lesson(self.inputs)
        present, missing = self.answers.present(base, column) + more, self.answers.if_unknown(base, column) + more
        return _as_chances(present, missing)

    def chance(self, row: int, column: int) -> float:
        """Of one label, given as it is."""
        if self.is_new(column):
            return float(self.chances(column).missing[row])
        chance = self._own_chance(row, column)
        if self.state.given[row, column] != UNKNOWN:
            return chance
        return max(chance, *(self._implying(row, below) for below in self._below.get(column, ())), 0.0)

    def _implying(self, row: int, column: int) -> float:
        """As `_unless_known`."""
        labels, decided = self.state.labels[row], row in self.state.decided[column]
        if not decided and (labels[self._above[column]] == ABSENT).any():
            return 0.0
        return self._own_chance(row, column) if labels[column] == UNKNOWN else float(labels[column] == PRESENT)

    def _own_chance(self, row: int, column: int) -> float:
        base, lesson = torch.tensor(float(self.judge.odds[row, column])), self.lesson(column)
        unknown = self.state.given[row, column] == UNKNOWN
        odds = self.answers.if_unknown(base, column) if unknown else self.answers.present(base, column)
        return float((odds if lesson is None else odds + lesson(self.inputs[row])).sigmoid())

    def lesson(self, column: int) -> Lesson | None:
        """What the decisions about one of the run's own tags teach; None if there are none."""
        before, lesson = self._lessons.get(column, (-1, None))
        if before != self._changes:
            decided = self.state.decided[column]
            labels = np.array([decision.new for decision in decided.values()], dtype=np.int64)
            lesson = self.judge.lesson(column, np.array(list(decided), dtype=np.int64), labels, lesson)
            self._lessons[column] = (self._changes, lesson)
        return lesson

    # --- tags that reviewers added ---

    def is_new(self, column: int) -> bool:
        return self.state.book.is_new(column)

    @cached_property
    def archive(self) -> Archive:
        return Archive.of(self.features, self._make_shares(), self.readable)

    def learned(self, column: int) -> Learned:
        stamp, learned = self._learned.get(column, (0, None))
        if learned is None or stamp != self.state.stamps[column]:
            rows, present = self.state.answers(column)
            readable = self.readable[rows]
            examples = [row for row, d in self.state.decided[column].items() if d.queue == EXAMPLE]
            learned = self.archive.learn(rows[readable], present[readable], self._prior(column), examples)
            self._learned[column] = (self.state.stamps[column], learned)
        return learned

    def _prior(self, column: int) -> Tensor | None:
        """What the phrase that the tag started from says of every image."""
        if column not in self._priors:
            text = self.state.book.tags[column].text
            scores = self.word(text) if text else None
            self._priors[column] = None if scores is None else name_prior(scores)
        return self._priors[column]

    def _scores(self, column: int) -> Tensor:
        return self.learned(column).scores(self.archive.features, self._prior(column))

    def _of_new(self, column: int) -> Chances:
        odds = self.learned(column).curve(self._scores(column))
        return _as_chances(odds, odds)

    def threshold(self, column: int) -> float | None:
        """The lowest probability at which a tag of the run is suggested. One that reviewers added has its own, which
        moves with every answer: the forecast says it."""
        return None if self.is_new(column) else LIKELY

    def order(self, column: int, rows: np.ndarray) -> np.ndarray:
        """Rows of a tag that reviewers added, in the order to ask: likely ones and uncertain ones."""
        if not self.state.answers(column)[1].any() and self._prior(column) is None:  # no example yet: at random
            return np.random.default_rng((self.seed, column)).permutation(rows)
        return self.learned(column).first(self._scores(column), rows)

    # --- is it enough? ---

    def forecast(self, column: int) -> Forecast:
        open_ones = (self.state.given[:, column] == UNKNOWN) & self.readable & ~self.state.is_decided(column)
        rows = np.flatnonzero(open_ones)
        found = int((self.state.labels[:, column] == PRESENT).sum())
        if self.is_new(column):
            return self.learned(column).forecast(self._scores(column), rows, found)
        chances = self.chances(column).missing[rows]
        best = -np.partition(-chances, NEXT)[:NEXT] if len(chances) > NEXT else chances
        return Forecast(float(best.sum()), self._missing(column, rows, float(chances.sum())), found)

    def _missing(self, column: int, rows: np.ndarray, value: float) -> Interval:
        """Of a tag of the run; its interval is what is not known about the answers' correction."""
        base = torch.from_numpy(self.judge.odds[rows, column])
        lesson = self.lesson(column)
        more = torch.zeros(()) if lesson is None else lesson(self.inputs[torch.from_numpy(rows)])
        observation = self.model.answers.observation
        numbers = [
            float((Answers(observation, shift).if_unknown(base, column) + more).sigmoid().sum())
            for shift in self.correction.draws(_DRAWS)
        ]
        low, high = np.quantile(numbers, [0.025, 0.975]) if len(rows) else (0.0, 0.0)
        return Interval(value, min(float(low), value), max(float(high), value))


def _raised(chances: Chances, least: np.ndarray | None) -> Chances:
    return chances if least is None else replace(chances, missing=np.maximum(chances.missing, least))


def _as_chances(present: Tensor, missing: Tensor) -> Chances:
    chance = present.sigmoid()
    usual = chance.mean().logit(eps=1e-6)
    return Chances(chance.numpy(), missing.sigmoid().numpy(), (present - usual).sigmoid().numpy())


def _keep_last(kept: OrderedDict[int, Any], column: int) -> None:
    """The recently viewed categories, this one last."""
    kept.move_to_end(column)
    while len(kept) > _CATEGORIES_KEPT:
        kept.popitem(last=False)
