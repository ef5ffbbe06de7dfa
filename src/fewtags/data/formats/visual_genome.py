"""Visual Genome objects.json: the most frequent object names as categories (VG-200) and a seeded test split."""

from __future__ import annotations

import heapq
import json
import posixpath
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from fewtags.data.annotations import Annotations, Finding
from fewtags.data.formats.locate import ImageFolder, missing_image
from fewtags.data.formats.options import ReadOptions
from fewtags.data.formats.rows import Row, counts, label_rows
from fewtags.data.formats.text import read_head, whole_number
from fewtags.data.tag_names import tidy_rows
from fewtags.errors import DataError, UserError

IMAGE_FOLDERS = ("VG_100K", "VG_100K_2", "images/VG_100K", "images/VG_100K_2", "images", "")
CHUNK = 1 << 22  # objects.json has 400 MB: it is read in chunks of this many characters


class VisualGenomeOptions(ReadOptions):
    num_categories: int = Field(200, ge=1)
    """Number of categories: the most frequent names."""
    test_images: int = Field(10_000, ge=0)
    """Number of test images, drawn at random if no list is given."""
    split_seed: int = Field(0, ge=0)
    """The seed of that draw."""


def detects_visual_genome(path: Path) -> bool:
    if path.is_dir():
        return (path / "objects.json").is_file()
    head = read_head(path) if path.suffix.lower() == ".json" else ""
    return head.startswith("[") and '"objects"' in head


def read_visual_genome(path: Path, options: VisualGenomeOptions, images: Path | None) -> Annotations:
    file = path / "objects.json" if path.is_dir() else path
    root = images or file.parent
    findings: list[Finding] = []
    names_of = existing_images(file, root, dict(sorted(read_objects(file, findings))), findings)
    rows = [Row(image, str(file), names, complete=True) for image, names in names_of.items()]
    wanted = options.category_list()
    names = tidy_rows(rows, options.tag_rules(), wanted)
    frequency = Counter(name for row in rows for name in row.present)
    categories = wanted or most_frequent(frequency, options.num_categories)
    for row in rows:
        row.present.intersection_update(categories)  # 80,000 other names are neither categories nor findings
    annotations = label_rows(
        rows,
        root,
        source=file,
        options=options.model_copy(update={"aliases": None, "min_images": 0}),  # applied above
        name=f"vg{len(categories)}",
        describe=lambda labels: (
            f"Read {file} as Visual Genome: {counts(labels)}, of {len(frequency):,} object names; "
            "an object that is not listed counts as absent, although Visual Genome does not list everything."
        ),
        findings=findings,
        categories=categories,
        notes=names.notes,
    )
    return replace(annotations, splits=draw_test_split(len(rows), options), renamed_tags=names.changes)


def read_objects(file: Path, findings: list[Finding]) -> Iterator[tuple[int, set[str]]]:
    """Each image's id and its object names, lower-cased and stripped."""
    for number, item in enumerate(stream_array(file)):
        try:
            key = whole_number(item["image_id"] if "image_id" in item else item["id"])
            names = {sys.intern(str(name).strip().lower()) for thing in item["objects"] for name in thing["names"]}
        except (KeyError, TypeError, ValueError):
            message = f"entry {number} has no image_id or no objects with names; it was skipped"
            findings.append(Finding("malformed entry", str(file), message))
        else:
            yield key, names - {""}


def stream_array(file: Path) -> Iterator[Any]:
    """The items of a JSON array, one by one: parsing all of Visual Genome at once takes gigabytes."""
    decoder = json.JSONDecoder()
    with file.open(encoding="utf-8", errors="replace") as stream:
        text = stream.read(CHUNK).lstrip()
        if not text.startswith("["):
            raise DataError(f"{file} should be a JSON list of images with their objects; it does not start with '['.")
        text = text[1:]
        position, wanted = 0, CHUNK
        while True:
            while position < len(text) and text[position] in " \t\r\n,":
                position += 1
            if text.startswith("]", position):
                return
            try:
                item, position = decoder.raw_decode(text, position)
                wanted = CHUNK
            except (ValueError, RecursionError):
                more = stream.read(wanted)
                if not more:
                    raise DataError(f"{file} is cut off or is not valid JSON near its end.") from None
                text, position = text[position:] + more, 0
                wanted = 2 * len(text)  # a long item is retried a few times, not once per chunk
                continue
            yield item


def existing_images(
    file: Path, root: Path, names_of: dict[int, set[str]], findings: list[Finding]
) -> dict[str, set[str]]:
    """Image file -> object names, in the order of the image ids; images without a file are skipped."""
    folders = {folder: ImageFolder(root / folder) for folder in IMAGE_FOLDERS}
    existing = {}
    for key, names in names_of.items():
        found = (posixpath.join(name, image) for name, folder in folders.items() if (image := folder.find(str(key))))
        if image := next(found, None):
            existing[image] = names
        else:
            findings.append(missing_image(str(file), f"{key}.jpg", root))
    if not existing:
        raise DataError(f"None of the {len(names_of):,} images listed in {file} is in {root} or its VG_100K folders.")
    return existing


def most_frequent(frequency: Counter[str], number: int) -> list[str]:
    """By number of images; ties in alphabetical order."""
    first = heapq.nsmallest(number, frequency.items(), key=lambda entry: (-entry[1], entry[0]))
    return [name for name, _ in first]


def draw_test_split(num_images: int, options: VisualGenomeOptions) -> np.ndarray:
    """`test_images` images, drawn without replacement from those sorted by id. List files override this later."""
    splits = np.full(num_images, "train")
    if options.train_list is None and options.test_list is None:
        if options.test_images >= num_images:
            raise UserError(
                f"test_images={options.test_images} leaves no training images, as there are {num_images}; lower it."
            )
        splits[np.random.default_rng(options.split_seed).permutation(num_images)[: options.test_images]] = "test"
    return splits
