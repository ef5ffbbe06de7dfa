"""Several reviewers: where they disagree, and how much they agree beyond chance."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fewtags.labels import UNKNOWN

Opinions = Sequence[tuple[str, int]]  # reviewer and label, of one label, oldest first


def ratings(opinions: Opinions) -> dict[str, int]:
    """What each reviewer said last. "Unsure" is no opinion."""
    return {reviewer: label for reviewer, label in dict(opinions).items() if label != UNKNOWN}


def is_disputed(opinions: Opinions) -> bool:
    """Did two say different things, without a third who settled it?"""
    said = ratings(opinions)
    if len(set(said.values())) < 2:
        return False
    return Counter(said.values()).most_common(1)[0][1] * 2 <= len(said)


@dataclass(frozen=True)
class Agreement:
    """Of labels that at least two reviewers decided."""

    labels: int
    disputed: int
    raw: float | None  # share of pairs of answers that agree
    alpha: float | None  # Krippendorff's, nominal: 1 perfect, 0 as by chance

    @classmethod
    def of(cls, decided: Iterable[Opinions]) -> Agreement:
        every = list(decided)
        units = [list(said.values()) for said in map(ratings, every) if len(said) >= 2]
        raw, alpha = krippendorff(units)
        return cls(len(units), sum(map(is_disputed, every)), raw, alpha)

    @property
    def words(self) -> str:
        """A sentence; empty if nobody decided what somebody else had."""
        if not self.labels or self.raw is None:
            return ""
        beyond = "" if self.alpha is None else f" (Krippendorff's alpha {self.alpha:.2f})"
        settled = f"; {self.disputed:,} still disputed" if self.disputed else ""
        return f"{self.labels:,} labels by two or more reviewers: {100 * self.raw:.0f} % agreement{beyond}{settled}"


def krippendorff(units: Sequence[Sequence[int]]) -> tuple[float | None, float | None]:
    """Raw agreement of pairs, and alpha of nominal data: 1 - observed / expected disagreement. Units of one value do
    not count; alpha is None if all values are the same."""
    pairs: dict[tuple[int, int], float] = defaultdict(float)
    for values in units:
        if len(values) < 2:
            continue
        counts = Counter(values)
        for a, b in ((a, b) for a in counts for b in counts):
            pairs[a, b] += counts[a] * (counts[b] - (a == b)) / (len(values) - 1)
    total = sum(pairs.values())
    if not total:
        return None, None
    of_value: dict[int, float] = defaultdict(float)
    for (value, _), number in pairs.items():
        of_value[value] += number
    same = sum(number for (a, b), number in pairs.items() if a == b)
    expected = total * total - sum(number * number for number in of_value.values())
    alpha = None if expected == 0 else 1 - (total - 1) * (total - same) / expected
    return same / total, alpha
