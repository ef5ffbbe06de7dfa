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
HEAD_LR_SCALE = 10  # of the general settings; the frozen backbone has no learning rate


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
    means = {key: sum(by.values()) / len(by) for key, by in maps.items()}
    best = {method: max((k for k in means if k[0] == method), key=lambda k: means[k]) for method, *_ in means}
    proportions = sorted({p for by in maps.values() for p in by}, key=float)
    with options.out.open("w", newline="") if options.out else sys.stdout as stream:
        writer = csv.writer(stream)
        writer.writerow(
            [
                "method",
                "train.lr",
                "train.epochs",
                "train.weight_decay",
                "head_lr",
                *(f"val_map_{p}" for p in proportions),
                "mean",
                "chosen",
            ]
        )
        for choice, by in maps.items():
            method, rate, epochs, decay = choice
            numbers = [f"{by[p]:.2f}" if p in by else "" for p in proportions]
            chosen = "yes" if best[method] == choice else ""
            head_lr = f"{HEAD_LR_SCALE * float(rate):g}"
            writer.writerow([method, rate, epochs, decay, head_lr, *numbers, f"{means[choice]:.2f}", chosen])


if __name__ == "__main__":
    main()
