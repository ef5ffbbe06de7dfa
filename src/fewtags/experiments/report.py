"""Run folders -> one self-contained HTML page: tables, curves, categories, the method's decisions, example images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

import fewtags
from fewtags.atomic import atomic_write
from fewtags.experiments.charts import Series, legend, line_chart, nice_ticks
from fewtags.experiments.examples import Gallery, test_gallery, training_gallery
from fewtags.experiments.runs import RunRecord, find_runs, proportion_label, tidy_rows
from fewtags.experiments.tables import METRIC_NAMES, Row, by_method, paper_tables, row_label, unique, value_of
from fewtags.progress import duration

MANY_CATEGORIES = 24  # more than this many are not each given a chart of thresholds
STATE_LINES = {"theta_pos": 0, "theta_neg": 1, "s_pos": 2, "s_neg": 3}  # style of each, in rows of kind "categories"
DECISIONS = ("found", "rejected")


def write_report(run_folders: Sequence[Path], out: Path, title: str = "fewtags report") -> Path:
    """Write the page about the runs that `run_folders` are or contain to the file `out`."""
    runs = find_runs(run_folders)
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(out) as beside:
        beside.write_text(render(runs, title), encoding="utf-8")
    return out


def render(runs: Sequence[RunRecord], title: str) -> str:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("fewtags.experiments"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    rows = tidy_rows(runs)
    best = paper_tables(rows, "best")
    return environment.get_template("report.html.jinja").render(
        title=title,
        summary=summary(runs),
        tables=paper_tables(rows, "last"),
        best_tables=best,
        proportion_charts=proportion_charts(rows),
        learning=learning_charts(runs),
        categories=category_tables(runs),
        details=[detail for run in chosen(runs) if (detail := method_detail(run))],
        galleries=galleries(runs),
        runs=[run_line(run) for run in runs],
        version=fewtags.__version__,
        written=datetime.now().strftime("%Y-%m-%d %H:%M"),
    )


def summary(runs: Sequence[RunRecord]) -> list[str]:
    """What the page is about, in sentences."""
    finished = [run for run in runs if run.result]
    sentences = []
    for dataset in unique(run.dataset for run in runs):
        own = [run for run in runs if run.dataset == dataset]
        methods = unique(label(run) for run in own)
        proportions = unique(proportion_label(run.proportion) for run in own)
        images = own[0].data
        sizes = [f"{images[split]['images']:,} {split}" for split in ("train", "val", "test") if split in images]
        what = f"{len(methods)} methods" if len(methods) > 1 else f"the method {methods[0]}"
        sentences.append(
            f"{dataset}: {what}, known tags: {', '.join(proportions)}; "
            f"{len(images['categories'])} categories, {', '.join(sizes)} images."
        )
    if len(finished) < len(runs):
        sentences.append(
            f"{len(runs) - len(finished)} of {len(runs)} runs are not finished; the tables leave them out."
        )
    return sentences


def label(run: RunRecord) -> str:
    return row_label(run.method, run.profile)


def styles(labels: Sequence[str]) -> dict[str, int]:
    """Each method keeps its colour, dash pattern and marker through the page."""
    return {name: place for place, name in enumerate(unique(labels))}


def chosen(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """The runs that are shown in detail: the first seed of each method at the lowest proportion of its dataset."""
    first: dict[tuple[str, str], RunRecord] = {}
    for run in runs:
        if run.result:
            first.setdefault((run.dataset, label(run)), run)
    return list(first.values())


def groups(runs: Sequence[RunRecord]) -> list[tuple[str, dict[str, RunRecord]]]:
    """For every dataset and proportion, its name and the first seed of each method."""
    found: dict[str, dict[str, RunRecord]] = {}
    for run in runs:
        found.setdefault(f"{run.dataset}, {proportion_label(run.proportion)}", {}).setdefault(label(run), run)
    return list(found.items())


# --- curves ---


@dataclass(frozen=True)
class Charts:
    title: str
    charts: list[Markup]


def proportion_charts(rows: Sequence[Row]) -> list[Charts]:
    """The paper's figure: each metric over the known proportion, a line for each method."""
    figures = []
    for dataset in unique(row["dataset"] for row in rows):
        own = [row for row in rows if row["dataset"] == dataset and row["epoch_rule"] == "last"]
        own = [row for row in own if isinstance(row["proportion"], float)]
        if len(unique(row["proportion"] for row in own)) > 1:
            figures.append(Charts(dataset, [proportion_chart(own, metric) for metric in ("map", "of1", "cf1")]))
    return figures


def proportion_chart(rows: Sequence[Row], metric: str) -> Markup:
    proportions = sorted(unique(row["proportion"] for row in rows))
    series = []
    for place, (name, own) in enumerate(by_method(rows)):
        values = [(p, value_of([row for row in own if row["proportion"] == p], metric)) for p in proportions]
        there = [(100 * p, value) for p, value in values if value is not None]
        points = [(x, value.mean) for x, value in there]
        series.append(Series(name, points, place, [value.std for _, value in there]))
    name = METRIC_NAMES[metric]
    ticks = [100 * p for p in proportions]
    return line_chart(
        series, title=f"{name} over the known proportion", x_label="known positives, %", y_label=f"{name}, %",
        x_ticks=ticks, size=(420, 320),
    )  # fmt: skip


def learning_charts(runs: Sequence[RunRecord]) -> list[Charts]:
    """mAP and loss over the epochs, for every dataset and proportion; of several seeds the first."""
    figures = []
    style = styles([label(run) for run in runs])
    for title, group in groups(runs):
        charts = [
            epoch_chart(group, style, "eval", "map", "mAP, %", 100),
            epoch_chart(group, style, "train", "loss", "training loss", 1),
        ]
        if any(charts):
            figures.append(Charts(title, [chart for chart in charts if chart]))
    return figures


def epoch_chart(
    group: dict[str, RunRecord], style: dict[str, int], kind: str, key: str, y_label: str, scale: float
) -> Markup:
    series = [
        Series(name, points, style[name])
        for name, run in group.items()
        if len(points := over_epochs(run, kind, key, scale)) > 1
    ]
    return line_chart(series, title=f"{y_label} over epochs", x_label="epoch", y_label=y_label)


def over_epochs(run: RunRecord, kind: str, key: str, scale: float = 1.0) -> list[tuple[float, float]]:
    return [(row["epoch"], scale * row[key]) for row in run.rows_of(kind) if row.get(key) is not None]


# --- categories ---


@dataclass(frozen=True)
class CategoryTable:
    title: str
    methods: list[str]
    rows: list[tuple[str, int, list[float | None]]]  # category, known positives, AP of each method in percent


def category_tables(runs: Sequence[RunRecord]) -> list[CategoryTable]:
    """AP of every category beside its number of known positives; of several seeds the first."""
    measured = groups([run for run in runs if run.scores("last")])
    return [CategoryTable(title, list(group), ap_rows(group)) for title, group in measured]


def ap_rows(group: dict[str, RunRecord]) -> list[tuple[str, int, list[float | None]]]:
    """Categories with the most known positives first."""
    one = next(iter(group.values()))
    per_run = [(run.scores("last") or {})["per_category"] for run in group.values()]
    rows = []
    for c, (name, known) in enumerate(zip(one.data["categories"], one.data["known_positives"], strict=True)):
        rows.append((name, known, [percent(ap[c]) for ap in per_run]))
    return sorted(rows, key=lambda row: -row[1])


def percent(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else 100 * value


# --- what a method did ---


@dataclass(frozen=True)
class Detail:
    title: str
    decisions: list[Markup]  # counts, precision and recall over epochs
    thresholds: list[tuple[str, str, Markup]]  # category, remark, chart
    threshold_legend: Markup
    left_out: int  # categories without a chart


def method_detail(run: RunRecord) -> Detail | None:
    decisions = [chart for chart in decision_charts(run) if chart]
    thresholds, left_out = threshold_charts(run)
    if not decisions and not thresholds:
        return None
    title = f"{label(run)} on {run.dataset}, {proportion_label(run.proportion)}"
    return Detail(title, decisions, thresholds, legend(state_lines(run.rows_of("categories"))), left_out)


def state_lines(rows: Sequence[dict[str, Any]]) -> dict[str, int]:
    """The lines that a method has, with their styles."""
    return {name: style for name, style in STATE_LINES.items() if any(name in row for row in rows)}


def decision_charts(run: RunRecord) -> list[Markup]:
    """How many unknown labels were found and rejected each epoch; where the truth is known, how rightly."""
    counts, quality = [], []
    for place, name in enumerate(DECISIONS):
        counts.append(Series(name, over_epochs(run, "train", f"{name}_labels"), place))
        for offset, measure in enumerate(("precision", "recall")):
            points = over_epochs(run, "train", f"{name}_{measure}", 100)
            quality.append(Series(f"{name}, {measure}", points, 2 * place + offset))
    return [
        line_chart(
            counts,
            title="labels found and rejected",
            x_label="epoch",
            y_label="labels in an epoch",
            y_range=whole_range(counts),
        ),
        line_chart(
            quality,
            title="precision and recall of the decisions",
            x_label="epoch",
            y_label="precision and recall, %",
            y_range=(0, 100),
        ),
    ]


def whole_range(series: Sequence[Series]) -> tuple[float, float]:
    """From zero to the largest value or a little above it."""
    ticks = nice_ticks(0, max([1.0, *(y for one in series for _, y in one.points)]))
    return ticks[0], ticks[-1]


def threshold_charts(run: RunRecord) -> tuple[list[tuple[str, str, Markup]], int]:
    """Thresholds and mean similarities of each category over the epochs, and how many categories are left out."""
    rows = [row for row in run.rows_of("categories") if "theta_pos" in row]
    if len(rows) < 2:
        return [], 0
    names, known = run.data["categories"], run.data["known_positives"]
    order = sorted(range(len(names)), key=lambda c: -known[c])
    shown = order if len(order) <= MANY_CATEGORIES else order[: MANY_CATEGORIES // 2] + order[-MANY_CATEGORIES // 2 :]
    numbers = (row[name][c] for row in rows for name in state_lines(rows) for c in shown)
    values = [number for number in numbers if number is not None]
    y_range = (min(0.0, *values), max(values))  # one for all, so that categories can be compared
    charts = [(names[c], f"{known[c]} known", threshold_chart(rows, c, names[c], y_range)) for c in shown]
    return charts, len(order) - len(shown)


def threshold_chart(rows: Sequence[dict[str, Any]], c: int, category: str, y_range: tuple[float, float]) -> Markup:
    series = [
        Series(name, [(row["epoch"], row[name][c]) for row in rows if row[name][c] is not None], style)
        for name, style in state_lines(rows).items()
    ]
    return line_chart(
        series, title=f"thresholds of {category}", x_label="epoch", y_label="", y_range=y_range, size=(240, 150),
        name_lines=False,
    )  # fmt: skip


# --- pictures and the list of runs ---


def galleries(runs: Sequence[RunRecord]) -> list[Gallery]:
    """Test images under the chosen runs of each dataset, and training images under the methods that decide."""
    found: list[Gallery | None] = []
    for dataset in unique(run.dataset for run in runs):
        own = [run for run in chosen(runs) if run.dataset == dataset]
        if own:
            found += [test_gallery(own), *(training_gallery(run) for run in own)]
    return [gallery for gallery in found if gallery is not None]


def run_line(run: RunRecord) -> dict[str, Any]:
    scores = run.scores("last")
    return {
        "dataset": run.dataset,
        "method": label(run),
        "known": proportion_label(run.proportion),
        "seed": run.seed,
        "map": None if scores is None else f"{100 * scores['map']:.1f}",
        "epochs": run.result.get("epochs", len(run.rows_of("train"))),
        "time": duration(run.result["seconds"]) if run.result else "not finished",
        "folder": str(run.folder),
    }
