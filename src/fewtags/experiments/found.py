"""The table of missing tags that a run found, for the report, with pictures of the most certain ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fewtags.data.prepare import RunData
from fewtags.discovery import LabelTable, OpenRun, open_run
from fewtags.engine.run_folder import RunFolder
from fewtags.experiments.examples import Gallery, Tag, TagList, example_of, known_tags, verdict_on
from fewtags.experiments.runs import RunRecord, label
from fewtags.labels import PRESENT, UNKNOWN
from fewtags.wording import plural

NUM_PICTURES = 8
FEW_IMAGES = 3000  # at most this many are searched for the page; more only if `fewtags discover` did so before


@dataclass(frozen=True)
class FoundRow:
    category: str
    known: int
    found: int
    expected: float  # number right among those found, by their probabilities
    right: int | None  # of those found, if the truth is known
    hidden: int | None  # unlabelled tags, if the truth is known


@dataclass(frozen=True)
class FoundTags:
    title: str
    sentence: str
    rows: list[FoundRow]
    gallery: Gallery | None

    @property
    def judged(self) -> bool:
        return self.rows[0].right is not None


def can_search(run: RunRecord, data: RunData) -> bool:
    """Is it quick? What `discover` or `review` have looked at before, the store has."""
    outputs = RunFolder(run.folder).outputs
    return len(data.train) <= FEW_IMAGES or (outputs.is_dir() and any(outputs.iterdir()))


def found_tags(run: RunRecord, data: RunData) -> FoundTags | None:
    """What `fewtags discover` lists for a run; None if nothing is unknown or found."""
    if not (data.train.labels == UNKNOWN).any():
        return None
    opened = open_run(run.folder, data=data, quiet=True)
    table = opened.discover(limit=opened.annotations.labels.size).missing
    if not len(table):
        return None
    rows = [found_row(opened, table, column) for column in range(len(opened.annotations.categories))]
    rows.sort(key=lambda row: -row.found)
    return FoundTags(
        f"{label(run)} on {run.dataset}", found_summary(run, opened, rows), rows, found_gallery(opened, table)
    )


def found_row(opened: OpenRun, table: LabelTable, column: int) -> FoundRow:
    mine = table.columns == column
    known = int((opened.annotations.labels[:, column] == PRESENT).sum())
    right = hidden = None
    if opened.truth is not None:
        there = opened.truth[:, column] == PRESENT
        right = int(there[table.rows[mine]].sum())
        hidden = int((there & (opened.annotations.labels[:, column] == UNKNOWN)).sum())
    name = opened.annotations.categories[column]
    return FoundRow(name, known, int(mine.sum()), float(table.probabilities[mine].sum()), right, hidden)


def found_summary(run: RunRecord, opened: OpenRun, rows: list[FoundRow]) -> str:
    found = sum(row.found for row in rows)
    images = plural(len(opened.annotations), "image")
    start = f"In {images}, {label(run)} found {plural(found, 'missing tag')}"
    if opened.truth is None:
        expected = sum(row.expected for row in rows)
        return f"{start}. Judging by their probabilities, about {expected:,.0f} of them are right (an estimate)."
    right, hidden = sum(row.right or 0 for row in rows), sum(row.hidden or 0 for row in rows)
    return f"{start}. {right:,} of them ({right / found:.0%}) are right; {hidden:,} were hidden from it."


def found_gallery(opened: OpenRun, table: LabelTable) -> Gallery | None:
    """The most certain tag of every category, most certain category first."""
    part, truth = opened.annotations, opened.annotations.labels if opened.truth is None else opened.truth
    _, first = np.unique(table.columns, return_index=True)  # the table is sorted by certainty
    examples = []
    for place in np.sort(first)[:NUM_PICTURES]:
        row = int(table.rows[place])
        places = np.flatnonzero(table.rows == row)
        found = [
            Tag(part.categories[c], verdict_on(truth[row, c]), float(p))
            for c, p in zip(table.columns[places].tolist(), table.probabilities[places].tolist(), strict=True)
        ]
        example = example_of(part, row, [known_tags(part, row), TagList("found", found)], {})
        examples += [example] if example is not None else []
    sentence = "The most certain missing tag of each category, and the image it was found in."
    return Gallery("Most certain", sentence, examples) if examples else None
