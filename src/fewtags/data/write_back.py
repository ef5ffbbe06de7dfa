"""Labels that people changed, written back in the shape they were read from. Never over the original.

    changes = changes_between(annotations, decisions)
    new = rewrite(LabelSource.of(config.data), annotations, changes)
    new.write(place, annotations)
    check_rewritten(new, place, annotations, changes)   # it says what was decided, and nothing else

CSV, one-hot tables and JSON lines keep their columns, their order, their encoding, and every line that nothing was
decided about byte for byte; same-name .txt files stay such files. Everything else becomes one JSON lines file.
"""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fewtags.data.aliases import fold
from fewtags.data.annotations import Annotations
from fewtags.data.csv_cells import protected
from fewtags.data.decisions import STATES, decided
from fewtags.data.formats import Format, choose_format, existing, read_annotations
from fewtags.data.formats.csv_tags import find_columns, join_loose_tags, sniff_separator, split_tags, tag_tables
from fewtags.data.formats.json_lines import IMAGE_KEYS, PRESENT_KEYS, jsonl_files, lines_of, tag_list
from fewtags.data.formats.locate import image_roots, locate
from fewtags.data.formats.onehot import choose_columns, meanings
from fewtags.data.formats.options import ReadOptions
from fewtags.data.formats.sidecar import sidecar
from fewtags.data.formats.tables import SPLIT_NAMES, Table, cell_at, codes, is_onehot, read_table, table_files
from fewtags.data.formats.text import only_file, read_bytes
from fewtags.data.image_files import walk_images
from fewtags.data.prepare import DataConfig
from fewtags.errors import DataError
from fewtags.labels import ABSENT, PRESENT, UNKNOWN

# --- what changes ---


@dataclass(frozen=True)
class Change:
    image: str
    tag: str
    old: int
    new: int

    def __str__(self) -> str:
        return f"{self.image}: '{self.tag}' was {STATES[self.old]}, is {STATES[self.new]}"


def changes_between(annotations: Annotations, labels: Mapping[tuple[str, str], int]) -> list[Change]:
    """Labels (image, tag) -> 1, 0, -1 that are not yet so, in the order of the annotations."""
    after = decided(annotations, labels).labels
    rows, columns = np.nonzero(after != annotations.labels)
    return [
        Change(
            annotations.images[row],
            annotations.categories[column],
            int(annotations.labels[row, column]),
            int(after[row, column]),
        )
        for row, column in zip(rows.tolist(), columns.tolist(), strict=True)
    ]


# --- where labels come from ---


@dataclass(frozen=True)
class LabelSource:
    path: Path  # the label file, or the folder that is one
    images: Path | None  # the folder of the images, where a person gave one beside the label file
    format: Format
    options: ReadOptions
    given: dict[str, Any] = field(default_factory=dict)  # the options as a person gave them

    @classmethod
    def of(cls, config: DataConfig) -> LabelSource:
        path, images = existing(config.source), None
        if config.tags is not None:
            path, images = existing(config.tags), path
        format = choose_format(path, config.format, config.options)
        options = format.options.parse(config.options, f"Format '{format.name}'")
        return cls(path, images, format, options, dict(config.options))

    @property
    def file(self) -> Path | None:
        """The one file with the labels; None where they are in many."""
        if self.path.is_file():
            return self.path
        name = self.format.name
        if name == "csv":
            return only_file(self.path, tag_tables(self.path))
        if name == "onehot":
            return only_file(self.path, [file for file in table_files(self.path) if is_onehot(file)])
        return only_file(self.path, jsonl_files(self.path)) if name == "jsonl" else None

    @property
    def folder(self) -> Path | None:
        """The folder that a person named, whose images may be in no row."""
        return self.images or (self.path if self.path.is_dir() else None)

    def rows_of(self, names: Sequence[str]) -> dict[str, list[int]]:
        """Image, as the annotations call it -> the places in `names` that mean it."""
        assert self.file is not None
        outside = bool(getattr(self.options, "allow_outside", False))
        roots = image_roots(self.file, self.images)
        located = locate(names, roots, self.file, allow_outside=outside, search=self.folder is not None)
        found: dict[str, list[int]] = {}
        for place, image in enumerate(located.found):
            if image is not None:
                found.setdefault(image, []).append(place)
        return found


@dataclass(frozen=True)
class Rewritten:
    """A new label file, or a folder of them."""

    name: str  # of the file or folder
    content: (
        bytes | dict[str, bytes] | Annotations
    )  # of the file, of the files in the folder by name, of a JSON lines file
    format: str  # as which it is read again,
    options: dict[str, Any] = field(default_factory=dict)  # and with which options
    unwritten: list[Change] = field(default_factory=list)  # what this layout has no way to say

    @property
    def is_folder(self) -> bool:
        return isinstance(self.content, dict)

    def write(self, place: Path, images: Annotations) -> None:
        """To a file or folder that does not exist yet. A folder gets the `images` too, as links where that is possible:
        their text files mean nothing without them."""
        if isinstance(self.content, Annotations):
            self.content.save(place)
        elif isinstance(self.content, bytes):
            place.write_bytes(self.content)
        else:
            for name, content in self.content.items():
                (place / name).parent.mkdir(parents=True, exist_ok=True)
                (place / name).write_bytes(content)
            for row, name in enumerate(images.images):
                (place / name).parent.mkdir(parents=True, exist_ok=True)
                link_or_copy(images.path(row), place / name)

    def read(self, place: Path, root: Path) -> Annotations:
        """What was written, read again; `root` is the folder of the images."""
        if isinstance(self.content, bytes):
            return read_annotations(root, tags=place, format=self.format, **self.options)
        return read_annotations(place, format=self.format, **self.options)


def link_or_copy(image: Path, place: Path) -> None:
    """A hard link, which takes no room and is a file like any other; a copy on another disk."""
    try:
        os.link(image, place)
    except OSError:
        shutil.copy2(image, place)


class TagSpelling:
    """How a category is written in the files, and which category a written tag is."""

    def __init__(self, annotations: Annotations):
        self.renamed = annotations.renamed_tags
        self.folded = {fold(name): name for name in annotations.categories}

    def category(self, written: str) -> str | None:
        if written in self.renamed:
            return self.renamed[written]
        return self.folded.get(fold(written), written)


def rewrite(source: LabelSource, annotations: Annotations, changes: Sequence[Change]) -> Rewritten:
    """The label files of `source`, from which `annotations` were read, with the changes in them."""
    writer = REWRITERS.get(source.format.name)
    if writer is None:
        return as_json_lines(annotations, changes)
    return writer(source, annotations, by_image(changes))


def by_image(changes: Iterable[Change]) -> dict[str, dict[str, Change]]:
    found: dict[str, dict[str, Change]] = {}
    for change in changes:
        found.setdefault(change.image, {})[change.tag] = change
    return found


def as_json_lines(annotations: Annotations, changes: Sequence[Change]) -> Rewritten:
    """One file in the form of `Annotations.save`; it holds all labels, changed or not."""
    after = decided(annotations, {(change.image, change.tag): change.new for change in changes})
    return Rewritten(f"{annotations.name}.jsonl", after, "jsonl")


def check_rewritten(new: Rewritten, place: Path, annotations: Annotations, changes: Sequence[Change]) -> None:
    """Read what was written to `place` again; an error where it says anything else than was decided."""
    wanted = {(change.image, change.tag): change.new for change in changes}
    wanted |= {(change.image, change.tag): UNKNOWN for change in new.unwritten}
    after = decided(annotations, wanted)
    again = new.read(place, annotations.root)
    rows = {image: row for row, image in enumerate(again.images)}
    labels = np.zeros_like(after.labels)
    there = np.array([row for row, image in enumerate(after.images) if image in rows], dtype=int)
    read = again.labels[[rows[after.images[row]] for row in there]]
    for column, name in enumerate(after.categories):
        if name in again.categories:
            labels[there, column] = read[:, again.categories.index(name)]
    different = np.argwhere(labels != after.labels)
    if len(different):
        row, column = different[0]
        states = f"{STATES[int(labels[row, column])]} instead of {STATES[int(after.labels[row, column])]}"
        raise _differs(f"'{after.categories[column]}' of {after.images[row]} is {states}")


def _differs(what: str) -> DataError:
    return DataError(
        f"The new labels, read again, would not be what was decided: {what}. Nothing was written; --as jsonl writes a "
        "JSON lines file of fewtags' own instead, which can say everything."
    )


# --- CSV ---


@dataclass
class RawTable:
    """A CSV file in which rows can be replaced and added, all others staying as they are."""

    table: Table
    head: str  # everything before the first row
    rows: list[str]  # the text of every row of `table`, with its line end
    line_end: str
    encoding: str
    before: bytes  # the byte order mark, where there is one

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
        """The file with more rows behind some; those behind -1 come at the end."""
        parts = [self.head]
        for row, text in enumerate(self.rows):
            parts.append(text)
            parts += [self.line(cells) for cells in after.get(row, ())]
        last = [self.line(cells) for cells in after.get(-1, ())]
        text = "".join(parts)
        if last and text and not text.endswith(("\n", "\r")):
            text += self.line_end
        return self.before + (text + "".join(last)).encode(self.encoding, errors="xmlcharrefreplace")


def decoded(file: Path) -> tuple[str, str, bytes]:
    """Text, encoding and byte order mark of a file, to be written again the same way."""
    data = read_bytes(file)
    for mark, encoding in ((b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"), (b"\xef\xbb\xbf", "utf-8")):
        if data.startswith(mark):
            return data[len(mark) :].decode(encoding, errors="replace"), encoding, mark
    try:
        return data.decode("utf-8"), "utf-8", b""
    except UnicodeDecodeError:
        return data.decode("latin-1"), "latin-1", b""


def rewrite_csv(source: LabelSource, annotations: Annotations, changes: dict[str, dict[str, Change]]) -> Rewritten:
    assert source.file is not None
    table = read_table(source.file, source.options)  # type: ignore[arg-type]
    columns = find_columns(table, source.options)  # type: ignore[arg-type]
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
                self.raw.set(row, kept)
        for tag, change in left.items():
            if change.new != UNKNOWN:
                self._add(image, rows, tag, change.new == ABSENT)

    def _cells(self, row: int) -> list[str]:
        """Of a row as it is now, widened to all columns."""
        text = self.raw.rows[row]
        cells = next(
            csv.reader(io.StringIO(text, newline=""), delimiter=self.raw.table.delimiter, skipinitialspace=True)
        )
        cells = join_loose_tags(self.raw.table, 0, cells, self.columns.tags, self.separator, [])
        width = max(self.columns.tags, self.columns.absent or 0, self.raw.table.image) + 1
        return [*cells, *[""] * (width - len(cells))]

    def _without(self, cells: list[str], changes: Mapping[str, Change]) -> list[str]:
        """Cells without any word about the tags that change."""
        cells = list(cells)
        for column in (self.columns.tags, self.columns.absent):
            if column is not None:
                tags = self._tags(cell_at(cells, column))
                kept = [tag for tag in tags if self.spelling.category(tag.removeprefix("-").strip()) not in changes]
                if len(kept) < len(tags):
                    cells[column] = self._joined(cells[column], kept)
        return cells

    def _tags(self, cell: str) -> list[str]:
        """In the order they are written."""
        tags = split_tags(cell, self.separator)
        return sorted(tags, key=lambda tag: cell.index(tag))

    def _joined(self, cell: str, tags: Sequence[str]) -> str:
        """As many cells are written: with a blank behind the separator, in brackets, or neither."""
        inside = cell.strip()
        brackets = inside[:1] + inside[-1:]
        if brackets in ("[]", "{}", "()"):
            quote = next((mark for mark in "'\"" if mark in inside), "'")
            return brackets[0] + ", ".join(f"{quote}{tag}{quote}" for tag in tags) + brackets[1]
        return protected(self.between.join(tags))

    def _add(self, image: str, rows: Sequence[int], tag: str, absent: bool) -> None:
        own_column = absent and self.columns.absent is not None
        column = self.columns.absent if own_column else self.columns.tags
        word = tag if own_column or not absent else f"-{tag}"
        for row in rows:
            cells = self._cells(row)
            tags = self._tags(cell_at(cells, column))
            denies = cell_at(cells, self.columns.confidence) in ("0", "0.0")
            if (self.separator is None and tags) or denies:
                continue  # this row has its one tag, or says no to all of its tags
            cells[column] = self._joined(cells[column], [*tags, word])
            self.raw.set(row, cells)
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


def rewrite_onehot(source: LabelSource, annotations: Annotations, changes: dict[str, dict[str, Change]]) -> Rewritten:
    """What 0, -1 and a blank mean hangs on which of them occur; where the new table would be read in another way, the
    meanings are given as options."""
    assert source.file is not None
    table = read_table(source.file, source.options)  # type: ignore[arg-type]
    columns, meant = onehot_columns(source, table), onehot_meanings(source, table)
    spelling, by_category = TagSpelling(annotations), dict[str | None, list[int]]()
    for column in columns:
        by_category.setdefault(spelling.category((table.header or [])[column]), []).append(column)
    zero_used = any(cell_at(cells, column) == "0" for _, cells in table.rows for column in columns)
    words = {
        PRESENT: "1",
        ABSENT: "0" if meant["zero"] == "absent" else "-1",
        UNKNOWN: "0" if meant["zero"] == "unknown" and zero_used else "",
    }
    places = source.rows_of([cell_at(cells, table.image) for _, cells in table.rows])
    raw, added = RawTable.read(table), []
    for image, mine in changes.items():
        rows = places.get(image, [])
        lines = [list(table.rows[row][1]) for row in rows] or [blank_row(table, image, columns, words[UNKNOWN])]
        for tag, change in mine.items():
            set_cells(lines, by_category.get(tag, []), words[change.new])
        for row, cells in zip(rows, lines, strict=False):
            raw.set(row, cells)
        added += [] if rows else lines
    return Rewritten(source.file.name, raw.content({-1: added}), "onehot", {**source.given, **meant})


def onehot_columns(source: LabelSource, table: Table) -> list[int]:
    split = table.column(getattr(source.options, "split_column", None), SPLIT_NAMES)
    return choose_columns(table, codes(table), source.options, taken={table.image, split})  # type: ignore[arg-type]


def onehot_meanings(source: LabelSource, table: Table) -> dict[str, Any]:
    """What 0 and -1 are read as, as options of the reader."""
    values = codes(table)[:, onehot_columns(source, table)]
    zero, minus_one = meanings(values, source.options, table.file, [])  # type: ignore[arg-type]
    return {"zero": zero, "minus_one": minus_one}


def set_cells(lines: Sequence[list[str]], columns: Sequence[int], value: str) -> None:
    """Of all rows of an image and all columns of a tag; one of them says present for all."""
    for cells in lines[: 1 if value == "1" else None]:
        for column in columns[: 1 if value == "1" else None]:
            cells += [""] * (column + 1 - len(cells))
            cells[column] = value


def blank_row(table: Table, image: str, columns: Sequence[int], unknown: str) -> list[str]:
    cells = [unknown if column in columns else "" for column in range(len(table.header or []))]
    cells[table.image] = image
    return cells


# --- JSON lines ---


def rewrite_jsonl(source: LabelSource, annotations: Annotations, changes: dict[str, dict[str, Change]]) -> Rewritten:
    assert source.file is not None
    text, encoding, mark = decoded(source.file)
    spelling = TagSpelling(annotations)
    records = [json.loads(line) if isinstance(line, str) else line for _, line in lines_of(source.file, text)]
    named = [(place, record) for place, record in enumerate(records) if image_of(record)]
    found = source.rows_of([image_of(record) for _, record in named])
    places = {image: [named[row][0] for row in rows] for image, rows in found.items()}
    edited: dict[int, Any] = {}
    new = []
    for image, mine in changes.items():
        rows = places.get(image, [])
        if rows:
            for row in rows:
                edited[row] = without_tags(edited.get(row, records[row]), set(mine), spelling)
            edited[rows[0]] = with_changes(edited[rows[0]], mine, bool(getattr(source.options, "complete", False)))
        else:
            new.append(with_changes({"image": image}, mine, False))
    content = json_content(source.file, text, records, edited, new)
    return Rewritten(source.file.name, mark + content.encode(encoding), "jsonl", source.given)


def image_of(record: Any) -> str:
    if not isinstance(record, dict) or "fewtags" in record:
        return ""
    image = next((record[key] for key in IMAGE_KEYS if key in record), None)
    return image if isinstance(image, str) else ""


def without_tags(record: dict[str, Any], tags: set[str], spelling: TagSpelling) -> dict[str, Any]:
    """The record without any word about these tags."""
    record = dict(record)
    for key in (*PRESENT_KEYS, "absent", "unknown"):
        listed = record.get(key)
        named = tag_list(listed)
        if not listed or named is None:
            continue
        kept = [tag for tag in named if spelling.category(tag.strip()) not in tags]
        if len(kept) < len(named):
            if isinstance(listed, dict):
                record[key] = {tag: listed[tag] for tag in kept}
            else:
                record[key] = ",".join(kept) if isinstance(listed, str) else kept
    return record


def with_changes(record: dict[str, Any], changes: Mapping[str, Change], complete: bool) -> dict[str, Any]:
    complete = complete or record.get("complete") is True
    present = next((key for key in PRESENT_KEYS if key in record), "present")
    for tag, change in changes.items():
        if change.new == PRESENT:
            append_tag(record, present, tag)
        elif change.new == ABSENT and not complete:
            append_tag(record, "absent", tag)
        elif change.new == UNKNOWN and complete:
            append_tag(record, "unknown", tag)
    return record


def append_tag(record: dict[str, Any], key: str, tag: str) -> None:
    listed = record.get(key)
    if isinstance(listed, dict):
        record[key] = {**listed, tag: 1.0}
    elif isinstance(listed, str):
        record[key] = f"{listed},{tag}" if listed.strip() else tag
    else:
        record[key] = [*(listed or []), tag]


def json_content(file: Path, text: str, records: Sequence[Any], edited: Mapping[int, Any], new: Sequence[Any]) -> str:
    """Lines that were not edited stay as they are; a JSON list is written anew."""
    if file.suffix.lower() == ".json":
        everything = [edited.get(place, record) for place, record in enumerate(records)]
        return json.dumps([*everything, *new], indent=1, ensure_ascii=False) + "\n"
    parts, place = [], 0
    for line in text.splitlines(keepends=True):
        if line.strip():
            end = line[len(line.rstrip("\r\n")) :]
            parts.append(json.dumps(edited[place], ensure_ascii=False) + end if place in edited else line)
            place += 1
        else:
            parts.append(line)
    content = "".join(parts)
    if new and content and not content.endswith("\n"):
        content += "\n"
    return content + "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in new)


# --- same-name text files ---


def rewrite_sidecar(source: LabelSource, annotations: Annotations, changes: dict[str, dict[str, Change]]) -> Rewritten:
    """All text files, changed or not. A text file has no way to say that a tag is absent."""
    spelling, separator = TagSpelling(annotations), getattr(source.options, "separator", None)
    files = {}
    for image in walk_images(source.path):
        file = sidecar(source.path / image)
        if file.is_file():
            files[file.relative_to(source.path).as_posix()] = file.read_bytes()
    unwritten = []
    for image, mine in changes.items():
        file = sidecar(source.path / image)
        text, encoding, mark = decoded(file) if file.is_file() else ("", "utf-8", b"")
        content = tags_changed(text, mine, separator, spelling)
        files[file.relative_to(source.path).as_posix()] = mark + content.encode(encoding, errors="xmlcharrefreplace")
        unwritten += [change for change in mine.values() if change.new == ABSENT]
    return Rewritten(source.path.resolve().name, files, "sidecar", source.given, unwritten)


def tags_changed(text: str, changes: Mapping[str, Change], separator: str | None, spelling: TagSpelling) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    by_line = len(lines) > 1 and (separator or ",") not in text
    between = "\n" if by_line else separator or ","
    tags = [tag.strip() for line in lines for tag in line.split(separator or ",") if tag.strip()]
    kept = [tag for tag in tags if spelling.category(tag) not in changes]
    kept += [tag for tag, change in changes.items() if change.new == PRESENT]
    spaced = between if by_line or (f"{between} " not in text and between in text) else f"{between} "
    return spaced.join(kept) + ("\n" if not text or text.endswith("\n") else "")


REWRITERS: dict[str, Callable[[LabelSource, Annotations, dict[str, dict[str, Change]]], Rewritten]] = {
    "csv": rewrite_csv,
    "onehot": rewrite_onehot,
    "jsonl": rewrite_jsonl,
    "sidecar": rewrite_sidecar,
}
