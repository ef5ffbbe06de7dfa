"""Which of the settings tried in configs/tune-voc2007-256.yaml each method gets: those of the best validation mAP.

    fewtags bench configs/tune-voc2007-256.yaml --out runs/tune
    python benchmarks/choose_settings.py runs/tune --out results/voc2007-256/tuning.csv

Reads nothing but the validation numbers, which come from a fifth of trainval that was not trained on.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fewtags.config import flat, read_yaml


@dataclass(frozen=True)
class Tried:
    method: str
    known: float
    settings: dict[str, Any]  # by dotted name
    val_map: float  # percent


def read(runs: Path) -> Iterator[Tried]:
    for file in sorted(runs.glob("*/*/known-*/seed-*/result.json")):
        settings = flat(read_yaml(file.parent / "config.yaml"))
        score = 100 * json.loads(file.read_text())["val"]["map"]
        yield Tried(settings["method.name"], settings.pop("data.known"), settings, score)


def differing(runs: list[Tried]) -> list[str]:
    """The settings in which the runs of one method differ."""
    return [name for name in runs[0].settings if len({str(run.settings.get(name)) for run in runs}) > 1]


def table(tried: list[Tried]) -> Iterator[list[str]]:
    for method in sorted({run.method for run in tried}):
        own = [run for run in tried if run.method == method]
        names = differing(own)
        for known in sorted({run.known for run in own}):
            runs = sorted((run for run in own if run.known == known), key=lambda run: -run.val_map)
            for place, run in enumerate(runs):
                settings = " ".join(f"{name}={run.settings[name]}" for name in names)
                yield [method, f"{known:g}", settings, f"{run.val_map:.2f}", "" if place else "yes"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--out", type=Path, help="CSV file (default: standard output)")
    options = parser.parse_args()
    with options.out.open("w", newline="") if options.out else sys.stdout as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["method", "known", "settings", "val_map", "chosen"])
        writer.writerows(table(list(read(options.runs))))


if __name__ == "__main__":
    main()
