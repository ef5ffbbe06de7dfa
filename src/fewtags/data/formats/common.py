"""What the readers share: finding image files, decoding text, and putting rows of tags together as Annotations."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fewtags.data.annotations import Annotations, Finding
from fewtags.data.formats.options import ReadOptions
from fewtags.errors import DataError, UserError
from fewtags.labels import ABSENT, PRESENT, UNKNOWN

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".jfif", ".ppm")
SPLIT_WORDS = {
    "": "train",  # data without splits is all for training
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}


@dataclass(frozen=True)
class Format:
    name: str
    sentence: str  # what the layout is, for people
    detects: Callable[[Path], bool]
    # The last argument is the folder that image names are relative to, where a person gave one.
    read: Callable[[Path, ReadOptions, Path | None], Annotations]
    fallback: bool = False  # fits almost any image folder, so it counts only when nothing else fits


@dataclass
class Row:
    """One line of a label file: what it says about one image."""

    image: str
    where: str  # file:line
    present: set[str]
    absent: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)  # exceptions from `complete`
    split: str = ""
    complete: bool = False

    def says_nothing_more_than(self, other: Row) -> bool:
        return (
            self.present <= other.present
            and self.absent <= other.absent
            and self.complete <= other.complete
            and self.split in ("", other.split)
        )


# --- image files ---


def is_image(name: str) -> bool:
    return name.lower().endswith(IMAGE_SUFFIXES)


def walk_images(root: Path) -> Iterator[str]:
    """Image files below a folder, relative to it, in a stable order; hidden folders are left out."""
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        relative = Path(folder).relative_to(root)
        for name in sorted(files):
            if is_image(name) and not name.startswith("."):
                yield (relative / name).as_posix()


class NoImagesError(DataError):
    """Not one image that a label file names exists."""


class ImageFolder:
    """Which image files exist below a folder: one directory listing per folder instead of one question per image."""

    def __init__(self, root: Path):
        self.root = root
        self._listings: dict[str, dict[str, str]] = {}

    def find(self, name: str) -> str | None:
        """The file that a label file calls `name`; the suffix may be left out, and a backslash is read as a slash."""
        folder, base = posixpath.split(posixpath.normpath(name.replace("\\", "/")))
        file = self._listing(folder).get(base)
        return posixpath.join(folder, file) if file else None

    def _listing(self, folder: str) -> dict[str, str]:
        if folder not in self._listings:
            try:
                files = sorted(filter(is_image, os.listdir(self.root / folder)))
            except OSError:
                files = []
            stems = {os.path.splitext(file)[0]: file for file in files}
            self._listings[folder] = stems | {file: file for file in files}
        return self._listings[folder]


def image_roots(file: Path, images: Path | None) -> list[Path]:
    """Where the images of a label file may be: the given folder, beside the file, or in a folder beside it."""
    if images is not None:
        return list(dict.fromkeys((images, images.parent, file.parent)))
    return [file.parent, *sorted(path for path in file.parent.iterdir() if path.is_dir())]


def locate(names: Sequence[str], roots: Iterable[Path], file: Path) -> tuple[Path, list[str | None]]:
    """Each image's file below the first root that has most of them, or else the root that has more than the others."""
    best_root, best_hits = Path(), 0
    best_found: list[str | None] = []
    tried = []
    for root in roots:
        folder = ImageFolder(root)
        tried.append(str(root))
        found = [folder.find(name) for name in names]
        hits = len(names) - found.count(None)
        if hits > best_hits:
            best_root, best_found, best_hits = root, found, hits
        if 2 * hits >= len(names):
            break
    if not best_hits:
        example = f" (the first is '{names[0]}')" if names else ""
        raise NoImagesError(
            f"None of the {plural(len(names), 'image')} that {file} names{example} is in {' or '.join(tried[:3])}; "
            "give the folder of the images and this file as its tags."
        )
    return best_root, best_found


# --- text ---


def read_text(file: Path) -> tuple[str, str]:
    """A text file's content whatever its encoding, and words about the encoding when it is not UTF-8."""
    try:
        data = file.read_bytes()
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}.") from None
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16", errors="replace"), "decoded as UTF-16"
    if b"\0" in data[:4096]:
        raise UserError(f"{file} should be a text file; it holds binary data.")
    try:
        return data.decode("utf-8-sig"), ""
    except UnicodeDecodeError:
        return data.decode("latin-1"), "decoded as Latin-1, as it is not UTF-8"


def read_head(file: Path, num_bytes: int = 4096) -> str:
    with file.open("rb") as stream:
        return stream.read(num_bytes).decode("utf-8", errors="replace").lstrip("\ufeff \t\r\n")


def files_with_suffix(path: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """The file itself, or the files directly in a folder, that have one of the suffixes."""
    files = [path] if path.is_file() else sorted(path.iterdir()) if path.is_dir() else []
    return [file for file in files if file.suffix.lower() in suffixes and not file.name.startswith(".")]


def only_file(path: Path, files: list[Path]) -> Path:
    if len(files) == 1:
        return files[0]
    found = f"{len(files)} label files ({', '.join(file.name for file in files)})" if files else "no label file"
    raise UserError(f"{path} holds {found}; name the one to read as the tags.")


# --- rows of tags ---


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
) -> Annotations:
    """Rows of tags as Annotations: missing images left out, rows of one image merged, unknown categories dropped."""
    root, found = locate([row.image for row in rows], roots, file) if rows else (Path(), [])
    rows = list(drop_missing(rows, found, root, findings))
    rows = merge(list(keep_known_splits(rows, findings)), findings)
    categories = options.category_list() or categories
    if categories is None:
        categories = sorted(set().union(*(row.present | row.absent | row.unknown for row in rows)))
    else:
        drop_unknown_categories(rows, set(categories), findings)
    if not rows or not categories:
        raise DataError(f"{file} has no {'tag' if rows else 'usable image'}; {first_problem(findings)}")
    findings += similar_names(categories, file)
    labels = label_matrix(rows, categories, options.complete)
    splits = np.array([SPLIT_WORDS[row.split] for row in rows])
    images = [row.image for row in rows]
    notes = [f"{note}; {counts(labels)}; unlisted tags are {unlisted(rows, options)}."]
    return Annotations(root, images, categories, labels, splits, name=name, notes=notes, findings=findings)


def drop_missing(rows: list[Row], found: list[str | None], root: Path, findings: list[Finding]) -> Iterator[Row]:
    for row, image in zip(rows, found, strict=True):
        if image is None:
            findings.append(missing_image(row.where, row.image, root))
        else:
            row.image = image
            yield row


def missing_image(where: str, image: str, root: Path) -> Finding:
    return Finding("missing image", where, f"there is no image '{image}' in {root}; the row was left out")


def merge(rows: list[Row], findings: list[Finding]) -> list[Row]:
    """One row per image: lists of several rows are joined; present wins over absent, absent over unknown."""
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
    if row.says_nothing_more_than(first):
        message = f"repeats what {first.where} says about {row.image}; it was left out"
        findings.append(Finding("duplicate row", row.where, message))
    if first.split and row.split not in ("", first.split):
        message = f"puts {row.image} into '{row.split}', but {first.where} put it into '{first.split}', where it stays"
        findings.append(Finding("conflicting split", row.where, message))
    first.present |= row.present
    first.absent |= row.absent
    first.unknown |= row.unknown
    first.split = first.split or row.split
    first.complete |= row.complete


def keep_known_splits(rows: list[Row], findings: list[Finding]) -> Iterator[Row]:
    for row in rows:
        word = row.split.strip().lower()
        if word in SPLIT_WORDS:
            row.split = SPLIT_WORDS[word] if word else ""  # blank gives way to what another row of the image says
            yield row
        else:
            findings.append(unknown_split(row.where, row.split))


def unknown_split(where: str, split: str) -> Finding:
    return Finding("unknown split", where, f"the split '{split}' is not train, val or test; the row was left out")


def drop_unknown_categories(rows: list[Row], categories: set[str], findings: list[Finding]) -> None:
    for row in rows:
        for tag in sorted((row.present | row.absent | row.unknown) - categories):
            message = f"'{tag}' is not among the {len(categories)} categories; it was left out"
            findings.append(Finding("unknown category", row.where, message))
        row.present &= categories
        row.absent &= categories
        row.unknown &= categories


def label_matrix(rows: list[Row], categories: list[str], complete: bool) -> np.ndarray:
    column = {name: c for c, name in enumerate(categories)}
    labels = np.zeros((len(rows), len(categories)), dtype=np.int8)
    for number, row in enumerate(rows):
        labels[number] = ABSENT if complete or row.complete else UNKNOWN
        for state, tags in ((UNKNOWN, row.unknown), (ABSENT, row.absent), (PRESENT, row.present)):
            labels[number, [column[tag] for tag in tags]] = state
    return labels


def similar_names(categories: list[str], file: Path) -> Iterator[Finding]:
    seen: dict[str, str] = {}
    for name in categories:
        first = seen.setdefault(name.casefold(), name)
        if first != name:
            message = f"'{first}' and '{name}' are two categories that differ only in upper and lower case"
            yield Finding("similar categories", str(file), message)


def first_problem(findings: list[Finding]) -> str:
    return f"the first problem is {findings[0]}." if findings else "it is empty."


# --- words ---


def counts(labels: np.ndarray) -> str:
    return f"{plural(len(labels), 'image')}, {plural(labels.shape[1], 'tag')}"


def plural(number: int, word: str, plural_word: str = "") -> str:
    return f"{number:,} {word if number == 1 else plural_word or word + 's'}"


def unlisted(rows: list[Row], options: ReadOptions) -> str:
    complete = sum(row.complete for row in rows)
    if options.complete or complete == len(rows):
        return "absent"
    return f"absent in the {plural(complete, 'image')} marked complete, else unknown" if complete else "unknown"
