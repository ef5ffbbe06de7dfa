"""Image folders whose tags are beside the images: same-name .txt files, or one folder per tag."""

from __future__ import annotations

import hashlib
from pathlib import Path, PurePosixPath

from fewtags.data.annotations import Annotations, Finding
from fewtags.data.formats.common import SPLIT_WORDS, Row, assemble, plural, read_text, walk_images
from fewtags.data.formats.options import ReadOptions
from fewtags.errors import UserError

# --- same-name .txt files ---


def detects_sidecar(path: Path) -> bool:
    return path.is_dir() and any(sidecar(path / image).is_file() for image in walk_images(path))


def sidecar(image: Path) -> Path:
    """`cat.jpg` -> `cat.txt`; where only `cat.jpg.txt` exists, that."""
    longer = image.with_name(image.name + ".txt")
    return longer if longer.is_file() else image.with_suffix(".txt")


def read_sidecar(path: Path, options: ReadOptions, images: Path | None) -> Annotations:
    rows, untagged = [], 0
    for image in walk_images(path):
        file = sidecar(path / image)
        tags = read_tags(file, options.separator) if file.is_file() else set()
        untagged += not tags
        rows.append(Row(image, str(file), tags))
    findings: list[Finding] = []
    note = f"Read {path}: images with same-name .txt files, {untagged:,} without tags"
    return assemble(
        rows, file=path, roots=[path], options=options, name=folder_name(path), note=note, findings=findings
    )


def read_tags(file: Path, separator: str | None) -> set[str]:
    text, _ = read_text(file)
    return {tag.strip() for line in text.splitlines() for tag in line.split(separator or ",") if tag.strip()}


# --- one folder per tag ---


def detects_folders(path: Path) -> bool:
    images = list(walk_images(path)) if path.is_dir() else []
    return bool(images) and all("/" in image for image in images)


def read_folders(path: Path, options: ReadOptions, images: Path | None) -> Annotations:
    """The first folder below the root is the tag; where these are train, val, test, the second one is."""
    found = [PurePosixPath(image) for image in walk_images(path)]
    below = [image for image in found if len(image.parts) > 1]
    if not below:
        raise UserError(f"{path} has no folder with images in it; 'folders' needs one folder per tag.")
    with_splits = all(image.parts[0].lower() in SPLIT_WORDS and len(image.parts) > 2 for image in below)
    same = first_copies(path, below)
    rows = []
    for image in below:
        tag, split = (image.parts[1], image.parts[0]) if with_splits else (image.parts[0], "")
        rows.append(Row(str(same[image]), str(path / image), {tag}, split=split))
    copies = plural(len(below) - len(set(same.values())), "copy", "copies")
    findings = [
        Finding("no tag", str(path / image), "the image is in no tag's folder; it was left out")
        for image in found
        if len(image.parts) == 1
    ]
    note = f"Read {path}: one folder per tag, {copies} of an image joined"
    return assemble(
        rows, file=path, roots=[path], options=options, name=folder_name(path), note=note, findings=findings
    )


def first_copies(root: Path, images: list[PurePosixPath]) -> dict[PurePosixPath, PurePosixPath]:
    """Image -> the first image of the same file name and the same bytes: one image in two tags' folders."""
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
