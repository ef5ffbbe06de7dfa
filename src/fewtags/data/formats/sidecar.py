"""Images with same-name .txt files of tags."""

from __future__ import annotations

import os
from pathlib import Path

from fewtags.data.annotations import Annotations, Finding
from fewtags.data.formats.folders import folder_name
from fewtags.data.formats.options import ReadOptions
from fewtags.data.formats.rows import Row, assemble
from fewtags.data.formats.tables import TAG_TABLE
from fewtags.data.formats.text import read_text
from fewtags.data.image_files import Skipped, walk_images
from fewtags.errors import UserError


class SidecarOptions(ReadOptions):
    separator: str | None = None
    """Separator between tags. Default: commas and line breaks."""


def detects_sidecar(path: Path) -> bool:
    if not path.is_dir() or tag_table(path) is not None:  # booru sets have their own reader
        return False
    return any(sidecar(path / image).is_file() for image in walk_images(path))


def sidecar(image: Path) -> Path:
    """`cat.jpg` -> `cat.jpg.txt` if it exists, else `cat.txt`."""
    longer = image.with_name(image.name + ".txt")
    return longer if os.path.isfile(longer) else image.with_suffix(".txt")  # False if the name is too long


def read_sidecar(path: Path, options: SidecarOptions, images: Path | None) -> Annotations:
    if not path.is_dir():
        raise UserError(f"{path} should be a folder of images with same-name .txt files; it is a file.")
    rows = []
    findings: list[Finding] = []
    skipped = Skipped()
    for image in walk_images(path, skipped):
        file = sidecar(path / image)
        tags = read_tags(file, options.separator, findings) if file.is_file() else set()
        rows.append(Row(image, str(file), tags, listed=file.is_file()))
    untagged = sum(not row.present for row in rows)
    note = f"Read {path}: images with same-name .txt files, {untagged:,} without tags"
    annotations = assemble(
        rows, file=path, roots=[path], options=options, name=folder_name(path), note=note, findings=findings
    )
    annotations.notes.extend(filter(None, [skipped.sentence(path)]))
    return annotations


def read_tags(file: Path, separator: str | None, findings: list[Finding]) -> set[str]:
    try:
        text, _ = read_text(file)
    except UserError as error:
        findings.append(Finding("malformed file", str(file), f"{error} The image is kept without tags"))
        return set()
    return split_tags(text, separator)


def tag_table(folder: Path) -> Path | None:
    """The table of tags and counts that comes with taggers for drawings."""
    file = folder / TAG_TABLE
    return file if file.is_file() else None


def split_tags(text: str, separator: str | None = None) -> set[str]:
    return {tag.strip() for line in text.splitlines() for tag in line.split(separator or ",") if tag.strip()}
