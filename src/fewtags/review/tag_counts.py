"""Counts of a tag, for the list of tags: known, still missing, suggestions left, doubtful ones."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fewtags.labels import ABSENT, PRESENT, UNKNOWN
from fewtags.review.labels import LabelState
from fewtags.review.queues import Queues
from fewtags.review.ranker import LIKELY, Chances, Ranker
from fewtags.review.sampling import Precision
from fewtags.review.store import Counts, count_labels

SCREEN = 20  # candidates; by how many of the next ones are probably right a tag is chosen


@dataclass(frozen=True)
class Summary:
    """A category in the list."""

    name: str
    known: int  # present according to the given labels and the decisions
    expected: float  # tags still missing, estimated from the probabilities of the undecided ones
    left: int  # undecided suggestions
    next_right: float  # share of the next screen of candidates that is expected to be right
    doubtful: int  # given tags that the picture speaks against, undecided
    disputed: int  # labels on which two reviewers disagree
    decided: Counts


@dataclass
class _Counted:
    """What was counted of a category, and at which stamp."""

    stamp: tuple[int, int] = (-1, -1)
    expected: float = 0.0
    left: int = 0
    next_right: float = 0.0
    doubtful: int = 0
    disputed: int = 0
    sample: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # see `precision`


class TagCounts:
    """Counted again for a tag when its labels or what was learned about it have changed."""

    def __init__(self, state: LabelState, ranker: Ranker, queues: Queues, readable: np.ndarray, *, seed: int):
        """Every tag is ranked once, before any decision: for the counts, and to draw random samples from."""
        self.state, self.ranker, self.queues, self.readable = state, ranker, queues, readable
        self._counted: dict[int, _Counted] = {}
        for column, chances in ranker.before_decisions():
            suggested = np.flatnonzero(self._undecided(column) & (chances.missing >= LIKELY))
            drawn = np.random.default_rng((seed, column)).permutation(suggested)
            self._counted[column] = self._count(column, chances, drawn)

    def summary(self, column: int) -> Summary:
        about = self._about(column)
        decided = count_labels(self.state.decided[column].values())
        known = int((self.state.labels[:, column] == PRESENT).sum())
        parts = about.expected, about.left, about.next_right, about.doubtful, about.disputed
        return Summary(self.state.names[column], known, *parts, decided)

    def sample(self, column: int) -> np.ndarray:
        """The first suggestions, in random order."""
        return self._about(column).sample

    def precision(self, column: int) -> Precision:
        """Of the first suggestions, by those that were decided in sample order.

        Only answers up to the first undecided one count: picking the easy ones from the sample would bias the
        estimate. It does not matter in which queue the answer was given.
        """
        sample, decided, labels = self.sample(column), self.state.decided[column], []
        for row in sample.tolist():
            if row not in decided:
                break
            labels.append(decided[row].new)
        right, wrong = labels.count(PRESENT), labels.count(ABSENT)
        return Precision(right, right + wrong, len(sample), labels.count(UNKNOWN))

    def _about(self, column: int) -> _Counted:
        about = self._counted.get(column, _Counted())
        if about.stamp != self._stamp(column):
            about = self._counted[column] = self._count(column, self.ranker.chances(column), about.sample)
        return about

    def _stamp(self, column: int) -> tuple[int, int]:
        return self.state.stamps[column], self.state.age

    def _undecided(self, column: int) -> np.ndarray:
        return (self.state.given[:, column] == UNKNOWN) & self.readable & ~self.state.is_decided(column)

    def _count(self, column: int, chances: Chances, sample: np.ndarray) -> _Counted:
        open_ones = chances.missing[self._undecided(column)]
        best = -np.partition(-open_ones, SCREEN)[:SCREEN] if len(open_ones) > SCREEN else open_ones
        given = (self.state.given[:, column] == PRESENT) & self.readable & ~self.state.is_decided(column)
        is_new = self.ranker.is_new(column)  # then one that reviewers added, of which the forecast says what is missing
        expected = self.ranker.forecast(column).missing.value if is_new else float(open_ones.sum())
        return _Counted(
            stamp=self._stamp(column),
            expected=expected,
            left=int((open_ones >= LIKELY).sum()),
            next_right=float(best.mean()) if len(best) else 0.0,
            doubtful=int((chances.evidence[given] <= LIKELY).sum()),
            disputed=len(self.queues.disputed(column)),
            sample=sample,
        )
