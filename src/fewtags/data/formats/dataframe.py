"""A pandas or polars DataFrame as Annotations. Neither is imported: columns are accessed by name and converted to
lists."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fewtags.data.annotations import Annotations, Finding
from fewtags.data.formats.csv_tags import sniff_separator, split_tags
from fewtags.data.formats.options import ReadOptions
from fewtags.data.formats.rows import Row, counts, keep_known_splits, label_rows, merge, unlisted
from fewtags.data.formats.tables import ABSENT_NAMES, IMAGE_NAMES, SPLIT_NAMES, TAG_NAMES
from fewtags.errors import UserError, did_you_mean


def read_dataframe(
    frame: Any,
    *,
    image: str | None = None,
    tags: str | Sequence[str] | None = None,
    absent: str | None = None,
    split: str | None = None,
    root: str | Path = ".",
    separator: str | None = None,
    zero: str | None = None,
    name: str = "dataframe",
    **options: Any,
) -> Annotations:
    """See Annotations.from_dataframe."""
    columns = [str(column) for column in frame.columns]
    image = find_column(columns, image, IMAGE_NAMES, "image")
    if image is None:
        raise UserError(f"The DataFrame has the columns {', '.join(columns)}; pass the image column as image=.")
    split = find_column(columns, split, SPLIT_NAMES, "split")
    images = [str(value) for value in cells(frame, image)]
    if tags is not None and not isinstance(tags, str):
        return from_matrix(frame, images, [str(tag) for tag in tags], split, root, zero, name)
    tags = find_column(columns, tags, TAG_NAMES, "tags")
    if tags is None:
        raise UserError(
            f"The DataFrame has the columns {', '.join(columns)}; pass the tag column as tags=, or a list of columns "
            "if there is one column per tag."
        )
    absent = find_column(columns, absent, ABSENT_NAMES, "absent")
    settings = ReadOptions.parse(options, "A DataFrame")
    present_lists = tag_lists(cells(frame, tags), separator)
    absent_lists = tag_lists(cells(frame, absent), separator) if absent else [set() for _ in images]
    splits = split_words(frame, split, len(images))
    findings: list[Finding] = []
    rows = [
        Row(path, f"row {number}", present or set(), denied or set(), split=word, listed=present is not None)
        for number, (path, present, denied, word) in enumerate(
            zip(images, present_lists, absent_lists, splits, strict=True)
        )
    ]
    for row in rows:
        row.complete = settings.complete and row.listed
    rows = merge(list(keep_known_splits(rows, findings)), findings)
    return label_rows(
        rows,
        Path(root),
        source=Path(name),
        options=settings,
        name=name,
        describe=lambda labels: (
            f"Read a DataFrame: images in '{image}', tags in '{tags}'; {counts(labels)}; "
            f"unlisted tags are {unlisted(rows)}."
        ),
        findings=findings,
    )


def find_column(columns: list[str], wanted: str | None, names: Sequence[str], what: str) -> str | None:
    if wanted is not None:
        if wanted not in columns:
            raise UserError(f"The DataFrame has no column '{wanted}' for {what}=; {did_you_mean(wanted, columns)}")
        return wanted
    lower = {column.strip().lower(): column for column in reversed(columns)}
    return next((lower[name] for name in names if name in lower), None)


def cells(frame: Any, column: str) -> list[Any]:
    """A column as a list: `tolist` in pandas, `to_list` in polars."""
    values = frame[column]
    for method in ("to_list", "tolist"):
        if hasattr(values, method):
            return list(getattr(values, method)())
    return list(values)


def is_blank(value: Any) -> bool:
    """None, NaN, or one of pandas' missing values, which cannot be compared."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return True
    return type(value).__name__ in ("NAType", "NaTType")


def tag_lists(values: list[Any], separator: str | None) -> list[set[str] | None]:
    """The tags of every cell; None for a missing value, which says nothing."""
    texts = [value for value in values if isinstance(value, str)]
    separator = separator or sniff_separator(texts)
    return [None if is_blank(value) else set(one_cell(value, separator)) for value in values]


def one_cell(value: Any, separator: str | None) -> set[str]:
    if isinstance(value, str):
        return split_tags(value.strip(), separator)
    if isinstance(value, dict) or not hasattr(value, "__iter__"):
        return {str(value)}
    return {str(tag).strip() for tag in value if not is_blank(tag) and str(tag).strip()}


def split_words(frame: Any, split: str | None, count: int) -> list[str]:
    if split is None:
        return [""] * count
    return ["" if is_blank(value) else str(value) for value in cells(frame, split)]


def from_matrix(
    frame: Any, images: list[str], tags: list[str], split: str | None, root: str | Path, zero: str | None, name: str
) -> Annotations:
    """One column per tag: 1, 0, -1, true, false or missing."""
    if zero is None:
        raise UserError("With one column per tag, say what a 0 means: zero='unknown' or zero='absent'.")
    columns = []
    known = [str(column) for column in frame.columns]
    for tag in tags:
        if tag not in known:
            raise UserError(f"The DataFrame has no column '{tag}'; {did_you_mean(tag, known)}")
        try:
            columns.append([math.nan if is_blank(value) else float(value) for value in cells(frame, tag)])
        except (TypeError, ValueError):
            raise UserError(f"Column '{tag}' of the DataFrame should hold 1, 0, -1 or missing values.") from None
    splits = [word or "train" for word in split_words(frame, split, len(images))]
    matrix = np.array(columns, dtype=float).T.reshape(len(images), len(tags))
    return Annotations.from_onehot(images, matrix, tags, zero=zero, root=root, splits=splits, name=name)
