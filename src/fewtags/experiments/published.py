"""The paper's own numbers, for comparison with measured ones: all of its Table 1 and Table 2 (`published.csv`).

They are mAP with VOC 2010 interpolation, at the best epoch on the test set, from one run each.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("published.csv")
METRIC, EPOCH_RULE = "map_voc12", "best"  # comparable with the published numbers


@cache
def published_numbers() -> dict[tuple[str, str, float], float]:
    """(dataset, method, known proportion) -> mAP in percent."""
    with FILE.open(newline="", encoding="utf-8") as lines:
        rows = [row for row in csv.DictReader(lines) if row["known_percent"].isdigit()]  # not the printed averages
    return {(row["dataset"], row["method"], int(row["known_percent"]) / 100): float(row["value"]) for row in rows}


def of_row(row: Mapping[str, Any]) -> float | None:
    """What the paper printed for a tidy row's cell; None for other profiles than the paper's, and other cells."""
    return published(row["dataset"], row["method"], row["proportion"]) if row["profile"] == "paper" else None


def published(dataset: str, method: str, proportion: object) -> float | None:
    if not isinstance(proportion, float):
        return None
    return published_numbers().get((dataset, method, round(proportion, 4)))
