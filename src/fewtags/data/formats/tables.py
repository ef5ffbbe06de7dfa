"""A CSV file as rows and columns: the delimiter, the header and the image column are found by looking."""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from fewtags.data.formats.common import files_with_suffix, is_image, read_text
from fewtags.data.formats.options import ReadOptions
from fewtags.errors import DataError, UserError, did_you_mean

TABLE_SUFFIXES = (".csv", ".tsv", ".psv")
DELIMITERS = (",", ";", "\t", "|")
DELIMITER_WORDS = {"\t": "tabs", " ": "spaces"}
IMAGE_NAMES = (
    "image", "image_path", "imagepath", "image_file", "filename", "file_name", "file", "filepath", "file_path", "path",
    "img", "image_name", "image_id", "imageid", "photo", "picture", "name", "id",
)  # fmt: skip
TAG_NAMES = (
    "tags", "tag", "labels", "label", "keywords", "keyword", "categories", "category", "classes", "class", "present",
    "class_name", "label_name", "labelname", "species", "subjects", "subject",
)  # fmt: skip
ABSENT_NAMES = ("absent", "absent_tags", "negative", "negatives")
CONFIDENCE_NAMES = ("confidence",)  # Open Images: 1 verified present, 0 verified absent
SPLIT_NAMES = ("split", "subset", "partition")
BLANKS = ("", "nan", "na", "n/a", "null", "none", "?")
ONEHOT_VALUES = {
    **dict.fromkeys(("1", "1.0", "true"), 1.0),
    **dict.fromkeys(("0", "0.0", "false"), 0.0),
    **dict.fromkeys(("-1", "-1.0"), -1.0),
    **dict.fromkeys(BLANKS, math.nan),
}
NUM_SAMPLED = 200  # lines looked at to find the delimiter and to tell one layout from another


@dataclass
class Table:
    file: Path
    delimiter: str
    header: list[str] | None
    rows: list[tuple[int, list[str]]]  # line number, cells
    image: int  # the image column
    encoding: str  # words about it, when it is not UTF-8

    def name(self, column: int) -> str:
        return f"'{self.header[column]}'" if self.header else f"column {column + 1}"

    def where(self, line: int) -> str:
        return f"{self.file}:{line}"

    def cells(self, column: int) -> list[str]:
        return [row[column].strip() for _, row in self.rows if column < len(row)]

    def column(self, wanted: str | None, names: tuple[str, ...]) -> int | None:
        """The column a person named, or the first with one of the usual names; None when there is none."""
        header = [name.strip().lower() for name in self.header or []]
        if wanted is None:
            return next((header.index(name) for name in names if name in header), None)
        if wanted.strip().lower() not in header:
            hint = did_you_mean(wanted, self.header) if self.header else "it has no header line."
            raise UserError(f"{self.file} has no column '{wanted}'; {hint}")
        return header.index(wanted.strip().lower())

    def describe(self) -> str:
        parts = [f"Read {self.file}: {in_words(self.delimiter)} between columns", f"images in {self.name(self.image)}"]
        return ", ".join([*parts, self.encoding] if self.encoding else parts)


def cell_at(cells: list[str], column: int | None) -> str:
    return cells[column].strip() if column is not None and column < len(cells) else ""


def in_words(delimiter: str) -> str:
    return DELIMITER_WORDS.get(delimiter, f"'{delimiter}'")


def table_files(path: Path) -> list[Path]:
    suffixes = (*TABLE_SUFFIXES, ".txt") if path.is_file() else TABLE_SUFFIXES
    return files_with_suffix(path, suffixes)


def is_onehot(file: Path) -> bool | None:
    """One column per category (True) or a tag column (False)? None when the file is not a table about images."""
    try:
        table = read_table(file, ReadOptions(), sample=True)
    except UserError:
        return None
    if table.column(None, TAG_NAMES) is not None:
        return False
    taken = {table.image, table.column(None, SPLIT_NAMES)}
    columns = category_columns(table, taken)
    others = [name for column, name in enumerate(table.header or []) if name and column not in {*columns, *taken}]
    return len(columns) > 1 or (len(columns) == 1 and not others)  # beside words, one column of 0 and 1 is a remark


def category_columns(table: Table, taken: set[int | None]) -> list[int]:
    """The named columns that hold one-hot values; one that is blank throughout is a category nobody looked at."""
    columns = []
    for column, name in enumerate(table.header or []):
        filled = [cell for cell in table.cells(column) if cell.lower() not in BLANKS]
        valid = sum(cell.lower() in ONEHOT_VALUES for cell in filled)
        if name and column not in taken and (2 * valid > len(filled) or not filled):
            columns.append(column)
    return columns


def read_table(file: Path, options: ReadOptions, *, sample: bool = False) -> Table:
    text, encoding = read_text(file)
    lines = list(io.StringIO(text, newline=""))
    if options.delimiter is not None and len(options.delimiter) != 1:
        raise UserError(f"delimiter={options.delimiter!r} should be one character.")
    delimiter = options.delimiter or sniff_delimiter(lines, file)
    rows = list(islice(parse(lines, delimiter, file), NUM_SAMPLED if sample else None))
    if not rows:
        raise DataError(f"{file} is empty.")
    header = None
    if not any(is_image(cell.strip()) for cell in rows[0][1]):
        header = [cell.strip() for cell in rows[0][1]]
        rows = rows[1:]
    if not rows:
        raise DataError(f"{file} has a header line and nothing below it.")
    table = Table(file, delimiter, header, rows, 0, encoding)
    table.image = find_image_column(table, options)
    return table


def parse(lines: list[str], delimiter: str, file: Path) -> Iterator[tuple[int, list[str]]]:
    """Line number and cells of every row that is not blank."""
    reader = csv.reader(lines, delimiter=delimiter, skipinitialspace=True)
    first_line = 1
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                yield first_line, cells
            first_line = reader.line_num + 1
    except csv.Error as error:
        raise DataError(
            f"{file}:{reader.line_num} cannot be read as CSV: {error} (a quotation mark not closed?)."
        ) from None


def sniff_delimiter(lines: list[str], file: Path) -> str:
    """The delimiter under which cells look like image files or column names, and rows have the same length."""

    def score(delimiter: str) -> tuple[int, int]:
        rows = [cells for _, cells in parse(lines[:NUM_SAMPLED], delimiter, file)]
        width, count = Counter(map(len, rows)).most_common(1)[0] if rows else (1, 0)
        recognised = sum(is_image(cell.strip()) or cell.strip().lower() in IMAGE_NAMES for row in rows for cell in row)
        return recognised * any(len(row) > 1 for row in rows), count * (width > 1)

    return max(DELIMITERS, key=score)  # the first of equals: a comma


def find_image_column(table: Table, options: ReadOptions) -> int:
    """By name if a person said so; else among the columns of image files, else among all, the usual name."""
    if options.image_column is not None:
        return table.column(options.image_column, ()) or 0
    width = max((len(row) for _, row in table.rows), default=len(table.header or []))
    holding = [column for column in range(width) if holds_images(table.cells(column))]
    header = [name.lower() for name in table.header or []]
    named = [header.index(name) for name in IMAGE_NAMES if name in header]
    choices = [column for column in named if column in holding] or holding or named
    if not choices:
        columns = ", ".join(table.header or [f"{width} unnamed"])
        raise UserError(f"No column of {table.file} holds image files; it has {columns}; name one as image_column=.")
    return choices[0]


def holds_images(cells: list[str]) -> bool:
    return 2 * sum(map(is_image, cells)) > len(cells)
