"""Visual Genome: objects.json, whose most frequent object names are the categories, with a seeded test split; or the
files of the paper's authors (vg_category_200_labels_index.json and two lists), which are their VG-200 row by row.
"""

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
from fewtags.data.formats.options import ReadOptions, read_lines
from fewtags.data.formats.rows import Row, counts, label_rows
from fewtags.data.formats.text import read_head, whole_number
from fewtags.data.tag_names import tidy_rows
from fewtags.errors import DataError, UserError

IMAGE_FOLDERS = ("VG_100K", "VG_100K_2", "images/VG_100K", "images/VG_100K_2", "images", "")
LABELS_INDEX = "vg_category_*_labels_index.json"
LISTS = {"train": "train_list_*.txt", "test": "test_list_*.txt"}  # the authors' file names
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
        return (path / "objects.json").is_file() or any(path.glob(LABELS_INDEX))
    if path.match(LABELS_INDEX):
        return True
    head = read_head(path) if path.suffix.lower() == ".json" else ""
    return head.startswith("[") and '"objects"' in head


def read_visual_genome(path: Path, options: VisualGenomeOptions, images: Path | None) -> Annotations:
    labels_index = labels_index_of(path)
    if labels_index is not None:
        return read_labels_index(labels_index, options, images)
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
    tree = names.tree.restricted(categories)
    return replace(annotations, splits=draw_test_split(len(rows), options), renamed_tags=names.changes, tree=tree)


# --- the files of the paper's authors ---


def labels_index_of(path: Path) -> Path | None:
    """The file itself, or the one in the folder: it takes precedence over objects.json, as it allows comparison with
    the paper."""
    if not path.is_dir():
        return path if path.match(LABELS_INDEX) else None
    found = sorted(path.glob(LABELS_INDEX))
    if len(found) > 1:
        raise UserError(f"{path} has {found[0].name} and {found[1].name}; pass the file to read.")
    return found[0] if found else None


def read_labels_index(file: Path, options: VisualGenomeOptions, images: Path | None) -> Annotations:
    """{"2328403.jpg": [3, 17], ...}: category numbers of each image. Rows are in the order of the lists, because the
    authors draw the labels that stay known in that order."""
    root, findings = images or file.parent, list[Finding]()
    numbers_of = read_category_numbers(file)
    names = numbered_categories(numbers_of, options)
    listed = {split: read_lines(list_of(file.parent, split, options)) for split in LISTS}
    folders = {folder: ImageFolder(root / folder) for folder in IMAGE_FOLDERS}
    rows, num_missing = [], 0
    for split, lines in listed.items():
        for line in lines:
            image = find_in(folders, line)
            if image is None or line not in numbers_of:
                num_missing += 1
                if image is None:
                    findings.append(missing_image(str(file), line, root))
                else:
                    findings.append(Finding("missing annotation", str(file), f"it has no entry for {line}"))
                continue
            present = {names[number] for number in numbers_of[line] if number < len(names)}
            rows.append(Row(image, str(file), present, split=split, complete=True))
    if not rows:
        raise DataError(f"None of the listed images is in {root} or its VG_100K folders, or in {file}.")
    order = (
        "Rows are in the order of the lists, so data.mask_seed=0 keeps the same labels as its authors."
        if not num_missing
        else f"{num_missing:,} of the listed images are missing, so different labels stay known than in the paper."
    )
    annotations = label_rows(
        rows,
        root,
        source=file,
        options=options.model_copy(update={"categories": names}),
        name=f"vg{len(names)}",
        describe=lambda labels: f"Read {file} as Visual Genome: {counts(labels)}; unlisted objects count as absent.",
        findings=findings,
        categories=names,
        notes=[order],
    )
    return annotations


def read_category_numbers(file: Path) -> dict[str, list[int]]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        return {str(image): [whole_number(number) for number in numbers] for image, numbers in content.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise DataError(f'{file} should be {{"image.jpg": [numbers of its categories], ...}} ({error}).') from None


def numbered_categories(numbers_of: dict[str, list[int]], options: VisualGenomeOptions) -> list[str]:
    """The first `num_categories`; their names were not published, so they are numbers unless given."""
    highest = max((number for numbers in numbers_of.values() for number in numbers), default=-1)
    number = min(options.num_categories, highest + 1)
    names = options.category_list()
    if names is None:
        return [f"category {each}" for each in range(number)]
    if len(names) < number:
        raise UserError(f"categories has {len(names)} names for {number} numbered categories; pass all in order.")
    return names[:number]


def list_of(folder: Path, split: str, options: VisualGenomeOptions) -> Path:
    given = options.train_list if split == "train" else options.test_list
    if given is not None:
        return given
    found = sorted(folder.glob(LISTS[split]))
    if len(found) != 1:
        what = "no" if not found else "several"
        raise UserError(f"{folder} has {what} {LISTS[split]}; pass the list as the option {split}_list.")
    return found[0]


def find_in(folders: dict[str, ImageFolder], name: str) -> str | None:
    found = (posixpath.join(folder, image) for folder, files in folders.items() if (image := files.find(name)))
    return next(found, None)


# --- objects.json ---


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
        if image := find_in(folders, str(key)):
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
