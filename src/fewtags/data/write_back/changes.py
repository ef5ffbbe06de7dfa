"""Which labels change, where they came from, and the files that replace them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fewtags.data.aliases import fold
from fewtags.data.annotations import Annotations
from fewtags.data.decisions import STATES, decided
from fewtags.data.formats import Format, choose_format, existing, read_annotations
from fewtags.data.formats.csv_tags import tag_tables
from fewtags.data.formats.json_lines import jsonl_files
from fewtags.data.formats.locate import image_roots, locate
from fewtags.data.formats.options import ReadOptions
from fewtags.data.formats.tables import is_onehot, table_files
from fewtags.data.formats.text import only_file
from fewtags.data.prepare import DataConfig


@dataclass(frozen=True)
class Change:
    image: str
    tag: str
    old: int
    new: int

    def __str__(self) -> str:
        return f"{self.image}: '{self.tag}' was {STATES[self.old]}, is {STATES[self.new]}"


def changes_between(annotations: Annotations, labels: Mapping[tuple[str, str], int]) -> list[Change]:
    """The labels (image, tag) -> 1, 0, -1 that differ from the annotations, in the order of the annotations."""
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


@dataclass(frozen=True)
class LabelSource:
    path: Path  # the label file or folder
    images: Path | None  # the image folder, if one was given with the label file
    format: Format
    options: ReadOptions
    given: dict[str, Any] = field(default_factory=dict)  # the options as the user gave them

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
        """The one file with the labels; None if there are many."""
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
        """The folder the user gave; its images may have no row."""
        return self.images or (self.path if self.path.is_dir() else None)

    def rows_of(self, names: Sequence[str]) -> dict[str, list[int]]:
        """Image name in the annotations -> its positions in `names`."""
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
    format: str  # format to read it back with
    options: dict[str, Any] = field(default_factory=dict)  # options to read it back with
    unwritten: list[Change] = field(default_factory=list)  # what this layout cannot express

    def write(self, place: Path, images: Annotations) -> None:
        """Write to a file or folder that does not exist yet. A folder gets the `images` too, as links if possible:
        their text files mean nothing without them."""
        if isinstance(self.content, Annotations):
            self.content.save(place)
        elif isinstance(self.content, bytes):
            with place.open("xb") as out:
                out.write(self.content)
        else:
            place.mkdir(parents=True)
            for name, content in self.content.items():
                (place / name).parent.mkdir(parents=True, exist_ok=True)
                (place / name).write_bytes(content)
            for row, name in enumerate(images.images):
                (place / name).parent.mkdir(parents=True, exist_ok=True)
                link_or_copy(images.path(row), place / name)

    def read(self, place: Path, root: Path) -> Annotations:
        """The written labels, read back; `root` is the image folder."""
        if isinstance(self.content, bytes):
            return read_annotations(root, tags=place, format=self.format, **self.options)
        return read_annotations(place, format=self.format, **self.options)


def link_or_copy(image: Path, place: Path) -> None:
    """A hard link, which takes no space; a copy if `place` is on another disk. Of a symbolic link, the image it leads
    to: from another folder it may lead elsewhere."""
    try:
        os.link(image.resolve(strict=True), place)
    except OSError:
        shutil.copy2(image, place)


class TagSpelling:
    """Maps a tag as written in the files to its category."""

    def __init__(self, annotations: Annotations):
        self.renamed, self.tree = annotations.renamed_tags, annotations.tree
        self.has_levels = any(len(path) > 1 for path in self.tree.paths.values())
        self.folded = {fold(name): name for name in annotations.categories}

    def category(self, written: str) -> str | None:
        if written in self.renamed:
            return self.renamed[written]
        return self.folded.get(fold(written), written)
