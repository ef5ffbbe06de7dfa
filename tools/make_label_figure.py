"""Make docs/images/how-many-labels.svg from results/small-archives/runs.csv.

python tools/make_label_figure.py [--out docs/images/how-many-labels.svg]
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
from collections import defaultdict
from pathlib import Path

PROJECT = Path(__file__).parents[1]
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 350, 52, 150, 30, 46
LINES = {  # (method, names) -> what it is called, its colour
    ("refined", "yes"): ("refined, with names", "#7a3db8"),
    ("instant", "yes"): ("instant, with names", "#1f63c4"),
    ("instant", "no"): ("instant, no names", "#6f9fe0"),
    ("linear", "no"): ("logistic regression", "#8a8f98"),
}
PHOTOS, SCORES = (20, 50, 100, 200, 500, 1000, 5000), range(30, 91, 10)


def curves() -> dict[tuple[str, str], dict[int, float]]:
    """mAP by the number of photos, one known tag each; mean over the seeds."""
    found: dict[tuple[str, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    with (PROJECT / "results/small-archives/runs.csv").open(encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            if row["labels"] == "single" and (row["method"], row["names"]) in LINES:
                found[row["method"], row["names"]][int(row["images"])].append(float(row["map"]))
    return {key: {n: statistics.mean(values) for n, values in sorted(by.items())} for key, by in found.items()}


def x(photos: float) -> float:
    share = (math.log(photos) - math.log(PHOTOS[0])) / (math.log(PHOTOS[-1]) - math.log(PHOTOS[0]))
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def y(score: float) -> float:
    return HEIGHT - BOTTOM - (score - SCORES[0]) / (SCORES[-1] - SCORES[0]) * (HEIGHT - TOP - BOTTOM)


def figure() -> str:
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
    ]
    for score in SCORES:
        parts.append(f'<path d="M{LEFT} {y(score):.1f}H{WIDTH - RIGHT}" stroke="#e3e5e8"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(score) + 4:.1f}" text-anchor="end" fill="#555">{score}</text>')
    for photos in PHOTOS:
        place = f'x="{x(photos):.1f}" y="{HEIGHT - BOTTOM + 18}"'
        parts.append(f'<text {place} text-anchor="middle" fill="#555">{photos:,}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(
        f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">photos, one known tag each (20 tags)</text>'
    )
    parts.append(f'<text x="{LEFT - 40}" y="{TOP - 14}">mAP</text>')
    last = {key: y(list(curve.values())[-1]) for key, curve in curves().items()}
    below = 0.0
    for key in sorted(last, key=lambda key: last[key]):
        name, colour = LINES[key]
        points = " ".join(f"{x(photos):.1f},{y(score):.1f}" for photos, score in curves()[key].items())
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
        below = max(last[key] + 4, below + 17)  # names must not overlap
        parts.append(f'<text x="{WIDTH - RIGHT + 8}" y="{below:.1f}" fill="{colour}">{name}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=PROJECT / "docs/images/how-many-labels.svg")
    out = parser.parse_args().out
    out.write_text(figure(), encoding="utf-8")
    print(out)


if __name__ == "__main__":
    main()
