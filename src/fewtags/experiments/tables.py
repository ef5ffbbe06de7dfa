"""The paper's tables from tidy rows: methods down, known proportions across; as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fewtags.atomic import atomic_write
from fewtags.data.csv_cells import protected
from fewtags.experiments import published
from fewtags.experiments.runs import Proportion, method_place, proportion_label, proportion_place, row_label
from fewtags.wording import markdown, printable

METRIC_NAMES = {"map": "mAP", "map_voc12": "mAP (VOC 2012)", "of1": "OF1", "cf1": "CF1"}
RULE_NOTES = {
    "last": "after the last epoch",
    "best": "at the best epoch on the test images themselves, as in the paper, which makes them optimistic",
}
PUBLISHED = ", published"  # what the label of a row with the paper's own numbers ends in
ABLATIONS = {  # a method, and it without some of its parts
    "caldnr": ("cssl", "cald-no-catu", "cald", "canr-no-catu", "canr", "caldnr"),  # the paper's Table 2
    "refined": (
        "refined-an",
        "refined-discover",
        "refined-reject",
        "refined",
    ),
}

Row = dict[str, Any]


@dataclass(frozen=True)
class Value:
    """One cell: mean and standard deviation over seeds."""

    mean: float
    std: float | None = None  # None for a single seed

    @classmethod
    def of(cls, values: Sequence[float]) -> Value | None:
        if not values:
            return None
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)

    def __str__(self) -> str:
        return f"{self.mean:.1f}" if self.std is None else f"{self.mean:.1f} ± {self.std:.1f}"


@dataclass(frozen=True)
class Table:
    title: str
    note: str  # what the numbers are
    columns: list[str]
    rows: list[tuple[str, list[Value | None]]]

    def cells(self) -> list[tuple[str, list[tuple[str, bool]]]]:
        """Each row's label, and its cells as text with whether it is the highest measured one of its column."""
        best = [self._best(column) for column in range(len(self.columns))]
        return [
            (
                label,
                [
                    _cell(value, None if label.endswith(PUBLISHED) else top)
                    for value, top in zip(values, best, strict=True)
                ],
            )
            for label, values in self.rows
        ]

    @property
    def has_published(self) -> bool:
        return any(label.endswith(PUBLISHED) for label, _ in self.rows)

    def _best(self, column: int) -> float | None:
        """The highest mean as printed; none if there is nothing to compare."""
        values = [values[column] for label, values in self.rows if not label.endswith(PUBLISHED)]
        means = [round(value.mean, 1) for value in values if value is not None]
        return max(means) if len(means) > 1 else None


def _cell(value: Value | None, best: float | None) -> tuple[str, bool]:
    return ("–", False) if value is None else (str(value), round(value.mean, 1) == best)


# --- from tidy rows to tables ---


def paper_tables(rows: Sequence[Row], epoch_rule: str = "last") -> list[Table]:
    """For every dataset: mAP, OF1 and CF1 over the proportions, and the ablation if its rows exist."""
    tables = []
    chosen = [row for row in rows if row["epoch_rule"] == epoch_rule]
    for dataset in unique(row["dataset"] for row in chosen):
        own = [row for row in chosen if row["dataset"] == dataset]
        ablations = {whole: rows for whole in ABLATIONS if (rows := ablation_rows(own, whole))}
        apart = {part for whole in ablations for part in ABLATIONS[whole] if part != whole}
        main = [row for row in own if row["method"] not in apart]
        if len(unique(row["proportion"] for row in own)) == 1:
            tables.append(overview_table(own, dataset, epoch_rule))
            continue
        if main:  # a bench with only ablation rows has none
            tables += [proportion_table(main, dataset, metric, epoch_rule) for metric in METRIC_NAMES]
        metrics = ("map", published.METRIC) if epoch_rule == published.EPOCH_RULE else ("map",)
        for whole, parts in ablations.items():
            title = f"{dataset}, ablation of {whole}"
            tables += [proportion_table(parts, title, metric, epoch_rule) for metric in metrics]
    return tables


def ablation_rows(rows: Sequence[Row], whole: str) -> list[Row]:
    """Of a method and its parts, at the proportions that its parts have; none if there are hardly any parts."""
    family = [row for row in rows if row["method"] in ABLATIONS[whole]]
    if len(unique(row["method"] for row in family)) <= 2:
        return []
    shared = {row["proportion"] for row in family if row["method"] != whole}  # the main table has more of the whole
    return [row for row in family if row["proportion"] in shared]


def proportion_table(rows: Sequence[Row], dataset: str, metric: str, epoch_rule: str) -> Table:
    proportions = sorted(unique(row["proportion"] for row in rows), key=proportion_place)
    body = []
    for label, own in by_method(rows):
        values = [value_of([row for row in own if row["proportion"] == p], metric) for p in proportions]
        body.append((label, [*values, average(values)]))
        if (metric, epoch_rule) == (published.METRIC, published.EPOCH_RULE):
            body += published_row(own[0], proportions)
    columns = [*map(proportion_label, proportions), "average"]
    return Table(f"{METRIC_NAMES[metric]} on {dataset}", note_on(rows, epoch_rule), columns, body)


def published_row(run: Row, proportions: Sequence[Proportion]) -> list[tuple[str, list[Value | None]]]:
    """The published numbers for a method in its `paper` profile, below our own row."""
    numbers = [published.of_row({**run, "proportion": proportion}) for proportion in proportions]
    if not any(number is not None for number in numbers):
        return []
    values = [None if number is None else Value(number) for number in numbers]
    return [(f"{run['method']}{PUBLISHED}", [*values, average(values)])]


def overview_table(rows: Sequence[Row], dataset: str, epoch_rule: str) -> Table:
    """For a single proportion: one column per metric."""
    body: list[tuple[str, list[Value | None]]] = []
    for label, own in by_method(rows):
        body.append((label, [value_of(own, metric) for metric in METRIC_NAMES]))
        number = published.of_row(own[0]) if epoch_rule == published.EPOCH_RULE else None
        if number is not None:
            cells = [Value(number) if metric == published.METRIC else None for metric in METRIC_NAMES]
            body.append((f"{own[0]['method']}{PUBLISHED}", cells))
    known: Proportion = rows[0]["proportion"]
    where = dataset if known is None else f"{dataset}, {proportion_label(known)} known"
    return Table(f"Scores on {where}", note_on(rows, epoch_rule), list(METRIC_NAMES.values()), body)


def by_method(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    names = sorted(unique((row["method"], row["profile"]) for row in rows), key=lambda name: method_place(name[0]))
    return [
        (row_label(method, profile), [row for row in rows if (row["method"], row["profile"]) == (method, profile)])
        for method, profile in names
    ]


def value_of(rows: Sequence[Row], metric: str) -> Value | None:
    return Value.of([row[metric] for row in rows if row[metric] is not None])


def average(values: Sequence[Value | None]) -> Value | None:
    """Average of the means over all proportions, as in the paper; none if a proportion is missing."""
    means = [value.mean for value in values if value is not None]
    return Value(statistics.fmean(means)) if means and len(means) == len(values) else None


def note_on(rows: Sequence[Row], epoch_rule: str) -> str:
    counts = {len(unique(row["seed"] for row in own if row["proportion"] == p)) for _, own in by_method(rows) for p in
              unique(row["proportion"] for row in own)}  # fmt: skip
    if max(counts) == 1:
        seeds = "one seed"
    else:
        span = str(max(counts)) if len(counts) == 1 else f"{min(counts)} to {max(counts)}"
        seeds = f"mean ± standard deviation over {span} seeds"
    return f"In percent, {RULE_NOTES[epoch_rule]}; {seeds}."


def unique(values: Any) -> list:
    """Unique values, in order of appearance."""
    return list(dict.fromkeys(values))


# --- output formats ---


def to_markdown(table: Table) -> str:
    lines = [f"**{markdown(table.title)}.** {table.note}", ""]
    lines.append("| method | " + " | ".join(map(markdown, table.columns)) + " |")
    lines.append("|---|" + "---:|" * len(table.columns))
    for label, cells in table.cells():
        marked = [f"**{text}**" if best else text for text, best in cells]
        lines.append(f"| {markdown(label)} | " + " | ".join(marked) + " |")
    return "\n".join(lines) + "\n"


def to_latex(table: Table) -> str:
    columns = " & ".join(_latex(column) for column in table.columns)
    lines = [
        r"\begin{table}",
        rf"\caption{{{_latex(table.title)}. {_latex(table.note)}}}",
        rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}",
        r"\hline",
        rf"method & {columns} \\",
        r"\hline",
    ]
    for label, cells in table.cells():
        marked = [rf"\textbf{{{_latex(text)}}}" if best else _latex(text) for text, best in cells]
        lines.append(rf"{_latex(label)} & {' & '.join(marked)} \\")
    return "\n".join([*lines, r"\hline", r"\end{tabular}", r"\end{table}"]) + "\n"


def to_csv(table: Table) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["table", "method", *table.columns])
    for label, cells in table.cells():
        writer.writerow([protected(table.title), protected(label), *(text for text, _ in cells)])
    return out.getvalue()


LATEX = {
    "%": r"\%", "_": r"\_", "±": r"$\pm$", "–": "--", "&": r"\&", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}",
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"$<$", ">": r"$>$",
}  # fmt: skip


def _latex(text: str) -> str:
    return "".join(LATEX.get(letter, letter) for letter in printable(text))


def write_tables(rows: Sequence[Row], folder: Path) -> None:
    """tables.md, tables.csv and tables.tex: after the last epoch first, then at the best one."""
    tables = [table for rule in RULE_NOTES for table in paper_tables(rows, rule)]
    for suffix, form in (("md", to_markdown), ("csv", to_csv), ("tex", to_latex)):
        with atomic_write(folder / f"tables.{suffix}") as temporary:
            temporary.write_text("\n".join(map(form, tables)), encoding="utf-8")
