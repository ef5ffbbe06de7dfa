"""`fewtags compare`: the comparison of runs, as tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from fewtags.experiments.comparison import Comparison
from fewtags.presence.summary import NOT_AUDITED
from fewtags.wording import plural

COLUMNS = (("map", "mAP"), ("of1", "OF1"), ("cf1", "CF1"))


def tables(comparison: Comparison, per_category: bool) -> Iterator[Table | str]:
    yield run_table(comparison)
    if comparison.estimated:
        yield NOT_AUDITED
    if per_category:
        yield category_table(comparison)


def run_table(comparison: Comparison) -> Table:
    how = "estimated on" if comparison.estimated else "measured on"
    table = Table(
        title=f"{how} the same {plural(comparison.num_images, f'{comparison.split} image')}", title_justify="left"
    )
    table.add_column("run", overflow="fold")
    for name in ("method", "tags known", "decided", *(title for _, title in COLUMNS)):
        table.add_column(name, justify="left" if name == "method" else "right")
    for run in comparison.runs:
        numbers = [
            shown(getattr(run, key), getattr(comparison.runs[0], key), run is comparison.runs[0]) for key, _ in COLUMNS
        ]
        table.add_row(run.name, run.method, f"{run.known_tags:,}", f"{run.decisions:,}", *numbers)
    return table


def category_table(comparison: Comparison) -> Table:
    table = Table(title="AP of each category", title_justify="left")
    table.add_column("category", overflow="fold")
    for run in comparison.runs:
        table.add_column(run.name, justify="right", overflow="fold")
    for column, name in enumerate(comparison.categories):
        first = comparison.runs[0].ap[column]
        table.add_row(name, *(shown(run.ap[column], first, run is comparison.runs[0]) for run in comparison.runs))
    return table


def shown(value: float | None, first: float | None, is_first: bool) -> str:
    if value is None:
        return "-"
    text = f"{100 * value:.1f}"
    return text if is_first or first is None else f"{text} ({100 * (value - first):+.1f})"
