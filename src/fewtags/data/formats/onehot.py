"""One-hot CSV: an image column and one column per category with 1, 0, -1 or blank.

1 is always present and a blank always unknown. What 0 and -1 mean differs between tables, so it can be set
(`zero`, `minus_one`). By default, a 0 or -1 means something only where the table itself makes it clear:

    values in the table      0         -1         because
    1, 0                     unknown              a 0 may only mean that nobody ticked the box
    1, 0, blank              absent               blank is unknown, so a 0 was written on purpose
    1, -1 (and blank)                  absent     the only way to say absent
    1, 0, -1                 unknown   absent     -1 is absent, so 0 is unknown
    1, 0, -1, blank          unknown   unknown    CheXpert's -1 is "uncertain", elsewhere it is "absent": no guess
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from fewtags.data.aliases import fold
from fewtags.data.annotations import Annotations, Finding, group_numbers
from fewtags.data.formats.locate import Located, image_roots, locate
from fewtags.data.formats.rows import (
    SPLIT_WORDS,
    counts,
    first_problem,
    similar_names,
    unknown_split,
    untagged,
)
from fewtags.data.formats.tables import (
    BAD,
    BLANK,
    SPLIT_NAMES,
    Table,
    TableOptions,
    category_columns,
    cell_at,
    codes,
    is_onehot,
    read_table,
    table_files,
)
from fewtags.data.formats.text import only_file
from fewtags.data.tag_names import TagNames, tidy_columns
from fewtags.errors import DataError, UserError, did_you_mean
from fewtags.labels import ABSENT, PRESENT, UNKNOWN

STATES = {"absent": ABSENT, "unknown": UNKNOWN}


class OnehotOptions(TableOptions):
    zero: Literal["unknown", "absent"] | None = None
    """What a 0 means. Default: see docs/reference/data-formats.md; the choice is always reported."""
    minus_one: Literal["absent", "unknown"] | None = None
    """What a -1 means: 'unknown' for CheXpert's "uncertain". Default: absent, see zero."""


def detects_onehot(path: Path) -> bool:
    return any(is_onehot(file) for file in table_files(path))


def read_onehot(path: Path, options: OnehotOptions, images: Path | None) -> Annotations:
    file = path if path.is_file() else only_file(path, [file for file in table_files(path) if is_onehot(file)])
    table = read_table(file, options)
    findings: list[Finding] = []
    split = table.column(options.split_column, SPLIT_NAMES)
    values = codes(table)
    group = table.column(options.group_column, ())
    columns = choose_columns(table, values, options, taken={table.image, split, group})
    values = values[:, columns]
    findings += bad_values(table, columns, values)
    zero, minus_one = meanings(values, options, file, findings)
    labels = to_labels(values, zero, minus_one, options.complete)

    names = [cell_at(row, table.image) for _, row in table.rows]
    folder = images or (path if path.is_dir() else None)
    outside, search = options.allow_outside, folder is not None
    located = locate(names, image_roots(file, images), file, allow_outside=outside, search=search)
    splits = [cell_at(row, split).lower() for _, row in table.rows]
    kept = usable_rows(table, located, splits, labels, findings)
    if not kept:
        raise DataError(f"{file} has no usable image; {first_problem(findings)}")
    described = f"{counts(labels[kept])}; {value_meanings(values, zero, minus_one, options.complete)}"
    labels, categories, tidied = tidy(labels[kept], [(table.header or [])[column] for column in columns], options, file)
    annotations = Annotations(
        located.root,
        [str(located.found[row]) for row in kept],
        categories,
        labels,
        np.array([SPLIT_WORDS[splits[row]] for row in kept]),
        name=file.stem,
        notes=[
            f"{table.describe()}; {described}.",
            *located.notes,
            *unused_columns(table, columns, {table.image, split, group}),
            *tidied.notes,
        ],
        findings=[*findings, *similar_names(categories, file)],
        renamed_tags=tidied.changes,
        tree=tidied.tree.restricted(categories),
        groups=group_numbers([cell_at(table.rows[row][1], group) for row in kept]),
    )
    return add_untagged(annotations, set(located.found), folder, options)


def tidy(
    labels: np.ndarray, columns: list[str], options: OnehotOptions, file: Path
) -> tuple[np.ndarray, list[str], TagNames]:
    """Merges columns of the same tag, by the tag rules of every reader; in the requested order."""
    wanted = options.category_list()
    labels, categories, names = tidy_columns(labels, columns, options.tag_rules(), wanted)
    if not categories:
        raise DataError(f"{file} has no tags left; {' '.join(names.notes)}")
    for name in wanted or ():
        if name not in categories:
            raise UserError(f"{file} has no column for '{name}'; {did_you_mean(name, categories)}")
    if wanted is not None:
        labels, categories = labels[:, [categories.index(name) for name in wanted]], wanted
    return labels, categories, names


def add_untagged(
    annotations: Annotations, listed: set[str | None], folder: Path | None, options: OnehotOptions
) -> Annotations:
    """Adds images of the folder without a row, as unknown."""
    if folder is None:
        return annotations
    others, words = untagged(listed, annotations.complete, annotations.root, folder, options)
    unknown = np.zeros((len(others), len(annotations.categories)), dtype=np.int8)
    return replace(
        annotations,
        images=[*annotations.images, *others],
        labels=np.concatenate([annotations.labels, unknown]),
        splits=np.concatenate([annotations.splits, np.full(len(others), "train")]),
        notes=[*annotations.notes, *words],
        groups=None if annotations.groups is None else with_more(annotations.groups, len(others)),
    )


def with_more(groups: np.ndarray, number: int) -> np.ndarray:
    """And that many images which are alone."""
    return np.concatenate([groups, groups.max(initial=-1) + 1 + np.arange(number)])


def choose_columns(table: Table, values: np.ndarray, options: OnehotOptions, taken: set[int | None]) -> list[int]:
    wanted = options.category_list()
    if table.header is None:
        number, given = table.width - 1, "" if wanted is None else f" ({len(wanted)} were given)"
        raise UserError(
            f"{table.file} has one column per tag but no header line, so the names of its {number} tags are not known; "
            f"name all of them{given}: -o categories=[cat,dog,…], or -o categories=FILE with one name per line."
        )
    if wanted is not None and options.aliases is None:  # with aliases, they differ from the column names
        return [column for name in wanted for column in columns_called(name, table, options.merge_case)]
    columns_found = category_columns(table, values, taken)
    if not columns_found:
        raise UserError(f"No column of {table.file} holds 1, 0, -1 or blanks; it has {', '.join(table.header)}.")
    return columns_found


def columns_called(name: str, table: Table, merge_case: bool) -> list[int]:
    """All columns of this category; UserError if there is none."""
    first = table.column(name, ())
    same = [column for column, other in enumerate(table.header or []) if merge_case and fold(other) == fold(name)]
    return same or [column for column in [first] if column is not None]


def bad_values(table: Table, columns: list[int], values: np.ndarray) -> list[Finding]:
    findings = []
    for number, place in np.argwhere(values == BAD).tolist():
        line, cells = table.rows[number]
        held = f"{table.name(columns[place])} holds '{cell_at(cells, columns[place])}'"
        message = f"{held} instead of 1, 0, -1 or blank; it counts as unknown"
        findings.append(Finding("bad value", table.where(line), message))
    return findings


def meanings(values: np.ndarray, options: OnehotOptions, file: Path, findings: list[Finding]) -> tuple[str, str]:
    """What 0 and -1 mean, by the table at the top of this file; each default that was needed becomes a finding."""
    zeros, minus_ones, blanks = bool((values == 0).any()), bool((values == -1).any()), bool((values == BLANK).any())
    has_no = minus_ones and options.minus_one != "unknown"
    has_unknown = blanks or (minus_ones and options.minus_one == "unknown")
    zero = options.zero or ("absent" if has_unknown and not has_no else "unknown")
    # -1 is ambiguous if 0 may mean absent: CheXpert writes -1 for "uncertain".
    doubtful = zeros and has_no and (options.zero == "absent" or (options.zero is None and blanks))
    minus_one = options.minus_one or ("unknown" if doubtful else "absent")
    unsaid = []
    if zeros and options.zero is None and not options.complete:
        unsaid.append(f"0 was read as {zero} (set zero=absent or zero=unknown)")
    if doubtful and options.minus_one is None:
        unsaid.append("-1 was read as unknown (set minus_one=absent or minus_one=unknown)")
    if unsaid:
        findings.append(Finding("ambiguous value", str(file), "; ".join(unsaid)))
    return zero, minus_one


def to_labels(values: np.ndarray, zero: str, minus_one: str, complete: bool) -> np.ndarray:
    labels = np.full(values.shape, UNKNOWN, dtype=np.int8)
    labels[values == 0] = STATES[zero]
    labels[values == -1] = STATES[minus_one]
    if complete:
        labels[values != BAD] = ABSENT  # a typo is not a blank
    labels[values == 1] = PRESENT
    return labels


def usable_rows(
    table: Table, located: Located, splits: list[str], labels: np.ndarray, findings: list[Finding]
) -> list[int]:
    """Rows to keep. A second row of an image is merged into its first: present wins over absent, absent over
    unknown."""
    first: dict[str, int] = {}
    for row, (line, _) in enumerate(table.rows):
        image, where = located.found[row], table.where(line)
        if image is None:
            findings.append(located.missing(row, where))
        elif splits[row] not in SPLIT_WORDS:
            findings.append(unknown_split(where, splits[row]))
        elif image in first:
            message = f"repeats {image} from line {table.rows[first[image]][0]}; the two rows were merged"
            findings.append(Finding("duplicate row", where, message))
            known = labels[first[image]]
            labels[first[image]] = np.where((known == PRESENT) | (labels[row] == UNKNOWN), known, labels[row])
        else:
            first[image] = row
    return list(first.values())


def value_meanings(values: np.ndarray, zero: str, minus_one: str, complete: bool) -> str:
    meaning = {"1": "present"}
    if (values == 0).any():
        meaning["0"] = "absent" if complete else zero
    if (values == -1).any():
        meaning["-1"] = "absent" if complete else minus_one
    if (values == BLANK).any():
        meaning["blank"] = "absent" if complete else "unknown"
    return ", ".join(f"{value} is {state}" for value, state in meaning.items())


def unused_columns(table: Table, columns: list[int], used: set[int | None]) -> list[str]:
    read = used.union(columns)
    others = [name for column, name in enumerate(table.header or []) if name and column not in read]
    return [f"Not read as tags: the columns {', '.join(others)}."] if others else []
