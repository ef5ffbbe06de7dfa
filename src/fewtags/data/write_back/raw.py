"""Raw files, to be written back unchanged except for the edits."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fewtags.data.formats.tables import Table
from fewtags.data.formats.text import decoded


@dataclass
class RawTable:
    """A CSV file in which rows can be replaced and added; all others stay as they are."""

    table: Table
    head: str  # everything before the first row
    rows: list[str]  # the text of every row of `table`, with its line end
    line_end: str
    encoding: str
    before: bytes  # the byte order mark, if any

    @classmethod
    def read(cls, table: Table) -> RawTable:
        text, encoding, mark = decoded(table.file)
        lines = list(io.StringIO(text, newline=""))
        reader = csv.reader(lines, delimiter=table.delimiter, skipinitialspace=True)
        starts: dict[int, int] = {}  # first line of a record -> the line after it
        first = 1
        for _ in reader:
            starts[first] = reader.line_num
            first = reader.line_num + 1
        rows = ["".join(lines[line - 1 : starts[line]]) for line, _ in table.rows]
        head = "".join(lines[: table.rows[0][0] - 1])
        line_end = next((end for end in ("\r\n", "\n", "\r") if lines[0].endswith(end)), "\n")
        return cls(table, head, rows, line_end, encoding, mark)

    def set(self, row: int, cells: Sequence[str]) -> None:
        self.rows[row] = self.line(cells)

    def line(self, cells: Sequence[str]) -> str:
        out = io.StringIO(newline="")
        csv.writer(out, delimiter=self.table.delimiter, lineterminator=self.line_end).writerow(cells)
        return out.getvalue()

    def content(self, after: Mapping[int, Sequence[Sequence[str]]]) -> bytes:
        """The file with extra rows after some rows; those after -1 come at the end."""
        parts = [self.head]
        for row, text in enumerate(self.rows):
            parts.append(text)
            parts += [self.line(cells) for cells in after.get(row, ())]
        last = [self.line(cells) for cells in after.get(-1, ())]
        text = "".join(parts)
        if last and text and not text.endswith(("\n", "\r")):
            text += self.line_end
        return self.before + (text + "".join(last)).encode(self.encoding, errors="xmlcharrefreplace")
