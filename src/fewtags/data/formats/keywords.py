"""Keywords in and next to photos: embedded XMP, IPTC and Windows keywords, and .xmp sidecars."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Literal

from fewtags.data.aliases import fold
from fewtags.data.annotations import Annotations, Finding
from fewtags.data.formats.folders import folder_name, has_tag_folders
from fewtags.data.formats.options import ReadOptions
from fewtags.data.formats.rows import Row, assemble
from fewtags.data.image_files import Skipped, walk_images
from fewtags.data.photo_keywords import BadKeywords, embedded_keywords, read_sidecar, sidecars
from fewtags.data.tag_tree import SEPARATOR, TagTree
from fewtags.data.xmp import Keywords
from fewtags.errors import DataError, UserError
from fewtags.wording import plural

NUM_SAMPLED = 200  # photos opened to detect keywords
NUM_LISTED = 50_000  # out of at most this many
ENOUGH = 0.2  # of the sampled photos have keywords: then folder names are not the tags
READERS = 8  # threads


class KeywordOptions(ReadOptions):
    where: Literal["both", "embedded", "sidecar"] = "both"
    """Read keywords in the photos, in .xmp files next to them, or both."""
    predicted: bool = False
    """Also read the keywords written by `fewtags predict --write xmp`, as if a person had written them."""


@dataclass
class Found:
    """The keywords of one photo, and the errors."""

    keywords: Keywords = field(default_factory=Keywords)
    findings: list[Finding] = field(default_factory=list)


def detects_keywords(path: Path) -> bool:
    """Opens only a sample of the photos and .xmp files."""
    if not path.is_dir():
        return False
    images = list(islice(walk_images(path), NUM_LISTED))
    photos = spread(images, NUM_SAMPLED)
    with quiet_pillow():
        tagged = sum(bool(read_photo(path / image, "embedded").keywords) for image in photos)
    if photos and tagged >= ENOUGH * len(photos):
        return True
    with_sidecar = spread([image for image in images if sidecars(path / image)], NUM_SAMPLED) if has_xmp(path) else []
    tagged += sum(bool(read_photo(path / image, "sidecar").keywords) for image in with_sidecar)
    return tagged > 0 and not has_tag_folders(path)


@contextmanager
def quiet_pillow() -> Iterator[None]:
    """Without Pillow's warnings about odd EXIF data, which say nothing about keywords."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def spread(items: Sequence[str], most: int) -> list[str]:
    """At most `most` of them, evenly spaced."""
    step = -(-len(items) // most) or 1
    return list(items[::step])


def has_xmp(path: Path) -> bool:
    return any(name.lower().endswith(".xmp") for _, _, files in os.walk(path) for name in files)


def read_keywords(path: Path, options: KeywordOptions, images: Path | None) -> Annotations:
    if not path.is_dir():
        raise UserError(f"{path} should be a folder of photos with keywords; it is a file.")
    skipped = Skipped()
    names = list(walk_images(path, skipped))
    if not names:
        raise DataError(f"{path} contains no readable photos. {skipped.sentence(path)}".rstrip())
    with quiet_pillow(), ThreadPoolExecutor(READERS) as pool:
        photos = list(pool.map(lambda name: read_photo(path / name, options.where), names))
    findings = [finding for photo in photos for finding in photo.findings]
    rows, num_skipped = [], 0
    for name, photo in zip(names, photos, strict=True):
        places = photo.keywords.places()
        own = set() if options.predicted else {fold(tag) for tag in photo.keywords.predicted}
        kept = {SEPARATOR.join(place) for place in places if fold(place[-1]) not in own}
        num_skipped += len({fold(place[-1]) for place in places} & own)
        denied = set() if options.predicted else set(photo.keywords.rejected)
        rows.append(Row(name, str(path / name), kept, denied, listed=bool(places)))
    if not any(row.present for row in rows):
        raise DataError(f"None of the {len(rows):,} photos in {path} has a keyword. {no_keywords(findings)}".rstrip())
    untagged, denials = sum(not row.present for row in rows), sum(len(row.absent) for row in rows)
    note = f"Read {path}: keywords in and next to the photos, {untagged:,} without; folder names are not read as tags"
    annotations = assemble(
        rows, file=path, roots=[path], options=options, name=folder_name(path), note=note, findings=findings
    )
    if num_skipped:
        words = plural(num_skipped, "keyword")
        annotations.notes.append(f"{words} written by fewtags itself skipped (predicted=true reads them).")
    if denials:
        annotations.notes.append(f"{plural(denials, 'keyword')} written by fewtags and removed by a person: absent.")
    annotations.notes.extend(filter(None, [skipped.sentence(path)]))
    return replace(annotations, tree=with_habits(annotations.tree, [photo.keywords for photo in photos]))


def with_habits(tree: TagTree, photos: Sequence[Keywords]) -> TagTree:
    """How people, or their programs, write keywords with levels: is the one above listed too, and is it among the flat
    ones?"""
    lists_parents, flat_parents = Counter[bool](), Counter[bool]()
    for photo in photos:
        paths, flat = set(photo.paths), {fold(keyword) for keyword in photo.flat}
        for path in paths:
            if len(path) > 1:
                lists_parents[path[:-1] in paths] += 1
                if fold(path[-1]) in flat:
                    flat_parents[fold(path[-2]) in flat] += 1
    return replace(
        tree,
        lists_parents=lists_parents[True] > lists_parents[False],
        flat_parents=flat_parents[True] >= flat_parents[False],
    )


def no_keywords(findings: list[Finding]) -> str:
    return f"The first problem is {findings[0]}." if findings else ""


def read_photo(path: Path, where: str) -> Found:
    found = Found()
    if where != "sidecar":
        try:
            found.keywords.add(embedded_keywords(path))
        except BadKeywords as error:
            found.findings.append(unreadable(path, error))
    for file in sidecars(path) if where != "embedded" else ():
        try:
            found.keywords.add(read_sidecar(file))
        except BadKeywords as error:
            found.findings.append(unreadable(file, error))
    return found


def unreadable(file: Path, error: BadKeywords) -> Finding:
    return Finding("unreadable keywords", str(file), f"{error}; the photo is kept without them")
