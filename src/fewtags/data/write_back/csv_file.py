"""Tags in the rows of a CSV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from fewtags.data.annotations import Annotations
from fewtags.data.csv_cells import protected
from fewtags.data.formats.csv_tags import find_columns, join_loose_tags, sniff_separator, split_tags
from fewtags.data.formats.tables import cell_at, read_table
from fewtags.data.tag_tree import SEPARATOR, levels_of
from fewtags.data.write_back.changes import Change, LabelSource, Rewritten, TagSpelling
from fewtags.data.write_back.raw import RawTable
from fewtags.labels import ABSENT, UNKNOWN


def rewrite_csv(source: LabelSource, annotations: Annotations, changes: dict[str, dict[str, Change]]) -> Rewritten:
    assert source.file is not None
    table = read_table(source.file, source.options)  # pyrefly: ignore[bad-argument-type]
    columns = find_columns(table, source.options)  # pyrefly: ignore[bad-argument-type]
    separator = getattr(source.options, "separator", None) or sniff_separator(table.cells(columns.tags))
    names = [cell_at(cells, table.image) for _, cells in table.rows]
    edit = _CsvEdit(RawTable.read(table), columns, separator, TagSpelling(annotations))
    places = source.rows_of(names)
    for image, mine in changes.items():
        edit.image(image, places.get(image, []), mine)
    return Rewritten(source.file.name, edit.raw.content(edit.added), "csv", source.given)


class _CsvEdit:
    """Changes of tags in the rows of a CSV, image by image."""

    def __init__(self, raw: RawTable, columns: Any, separator: str | None, spelling: TagSpelling):
        self.raw, self.columns, self.separator, self.spelling = raw, columns, separator, spelling
        self.added: dict[int, list[list[str]]] = {}
        self.between = separator or ","
        if separator not in (None, " "):
            cells = "\n".join(raw.table.cells(columns.tags, 1000))
            spaced = f"{separator} "
            self.between = spaced if 2 * cells.count(spaced) > cells.count(separator) else separator

    def image(self, image: str, rows: list[int], changes: dict[str, Change]) -> None:
        left = dict(changes)
        for row in rows:
            cells = self._cells(row)
            kept = self._without(cells, changes)
            if kept != cells:
                self.raw.change(row, cells, kept)
        for tag, change in left.items():
            if change.new != UNKNOWN:
                self._add(image, rows, tag, change.new == ABSENT)

    def _cells(self, row: int) -> list[str]:
        """The cells of a row as it is now, padded to all columns."""
        cells = join_loose_tags(self.raw.table, 0, self.raw.cells(row), self.columns.tags, self.separator, [])
        width = max(self.columns.tags, self.columns.absent or 0, self.raw.table.image) + 1
        return [*cells, *[""] * (width - len(cells))]

    def _without(self, cells: list[str], changes: Mapping[str, Change]) -> list[str]:
        """The cells with every mention of the changing tags removed."""
        cells = list(cells)
        for column in (self.columns.tags, self.columns.absent):
            if column is not None:
                tags = self._tags(cell_at(cells, column))
                kept = [shorter for tag in tags if (shorter := self._shortened(tag, changes))]
                if kept != tags:
                    cells[column] = self._joined(cells[column], list(dict.fromkeys(kept)))
        return cells

    def _shortened(self, tag: str, changes: Mapping[str, Change]) -> str:
        """A tag as it is; '' if it changes. Of animal|dog, animal stays where only the dog changes."""
        levels = levels_of(tag) if self.spelling.has_levels and not tag.startswith("-") else ()
        if self.spelling.category(tag.removeprefix("-").strip()) not in changes and not levels:
            return tag
        kept = list(takewhile(lambda level: self.spelling.category(level) not in changes, levels))
        return tag if len(kept) == len(levels) and levels else SEPARATOR.join(kept)

    def _tags(self, cell: str) -> list[str]:
        """The tags in the order they are written."""
        tags = split_tags(cell, self.separator)
        return sorted(tags, key=lambda tag: cell.index(tag))

    def _joined(self, cell: str, tags: Sequence[str]) -> str:
        """In the style of the cell: with a space after the separator, in brackets, or neither."""
        inside = cell.strip()
        brackets = inside[:1] + inside[-1:]
        if brackets in ("[]", "{}", "()"):
            quote = next((mark for mark in "'\"" if mark in inside), "'")
            return brackets[0] + ", ".join(f"{quote}{tag}{quote}" for tag in tags) + brackets[1]
        return protected(self.between.join(tags))

    def _add(self, image: str, rows: Sequence[int], tag: str, absent: bool) -> None:
        own_column = absent and self.columns.absent is not None
        column = self.columns.absent if own_column else self.columns.tags
        tag = SEPARATOR.join(self.spelling.tree.path(tag)) if self.spelling.has_levels else tag
        word = tag if own_column or not absent else f"-{tag}"
        for row in rows:
            cells = self._cells(row)
            tags = self._tags(cell_at(cells, column))
            denies = cell_at(cells, self.columns.confidence) in ("0", "0.0")
            if (self.separator is None and tags) or denies:
                continue  # this row has a single tag, or denies all of its tags
            with_word = self._joined(cells[column], [*tags, word])
            self.raw.change(row, cells, [*cells[:column], with_word, *cells[column + 1 :]])
            return
        self.added.setdefault(rows[-1] if rows else -1, []).append(self._new_row(image, rows, column, word))

    def _new_row(self, image: str, rows: Sequence[int], column: int, word: str) -> list[str]:
        table = self.raw.table
        cells = [""] * max(len(table.header or []), column + 1, table.image + 1)
        like = self._cells(rows[-1]) if rows else []
        cells[table.image] = cell_at(like, table.image) or image
        if self.columns.split is not None:
            cells[self.columns.split] = cell_at(like, self.columns.split)
        if self.columns.confidence is not None:
            cells[self.columns.confidence] = "1"
        cells[column] = protected(word)
        return cells
