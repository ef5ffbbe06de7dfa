"""CSV with a tag column: one row per image, or one row per image and tag."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from fewtags.data.annotations import Annotations, Finding
from fewtags.data.formats.imagefolder import is_metadata
from fewtags.data.formats.locate import image_roots
from fewtags.data.formats.open_images import is_open_images
from fewtags.data.formats.rows import Row, assemble
from fewtags.data.formats.tables import (
    ABSENT_NAMES,
    CONFIDENCE_NAMES,
    SPLIT_NAMES,
    TAG_NAMES,
    Table,
    TableOptions,
    cell_at,
    delimiter_name,
    is_onehot,
    read_table,
    table_files,
)
from fewtags.data.formats.text import only_file
from fewtags.data.tag_tree import SEPARATOR as LEVELS
from fewtags.errors import UserError

SEPARATORS = (",", ";", LEVELS)


class CsvOptions(TableOptions):
    tag_column: str | None = None
    """Column with the tags. Default: found by name, or the only column left."""
    absent_column: str | None = None
    """Column with the tags known to be absent. Default: the one named 'absent'."""
    separator: str | None = None
    """Separator between the tags in a cell. Default: detected among comma, semicolon, bar and, last, space."""


class Columns(NamedTuple):
    tags: int
    absent: int | None
    confidence: int | None
    split: int | None
    group: int | None = None


def detects_csv(path: Path) -> bool:
    if path.is_file():  # this reader reports a broken table
        return bool(table_files(path)) and not is_onehot(path) and not has_own_reader(path)
    return bool(tag_tables(path))


def tag_tables(path: Path) -> list[Path]:
    return [file for file in table_files(path) if is_onehot(file) is False and not has_own_reader(file)]


def has_own_reader(file: Path) -> bool:
    """Tables of Open Images and of Hugging Face have a tag column too."""
    return is_open_images(file) or is_metadata(file)


def read_csv(path: Path, options: CsvOptions, images: Path | None) -> Annotations:
    file = path if path.is_file() else only_file(path, tag_tables(path))
    table = read_table(file, options)
    findings: list[Finding] = []
    columns = find_columns(table, options)
    separator = options.separator or sniff_separator(table.cells(columns.tags))
    rows = list(tag_rows(table, columns, separator, findings))
    return assemble(
        rows,
        file=file,
        roots=image_roots(file, images),
        options=options,
        name=file.stem,
        note=", ".join([table.describe(), *describe_columns(table, columns, separator)]),
        findings=findings,
        folder=images or (path if path.is_dir() else None),
    )


def find_columns(table: Table, options: CsvOptions) -> Columns:
    absent = table.column(options.absent_column, ABSENT_NAMES)
    confidence = table.column(None, CONFIDENCE_NAMES)
    split = table.column(options.split_column, SPLIT_NAMES)
    group = table.column(options.group_column, ())
    tags = find_tag_column(table, options, taken={table.image, absent, confidence, split, group})
    return Columns(tags, absent, confidence, split, group)


def describe_columns(table: Table, columns: Columns, separator: str | None) -> Iterator[str]:
    separated = f"separated by {delimiter_name(separator)}" if separator else "one per cell"
    yield f"tags in {table.name(columns.tags)} {separated}"
    if columns.absent is not None:
        yield f"absent tags in {table.name(columns.absent)}"
    if columns.confidence is not None:
        yield f"absent where {table.name(columns.confidence)} is 0"
    if columns.split is not None:
        yield f"splits in {table.name(columns.split)}"
    if columns.group is not None:
        yield f"groups in {table.name(columns.group)}"


def find_tag_column(table: Table, options: CsvOptions, taken: set[int | None]) -> int:
    """By name; else the column after the image if there is no header, or the only one left."""
    column = table.column(options.tag_column, TAG_NAMES)
    if column is not None:
        return column
    if table.header is None:
        return column_next_to_image(table)
    left = [column for column in range(len(table.header)) if column not in taken]
    if not left:
        raise UserError(f"{table.file} has only the columns {', '.join(table.header)}; it needs one with the tags.")
    if len(left) == 1:
        return left[0]
    raise UserError(
        f"Which column of {table.file} holds the tags? It has {', '.join(table.header)}; set tag_column=, "
        "or use format=onehot if there is one column per tag."
    )


def column_next_to_image(table: Table) -> int:
    width = max(len(cells) for _, cells in table.rows)
    if width == 1:
        raise UserError(f"{table.file} has only an image column; it needs one with the tags.")
    return table.image + 1 if table.image + 1 < width else table.image - 1


def sniff_separator(cells: list[str]) -> str | None:
    """The separator between tags in most cells; None if every cell holds one tag.

    A space may also be part of a tag ("polar bear"). It counts as a separator only if that explains
    the cells with fewer words than there are distinct cells. A bar next to another separator is between levels:
    `animal|dog; sea`.
    """
    usage = {separator: sum(separator in cell for cell in cells) for separator in SEPARATORS}
    if any(LEVELS in cell and (";" in cell or "," in cell) for cell in cells):
        usage.pop(LEVELS)
    best = max(usage, key=lambda separator: usage[separator])
    if usage[best]:
        return best
    different = set(cells)
    words = {word for cell in different for word in cell.split()}
    return " " if len(words) < len(different) else None


def tag_rows(table: Table, columns: Columns, separator: str | None, findings: list[Finding]) -> Iterator[Row]:
    for line, cells in table.rows:
        cells = join_loose_tags(table, line, cells, columns.tags, separator, findings)
        image = cell_at(cells, table.image)
        if not image:
            findings.append(Finding("no image", table.where(line), "the image cell is blank; the row was skipped"))
            continue
        listed = split_tags(cell_at(cells, columns.tags), separator)
        if any("\n" in tag for tag in listed):
            message = "a tag spans several lines (unclosed quotation mark?); the row was skipped"
            findings.append(Finding("malformed row", table.where(line), message))
            continue
        denied = {tag for tag in listed if tag.startswith("-") or cell_at(cells, columns.confidence) in ("0", "0.0")}
        absent = {tag.removeprefix("-").strip() for tag in denied} | split_tags(
            cell_at(cells, columns.absent), separator
        )
        split, group = cell_at(cells, columns.split), cell_at(cells, columns.group)
        yield Row(image, table.where(line), listed - denied, absent - {""}, split=split, group=group)


def join_loose_tags(
    table: Table, line: int, cells: list[str], tags: int, separator: str | None, findings: list[Finding]
) -> list[str]:
    """Cells beyond the last column are more tags if the tags come last (`a.jpg,cat,dog` without quotes)."""
    width = len(table.header) if table.header else max(table.image, tags) + 1
    extra = [cell for cell in cells[width:] if cell.strip()]
    if extra and tags == width - 1:
        return [*cells[:tags], (separator or "\0").join([cells[tags], *extra])]
    if extra:
        message = f"the row has {len(cells)} cells, the header {width}; the extra cells were ignored"
        findings.append(Finding("malformed row", table.where(line), message))
    return cells[:width]


def split_tags(cell: str, separator: str | None) -> set[str]:
    """The tags in a cell; Python and JSON lists (`['cat', 'dog']`) work too."""
    quotes = ""
    if cell[:1] + cell[-1:] in ("[]", "{}", "()"):
        cell, quotes = cell[1:-1], "'\""
    tags = cell.split(separator) if separator else cell.split("\0")
    return {tag for tag in (tag.strip().strip(quotes).strip() for tag in tags) if tag}
