"""Missing tags found by a trained model: unknown labels it believes to be present, most certain first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fewtags.data.annotations import Annotations
from fewtags.labels import UNKNOWN


@dataclass(frozen=True)
class FoundLabel:
    image: str
    category: str
    probability: float
    right: bool | None  # against the complete labels, where there are any


def found_labels(
    probabilities: np.ndarray, observed: Annotations, thresholds: np.ndarray, truth: np.ndarray | None = None
) -> list[FoundLabel]:
    """Every unknown label of `observed` whose probability reaches its category's threshold."""
    found = (observed.labels == UNKNOWN) & (probabilities >= thresholds)
    rows, columns = np.nonzero(found)
    order = np.argsort(-probabilities[rows, columns], kind="stable")
    return [
        FoundLabel(
            observed.images[row],
            observed.categories[column],
            float(probabilities[row, column]),
            None if truth is None else bool(truth[row, column] == 1),
        )
        for row, column in zip(rows[order], columns[order], strict=True)
    ]
