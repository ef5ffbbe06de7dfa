"""Annotations from and to Hugging Face `datasets`: a column of images, and columns of lists of class labels.

image    Image
tags     Sequence(ClassLabel): the tags known to be present
absent   Sequence(ClassLabel): those known to be absent; all others are unknown
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fewtags.data.annotations import SPLITS, Annotations
from fewtags.data.formats.tables import ABSENT_NAMES, IMAGE_NAMES, TAG_NAMES
from fewtags.errors import MissingExtra, UserError
from fewtags.labels import ABSENT, PRESENT

SPLIT_NAMES = {"validation": "val", "valid": "val", "dev": "val", **{name: name for name in SPLITS}}


def to_datasets(annotations: Annotations) -> Any:
    """A DatasetDict with a Dataset for each split that has images. The image files stay where they are."""
    try:
        from datasets import ClassLabel, Dataset, DatasetDict, Features, Image, Sequence
    except ImportError:
        raise MissingExtra("Writing a Hugging Face dataset", "datasets") from None
    labels = Sequence(ClassLabel(names=annotations.categories))
    features = Features({"image": Image(), "tags": labels, "absent": labels})
    parts: dict[Any, Dataset] = {}
    for name in SPLITS:
        part = annotations.split(name)
        if len(part):
            columns = {
                "image": [str(part.path(row).absolute()) for row in range(len(part))],
                "tags": [np.flatnonzero(row == PRESENT).tolist() for row in part.labels],
                "absent": [np.flatnonzero(row == ABSENT).tolist() for row in part.labels],
            }
            parts["validation" if name == "val" else name] = Dataset.from_dict(columns, features=features)
    return DatasetDict(parts)


def from_datasets(
    dataset: Any,
    *,
    folder: str | Path | None = None,
    image: str | None = None,
    tags: str | None = None,
    absent: str | None = None,
    complete: bool = False,
) -> Annotations:
    """A Dataset or DatasetDict. Images inside the dataset are written to `folder`; files on this machine stay.

    Columns are found by their usual names. A tag that is listed neither in `tags` nor in `absent` is unknown, or absent
    if the lists are `complete`. Tags are class labels, or text.
    """
    parts = dict(dataset) if isinstance(dataset, Mapping) else {"train": dataset}
    first = next(iter(parts.values()))
    names = {
        "image": _column(first, image, IMAGE_NAMES, "image"),
        "tags": _column(first, tags, TAG_NAMES, "tags"),
        "absent": absent or next((name for name in ABSENT_NAMES if name in first.column_names), None),
    }
    classes = _class_names(first, names["tags"])
    paths: list[str] = []
    lists: dict[str, list[list[str]]] = {"tags": [], "absent": []}
    splits: list[str] = []
    for split, part in parts.items():
        if split not in SPLIT_NAMES:
            raise UserError(
                f"The dataset has a split '{split}'; rename it to train, validation or test, or leave it out."
            )
        paths += _files(part, str(names["image"]), None if folder is None else Path(folder) / split)
        for kind, listed in lists.items():
            listed += _lists(part, names[kind], classes)
        splits += [SPLIT_NAMES[split]] * len(part)
    return Annotations.from_tags(
        paths, lists["tags"], absent=lists["absent"], categories=classes, splits=splits, complete=complete, root="/"
    )


def _column(part: Any, wanted: str | None, usual: Sequence[str], what: str) -> str:
    name = wanted or next((name for name in usual if name in part.column_names), None)
    if name not in part.column_names:
        raise UserError(
            f"The dataset has the columns {', '.join(part.column_names)}; pass the {what} column as {what}=."
        )
    return str(name)


def _class_names(part: Any, column: str | None) -> list[str] | None:
    """The names of the class labels; None if the tags are text."""
    label = getattr(part.features[column], "feature", None)
    names = getattr(label, "names", None)
    if names is None and "int" in str(getattr(label, "dtype", "")):
        raise UserError(
            f"Column '{column}' has numbers without names; its feature should be Sequence(ClassLabel(names=...))."
        )
    return None if names is None else list(names)


def _lists(part: Any, column: str | None, classes: list[str] | None) -> Iterator[list[str]]:
    for row in part[column] if column else [[]] * len(part):
        yield [str(tag) if classes is None else classes[tag] for tag in row or []]


def _files(part: Any, column: str, folder: Path | None) -> Iterator[str]:
    """The path of each image; one that is only inside the dataset becomes a file in `folder`."""
    from datasets import Image

    for number, image in enumerate(part.cast_column(column, Image(decode=False))[column]):
        path, content = image["path"], image["bytes"]
        if content is None and path is not None and Path(path).is_file():
            yield str(Path(path).absolute())
            continue
        if folder is None:
            raise UserError("The images are inside the dataset; pass folder= to have them written there as files.")
        if content is None:
            raise UserError(f"Image {number} of the dataset is missing: {path} does not exist.")
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{number:06d}{Path(path or '').suffix or '.png'}"
        file.write_bytes(content)
        yield str(file.absolute())
