"""COCO instances JSON, 2014 and 2017: a folder with annotations/instances_*.json, or one such file."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fewtags.data.annotations import Annotations, Finding
from fewtags.data.formats.common import NoImagesError, counts, locate, missing_image, read_head
from fewtags.data.formats.options import ReadOptions
from fewtags.errors import DataError, UserError, did_you_mean
from fewtags.labels import ABSENT, PRESENT

INSTANCES = re.compile(r"instances_(train|val)(\d{4})?")


def detects_coco(path: Path) -> bool:
    if path.is_dir():
        return bool(instance_files(path))
    head = read_head(path) if path.suffix.lower() == ".json" else ""
    return head.startswith("{") and any(f'"{key}"' in head for key in ("info", "images", "annotations", "categories"))


def instance_files(folder: Path) -> list[Path]:
    files = [*folder.glob("annotations/instances_*.json"), *folder.glob("instances_*.json")]
    return sorted(file for file in files if INSTANCES.fullmatch(file.stem))


def read_coco(path: Path, options: ReadOptions, images: Path | None) -> Annotations:
    files = choose_files(path, options.year) if path.is_dir() else [path]
    root = images or image_root(path)
    findings: list[Finding] = []
    parts = read_parts(files, root, findings)
    categories = parts[0].categories
    if any(part.categories != categories for part in parts):
        raise DataError(f"{files[0]} and {files[1]} have different categories; they cannot be read together.")
    labels = np.concatenate([part.labels for part in parts])
    both = Annotations(
        root,
        [image for part in parts for image in part.images],
        categories,
        labels,
        np.concatenate([part.splits for part in parts]),
        name=parts[0].name,
        findings=findings,
        notes=[f"Read {path} as COCO instances: {counts(labels)}; labels are complete."],
    )
    wanted = options.category_list()
    return both if wanted is None else select_categories(both, wanted)


def read_parts(files: list[Path], root: Path, findings: list[Finding]) -> list[Annotations]:
    """Every file's part; one whose images were not downloaded is left out, as long as there is another."""
    parts, failures = [], []
    for file in files:
        try:
            parts.append(read_instances(file, root, findings))
        except NoImagesError as error:
            failures.append(error)
            findings.append(Finding("missing image", str(file), str(error)))
    if not parts:
        raise failures[0]
    return parts


def choose_files(folder: Path, year: int | None) -> list[Path]:
    """The train and val files of one year."""
    by_year: dict[str, list[Path]] = {}
    for file in instance_files(folder):
        by_year.setdefault(file.stem[-4:] if file.stem[-1].isdigit() else "", []).append(file)
    if year is not None and str(year) not in by_year:
        raise UserError(f"{folder} holds no instances_*{year}.json; it holds the years {', '.join(by_year) or 'none'}.")
    if year is None and len(by_year) > 1:
        raise UserError(f"{folder} holds instances of {', '.join(sorted(by_year))}; choose one with year=.")
    return next(iter(by_year.values())) if year is None else by_year[str(year)]


def image_root(path: Path) -> Path:
    if path.is_dir():
        return path
    return path.parent.parent if path.parent.name == "annotations" else path.parent


def read_instances(file: Path, root: Path, findings: list[Finding]) -> Annotations:
    """One file. Rows follow its `images`, also those without a box; columns follow the category ids."""
    content = load(file)
    try:
        names = {int(category["id"]): str(category["name"]) for category in content["categories"]}
        records = [(int(image["id"]), str(image["file_name"])) for image in content["images"]]
        marks = [(int(mark["image_id"]), int(mark["category_id"])) for mark in content["annotations"]]
    except KeyError as error:
        raise DataError(f"{file} should be COCO instances, but an entry lacks {error}.") from None
    except (TypeError, ValueError) as error:
        raise DataError(f"{file} should be COCO instances, but an entry is malformed: {error}.") from None
    if not records or not names:
        raise DataError(f"{file} has {len(records)} images and {len(names)} categories; it needs both.")
    column = {key: c for c, key in enumerate(sorted(names))}
    row_of = {key: row for row, (key, _) in enumerate(records)}  # by image id: never by position
    labels = np.full((len(records), len(names)), ABSENT, dtype=np.int8)
    for number, (image, category) in enumerate(marks):
        if image in row_of and category in column:
            labels[row_of[image], column[category]] = PRESENT
        else:
            findings.append(stray_mark(file, number, "image" if image not in row_of else "category", image, category))
    return with_existing_images(file, root, [name for _, name in records], labels, [names[c] for c in column], findings)


def load(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_bytes())
    except (ValueError, OSError, RecursionError) as error:
        raise DataError(f"{file} cannot be read as JSON: {error}.") from None
    for key in ("images", "annotations", "categories"):
        if not isinstance(content, dict) or not isinstance(content.get(key), list):
            raise DataError(f"{file} should be COCO instances; it has no list called '{key}'.")
    return content


def stray_mark(file: Path, number: int, what: str, image: int, category: int) -> Finding:
    value = image if what == "image" else category
    message = f"annotation {number} belongs to {what} {value!r}, which the file does not list; it was left out"
    return Finding(f"unknown {what}", str(file), message)


def with_existing_images(
    file: Path, root: Path, names: list[str], labels: np.ndarray, categories: list[str], findings: list[Finding]
) -> Annotations:
    """The images are in a folder called as the file (train2014), in images/, or in the root itself."""
    match = INSTANCES.fullmatch(file.stem)
    split, year = match.groups() if match else ("val" if "val" in file.stem else "train", None)
    folder_name = f"{split}{year or ''}"
    roots = [root / folder_name, root / "images" / folder_name, root / "images", root]
    folder, found = locate(names, roots, file)
    rows = [row for row, image in enumerate(found) if image is not None]
    for name, image in zip(names, found, strict=True):
        if image is None:
            findings.append(missing_image(str(file), name, folder))
    images = [(folder.relative_to(root) / str(found[row])).as_posix() for row in rows]
    splits = np.full(len(rows), "train" if split == "train" else "test")
    return Annotations(root, images, categories, labels[rows], splits, name=f"coco{year}" if year else file.stem)


def select_categories(annotations: Annotations, names: list[str]) -> Annotations:
    for name in names:
        if name not in annotations.categories:
            raise UserError(f"The data has no category '{name}'; {did_you_mean(name, annotations.categories)}")
    columns = [annotations.categories.index(name) for name in names]
    return replace(annotations, categories=names, labels=annotations.labels[:, columns])
