"""Decisions of reviewers about single labels, in a separate file: applied on top of a dataset's labels, never merged
in.

JSON lines, one decision each:

    {"image": "a.jpg", "tag": "dog", "label": 1, "reviewer": "ann", "decided_at": "2026-11-16T12:00:00Z", "run": "a"}

`label` is 1 present, -1 absent, 0 unsure (unknown). The last line about a label counts. Of a tag that reviewers added
`tag_is` is "new"; a line without an image and with "gone" says that a tag was deleted, renamed or merged.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fewtags.atomic import atomic_write
from fewtags.data.annotations import Annotations
from fewtags.errors import DataError
from fewtags.labels import ABSENT, PRESENT, UNKNOWN

STATES = {PRESENT: "present", UNKNOWN: "unknown", ABSENT: "absent"}


@dataclass(frozen=True)
class DecidedLabel:
    image: str  # as in the annotations
    tag: str
    label: int
    reviewer: str = ""
    decided_at: str = ""  # ISO 8601
    run: str = ""  # the run that was reviewed
    tag_is: str = ""  # or "new" or "gone"


def write_decisions(decisions: Iterable[DecidedLabel], file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(file) as temporary, temporary.open("w", encoding="utf-8") as out:
        for decision in decisions:
            out.write(json.dumps(asdict(decision), ensure_ascii=False) + "\n")


def read_decisions(file: Path) -> list[DecidedLabel]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise DataError(f"{file} should be a file of decisions, but it cannot be read ({error}).") from None
    decisions = []
    for number, line in enumerate(lines, start=1):
        try:
            decision = DecidedLabel(**json.loads(line))
            if decision.label not in STATES:
                raise ValueError(f"label {decision.label!r}")
        except (ValueError, TypeError, RecursionError) as error:
            raise DataError(f"{file}:{number} is not a valid decision ({error}).") from None
        decisions.append(decision)
    return decisions


def latest(decisions: Iterable[DecidedLabel]) -> dict[tuple[str, str], DecidedLabel]:
    """The last decision about each (image, tag)."""
    return {(decision.image, decision.tag): decision for decision in decisions}


def decided(annotations: Annotations, labels: Mapping[tuple[str, str], int]) -> Annotations:
    """The annotations with (image, tag) -> 1, 0 or -1 applied on top; images and tags they do not have are ignored.

    What follows from a decision by the tree of tags is decided with it, unless a decision says otherwise.
    """
    rows = {image: row for row, image in enumerate(annotations.images)}
    columns = {name: column for column, name in enumerate(annotations.categories)}
    alone, changed = np.zeros_like(annotations.labels), annotations.labels.copy()
    given = [(rows[i], columns[t], label) for (i, t), label in labels.items() if i in rows and t in columns]
    for row, column, label in given:
        alone[row, column] = label
    if annotations.tree.implied:
        follows = annotations.tree.closed(alone, annotations.categories)
        changed = np.where(follows != UNKNOWN, follows, changed)
    for row, column, label in given:
        changed[row, column] = label
    return replace(annotations, labels=changed)


def with_tags_of(annotations: Annotations, decisions: Iterable[DecidedLabel]) -> Annotations:
    """With the tags that reviewers added, unknown everywhere yet, and without those that are gone."""
    new = dict.fromkeys(d.tag for d in decisions if d.tag_is == "new" and d.tag not in annotations.categories)
    gone = {d.tag for d in decisions if d.tag_is == "gone"}
    if not new and not gone:
        return annotations
    kept = [column for column, name in enumerate(annotations.categories) if name not in gone]
    unknown = np.zeros((len(annotations), len(new)), dtype=np.int8)
    categories = [*(annotations.categories[column] for column in kept), *new]
    return replace(annotations, categories=categories, labels=np.hstack([annotations.labels[:, kept], unknown]))


def summary(decisions: Iterable[DecidedLabel]) -> dict[str, Any]:
    """Counts of the decisions, for a run's record."""
    standing = [decision for decision in latest(decisions).values() if decision.image]
    states = Counter(STATES[decision.label] for decision in standing)
    return {
        "decisions": len(standing),
        **{name: states[name] for name in STATES.values()},
        "reviewers": dict(Counter(decision.reviewer for decision in standing)),
        "runs": dict(Counter(decision.run for decision in standing)),
    }
