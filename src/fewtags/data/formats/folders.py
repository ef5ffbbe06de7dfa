"""One folder of images per tag."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path, PurePosixPath

from fewtags.data.annotations import Annotations, Finding
from fewtags.data.formats.options import ReadOptions
from fewtags.data.formats.rows import SPLIT_WORDS, Row, assemble
from fewtags.data.image_files import Skipped, walk_images
from fewtags.errors import UserError
from fewtags.wording import plural

# 2019, 2019-05, 2019_05_31, 20190531, "2019-05 Rome"; and what cameras call their folders
DATE = re.compile(r"(19|20)\d\d([-_. ]?(0?[1-9]|1[0-2])([-_. ]?([0-2]?\d|3[01]))?)?(\D.*)?")
CAMERA = re.compile(r"DCIM|\d{3}[A-Z_]{5}|\d{3}_\d{4}|Camera( Roll)?|Import(s|ed)?", re.IGNORECASE)


def detects_folders(path: Path) -> bool:
    if not path.is_dir():
        return False
    images = walk_images(path)
    first = next(images, None)
    return first is not None and "/" in first and all("/" in image for image in images)


def read_folders(path: Path, options: ReadOptions, images: Path | None) -> Annotations:
    """The first folder below the root is the tag; if the first level is train, val, test, the second one is."""
    skipped = Skipped()
    found = [PurePosixPath(image) for image in walk_images(path, skipped)]
    below = [image for image in found if len(image.parts) > 1]
    if not below:
        raise UserError(f"{path} has no subfolder with images; 'folders' needs one folder per tag.")
    with_splits = all(image.parts[0].lower() in SPLIT_WORDS and len(image.parts) > 2 for image in below)
    same = first_copies(path, below)
    rows = []
    for image in below:
        tag, split = (image.parts[1], image.parts[0]) if with_splits else (image.parts[0], "")
        rows.append(Row(str(same[image]), str(path / image), {tag}, split=split))
    copies = plural(len(below) - len(set(same.values())), "copy", "copies")
    findings = [
        Finding("no tag", str(path / image), "the image is not in a tag folder; it was skipped")
        for image in found
        if len(image.parts) == 1
    ]
    findings += doubtful_tags(path, {tag for row in rows for tag in row.present})
    note = f"Read {path}: one folder per tag, {copies} of an image merged"
    annotations = assemble(
        rows, file=path, roots=[path], options=options, name=folder_name(path), note=note, findings=findings
    )
    annotations.notes.extend(finding.message for finding in findings if finding.kind == "doubtful tags")
    annotations.notes.extend(filter(None, [skipped.sentence(path)]))
    return annotations


def has_tag_folders(path: Path) -> bool:
    """Is every image in a folder, and do the folder names look like tags?"""
    if not detects_folders(path):
        return False
    names = {PurePosixPath(image).parts[0] for image in walk_images(path)}
    return not dates_among(names)


def dates_among(names: set[str]) -> list[str]:
    """The names that look like dates, if most of them do; else none."""
    dates = sorted(name for name in names if DATE.fullmatch(name) or CAMERA.fullmatch(name))
    return dates if 2 * len(dates) > len(names) else []


def doubtful_tags(path: Path, tags: set[str]) -> list[Finding]:
    """A folder tree by year says how photos are stored, not what they show."""
    dates = dates_among(tags)
    if not dates:
        return []
    more = f" and {len(dates) - 4} more" if len(dates) > 4 else ""
    message = (
        f"The folders {', '.join(dates[:4])}{more} were read as tags, but they look like dates; if they are not tags, "
        "pass a tag file (--tags), or read the keywords of the photos (--format keywords)."
    )
    return [Finding("doubtful tags", str(path), message)]


def first_copies(root: Path, images: list[PurePosixPath]) -> dict[PurePosixPath, PurePosixPath]:
    """Image -> the first image with the same file name and content: one image in two tag folders."""
    by_name: dict[str, list[PurePosixPath]] = {}
    for image in images:
        by_name.setdefault(image.name, []).append(image)
    first: dict[PurePosixPath, PurePosixPath] = {}
    for same_name in by_name.values():
        by_content: dict[str, PurePosixPath] = {}
        for image in same_name:
            content = hashlib.sha256((root / image).read_bytes()).hexdigest() if len(same_name) > 1 else ""
            first[image] = by_content.setdefault(content, image)
    return first


def folder_name(path: Path) -> str:
    return path.resolve().name
