"""Annotations from and to datasets of FiftyOne (extra: fiftyone).

Labels are in the two fields that FiftyOne itself uses for partly known ones (Open Images): `positive_labels` and
`negative_labels`, both `Classifications`. What is in neither is unknown. A sample's tags have its split.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fewtags.data.annotations import Annotations
from fewtags.data.formats.fiftyone import NEGATIVE, POSITIVE
from fewtags.data.formats.rows import SPLIT_WORDS
from fewtags.errors import MissingExtra, UserError
from fewtags.labels import ABSENT, PRESENT


def fiftyone() -> Any:
    try:
        import fiftyone
    except ImportError:
        raise MissingExtra("A FiftyOne dataset", "fiftyone") from None
    return fiftyone


def to_fiftyone(annotations: Annotations, name: str | None = None) -> Any:
    """A new dataset in FiftyOne's database. The image files stay where they are."""
    fo = fiftyone()
    dataset = fo.Dataset(name)
    dataset.default_classes = list(annotations.categories)

    def named(row: np.ndarray, state: int) -> Any:
        labels = [fo.Classification(label=annotations.categories[c]) for c in np.flatnonzero(row == state)]
        return fo.Classifications(classifications=labels)

    samples = []
    for number, row in enumerate(annotations.labels):
        path, split = str(annotations.path(number).absolute()), str(annotations.splits[number])
        samples.append(fo.Sample(path, tags=[split], **{POSITIVE: named(row, PRESENT), NEGATIVE: named(row, ABSENT)}))
    dataset.add_samples(samples, progress=False)
    return dataset


def from_fiftyone(
    dataset: Any, *, present: str | None = None, absent: str | None = None, complete: bool = False
) -> Annotations:
    """A dataset or view. `present` is the field with the tags (default: positive_labels, or ground_truth), `absent` the
    field with those known to be absent; `complete=True` says that tags which are in neither are absent."""
    fields = dataset.get_field_schema()
    present = present or next((name for name in (POSITIVE, "ground_truth") if name in fields), None)
    if present is None or present not in fields:
        raise UserError(f"The FiftyOne dataset has the fields {', '.join(fields)}; pass the one with tags as present=.")
    absent = absent or (NEGATIVE if present == POSITIVE and NEGATIVE in fields else None)
    paths, tags = dataset.values(["filepath", "tags"])
    splits = [next((SPLIT_WORDS[tag.lower()] for tag in row if tag.lower() in SPLIT_WORDS), "train") for row in tags]
    return Annotations.from_tags(
        paths,
        _names(dataset, present),
        absent=_names(dataset, absent) if absent else None,
        categories=list(dataset.default_classes) or None,
        splits=splits,
        complete=complete,
        root="/",
        ids=[str(key) for key in dataset.values("id")],
    )


def _names(dataset: Any, field: str) -> list[list[str]]:
    """Of Classifications, or of a single Classification."""
    if dataset.get_field(field).document_type.__name__ == "Classification":
        return [[name] if name else [] for name in dataset.values(f"{field}.label")]
    return [names or [] for names in dataset.values(f"{field}.classifications.label")]
