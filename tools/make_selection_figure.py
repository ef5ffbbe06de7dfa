"""Draws docs/images/selection.svg from results/selection: missing tags, true and estimated, by who chose the tags.

python tools/make_selection_figure.py
"""

from __future__ import annotations

import csv
import statistics
from pathlib import Path

ROOT = Path(__file__).parents[1]
TAGGERS = {
    ("voc2007", "coin"): "VOC, a coin",
    ("voc2007", "salience"): "VOC, by size",
    ("voc2007", "habit"): "VOC, by habit",
    ("voc2007", "both"): "VOC, by both",
    ("coco", "habit"): "COCO, by habit",
}
BARS = {"0": ("no answers", "#c9c2b4"), "50": ("50 answers", "#7ea6c4"), "200": ("200 answers", "#1f5f8b")}
WIDTH, ROW, LEFT, RIGHT = 720, 74, 140, 40
MOST = 1.8  # times the true number


def ratios(rows: list[dict[str, str]], key: tuple[str, str], answers: str) -> list[float]:
    mine = [r for r in rows if (r["data"], r["tagger"]) == key and r["answers"] == answers and r["method"] == "instant"]
    parts = ("missing_estimated", "missing_low", "missing_high")
    return [statistics.mean(float(r[part]) / float(r["missing_true"]) for r in mine) for part in parts]


def draw(rows: list[dict[str, str]]) -> str:
    def x(ratio: float) -> float:
        return LEFT + min(ratio, MOST) / MOST * (WIDTH - LEFT - RIGHT)

    height = ROW * len(TAGGERS) + 70
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        'font-size="13" role="img" aria-label="Estimated over true number of missing tags">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    for number, (key, name) in enumerate(TAGGERS.items()):
        top = 16 + number * ROW
        lines.append(f'<text x="{LEFT - 10}" y="{top + 32}" text-anchor="end" fill="#222">{name}</text>')
        for bar, (answers, (_, colour)) in enumerate(BARS.items()):
            value, low, high = ratios(rows, key, answers)
            y = top + bar * 18
            lines.append(f'<rect x="{LEFT}" y="{y}" width="{x(value) - LEFT:.1f}" height="14" fill="{colour}"/>')
            ends = f'x1="{x(low):.1f}" x2="{x(high):.1f}" y1="{y + 7}" y2="{y + 7}"'
            lines.append(f'<line {ends} stroke="#222" stroke-width="1.5"/>')
    bottom = 16 + ROW * len(TAGGERS)
    for mark in (0, 0.5, 1, 1.5):
        dash = "" if mark == 1 else ' stroke-dasharray="2 4"'
        lines.append(f'<line x1="{x(mark):.1f}" x2="{x(mark):.1f}" y1="10" y2="{bottom}" stroke="#888"{dash}/>')
        lines.append(f'<text x="{x(mark):.1f}" y="{bottom + 16}" text-anchor="middle" fill="#444">{mark:g} ×</text>')
    for place, (name, colour) in enumerate(BARS.values()):
        at = LEFT + place * 150
        lines.append(f'<rect x="{at}" y="{bottom + 28}" width="14" height="14" fill="{colour}"/>')
        lines.append(f'<text x="{at + 20}" y="{bottom + 40}" fill="#222">{name}</text>')
    return "\n".join([*lines, "</svg>", ""])


def main() -> None:
    with (ROOT / "results/selection/runs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    (ROOT / "docs/images/selection.svg").write_text(draw(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
