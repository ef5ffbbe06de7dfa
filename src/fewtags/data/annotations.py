"""Which tags each image is known to have: the one label type that losses, metrics, reports and exports share.

A label has three states, stored as int8:

     1  PRESENT   a person or tool says the tag applies
     0  UNKNOWN   there is no information
    -1  ABSENT    a person or tool says the tag does not apply

The file format (`save`, `load`) is JSON lines: a header line, then one line per image:

    {"fewtags": 1, "root": "photos", "categories": ["cat", "dog"]}
    {"image": "a.jpg", "split": "train", "present": ["dog"]}
    {"image": "b.jpg", "split": "train", "present": ["dog"], "absent": ["cat"]}
    {"image": "c.jpg", "split": "test", "present": ["cat"], "complete": true}

Unlisted tags are unknown; with `"complete": true` they are absent, except those in `"unknown"`. A relative root
is relative to the file.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fewtags.atomic import atomic_write
from fewtags.data.tag_tree import TagTree
from fewtags.errors import UserError
from fewtags.labels import ABSENT, PRESENT, SPLITS, UNKNOWN
from fewtags.wording import printable


@dataclass(frozen=True)
class Finding:
    """A problem or oddity in a dataset, and where to find it."""

    kind: str  # "missing image", "unknown category", ...: findings of one kind are counted together
    where: str  # file, or file:line
    message: str
    fatal: bool = False  # training would fail or be meaningless

    def __post_init__(self) -> None:
        """The message may quote anything that a file holds."""
        object.__setattr__(self, "where", printable(self.where))
        object.__setattr__(self, "message", printable(self.message))

    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


@dataclass(frozen=True, eq=False)
class Annotations:
    root: Path  # image paths are relative to this folder
    images: list[str]
    categories: list[str]
    labels: np.ndarray  # [N, C] int8: 1 present, 0 unknown, -1 absent
    splits: np.ndarray  # [N] "train", "val" or "test"
    name: str = "dataset"  # "voc2007", "photos": for display
    notes: list[str] = field(default_factory=list)  # how the reader interpreted the data, as sentences
    findings: list[Finding] = field(default_factory=list)  # what the reader could not use
    ids: list[str] | None = None  # image ids in the tool the labels came from
    renamed_tags: dict[str, str | None] = field(default_factory=dict)  # tag as written -> category, None if excluded
    tree: TagTree = field(default_factory=TagTree)  # which categories imply which, and where keywords are written
    # [N] int64: images with the same number are one unit (a burst, a camera-trap sequence, a folder) that must not be
    # both learned from and measured on. None if every image is alone.
    groups: np.ndarray | None = None
    english: dict[str, str] = field(default_factory=dict)  # category -> its name in English, where it is another

    def __post_init__(self) -> None:
        shape = (len(self.images), len(self.categories))
        if self.labels.shape != shape:
            raise UserError(
                f"Labels of shape {self.labels.shape} do not match {shape[0]} images and {shape[1]} categories."
            )
        if self.labels.dtype != np.int8:
            raise UserError(f"Labels must be int8 (1 present, 0 unknown, -1 absent), not {self.labels.dtype}.")
        # The three states are neighbours, and comparing with each of them takes seconds for 10,000 images and tags.
        if self.labels.size and not (self.labels.min() >= ABSENT and self.labels.max() <= PRESENT):
            odd = np.unique(self.labels[(self.labels < ABSENT) | (self.labels > PRESENT)])[0]
            raise UserError(f"Labels must be 1 (present), 0 (unknown) or -1 (absent); found {odd}.")
        repeated = [name for name, count in Counter(self.categories).items() if count > 1]
        if repeated:
            raise UserError(f"Category '{repeated[0]}' is listed twice.")
        if len(self.splits) != len(self.images):
            raise UserError(f"{len(self.splits)} splits were given for {len(self.images)} images.")
        if self.ids is not None and len(self.ids) != len(self.images):
            raise UserError(f"{len(self.ids)} ids were given for {len(self.images)} images.")
        wrong = sorted(set(self.splits.tolist()) - set(SPLITS))
        if wrong:
            raise UserError(f"Unknown split '{wrong[0]}'; splits are {', '.join(SPLITS)}.")

    # --- named constructors: the caller chooses what a blank means; it is never guessed ---

    @classmethod
    def from_tags(
        cls,
        images: Sequence[str],
        tags: Sequence[Iterable[str]],
        *,
        root: str | Path = ".",
        categories: Sequence[str] | None = None,
        absent: Sequence[Iterable[str]] | None = None,
        splits: Sequence[str] | None = None,
        complete: bool = False,
        **more: Any,
    ) -> Annotations:
        """Listed tags are present; the others are unknown, or absent if the lists are `complete`.

        `categories` defaults to all tags that occur, in alphabetical order.
        """
        tags = [list(row) for row in tags]
        absent = [list(row) for row in absent] if absent is not None else [[] for _ in tags]
        if len(tags) != len(images) or len(absent) != len(images):
            raise UserError(f"{len(tags)} tag lists were given for {len(images)} images.")
        if categories is None:
            categories = sorted({tag for row in (*tags, *absent) for tag in row})
        column = {name: c for c, name in enumerate(categories)}
        labels = np.full((len(images), len(column)), ABSENT if complete else UNKNOWN, dtype=np.int8)
        for state, lists in ((ABSENT, absent), (PRESENT, tags)):  # a tag in both lists counts as present
            for row, names in enumerate(lists):
                unknown = [name for name in names if name not in column]
                if unknown:
                    raise UserError(f"{images[row]} has the tag '{unknown[0]}', which is not one of the categories.")
                labels[row, [column[name] for name in names]] = state
        return cls(Path(root), list(images), list(categories), labels, _splits(splits, len(images)), **more)

    @classmethod
    def from_onehot(
        cls,
        images: Sequence[str],
        matrix: np.ndarray,
        categories: Sequence[str],
        *,
        zero: str,
        root: str | Path = ".",
        splits: Sequence[str] | None = None,
        **more: Any,
    ) -> Annotations:
        """A matrix of 1 (present), -1 (absent), NaN (unknown) and 0, which means `zero`: "unknown" or "absent"."""
        if zero not in ("unknown", "absent"):
            raise UserError(f"zero='{zero}' should be 'unknown' or 'absent': say what a 0 means in your matrix.")
        matrix = np.asarray(matrix, dtype=float)
        labels = np.where(np.isnan(matrix), UNKNOWN, matrix)
        if not np.isin(labels, (-1, 0, 1)).all():
            odd = labels[~np.isin(labels, (-1, 0, 1))].flat[0]
            raise UserError(f"A one-hot matrix holds 1, 0, -1 or blank; found {odd:g}.")
        if zero == "absent":
            labels = np.where(matrix == 0, ABSENT, labels)
        return cls(
            Path(root), list(images), list(categories), labels.astype(np.int8), _splits(splits, len(images)), **more
        )

    @classmethod
    def from_dataframe(cls, frame: Any, **options: Any) -> Annotations:
        """A pandas or polars DataFrame: an image column, and a tag column or one column per tag.

        Columns are found by their usual names or passed as `image`, `tags` (a list for one column per tag, with
        `zero` as in from_onehot), `absent` and `split`. Tags in a cell are a list, or text with `separator`. `root`
        is the image folder. Other options are those of every reader (`categories`, `aliases`, ...).
        """
        from fewtags.data.formats.dataframe import read_dataframe  # formats import this module

        return read_dataframe(frame, **options)

    @classmethod
    def from_datasets(cls, dataset: Any, **options: Any) -> Annotations:
        """A Hugging Face Dataset or DatasetDict: an image column and a column of class labels.

        Images inside the dataset are written to `folder`. Columns are found by their usual names or passed as `image`,
        `tags` and `absent`; `complete=True` says that tags which are not listed are absent.
        """
        from fewtags.data.hub_datasets import from_datasets  # which imports this module

        return from_datasets(dataset, **options)

    def to_datasets(self) -> Any:
        """A Hugging Face DatasetDict with the columns image, tags and absent (extra: datasets)."""
        from fewtags.data.hub_datasets import to_datasets

        return to_datasets(self)

    @classmethod
    def from_fiftyone(cls, dataset: Any, **options: Any) -> Annotations:
        """A FiftyOne dataset or view. Its fields are found by their usual names or passed as `present` and `absent`;
        `complete=True` says that tags which are not listed are absent."""
        from fewtags.data.fiftyone_datasets import from_fiftyone  # which imports this module

        return from_fiftyone(dataset, **options)

    def to_fiftyone(self, name: str | None = None) -> Any:
        """A new FiftyOne dataset with the fields positive_labels and negative_labels (extra: fiftyone)."""
        from fewtags.data.fiftyone_datasets import to_fiftyone

        return to_fiftyone(self, name)

    # --- views ---

    def __len__(self) -> int:
        return len(self.images)

    def path(self, row: int) -> Path:
        return self.root / self.images[row]

    def without_labels(self) -> Annotations:
        """The images alone, at their absolute places: to be sent to another machine."""
        return replace(
            self,
            root=self.root.absolute(),
            categories=[],
            labels=np.zeros((len(self), 0), np.int8),
            findings=[],
            tree=TagTree(),
        )

    def take(self, rows: np.ndarray) -> Annotations:
        """The selected rows (indices or a mask), in that order."""
        rows = np.arange(len(self))[rows]
        return replace(
            self,
            images=[self.images[r] for r in rows],
            labels=self.labels[rows],
            splits=self.splits[rows],
            ids=None if self.ids is None else [self.ids[r] for r in rows],
            groups=None if self.groups is None else self.groups[rows],
        )

    def split(self, name: str) -> Annotations:
        return self.take(self.splits == name)

    @property
    def known_positives(self) -> np.ndarray:
        """[C] number of images each category is known to be present in."""
        return (self.labels == PRESENT).sum(0)

    @property
    def num_groups(self) -> int:
        """Groups of at least two images."""
        if self.groups is None:
            return 0
        return int((np.unique(self.groups, return_counts=True)[1] > 1).sum())

    @property
    def complete(self) -> bool:
        """Is every label known (present or absent)?"""
        return bool((self.labels != UNKNOWN).all())

    @property
    def unknown_share(self) -> float:
        return float((self.labels == UNKNOWN).mean()) if self.labels.size else 0.0

    def partial_warning(self, split: str) -> str:
        """A warning that these labels, which are used for evaluation, are partial."""
        how = "no absence is known, so precision can only be estimated"
        if (self.labels == ABSENT).any():
            how = "only the known ones count"
        return f"{self.unknown_share:.0%} of the {split} labels are unknown; {how}."

    def content_hash(self) -> str:
        """Hash of the image names, categories, labels and splits (not of the pixels)."""
        digest = hashlib.sha256()
        digest.update(json.dumps([self.images, self.categories, self.splits.tolist()]).encode())
        digest.update(np.ascontiguousarray(self.labels).tobytes())
        if self.tree:
            digest.update(json.dumps(self.tree.to_json(), sort_keys=True).encode())
        return digest.hexdigest()[:16]

    # --- the file format ---

    def save(self, file: str | Path) -> None:
        file = Path(file)
        file.parent.mkdir(parents=True, exist_ok=True)
        root = os.path.relpath(self.root.resolve(), file.parent.resolve())
        with atomic_write(file) as temporary, temporary.open("w", encoding="utf-8") as out:
            header = {"fewtags": 1, "name": self.name, "root": root, "categories": self.categories}
            header |= {"tree": self.tree.to_json()} if self.tree else {}
            out.write(json.dumps(header, ensure_ascii=False) + "\n")
            for row in range(len(self)):
                out.write(json.dumps(self._record(row), ensure_ascii=False) + "\n")

    def _record(self, number: int) -> dict[str, Any]:
        row = self.labels[number]

        def names(state: int) -> list[str]:
            return [self.categories[c] for c in np.flatnonzero(row == state)]

        record: dict[str, Any] = {"image": self.images[number], "split": str(self.splits[number])}
        record |= {"id": self.ids[number]} if self.ids is not None else {}
        record |= {"group": int(self.groups[number])} if self.groups is not None else {}
        record["present"] = names(PRESENT)
        if (row == ABSENT).sum() > (row == UNKNOWN).sum():  # the shorter of the two lists is written
            record["complete"] = True
            record.update({"unknown": names(UNKNOWN)} if (row == UNKNOWN).any() else {})
        elif (row == ABSENT).any():
            record["absent"] = names(ABSENT)
        return record

    @classmethod
    def load(cls, file: str | Path) -> Annotations:
        """Read a file written by `save`, even if images have gone missing. `read_annotations` reads any JSON lines
        file."""
        from fewtags.data.formats.json_lines import load_saved  # formats import this module

        return load_saved(Path(file))


def group_numbers(names: Sequence[str]) -> np.ndarray | None:
    """[N] equal for equal names; '' is a group of its own. None if there is no name."""
    if not any(names):
        return None
    number: dict[str, int] = {}
    keys = [name or f"\0{row}" for row, name in enumerate(names)]
    return np.array([number.setdefault(key, len(number)) for key in keys], dtype=np.int64)


def _splits(splits: Sequence[str] | None, num_images: int) -> np.ndarray:
    return np.full(num_images, "train") if splits is None else np.array(splits, dtype=str)
