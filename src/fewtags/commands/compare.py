"""`fewtags compare`: the comparison of runs, as tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from fewtags.experiments.comparison import ComparedRun, Comparison, Review
from fewtags.presence.summary import NOT_AUDITED
from fewtags.wording import plural

SHOWN = 5  # tags in a sentence
COLUMNS = (("map", "mAP"), ("of1", "OF1"), ("cf1", "CF1"))


def tables(comparison: Comparison, per_category: bool) -> Iterator[Table | str]:
    yield run_table(comparison)
    for run in comparison.runs:
        if run.review is not None:
            yield from review_lines(run, run.review, comparison)
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


def review_lines(run: ComparedRun, review: Review, comparison: Comparison) -> Iterator[str]:
    """What was decided, and what it was worth: the AP of the tags whose labels changed, and of the others."""
    found, removed = sum(review.found.values()), sum(review.removed.values())
    yield (
        f"{run.name}: the review found {plural(found, 'missing tag')}{most(review.found)} and removed "
        f"{plural(removed, 'wrong one')}{most(review.removed)}; {review.refuted:,} suggestions were wrong, "
        f"{review.confirmed:,} given tags were confirmed, and {review.unsure:,} stayed unsure."
    )
    if review.agreement:
        yield f"{run.name}: {review.agreement}."
    first = comparison.runs[0]
    if run is first or not review.tags:
        return
    gains: dict[bool, list[float]] = {True: [], False: []}  # of tags whose labels changed?
    for name, before, after in zip(comparison.categories, first.ap, run.ap, strict=True):
        if before is not None and after is not None:
            gains[name in review.tags].append(100 * (after - before))
    parts = [
        f"{sum(values) / len(values):+.1f} for {'these' if changed else 'the other'} {plural(len(values), 'tag')}"
        for changed, values in gains.items()
        if values
    ]
    if parts:
        yield f"What that was worth, in mAP since {first.name}: {', '.join(parts)}."


def most(counts: dict[str, int]) -> str:
    """For example " (dog 4, sea 3, …)"."""
    if not counts:
        return ""
    shown = [f"{tag} {number:,}" for tag, number in list(counts.items())[:SHOWN]]
    return f" ({', '.join([*shown, '…'] if len(counts) > SHOWN else shown)})"


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
