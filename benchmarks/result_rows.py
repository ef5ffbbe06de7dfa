"""Measured rows in a CSV file, written one by one, so that a stopped benchmark continues behind the last."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path


def read_results(file: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(file.open(encoding="utf-8"))) if file.is_file() else []


def append_result(file: Path, fields: Sequence[str], row: Mapping[str, object]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    new = not file.is_file()
    with file.open("a", encoding="utf-8", newline="") as out:
        writer = csv.DictWriter(out, fields)
        if new:
            writer.writeheader()
        writer.writerow(row)
