"""Every measured epoch of a track's runs, finished or not, as rows of results/half-scale/runs.csv.

    python benchmarks/half_scale_rows.py runs/track-b --track B

Rows of the same track, method, proportion, seed and epoch are replaced, so it can be called while a bench goes on.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from pathlib import Path

from fewtags.experiments.runs import find_runs

FILE = Path(__file__).parents[1] / "results/half-scale/runs.csv"
KEY = ("track", "method", "proportion", "seed", "epochs", "epoch")


def measured(runs: Path, track: str) -> Iterator[dict[str, object]]:
    for run in find_runs([runs]):
        seconds = {row["epoch"]: row["seconds"] for row in run.rows_of("train")}
        cell = {"track": track, "method": run.method, "profile": run.profile, "proportion": run.proportion}
        cell |= {"seed": run.seed, "epochs": run.config["train"]["epochs"]}
        for row in run.rows_of("eval"):
            scores = {name: round(100 * row[name], 3) for name in ("map", "map_voc12", "of1", "cf1")}
            yield {**cell, "epoch": row["epoch"], **scores, "seconds": seconds.get(row["epoch"], "")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--track", required=True, help="A, B or C")
    options = parser.parse_args()
    with FILE.open(newline="") as lines:
        reader = csv.DictReader(lines)
        columns = list(reader.fieldnames or ())
        rows = {tuple(str(row[name]) for name in KEY): row for row in reader}
    for row in measured(options.runs, options.track):
        rows[tuple(str(row[name]) for name in KEY)] = row  # type: ignore[assignment]
    with FILE.open("w", newline="") as out:
        writer = csv.DictWriter(out, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows.values())


if __name__ == "__main__":
    main()
