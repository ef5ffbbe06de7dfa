"""The tables and the figure of all methods on VOC 2007, from the rows of a bench.

    .venv/bin/python benchmarks/methods_table.py [RUNS.CSV ...]

Rows of the files given are added to results/voc2007-256/runs.csv, in place of those of the same run. Then mAP and OF1
of the last epoch by the share of known positives, mean over the masks (* three, else one), in the order of `fewtags
methods`, are written between the marks in PAGES, and mAP against that share is drawn.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections import defaultdict
from pathlib import Path

from fewtags.experiments.charts import Series, line_chart
from fewtags.methods import METHODS

ROOT = Path(__file__).parents[1]
RUNS, FIGURE = ROOT / "results/voc2007-256/runs.csv", ROOT / "docs/images/methods.svg"
PAGES = (ROOT / "results/voc2007-256/README.md", ROOT / "docs/explanation/results.md")
MARKS = "<!-- {} by benchmarks/methods_table.py -->\n", "<!-- end of {} -->\n"
METRICS = {"mAP": "map", "OF1": "of1"}
KEY = ("dataset", "method", "proportion", "seed", "epoch_rule")
COLUMNS = ("0.1", "0.3", "0.5", "0.7", "0.9", "single")
DRAWN = ("refined", "instant", "refined-no-names", "role", "ll-r", "linear", "nnpu", "ssgrl", "caldnr")
STYLE = """
.grid { stroke: #dfe1e4; } .tick, .axis { fill: #5b636d; font-size: 12.5px; }
.heading { font-size: 14px; font-weight: 600; }
.name { font-size: 12.5px; font-weight: 600; } .line { fill: none; stroke-width: 2; stroke: var(--c); }
.mark, .name { fill: var(--c); }
"""
COLOURS = ("#0b62c4", "#c4420b", "#168a4a", "#8a3fb0", "#8a6d00", "#00808a", "#b02060", "#555555")

Rows = dict[str, dict[str, list[float]]]  # method -> share -> values of the masks


def read(file: Path, metric: str) -> Rows:
    rows: Rows = defaultdict(lambda: defaultdict(list))
    with file.open(newline="", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            if row["epoch_rule"] == "last":
                rows[row["method"]][row["proportion"]].append(float(row[metric]))
    return rows


def in_order(methods: list[str]) -> list[str]:
    """As `fewtags methods` lists them, with what differs from them in a setting behind them."""
    listed = list(METHODS)
    return sorted(methods, key=lambda name: (*_place(name, listed), name))


def _place(name: str, listed: list[str]) -> tuple[int, int]:
    base = max((each for each in listed if name == each or name.startswith(each + "-")), key=len, default="")
    return (listed.index(base), name != base) if base else (-1, 0)


def table(rows: Rows) -> str:
    lines = [
        "| known positives | 10 % | 30 % | 50 % | 70 % | 90 % | one per image |",
        "|---" * (len(COLUMNS) + 1) + "|",
    ]
    for name in in_order([each for each in rows if rows[each].keys() & set(COLUMNS)]):
        lines.append(f"| `{name}` | " + " | ".join(_cell(rows[name].get(share, [])) for share in COLUMNS) + " |")
    return "\n".join(lines)


def _cell(values: list[float]) -> str:
    return f"{statistics.mean(values):.1f}{'*' if len(values) > 2 else ''}" if values else ""


def figure(rows: Rows) -> str:
    series = []
    for style, name in enumerate(DRAWN):
        found = sorted(
            (100 * float(share), values) for share, values in rows[name].items() if share not in ("single", "0.0")
        )
        series.append(Series(name, [(share, statistics.mean(values)) for share, values in found], style))
    chart = line_chart(
        series,
        title="mAP on VOC 2007 by the share of known positives",
        x_label="known positives, %",
        y_label="mAP",
        x_ticks=[10, 30, 50, 70, 90],
        size=(760, 420),
    )
    colours = " ".join(f".c{number} {{ --c: {colour}; }}" for number, colour in enumerate(COLOURS))
    alone = str(chart).replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg" font-family="sans-serif"', 1)
    white = f'</title><style>{STYLE}{colours}</style><rect width="100%" height="100%" fill="#fff"/>'
    return alone.replace("</title>", white, 1) + "\n"


def with_tables(page: str, tables: dict[str, str]) -> str:
    """The page with each table between its two marks."""
    for name, text in tables.items():
        begin, end = (mark.format(name) for mark in MARKS)
        before, _, rest = page.partition(begin)
        _, found, after = rest.partition(end)
        assert found, f"the page has no place for {name}"
        page = f"{before}{begin}\n{text}\n\n{end}{after}"
    return page


def add_rows(files: list[Path]) -> None:
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for file in [RUNS, *files]:
        with file.open(newline="", encoding="utf-8") as lines:
            rows |= {tuple(row[name] for name in KEY): row for row in csv.DictReader(lines)}
    with RUNS.open("w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, next(iter(rows.values())))
        writer.writeheader()
        writer.writerows(rows.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="*", help="runs.csv of benches whose rows are new")
    add_rows(parser.parse_args().runs)
    tables = {name: table(read(RUNS, metric)) for name, metric in METRICS.items()}
    for page in PAGES:
        page.write_text(with_tables(page.read_text(encoding="utf-8"), tables), encoding="utf-8")
    FIGURE.write_text(figure(read(RUNS, "map")), encoding="utf-8")


if __name__ == "__main__":
    main()
