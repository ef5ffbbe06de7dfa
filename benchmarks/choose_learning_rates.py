"""Which learning rate, epochs and weight decay of configs/tune-voc2007-256.yaml each method gets:
those of the best validation mAP.

    fewtags bench configs/tune-voc2007-256.yaml --out runs/tune
    python benchmarks/choose_learning_rates.py runs/tune --out results/voc2007-256/learning-rates.csv

Reads nothing but the validation numbers, which come from a fifth of trainval that was not trained on.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import sys
from collections import defaultdict
from pathlib import Path

Choice = tuple[str, str, str, str]  # method, learning rate, epochs, weight decay


def validation_maps(runs: Path) -> dict[Choice, dict[str, float]]:
    """Settings -> proportion -> validation mAP in percent."""
    maps: dict[Choice, dict[str, float]] = defaultdict(dict)
    for file in sorted(runs.glob("*/*/known-*/seed-*/result.json")):
        match = re.fullmatch(r"(.+)-([\d.]+e-\d+)-(\d+)(?:-wd([\d.]+))?", file.parts[-4])
        assert match is not None, file
        maps[match[1], match[2], match[3], match[4] or "0.01"][file.parts[-3].removeprefix("known-")] = (
            100 * json.loads(file.read_text())["val"]["map"]
        )
    return maps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--out", type=Path, help="CSV file (default: standard output)")
    options = parser.parse_args()
    maps = validation_maps(options.runs)
    best = {(choice[0], p): max_choice(maps, choice[0], p) for choice, by in maps.items() for p in by}
    with options.out.open("w", newline="") if options.out else sys.stdout as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["method", "known", "train.lr", "train.epochs", "train.weight_decay", "val_map", "chosen"])
        for proportion in sorted({p for by in maps.values() for p in by}, key=float):
            for choice, by in maps.items():
                if proportion in by:
                    chosen = "yes" if best[choice[0], proportion] == choice else ""
                    writer.writerow([choice[0], proportion, *choice[1:], f"{by[proportion]:.2f}", chosen])


def max_choice(maps: dict[Choice, dict[str, float]], method: str, proportion: str) -> Choice:
    candidates = [choice for choice, by in maps.items() if choice[0] == method and proportion in by]
    return max(candidates, key=lambda choice: maps[choice][proportion])


if __name__ == "__main__":
    main()
