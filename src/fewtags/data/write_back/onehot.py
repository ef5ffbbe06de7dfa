"""A table with one column per tag."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from fewtags.data.annotations import Annotations
from fewtags.data.formats.onehot import choose_columns, meanings
from fewtags.data.formats.tables import BLANK, CODES, SPLIT_NAMES, Table, cell_at, codes, read_table
from fewtags.data.write_back.changes import Change, LabelSource, Rewritten, TagSpelling
from fewtags.data.write_back.raw import RawTable
from fewtags.labels import ABSENT, PRESENT, UNKNOWN


def rewrite_onehot(source: LabelSource, annotations: Annotations, changes: dict[str, dict[str, Change]]) -> Rewritten:
    """What 0, -1 and a blank mean depends on which of them occur; if the new table would be read differently, the
    meanings are passed as options."""
    assert source.file is not None
    table = read_table(source.file, source.options)  # pyrefly: ignore[bad-argument-type]
    columns, meant = onehot_columns(source, table), onehot_meanings(source, table)
    spelling, by_category = TagSpelling(annotations), dict[str | None, list[int]]()
    for column in columns:
        by_category.setdefault(spelling.category((table.header or [])[column]), []).append(column)
    zero_used = any(cell_at(cells, column) == "0" for _, cells in table.rows for column in columns)
    words = {
        PRESENT: "1",
        ABSENT: "0" if meant["zero"] == "absent" else "-1",
        UNKNOWN: "0" if meant["zero"] == "unknown" and zero_used else blank_word(table, columns),
    }
    places = source.rows_of([cell_at(cells, table.image) for _, cells in table.rows])
    raw, added = RawTable.read(table), []
    for image, mine in changes.items():
        rows = places.get(image, [])
        lines = [list(table.rows[row][1]) for row in rows] or [blank_row(table, image, columns, words[UNKNOWN])]
        for tag, change in mine.items():
            set_cells(lines, by_category.get(tag, []), words[change.new])
        for row, cells in zip(rows, lines, strict=False):
            raw.change(row, table.rows[row][1], cells)
        added += [] if rows else lines
    return Rewritten(source.file.name, raw.content({-1: added}), "onehot", {**source.given, **meant})


def blank_word(table: Table, columns: Sequence[int]) -> str:
    """How the table writes what is unknown: mostly not at all."""
    used = Counter(
        cell for _, cells in table.rows for c in columns if CODES.get((cell := cell_at(cells, c)).lower()) == BLANK
    )
    return used.most_common(1)[0][0] if used else "NA" if table.delimiter == " " else ""


def onehot_columns(source: LabelSource, table: Table) -> list[int]:
    split = table.column(getattr(source.options, "split_column", None), SPLIT_NAMES)
    return choose_columns(table, codes(table), source.options, taken={table.image, split})  # pyrefly: ignore[bad-argument-type]


def onehot_meanings(source: LabelSource, table: Table) -> dict[str, Any]:
    """The meanings of 0 and -1, as reader options."""
    values = codes(table)[:, onehot_columns(source, table)]
    zero, minus_one = meanings(values, source.options, table.file, [])  # pyrefly: ignore[bad-argument-type]
    return {"zero": zero, "minus_one": minus_one}


def set_cells(lines: Sequence[list[str]], columns: Sequence[int], value: str) -> None:
    """Set the cells of all rows of an image and all columns of a tag; for present, one cell is enough."""
    for cells in lines[: 1 if value == "1" else None]:
        for column in columns[: 1 if value == "1" else None]:
            cells += [""] * (column + 1 - len(cells))
            cells[column] = value


def blank_row(table: Table, image: str, columns: Sequence[int], unknown: str) -> list[str]:
    cells = [unknown if column in columns else "" for column in range(len(table.header or []))]
    cells[table.image] = image
    return cells
