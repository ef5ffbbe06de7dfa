"""Charts of what runs logged over their epochs, and of scores over the known proportion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from fewtags.experiments import published
from fewtags.experiments.charts import Series, legend, line_chart, nice_ticks
from fewtags.experiments.runs import RunRecord, groups, label, proportion_label
from fewtags.experiments.tables import METRIC_NAMES, Row, by_method, unique, value_of

MANY_CATEGORIES = 24  # above this many, not every category gets a threshold chart
STATE_LINES = {"theta_pos": 0, "theta_neg": 1, "s_pos": 2, "s_neg": 3}  # style of each, in rows of kind "categories"
PAPERS_MAP = METRIC_NAMES[published.METRIC]
DECISIONS = ("found", "rejected")


@dataclass(frozen=True)
class Charts:
    title: str
    charts: list[Markup]


def proportion_charts(rows: Sequence[Row]) -> list[Charts]:
    """The paper's figure: each metric over the known proportion, one line per method; after the last epoch and, if
    different, at the best one, with the published numbers."""
    figures = []
    for dataset in unique(row["dataset"] for row in rows):
        own = [row for row in rows if row["dataset"] == dataset and isinstance(row["proportion"], float)]
        last, best = ([row for row in own if row["epoch_rule"] == rule] for rule in ("last", "best"))
        charts = [chart for metric in ("map", "of1", "cf1") if (chart := proportion_chart(last, metric))]
        figures += [Charts(f"{dataset}, last epoch", charts)] if charts else []
        if scores_of(best) != scores_of(last):
            charts = [proportion_chart(best, metric) for metric in (published.METRIC, "of1", "cf1")]
            charts.append(proportion_chart(published_rows(best), published.METRIC, f"{PAPERS_MAP} published"))
            figures.append(Charts(f"{dataset}, best epoch", [chart for chart in charts if chart]))
    return figures


def scores_of(rows: Sequence[Row]) -> list[tuple[float | None, ...]]:
    return [(row["map"], row["of1"], row["cf1"]) for row in rows]


def published_rows(rows: Sequence[Row]) -> list[Row]:
    """The paper's numbers in place of ours, for its methods in their `paper` profile."""
    return [
        {**row, published.METRIC: published.of_row(row)}
        for row in rows
        if row["epoch_rule"] == published.EPOCH_RULE
        and any(published.of_row(one) for one in rows if same_line(row, one))
    ]


def same_line(one: Row, other: Row) -> bool:
    return (one["method"], one["profile"]) == (other["method"], other["profile"])


def proportion_chart(rows: Sequence[Row], metric: str, title: str | None = None) -> Markup:
    proportions = sorted(unique(row["proportion"] for row in rows))
    series = []
    for place, (name, own) in enumerate(by_method(rows)):
        values = [(p, value_of([row for row in own if row["proportion"] == p], metric)) for p in proportions]
        there = [(100 * p, value) for p, value in values if value is not None]
        points = [(x, value.mean) for x, value in there]
        series.append(Series(name, points, place, [value.std for _, value in there]))
    shown = title or METRIC_NAMES[metric]
    ticks = [100 * p for p in proportions]
    return line_chart(
        series, title=f"{shown} over the known proportion", x_label="known positives, %", y_label=f"{shown}, %",
        x_ticks=ticks, size=(420, 320),
    )  # fmt: skip


# --- over the epochs ---


def learning_charts(runs: Sequence[RunRecord]) -> list[Charts]:
    """mAP and loss over the epochs, for every dataset and proportion; only the first seed."""
    figures = []
    style = {name: place for place, name in enumerate(unique(label(run) for run in runs))}
    for title, group in groups(runs):
        loss = [Series(name, over_epochs(run, "train", "loss"), style[name]) for name, run in group.items()]
        charts = [
            epoch_chart([map_line(run, style[name]) for name, run in group.items()], "mAP, %"),
            epoch_chart(loss, "training loss"),
        ]
        if any(charts):
            figures.append(Charts(title, [chart for chart in charts if chart]))
    return figures


def map_line(run: RunRecord, style: int) -> Series:
    """mAP over the epochs; a method without epochs has one value, drawn as a level."""
    scores = run.scores("last")
    if scores is not None and scores["map"] is not None and run.result.get("epochs") == 0:
        return Series(label(run), [(0, 100 * scores["map"])], style, level=True)
    return Series(label(run), over_epochs(run, "eval", "map", 100), style)


def epoch_chart(series: Sequence[Series], y_label: str) -> Markup:
    series = [one for one in series if one.level or len(one.points) > 1]
    return line_chart(series, title=f"{y_label} over epochs", x_label="epoch", y_label=y_label)


def over_epochs(run: RunRecord, kind: str, key: str, scale: float = 1.0) -> list[tuple[float, float]]:
    return [(row["epoch"], scale * row[key]) for row in run.rows_of(kind) if row.get(key) is not None]


# --- what a method did with unknown labels ---


@dataclass(frozen=True)
class Detail:
    title: str
    decisions: list[Markup]  # counts, precision and recall over epochs
    thresholds: list[tuple[str, str, Markup]]  # category, remark, chart
    threshold_legend: Markup
    threshold_names: list[str]
    num_not_shown: int  # categories without a chart


def method_detail(run: RunRecord) -> Detail | None:
    decisions = [chart for chart in decision_charts(run) if chart]
    thresholds, num_not_shown = threshold_charts(run)
    if not decisions and not thresholds:
        return None
    title = f"{label(run)} on {run.dataset}, {proportion_label(run.proportion)}"
    lines = state_lines(run.rows_of("categories"))
    return Detail(title, decisions, thresholds, legend(lines), list(lines), num_not_shown)


def state_lines(rows: Sequence[dict[str, Any]]) -> dict[str, int]:
    """The lines a method has, with their styles."""
    return {name: style for name, style in STATE_LINES.items() if any(name in row for row in rows)}


def decisions_of(run: RunRecord) -> list[str]:
    """The kinds of decisions to show. `refined` rejects exactly the labels it finds, so they are shown once."""
    logged = {
        kind: [over_epochs(run, "train", f"{kind}_{what}") for what in ("labels", "precision")] for kind in DECISIONS
    }
    kinds = [kind for kind, (counts, _) in logged.items() if counts]
    alike = logged["found"] == logged["rejected"] and any(count for _, count in logged["found"][0])
    return kinds[:1] if alike else kinds


def decision_charts(run: RunRecord) -> list[Markup]:
    """How many unknown labels were found and rejected each epoch; if the truth is known, with precision and recall."""
    counts, quality = [], []
    kinds = decisions_of(run)
    for place, kind in enumerate(kinds):
        counts.append(Series(kind, over_epochs(run, "train", f"{kind}_labels"), place))
        for offset, measure in enumerate(("precision", "recall")):
            points = over_epochs(run, "train", f"{kind}_{measure}", 100)
            quality.append(Series(f"{kind}, {measure}" if len(kinds) > 1 else measure, points, 2 * place + offset))
    return [
        line_chart(
            counts,
            title=f"labels {' and '.join(kinds)} in each epoch",
            x_label="epoch",
            y_label=f"labels {' and '.join(kinds)}",
            y_range=full_range(counts),
        ),
        line_chart(
            quality,
            title="precision and recall of the decisions",
            x_label="epoch",
            y_label="precision and recall, %",
            y_range=(0, 100),
        ),
    ]


def full_range(series: Sequence[Series]) -> tuple[float, float]:
    """From zero to slightly above the largest value."""
    ticks = nice_ticks(0, max([1.0, *(y for one in series for _, y in one.points)]))
    return ticks[0], ticks[-1]


def threshold_charts(run: RunRecord) -> tuple[list[tuple[str, str, Markup]], int]:
    """Thresholds and mean similarities of each category over the epochs, and the number of categories without a
    chart."""
    rows = [row for row in run.rows_of("categories") if "theta_pos" in row]
    if len(rows) < 2:
        return [], 0
    names, known = run.data["categories"], run.data["known_positives"]
    order = sorted(range(len(names)), key=lambda c: -known[c])
    shown = order if len(order) <= MANY_CATEGORIES else order[: MANY_CATEGORIES // 2] + order[-MANY_CATEGORIES // 2 :]
    numbers = (row[name][c] for row in rows for name in state_lines(rows) for c in shown)
    values = [number for number in numbers if number is not None]
    y_range = (min(0.0, *values), max(values))  # shared, so that categories can be compared
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
