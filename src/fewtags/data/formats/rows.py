"""Builds Annotations from rows of tags, which is what most label files contain."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fewtags.data.aliases import clean, fold
from fewtags.data.annotations import Annotations, Finding, group_numbers
from fewtags.data.formats.locate import locate
from fewtags.data.formats.options import LabelFileOptions, ReadOptions
from fewtags.data.image_files import Skipped, walk_images
from fewtags.data.tag_names import TagNames, tidy_rows
from fewtags.errors import DataError
from fewtags.labels import ABSENT, PRESENT, UNKNOWN
from fewtags.wording import plural

SPLIT_WORDS = {
    "": "train",  # data without splits is all training data
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}


@dataclass
class Row:
    """One line of a label file: what it says about one image."""

    image: str
    where: str  # file:line
    present: set[str]
    absent: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)  # exceptions to `complete`
    split: str = ""
    complete: bool = False
    id: str = ""  # the image's id in another tool
    listed: bool = True  # somebody labelled the image; otherwise the option `complete` does not apply to it
    group: str = ""  # images of one group are one unit in the split

    @property
    def tags(self) -> set[str]:
        return self.present | self.absent | self.unknown

    def adds_nothing_to(self, other: Row) -> bool:
        return (
            self.present <= other.present
            and self.absent <= other.absent
            and self.complete <= other.complete
            and self.split in ("", other.split)
        )


def as_id(value: Any) -> str:
    """What another tool calls an image, as text; '' for anything but a text or a whole number."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        return ""
    return clean(str(value))


def assemble(
    rows: list[Row],
    *,
    file: Path,
    roots: Iterable[Path],
    options: ReadOptions,
    name: str,
    note: str,
    findings: list[Finding],
    categories: list[str] | None = None,
    folder: Path | None = None,
) -> Annotations:
    """Rows of a label file: missing images skipped, rows of the same image merged, unlisted images of `folder` added.

    `folder` is the one the user gave, `roots` are the places where the images may be.
    """
    if not rows:
        raise DataError(f"{file} has no usable image; {first_problem(findings)}")
    outside = isinstance(options, LabelFileOptions) and options.allow_outside
    located = locate([row.image for row in rows], roots, file, allow_outside=outside, search=folder is not None)
    kept = []
    for number, (row, image) in enumerate(zip(rows, located.found, strict=True)):
        if image is None:
            findings.append(located.missing(number, row.where))
        else:
            row.image = image
            row.complete |= options.complete and row.listed
            kept.append(row)
    rows = merge(list(keep_known_splits(kept, findings)), findings)
    notes = list(located.notes)
    if folder is not None and isinstance(options, LabelFileOptions):
        complete = all(row.complete for row in rows)
        more, words = untagged(set(located.found), complete, located.root, folder, options)
        rows, notes = rows + [Row(image, str(folder), set()) for image in more], notes + words
    return label_rows(
        rows,
        located.root,
        source=file,
        options=options,
        name=name,
        describe=lambda labels: f"{note}; {counts(labels)}; unlisted tags are {unlisted(rows)}.",
        findings=findings,
        categories=categories,
        notes=notes,
    )


def label_rows(
    rows: list[Row],
    root: Path,
    *,
    source: Path,
    options: ReadOptions,
    name: str,
    describe: Callable[[np.ndarray], str],
    findings: list[Finding],
    categories: list[str] | None = None,
    report_others: bool = True,
    notes: Iterable[str] = (),
) -> Annotations:
    """Rows of existing images, one per image, as Annotations. `categories` is the source's own vocabulary, if any.

    The option `categories` takes precedence and uses final tag names. A tag
    outside the categories is a finding, unless the source is known to have many others.
    """
    wanted = options.category_list()
    names = tidy_rows(rows, options.tag_rules(), wanted or categories)
    vocabulary = wanted or (None if categories is None else renamed_categories(categories, names, options))
    if vocabulary is None:
        vocabulary = sorted(set().union(*(row.tags for row in rows)))
    else:
        drop_unknown_categories(rows, set(vocabulary), findings if report_others else None)
    if not rows or not vocabulary:
        raise DataError(f"{source} has no {'tag' if rows else 'usable image'}; {first_problem(findings)}")
    findings += similar_names(vocabulary, source)
    labels = label_matrix(rows, vocabulary)
    return Annotations(
        root,
        [row.image for row in rows],
        vocabulary,
        labels,
        np.array([SPLIT_WORDS[row.split] for row in rows]),
        name=name,
        notes=[describe(labels), *notes, *names.notes],
        findings=findings,
        ids=[row.id for row in rows] if any(row.id for row in rows) else None,
        renamed_tags=names.changes,
        tree=names.tree.restricted(vocabulary),
        groups=group_numbers([row.group for row in rows]),
    )


def renamed_categories(categories: list[str], names: TagNames, options: ReadOptions) -> list[str]:
    """A source's own vocabulary under its tags' final names."""
    rules = options.tag_rules()
    final = [names.final.get(name, rules.aliases.final(name)) for name in categories]
    implied = [other for tag in final if tag is not None for other in names.tree.implied.get(tag, ())]
    return list(dict.fromkeys(name for name in [*final, *implied] if name is not None and name not in names.rare))


def untagged(
    listed: Collection[str | None], complete: bool, root: Path, folder: Path, options: LabelFileOptions
) -> tuple[list[str], list[str]]:
    """Images of the folder without a row, and notes about them and about skipped photos.

    If every tag list is complete, the images were selected by hand, so others are skipped by default.
    """
    keep = not complete if options.keep_untagged is None else options.keep_untagged
    skipped = Skipped()
    others = [image for image in images_below(root, folder, skipped) if image not in listed]
    notes = []
    if others:
        done = "kept as unknown" if keep else "skipped (keep_untagged=true keeps them as unknown)"
        notes.append(f"{plural(len(others), 'image')} in {folder} without a row {done}.")
    if words := skipped.sentence(folder):
        notes.append(words)
    return others if keep else [], notes


def images_below(root: Path, folder: Path, skipped: Skipped) -> Iterator[str]:
    """Images of `folder`, relative to `root`, if one of the two contains the other."""
    inside = os.path.relpath(folder.resolve(), root.resolve())
    if inside == "." or os.path.relpath(root.resolve(), folder.resolve()).split(os.sep)[0] != "..":
        yield from walk_images(root, skipped)
    elif inside.split(os.sep)[0] != "..":
        for image in walk_images(root / inside, skipped):
            yield (Path(inside) / image).as_posix()


def merge(rows: list[Row], findings: list[Finding]) -> list[Row]:
    """One row per image: tag lists of several rows are merged; present wins over absent, absent over unknown."""
    merged: dict[str, Row] = {}
    for row in rows:
        first = merged.setdefault(row.image, row)
        if first is not row:
            add_row(first, row, findings)
    for row in merged.values():
        for tag in sorted(row.present & row.absent):
            message = f"'{tag}' is both present and absent for {row.image}; it counts as present"
            findings.append(Finding("conflicting label", row.where, message))
    return list(merged.values())


def add_row(first: Row, row: Row, findings: list[Finding]) -> None:
    if row.adds_nothing_to(first):
        message = f"repeats what {first.where} says about {row.image}; it was skipped"
        findings.append(Finding("duplicate row", row.where, message))
    if first.split and row.split not in ("", first.split):
        message = f"puts {row.image} in '{row.split}', but {first.where} put it in '{first.split}', where it stays"
        findings.append(Finding("conflicting split", row.where, message))
    first.present |= row.present
    first.absent |= row.absent
    first.unknown |= row.unknown
    first.split = first.split or row.split
    first.complete |= row.complete
    first.id = first.id or row.id
    first.listed |= row.listed
    first.group = first.group or row.group


def keep_known_splits(rows: list[Row], findings: list[Finding]) -> Iterator[Row]:
    for row in rows:
        word = row.split.strip().lower()
        if word in SPLIT_WORDS:
            row.split = SPLIT_WORDS[word] if word else ""  # a blank yields to another row of the same image
            yield row
        else:
            findings.append(unknown_split(row.where, row.split))


def unknown_split(where: str, split: str) -> Finding:
    return Finding("unknown split", where, f"the split '{split}' is not train, val or test; the row was skipped")


def drop_unknown_categories(rows: list[Row], categories: set[str], findings: list[Finding] | None) -> None:
    for row in rows:
        if findings is not None:
            findings += [unknown_category(row.where, tag, len(categories)) for tag in sorted(row.tags - categories)]
        row.present &= categories
        row.absent &= categories
        row.unknown &= categories


def unknown_category(where: str, tag: str, count: int) -> Finding:
    message = f"'{tag}' is not one of the {count} categories; it was skipped"
    return Finding("unknown category", where, message)


def label_matrix(rows: list[Row], categories: list[str]) -> np.ndarray:
    column = {name: c for c, name in enumerate(categories)}
    labels = np.zeros((len(rows), len(categories)), dtype=np.int8)
    for number, row in enumerate(rows):
        labels[number] = ABSENT if row.complete else UNKNOWN
        for state, tags in ((UNKNOWN, row.unknown), (ABSENT, row.absent), (PRESENT, row.present)):
            if tags:
                labels[number, [column[tag] for tag in tags]] = state
    return labels


def similar_names(categories: list[str], file: Path) -> Iterator[Finding]:
    seen: dict[str, str] = {}
    for name in categories:
        first = seen.setdefault(fold(name), name)
        if first != name:
            message = f"'{first}' and '{name}' are two categories that differ only in case"
            yield Finding("similar categories", str(file), message)


def first_problem(findings: list[Finding]) -> str:
    return f"the first problem is {findings[0]}." if findings else "it is empty."


# --- wording ---


def counts(labels: np.ndarray) -> str:
    return f"{plural(len(labels), 'image')}, {plural(labels.shape[1], 'tag')}"


def unlisted(rows: list[Row]) -> str:
    complete = sum(row.complete for row in rows)
    if complete == len(rows):
        return "absent"
    return f"absent in the {plural(complete, 'image')} marked complete, else unknown" if complete else "unknown"
