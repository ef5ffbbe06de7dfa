"""A CSV file as rows and columns; the delimiter, the header and the image column are detected."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path

import numpy as np

from fewtags.data.csv_cells import unprotected
from fewtags.data.formats.camtrap import TABLES, detects_camtrap
from fewtags.data.formats.options import LabelFileOptions
from fewtags.data.formats.text import files_with_suffix, read_text
from fewtags.data.image_files import is_image
from fewtags.errors import DataError, UserError, did_you_mean

TAG_TABLE = "selected_tags.csv"  # of booru sets: about tags, not about images
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
BLANK, BAD = 2, 3  # codes of cells that are not 1, 0 or -1
CODES = {
    **dict.fromkeys(("1", "1.0", "true"), 1),
    **dict.fromkeys(("0", "0.0", "false"), 0),
    **dict.fromkeys(("-1", "-1.0"), -1),
    **dict.fromkeys(BLANKS, BLANK),
}
LONGEST_VALUE = 8  # characters of a cell that may be a value
NUM_SAMPLED = 200  # lines sampled to detect the delimiter and the layout
CELLS_SAMPLED = 200_000
BYTES_SAMPLED = 4_000_000


class TableOptions(LabelFileOptions):
    delimiter: str | None = None
    """Column delimiter. Default: detected among comma, semicolon, tab, bar and, last, space."""
    image_column: str | None = None
    """Column with the image files. Default: detected by content, then by name."""
    split_column: str | None = None
    """Column with train, val or test. Default: the one named 'split'."""
    group_column: str | None = None
    """Column that is equal for images of one burst or sequence, which are held out for validation together."""


@dataclass
class Table:
    file: Path
    delimiter: str
    header: list[str] | None
    rows: list[tuple[int, list[str]]]  # line number, cells
    image: int  # the image column
    encoding: str  # a note about it if it is not UTF-8

    @property
    def width(self) -> int:
        return max((len(row) for _, row in self.rows), default=len(self.header or []))

    def name(self, column: int) -> str:
        named = self.header is not None and column < len(self.header) and self.header[column]
        return f"'{self.header[column]}'" if self.header and named else f"column {column + 1}"

    def where(self, line: int) -> str:
        return f"{self.file}:{line}"

    def cells(self, column: int, most: int | None = None) -> list[str]:
        return [row[column].strip() for _, row in self.rows[:most] if column < len(row)]

    def column(self, wanted: str | None, names: tuple[str, ...]) -> int | None:
        """The column given by the user, or the first with one of the usual names, or None."""
        header = [name.strip().lower() for name in self.header or []]
        if wanted is None:
            return next((header.index(name) for name in names if name in header), None)
        if wanted.strip().lower() not in header:
            hint = did_you_mean(wanted, self.header) if self.header else "it has no header line."
            raise UserError(f"{self.file} has no column '{wanted}'; {hint}")
        return header.index(wanted.strip().lower())

    def describe(self) -> str:
        parts = [
            f"Read {self.file}: {delimiter_name(self.delimiter)} between columns",
            f"images in {self.name(self.image)}",
        ]
        return ", ".join([*parts, self.encoding] if self.encoding else parts)


def cell_at(cells: list[str], column: int | None) -> str:
    return unprotected(cells[column].strip()) if column is not None and column < len(cells) else ""


def delimiter_name(delimiter: str) -> str:
    return DELIMITER_WORDS.get(delimiter, f"'{delimiter}'")


def table_files(path: Path) -> list[Path]:
    suffixes = (*TABLE_SUFFIXES, ".txt") if path.is_file() else TABLE_SUFFIXES
    others = TABLES if detects_camtrap(path) else ()
    files = [file for file in files_with_suffix(path, suffixes) if file.name not in others]
    return [file for file in files if path.is_file() or file.name != TAG_TABLE]


def is_onehot(file: Path) -> bool | None:
    """One column per category (True) or a tag column (False)? None when the file is not a table about images."""
    state = file.stat()
    return _is_onehot(file, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=64)
def _is_onehot(file: Path, changed: int, size: int) -> bool | None:
    """Several readers check the same file; it is sampled again only if it changed."""
    try:
        table = read_table(file, TableOptions(), sample=True)
    except UserError:
        return None
    if table.column(None, TAG_NAMES) is not None:
        return False
    if is_bare_matrix(table):
        return True
    taken = {table.image, table.column(None, SPLIT_NAMES)}
    columns = category_columns(table, codes(table), taken)
    others = set(range(len(table.header or []))).difference(columns, taken)
    named_others = [column for column in others if (table.header or [])[column]]
    return len(columns) > 1 or (len(columns) == 1 and not named_others)  # among text columns, a single one is a flag


def is_bare_matrix(table: Table) -> bool:
    """Is it a one-hot table without a header line: `a.jpg 1 NA 0`? A single column may as well hold the number of a
    class."""
    if table.header is not None or table.width < 3:
        return False
    values = np.delete(codes(table), table.image, axis=1)
    return not (values == BAD).any() and bool((values == 1).any() and (values != 1).any())


def codes(table: Table) -> np.ndarray:
    """[N, width] int8: 1, 0 and -1 as they are, BLANK, and BAD for any other cell. A short row ends in blanks."""
    code_of = _Codes(CODES)
    values = np.full((len(table.rows), max(table.width, len(table.header or []))), BLANK, dtype=np.int8)
    for number, (_, cells) in enumerate(table.rows):
        values[number, : len(cells)] = np.fromiter(map(code_of.__getitem__, cells), np.int8, len(cells))
    return values


class _Codes(dict[str, int]):
    """The code of a cell; cached for short cells."""

    def __missing__(self, cell: str) -> int:
        code = CODES.get(cell.strip().lower(), BAD)
        if len(cell) <= LONGEST_VALUE:
            self[cell] = code
        return code


def category_columns(table: Table, values: np.ndarray, taken: set[int | None]) -> list[int]:
    """The named columns with one-hot values; an all-blank column is a category nobody labelled."""
    filled = (values != BLANK).sum(0)
    valid = filled - (values == BAD).sum(0)
    holds = (2 * valid > filled) | (filled == 0)
    names = table.header or []
    return [column for column, name in enumerate(names) if name and column not in taken and holds[column]]


def read_table(file: Path, options: TableOptions, *, sample: bool = False) -> Table:
    text, encoding = read_text(file, BYTES_SAMPLED if sample else None)
    lines = list(io.StringIO(text, newline=""))
    if options.delimiter is not None and len(options.delimiter) != 1:
        raise UserError(f"delimiter={options.delimiter!r} should be one character.")
    delimiter = options.delimiter or sniff_delimiter(lines, file)
    rows = list(islice(parse(lines, delimiter, file), NUM_SAMPLED if sample else None))
    if len(rows) > 2 and len(rows[0][1]) == 1 and rows[0][1][0].isdigit():
        rows = rows[1:]  # CelebA's number of images
    if not rows:
        raise DataError(f"{file} is empty.")
    header = None
    if not any(is_image(cell.strip()) for cell in rows[0][1]):
        header = [cell.strip() for cell in rows[0][1]]
        rows = rows[1:]
    if not rows:
        raise DataError(f"{file} has a header line but no rows.")
    table = Table(file, delimiter, header, rows, 0, encoding)
    table.image = find_image_column(table, options)
    if header is not None and table.image == 0 and all(len(cells) == len(header) + 1 for _, cells in rows):
        table.header = ["", *header]  # names of the values only, as in CelebA
    names = options.category_list()
    if names is not None and is_bare_matrix(table) and len(names) == table.width - 1:
        table.header = [*names[: table.image], "", *names[table.image :]]
    return table


def parse(lines: list[str], delimiter: str, file: Path) -> Iterator[tuple[int, list[str]]]:
    """Line number and cells of every non-blank row."""
    if delimiter == " ":
        lines = [line.strip() for line in lines]  # a space at the end is no cell
    try:
        reader = csv.reader(lines, delimiter=delimiter, skipinitialspace=True)
    except (TypeError, ValueError):
        raise UserError(f"delimiter={delimiter!r} cannot be used as a delimiter.") from None
    first_line = 1
    try:
        for cells in reader:
            if any(cell and not cell.isspace() for cell in cells):
                yield first_line, cells
            first_line = reader.line_num + 1
    except csv.Error as error:
        raise DataError(
            f"{file}:{reader.line_num} cannot be read as CSV: {error} (unclosed quotation mark?)."
        ) from None


def sniff_delimiter(lines: list[str], file: Path) -> str:
    """The delimiter that makes cells look like image files or column names and gives rows of equal length."""
    looked_at, size = [], 0
    for line in lines[:NUM_SAMPLED]:
        looked_at.append(line)
        size += len(line)
        if size > CELLS_SAMPLED and len(looked_at) > 2:
            break

    def score(delimiter: str) -> tuple[int, int]:
        rows = [cells for _, cells in parse(looked_at, delimiter, file)]
        width, count = Counter(map(len, rows)).most_common(1)[0] if rows else (1, 0)
        recognised = sum(is_image(cell.strip()) or cell.strip().lower() in IMAGE_NAMES for row in rows for cell in row)
        return recognised * any(len(row) > 1 for row in rows), count * (width > 1)

    best = max(DELIMITERS, key=score)  # the first of equals: a comma
    if score(best)[0] or 2 * sum(is_image(line.split()[0]) for line in looked_at if line.strip()) < len(looked_at):
        return best
    return " "  # `a.jpg 1 0 NA`; names of images have spaces too, so that this comes last


def find_image_column(table: Table, options: TableOptions) -> int:
    """By name if given; else the usual name among the columns of image files, else among all columns."""
    if options.image_column is not None:
        return table.column(options.image_column, ()) or 0
    width = table.width
    rows = max(10, CELLS_SAMPLED // max(width, 1))
    holding = [column for column in range(width) if holds_images(table.cells(column, rows))]
    header = [name.lower() for name in table.header or []]
    named = [header.index(name) for name in IMAGE_NAMES if name in header]
    choices = [column for column in named if column in holding] or holding or named
    if not choices:
        columns = ", ".join(table.header or [f"{width} unnamed"])
        raise UserError(f"No column of {table.file} holds image files; it has {columns}; set image_column=.")
    return choices[0]


def holds_images(cells: list[str]) -> bool:
    return 2 * sum(map(is_image, cells)) > len(cells)
