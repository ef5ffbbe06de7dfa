"""Raw files, to be written back unchanged except for the edits."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fewtags.data.formats.tables import Table
from fewtags.data.formats.text import decoded, read_bytes
from fewtags.errors import DataError

ENDS = ("\r\n", "\n", "\r")


@dataclass
class RawTable:
    """A CSV file in which cells can be replaced and rows added; every other byte stays as it is."""

    table: Table
    gaps: list[str]  # what is before every row: the header, blank lines
    rows: list[str]  # the text of every row of `table`, with its line end
    tail: str  # blank lines after the last row
    line_end: str
    encoding: str
    before: bytes  # the byte order mark, if any

    @classmethod
    def read(cls, table: Table) -> RawTable:
        text, encoding, mark = decoded(table.file)
        if mark + text.encode(encoding) != read_bytes(table.file):
            raise DataError(f"{table.file} is not valid {encoding.upper()}; --as jsonl writes a file of its own.")
        lines = list(io.StringIO(text, newline=""))
        reader = csv.reader(lines, delimiter=table.delimiter, skipinitialspace=True)
        ends: dict[int, int] = {}  # first line of a record -> its last line
        first = 1
        for _ in reader:
            ends[first] = reader.line_num
            first = reader.line_num + 1
        gaps, rows, done = [], [], 0
        for line, _ in table.rows:
            gaps.append("".join(lines[done : line - 1]))
            rows.append("".join(lines[line - 1 : ends[line]]))
            done = ends[line]
        used = Counter(end for last in ends.values() if (end := end_of(lines[last - 1])))
        line_end = used.most_common(1)[0][0] if used else "\n"
        return cls(table, gaps, rows, "".join(lines[done:]), line_end, encoding, mark)

    def cells(self, row: int) -> list[str]:
        """The cells of a row as it is now."""
        return self._parsed(self.rows[row])

    def change(self, row: int, before: Sequence[str], after: Sequence[str]) -> None:
        """Replace the cells of a row that differ. If the row has more cells than `before`, the last of these may have
        been joined from several."""
        text, now = self.rows[row], self.cells(row)
        spans = cell_spans(text, self.table.delimiter)
        if len(now) > len(before) and before[-1] != now[len(before) - 1]:
            spans[len(before) - 1 :] = [(spans[len(before) - 1][0], spans[-1][1])]
            now = [*now[: len(before) - 1], before[-1]]
        for column in reversed(range(min(len(spans), len(after)))):
            start, end = spans[column]
            if after[column] != before[column]:
                text = text[:start] + self._written(after[column], now[column], text[start:end]) + text[end:]
        if any(after[len(spans) :]):
            new = [self._written(cell, "", "") for cell in after[len(spans) :]]
            text = self.table.delimiter.join([text.removesuffix(end_of(text)), *new]) + end_of(text)
        found = self._parsed(text)
        as_wanted = found[: len(after)] + [""] * (len(after) - len(found)) == list(after)
        self.rows[row] = text if as_wanted else self.line(after)

    def _parsed(self, text: str) -> list[str]:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=self.table.delimiter, skipinitialspace=True)
        return next(reader)

    def _written(self, cell: str, old: str, raw: str) -> str:
        """In the style of the old one: with its spaces in front, and quoted if it was without need."""
        space = raw[: len(raw) - len(raw.lstrip(" "))]
        quoted = raw.lstrip(" ").startswith('"') and not self._needs_quotes(old)
        if quoted or self._needs_quotes(cell):
            cell = '"' + cell.replace('"', '""') + '"'
        return space + cell

    def _needs_quotes(self, cell: str) -> bool:
        return cell.startswith(" ") or any(mark in cell for mark in (self.table.delimiter, '"', "\r", "\n"))

    def line(self, cells: Sequence[str]) -> str:
        out = io.StringIO(newline="")
        csv.writer(out, delimiter=self.table.delimiter, lineterminator=self.line_end).writerow(cells)
        return out.getvalue()

    def content(self, after: Mapping[int, Sequence[Sequence[str]]]) -> bytes:
        """The file with extra rows after some rows; those after -1 come at the end."""
        parts = []
        for row, (gap, text) in enumerate(zip(self.gaps, self.rows, strict=True)):
            added = [*after.get(row, ()), *(after.get(-1, ()) if row == len(self.rows) - 1 else ())]
            lines = [text, *map(self.line, added)]
            if added and not end_of(text):  # the last line of the file, which has no end and gets none
                lines = [text + self.line_end, *lines[1:-1], lines[-1].removesuffix(self.line_end)]
            parts += [gap, *lines]
        return self.before + ("".join(parts) + self.tail).encode(self.encoding, errors="xmlcharrefreplace")


def end_of(line: str) -> str:
    return next((end for end in ENDS if line.endswith(end)), "")


def cell_spans(text: str, delimiter: str) -> list[tuple[int, int]]:
    """Where the cells of one record are, with their quotation marks and the spaces before them; read as the csv module
    does."""
    spans, start, state = [], 0, "before"
    end = len(text) - len(end_of(text))
    for place, letter in enumerate(text[:end]):
        if letter == delimiter and state != "quoted" and not (state == "before" and delimiter == " "):
            spans.append((start, place))
            start, state = place + 1, "before"
        elif state == "before" and letter == '"':
            state = "quoted"
        elif state == "before" and letter != " ":
            state = "plain"
        elif state == "quoted" and letter == '"':
            state = "after a mark"
        elif state == "after a mark":
            state = "quoted" if letter == '"' else "plain"
    return [*spans, (start, end)]
