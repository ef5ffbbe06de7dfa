"""Changed labels, written back in the format they were read from. Never overwrites the original.

    changes = changes_between(annotations, decisions)
    new = rewrite(LabelSource.of(config.data), annotations, changes)
    new.write(place, annotations)
    check_rewritten(new, place, annotations, changes)   # the new file has the decisions, and no other change

CSV, one-hot tables and JSON lines keep their columns, their order, their encoding, and every line without a decision
byte for byte; .txt and .xmp files stay such files. Everything else becomes one JSON lines file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from fewtags.data.annotations import Annotations
from fewtags.data.decisions import STATES, decided
from fewtags.data.write_back.changes import Change, LabelSource, Rewritten, changes_between
from fewtags.data.write_back.csv_file import rewrite_csv
from fewtags.data.write_back.json_lines import rewrite_jsonl
from fewtags.data.write_back.onehot import rewrite_onehot
from fewtags.data.write_back.sidecars import rewrite_sidecar
from fewtags.data.write_back.xmp_sidecars import rewrite_keywords
from fewtags.errors import DataError
from fewtags.labels import UNKNOWN

__all__ = ["Change", "LabelSource", "Rewritten", "as_json_lines", "changes_between", "check_rewritten", "rewrite"]


def rewrite(source: LabelSource, annotations: Annotations, changes: Sequence[Change]) -> Rewritten:
    """The label files of `source`, from which `annotations` were read, with the changes applied."""
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
    """One file in the format of `Annotations.save`, with all labels, changed or not."""
    after = decided(annotations, {(change.image, change.tag): change.new for change in changes})
    return Rewritten(f"{annotations.name}.jsonl", after, "jsonl")


def check_rewritten(new: Rewritten, place: Path, annotations: Annotations, changes: Sequence[Change]) -> None:
    """Read `place` back; raises an error if it differs from what was decided."""
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
        f"Reading the new labels back would not give what was decided: {what}. Nothing was written; --as jsonl writes "
        "fewtags' own JSON lines format instead, which can express everything."
    )


REWRITERS: dict[str, Callable[[LabelSource, Annotations, dict[str, dict[str, Change]]], Rewritten]] = {
    "csv": rewrite_csv,
    "onehot": rewrite_onehot,
    "jsonl": rewrite_jsonl,
    "sidecar": rewrite_sidecar,
    "keywords": rewrite_keywords,
}
