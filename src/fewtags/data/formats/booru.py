"""Drawings with booru tags: .json files next to the images, or .txt files with selected_tags.csv and its counts.

a.jpg  a.json        from gallery-dl, DanbooruDownloader and waifuc: tag_string, tags, tags_general, ...
a.jpg  a.txt         1girl, long_hair, looking_at_viewer
selected_tags.csv    tag_id,name,category,count: the tags to use, with the number of posts that have each
"""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from fewtags.data.aliases import fold
from fewtags.data.annotations import Annotations, Finding
from fewtags.data.formats.folders import folder_name
from fewtags.data.formats.options import ReadOptions
from fewtags.data.formats.rows import Row, assemble
from fewtags.data.formats.sidecar import sidecar, tag_table
from fewtags.data.formats.text import read_text
from fewtags.data.image_files import Skipped, walk_images
from fewtags.errors import DataError, UserError

KINDS = ("general", "character", "copyright", "species")  # what a picture shows; not artist, meta, rating
NUM_SAMPLED = 100
WEIGHTED = re.compile(r"\(?(.+?):\s*\d+(?:\.\d+)?\)?")  # smile:0.97, (smile:1.2), smile:5120


class BooruOptions(ReadOptions):
    kinds: list[str] = Field(default_factory=lambda: list(KINDS))
    """Kinds of tags to read, if the files distinguish them."""
    min_count: int = Field(0, ge=0)
    """Use only tags with at least this many posts in selected_tags.csv."""
    underscores: bool = False
    """Keep long_hair as it is. Default: long hair."""

    @field_validator("kinds", mode="before")
    @classmethod
    def _list_from_text(cls, value: Any) -> Any:
        return [kind.strip() for kind in value.strip("[]").split(",")] if isinstance(value, str) else value


def detects_booru(path: Path) -> bool:
    if not path.is_dir():
        return False
    images = [path / image for image in islice(walk_images(path), NUM_SAMPLED)]
    if tag_table(path) is not None:
        return any(json_sidecar(image) or sidecar(image).is_file() for image in images)
    return any(
        (file := json_sidecar(image)) is not None and json_tags(load(file), KINDS) is not None for image in images
    )


def json_sidecar(image: Path) -> Path | None:
    names = (image.stem + ".json", image.name + ".json", f".{image.stem}_meta.json", image.stem + "-danbooru.json")
    return next((file for file in map(image.with_name, names) if os.path.isfile(file)), None)


def read_booru(path: Path, options: BooruOptions, images: Path | None) -> Annotations:
    if not path.is_dir():
        raise UserError(f"{path} should be a folder of images with tag files; it is a file.")
    table = tag_table(path)
    vocabulary = None if table is None else read_tag_table(table, options)
    skipped = Skipped()
    findings: list[Finding] = []
    rows = []
    for image in walk_images(path, skipped):
        file, tags = sidecar_tags(path / image, options, findings)
        rows.append(Row(image, str(file), set() if tags is None else tags, listed=tags is not None))
    others: set[str] = set()
    if vocabulary is not None:
        others = use_vocabulary(rows, vocabulary)
    untagged = sum(not row.present for row in rows)
    by_table = f", {len(others):,} tags that are not in {table} skipped" if table is not None else ""
    note = f"Read {path}: booru tags next to the images{by_table}, {untagged:,} images without tags"
    annotations = assemble(
        rows, file=path, roots=[path], options=options, name=folder_name(path), note=note, findings=findings
    )
    annotations.notes.extend(filter(None, [skipped.sentence(path)]))
    return annotations


def sidecar_tags(image: Path, options: BooruOptions, findings: list[Finding]) -> tuple[Path, set[str] | None]:
    """The file that was read and its tags, or None if there are none."""
    file = json_sidecar(image)
    if file is not None:
        tags = json_tags(load(file), options.kinds)
        if tags is None:
            findings.append(Finding("malformed file", str(file), "contains no tags; the image is kept without tags"))
    else:
        file, tags = sidecar(image), None
        if file.is_file():
            try:
                tags = list(text_tags(read_text(file)[0]))
            except UserError as error:
                findings.append(Finding("malformed file", str(file), f"{error} The image is kept without tags"))
    return file, None if tags is None else {plain(tag, options.underscores) for tag in tags}


def load(file: Path) -> Any:
    try:
        return json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None


def json_tags(content: Any, kinds: list[str] | tuple[str, ...]) -> list[str] | None:
    """The tags in any of the forms booru tools write; None if there are none."""
    if not isinstance(content, dict):
        return None
    by_kind = [content[key] for kind in kinds for key in (f"tag_string_{kind}", f"tags_{kind}") if key in content]
    tags = content.get("tags")
    if isinstance(tags, dict) and any(isinstance(value, list) for value in tags.values()):
        by_kind += [tags[kind] for kind in kinds if kind in tags]  # e621: {"general": [...], ...}
    found = by_kind or [content[key] for key in ("tags", "tag_string", "tag") if key in content]
    if not found:
        return None
    return [tag for value in found for tag in words(value)]


def words(value: Any) -> list[str]:
    if isinstance(value, str):
        return [tag.strip() for tag in (value.split(",") if "," in value else value.split())]
    if isinstance(value, dict):
        return [str(tag) for tag in value]  # {tag: score}
    return [str(tag) for tag in value] if isinstance(value, list) else []


def text_tags(text: str) -> Iterator[str]:
    """Tags of a .txt file: split at commas or lines, else at spaces; weights or counts after every tag are dropped."""
    text = text.replace(r"\(", "(").replace(r"\)", ")")
    lines = [line for line in text.splitlines() if line.strip()]
    one_line = len(lines) == 1 and "," not in text
    tags = lines[0].split() if one_line else [tag.strip() for line in lines for tag in line.split(",")]
    tags = [tag for tag in tags if tag]
    weighted = [WEIGHTED.fullmatch(tag) for tag in tags]
    for tag, match in zip(tags, weighted, strict=True):
        yield match.group(1) if match and all(weighted) else tag


def plain(tag: str, underscores: bool) -> str:
    """Replaces underscores by spaces, except in emoticons such as ^_^."""
    return tag if underscores or not re.search(r"[^\W_]{2}", tag) else tag.replace("_", " ")


def read_tag_table(file: Path, options: BooruOptions) -> list[str]:
    text, _ = read_text(file)
    try:
        rows = list(csv.DictReader(text.splitlines()))
    except csv.Error as error:
        raise DataError(f"{file} cannot be read as CSV: {error}.") from None
    if not rows or "name" not in rows[0]:
        raise DataError(f"{file} should have a column 'name' with the tags.")
    names = [row["name"] for row in rows if row["name"] and posts(row) >= options.min_count]
    return [plain(name, options.underscores) for name in names]


def posts(row: dict[str, str]) -> float:
    try:
        return float(row.get("count") or "inf")
    except (TypeError, ValueError):
        return float("inf")


def use_vocabulary(rows: list[Row], vocabulary: list[str]) -> set[str]:
    """Keep the tags in the table, spelled as there; returns the others."""
    written = {fold(name.replace("_", " ")): name for name in reversed(vocabulary)}
    others: set[str] = set()
    for row in rows:
        keys = {tag: fold(tag.replace("_", " ")) for tag in row.present}
        others |= {tag for tag, key in keys.items() if key not in written}
        row.present = {written[key] for key in keys.values() if key in written}
    return others
