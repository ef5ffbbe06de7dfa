"""One-hot CSV: an image column and one column per category with 1, 0, -1 or blank.

1 is present and a blank is unknown, always. What 0 and -1 mean differs between tables, so a person can say it
(`zero`, `minus_one`). Without being told, a 0 or -1 counts as a statement only where the table itself shows it:

    values in the table      0         -1         because
    1, 0                     unknown              a 0 may only mean that nobody ticked the box
    1, 0, blank              absent               a blank is the unknown, so a 0 was put there on purpose
    1, -1 (and blank)                  absent     the only way to say no
    1, 0, -1                 unknown   absent     -1 says no, so 0 is the unknown
    1, 0, -1, blank          unknown   unknown    CheXpert's -1 is "uncertain", elsewhere it is "no": no guess
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fewtags.data.annotations import Annotations, Finding
from fewtags.data.formats.common import (
    SPLIT_WORDS,
    counts,
    first_problem,
    image_roots,
    locate,
    missing_image,
    only_file,
    similar_names,
    unknown_split,
)
from fewtags.data.formats.options import ReadOptions
from fewtags.data.formats.tables import (
    ONEHOT_VALUES,
    SPLIT_NAMES,
    Table,
    category_columns,
    cell_at,
    is_onehot,
    read_table,
    table_files,
)
from fewtags.errors import DataError, UserError
from fewtags.labels import ABSENT, PRESENT, UNKNOWN

BAD = np.inf  # unknown, but no blank: a typing mistake must not change what the zeros of a table mean
STATES = {"absent": ABSENT, "unknown": UNKNOWN}


def detects_onehot(path: Path) -> bool:
    return any(is_onehot(file) for file in table_files(path))


def read_onehot(path: Path, options: ReadOptions, images: Path | None) -> Annotations:
    file = path if path.is_file() else only_file(path, [file for file in table_files(path) if is_onehot(file)])
    table = read_table(file, options)
    findings: list[Finding] = []
    split = table.column(options.split_column, SPLIT_NAMES)
    columns = choose_columns(table, options, taken={table.image, split})
    values = read_values(table, columns, findings)
    zero, minus_one = meanings(values, options, file, findings)
    labels = to_labels(values, zero, minus_one, options.complete)
    categories = [(table.header or [])[column] for column in columns]
    findings += similar_names(categories, file)

    root, found = locate([cell_at(row, table.image) for _, row in table.rows], image_roots(file, images), file)
    splits = [cell_at(row, split).lower() for _, row in table.rows]
    kept = usable_rows(table, root, found, splits, labels, findings)
    if not kept:
        raise DataError(f"{file} has no usable image; {first_problem(findings)}")
    notes = [f"{table.describe()}; {counts(labels[kept])}; {in_words(values, zero, minus_one, options.complete)}."]
    notes += left_out(table, columns, {table.image, split})
    return Annotations(
        root,
        [str(found[row]) for row in kept],
        categories,
        labels[kept],
        np.array([SPLIT_WORDS[splits[row]] for row in kept]),
        name=file.stem,
        notes=notes,
        findings=findings,
    )


def choose_columns(table: Table, options: ReadOptions, taken: set[int | None]) -> list[int]:
    if table.header is None:
        raise UserError(f"{table.file} has no header line; a one-hot table needs one that names the categories.")
    wanted = options.category_list()
    if wanted is not None:
        columns = [table.column(name, ()) for name in wanted]
        return [column for column in columns if column is not None]
    columns_found = category_columns(table, taken)
    if not columns_found:
        raise UserError(f"No column of {table.file} holds 1, 0, -1 or blanks; it has {', '.join(table.header)}.")
    return columns_found


def read_values(table: Table, columns: list[int], findings: list[Finding]) -> np.ndarray:
    """[N, C] of 1, 0, -1, NaN for blank and BAD for anything else."""
    values = np.full((len(table.rows), len(columns)), BAD, dtype=np.float32)
    for number, (line, row) in enumerate(table.rows):
        for place, column in enumerate(columns):
            text = cell_at(row, column)
            value = ONEHOT_VALUES.get(text.lower())
            if value is None:
                message = f"{table.name(column)} holds '{text}' instead of 1, 0, -1 or blank; it counts as unknown"
                findings.append(Finding("bad value", table.where(line), message))
            else:
                values[number, place] = value
    return values


def meanings(values: np.ndarray, options: ReadOptions, file: Path, findings: list[Finding]) -> tuple[str, str]:
    """What 0 and -1 mean, by the table at the top of this file; what had to be chosen becomes a finding."""
    zeros, minus_ones, blanks = bool((values == 0).any()), bool((values == -1).any()), bool(np.isnan(values).any())
    has_no = minus_ones and options.minus_one != "unknown"
    has_unknown = blanks or (minus_ones and options.minus_one == "unknown")
    zero = options.zero or ("absent" if has_unknown and not has_no else "unknown")
    # -1 is in doubt where 0 may be the "no": CheXpert writes -1 for "uncertain".
    doubtful = zeros and has_no and (options.zero == "absent" or (options.zero is None and blanks))
    minus_one = options.minus_one or ("unknown" if doubtful else "absent")
    unsaid = []
    if zeros and options.zero is None and not options.complete:
        unsaid.append(f"0 was read as {zero} (say zero=absent or zero=unknown)")
    if doubtful and options.minus_one is None:
        unsaid.append("-1 was read as unknown (say minus_one=absent or minus_one=unknown)")
    if unsaid:
        findings.append(Finding("ambiguous value", str(file), "; ".join(unsaid)))
    return zero, minus_one


def to_labels(values: np.ndarray, zero: str, minus_one: str, complete: bool) -> np.ndarray:
    labels = np.full(values.shape, UNKNOWN, dtype=np.int8)
    labels[values == 0] = STATES[zero]
    labels[values == -1] = STATES[minus_one]
    if complete:
        labels[values != BAD] = ABSENT
    labels[values == 1] = PRESENT
    return labels


def usable_rows(
    table: Table,
    root: Path,
    found: list[str | None],
    splits: list[str],
    labels: np.ndarray,
    findings: list[Finding],
) -> list[int]:
    """Rows to keep. A second row of an image is joined to its first: present wins over absent, absent over unknown."""
    first: dict[str, int] = {}
    for row, (line, cells) in enumerate(table.rows):
        image, where = found[row], table.where(line)
        if image is None:
            findings.append(missing_image(where, cell_at(cells, table.image), root))
        elif splits[row] not in SPLIT_WORDS:
            findings.append(unknown_split(where, splits[row]))
        elif image in first:
            message = f"repeats {image} from line {table.rows[first[image]][0]}; the two rows were joined"
            findings.append(Finding("duplicate row", where, message))
            known = labels[first[image]]
            labels[first[image]] = np.where((known == PRESENT) | (labels[row] == UNKNOWN), known, labels[row])
        else:
            first[image] = row
    return list(first.values())


def in_words(values: np.ndarray, zero: str, minus_one: str, complete: bool) -> str:
    meaning = {"1": "present"}
    if (values == 0).any():
        meaning["0"] = "absent" if complete else zero
    if (values == -1).any():
        meaning["-1"] = "absent" if complete else minus_one
    if np.isnan(values).any():
        meaning["blank"] = "absent" if complete else "unknown"
    return ", ".join(f"{value} is {state}" for value, state in meaning.items())


def left_out(table: Table, columns: list[int], used: set[int | None]) -> list[str]:
    others = [name for column, name in enumerate(table.header or []) if column not in {*columns, *used} and name]
    return [f"Not read as tags: the columns {', '.join(others)}."] if others else []
