"""Estimates the share of right suggestions from a random sample of decided ones."""

from __future__ import annotations

import math
from dataclasses import dataclass

ENOUGH = 0.05  # half-width of the interval below which more answers hardly help
Z = 1.96  # 95 %


@dataclass(frozen=True)
class Precision:
    """Share of right suggestions among `population`, estimated from `right` out of `seen` random ones."""

    right: int
    seen: int
    population: int
    unsure: int = 0  # answers that are neither; not counted in `seen`

    @property
    def share(self) -> float | None:
        return self.right / self.seen if self.seen else None

    @property
    def interval(self) -> tuple[float, float]:
        """95 % Wilson interval, with finite population correction."""
        if not self.seen:
            return 0.0, 1.0
        # A sample of n out of N is worth as much as one of n (N - 1) / (N - n) out of infinitely many.
        unseen = self.population - self.unsure - self.seen
        if unseen <= 0:
            return self.right / self.seen, self.right / self.seen
        n = self.seen * (self.population - self.unsure - 1) / unseen
        p = self.right / self.seen
        centre = (p + Z * Z / (2 * n)) / (1 + Z * Z / n)
        half = Z / (1 + Z * Z / n) * math.sqrt(p * (1 - p) / n + Z * Z / (4 * n * n))
        return max(centre - half, 0.0), min(centre + half, 1.0)

    @property
    def enough(self) -> bool:
        low, high = self.interval
        return high - low <= 2 * ENOUGH

    @property
    def still_needed(self) -> int:
        """Approximate number of further answers needed, if they turn out like those so far."""
        if self.enough:
            return 0
        guess = self.share if self.seen >= 10 and self.share is not None else 0.5
        low, high = self.seen, max(self.population - self.unsure, self.seen)
        while high - low > 1:
            middle = (low + high) // 2
            if Precision(round(guess * middle), middle, self.population, self.unsure).enough:
                high = middle
            else:
                low = middle
        return high - self.seen
