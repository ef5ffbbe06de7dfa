"""Visual Genome objects.json: the most frequent object names as categories (VG-200) and a seeded test split."""

from __future__ import annotations

import json
import posixpath
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fewtags.data.annotations import Annotations, Finding
from fewtags.data.formats.common import ImageFolder, counts, missing_image, read_head
from fewtags.data.formats.options import ReadOptions
from fewtags.errors import DataError, UserError
from fewtags.labels import ABSENT, PRESENT

IMAGE_FOLDERS = ("VG_100K", "VG_100K_2", "images/VG_100K", "images/VG_100K_2", "images", "")
CHUNK = 1 << 22  # objects.json has 400 MB: it is read in pieces of this many characters


def detects_visual_genome(path: Path) -> bool:
    if path.is_dir():
        return (path / "objects.json").is_file()
    head = read_head(path) if path.suffix.lower() == ".json" else ""
    return head.startswith("[") and '"objects"' in head


def read_visual_genome(path: Path, options: ReadOptions, images: Path | None) -> Annotations:
    file = path / "objects.json" if path.is_dir() else path
    root = images or file.parent
    findings: list[Finding] = []
    names_of = existing_images(file, root, dict(sorted(read_objects(file, findings))), findings)
    frequency = Counter(name for names in names_of.values() for name in names)
    categories = options.category_list() or most_frequent(frequency, options.num_categories)
    column = {name: c for c, name in enumerate(categories)}
    labels = np.full((len(names_of), len(categories)), ABSENT, dtype=np.int8)
    for row, names in enumerate(names_of.values()):
        labels[row, [column[name] for name in names if name in column]] = PRESENT
    return Annotations(
        root,
        list(names_of),
        categories,
        labels,
        draw_test_split(len(names_of), options),
        name=f"vg{len(categories)}",
        findings=findings,
        notes=[
            f"Read {file} as Visual Genome: {counts(labels)}, of {len(frequency):,} object names; "
            "an object that is not listed counts as absent, although Visual Genome does not list everything."
        ],
    )


def read_objects(file: Path, findings: list[Finding]) -> Iterator[tuple[int, set[str]]]:
    """Each image's id and its object names, in lower case and without outer blanks."""
    for number, item in enumerate(stream_array(file)):
        try:
            key = int(item["image_id"] if "image_id" in item else item["id"])
            names = {sys.intern(str(name).strip().lower()) for thing in item["objects"] for name in thing["names"]}
        except (KeyError, TypeError, ValueError):
            message = f"entry {number} has no image_id or no objects with names; it was left out"
            findings.append(Finding("malformed entry", str(file), message))
        else:
            yield key, names - {""}


def stream_array(file: Path) -> Iterator[Any]:
    """The items of a JSON array, one by one: the whole of Visual Genome parsed at once takes gigabytes."""
    decoder = json.JSONDecoder()
    with file.open(encoding="utf-8", errors="replace") as stream:
        text = stream.read(CHUNK).lstrip()
        if not text.startswith("["):
            raise DataError(f"{file} should be a JSON list of images with their objects; it does not begin with '['.")
        text = text[1:]
        position = 0
        while True:
            while position < len(text) and text[position] in " \t\r\n,":
                position += 1
            if text.startswith("]", position):
                return
            try:
                item, position = decoder.raw_decode(text, position)
            except (json.JSONDecodeError, RecursionError):
                more = stream.read(CHUNK)
                if not more:
                    raise DataError(f"{file} is cut off or is not valid JSON near its end.") from None
                text, position = text[position:] + more, 0
                continue
            yield item


def existing_images(
    file: Path, root: Path, names_of: dict[int, set[str]], findings: list[Finding]
) -> dict[str, set[str]]:
    """Image file -> object names, in the order of the image ids; images without a file are left out."""
    folders = {folder: ImageFolder(root / folder) for folder in IMAGE_FOLDERS}
    existing = {}
    for key, names in names_of.items():
        found = (posixpath.join(name, image) for name, folder in folders.items() if (image := folder.find(str(key))))
        if image := next(found, None):
            existing[image] = names
        else:
            findings.append(missing_image(str(file), f"{key}.jpg", root))
    if not existing:
        raise DataError(f"None of the {len(names_of):,} images that {file} names is in {root} or its VG_100K folders.")
    return existing


def most_frequent(frequency: Counter[str], number: int) -> list[str]:
    """By the number of images that show it; equal counts in alphabetical order."""
    return [name for name, _ in sorted(frequency.items(), key=lambda entry: (-entry[1], entry[0]))[:number]]


def draw_test_split(num_images: int, options: ReadOptions) -> np.ndarray:
    """`test_images` images, drawn without replacement from those sorted by id. Given lists replace this later."""
    splits = np.full(num_images, "train")
    if options.train_list is None and options.test_list is None:
        if options.test_images >= num_images:
            raise UserError(
                f"test_images={options.test_images} leaves no training image, as there are {num_images}; set it lower."
            )
        splits[np.random.default_rng(options.split_seed).permutation(num_images)[: options.test_images]] = "test"
    return splits
