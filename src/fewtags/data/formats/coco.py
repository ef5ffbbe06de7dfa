"""COCO instances JSON, 2014 and 2017: a folder with annotations/instances_*.json, or one such file.

Image-level files in the same style, whose annotations have `category_ids` or no box, are read too.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

from fewtags.data.aliases import fold
from fewtags.data.annotations import Annotations, Finding
from fewtags.data.formats.locate import NoImagesError, locate
from fewtags.data.formats.megadetector import is_results_file
from fewtags.data.formats.options import ReadOptions
from fewtags.data.formats.rows import Row, counts, label_rows, merge
from fewtags.data.formats.text import load_json, read_head, whole_number
from fewtags.errors import DataError, UserError, did_you_mean

INSTANCES = re.compile(r"instances_(train|val)(\d{4})?")


class CocoOptions(ReadOptions):
    year: int | None = None
    """Which year to read when a folder holds several."""


class Part(NamedTuple):
    """One file: its rows, its categories in the order of their ids, and the dataset's name."""

    rows: list[Row]
    categories: list[str]
    name: str


def detects_coco(path: Path) -> bool:
    if path.is_dir():
        return bool(instance_files(path))
    head = read_head(path) if path.suffix.lower() == ".json" else ""
    mine = any(f'"{key}"' in head for key in ("info", "images", "annotations", "categories"))
    others = is_results_file(path) or any(f'"{key}"' in head for key in ("samples", "classes"))
    return head.startswith("{") and mine and not others


def instance_files(folder: Path) -> list[Path]:
    files = [*folder.glob("annotations/instances_*.json"), *folder.glob("instances_*.json")]
    return sorted(file for file in files if INSTANCES.fullmatch(file.stem))


def read_coco(path: Path, options: CocoOptions, images: Path | None) -> Annotations:
    files = choose_files(path, options.year) if path.is_dir() else [path]
    root = images or image_root(path)
    findings: list[Finding] = []
    parts = read_parts(files, root, findings)
    categories = parts[0].categories
    if any(part.categories != categories for part in parts):
        raise DataError(f"{files[0]} and {files[1]} have different categories; they cannot be read together.")
    if options.aliases is None:
        check_wanted(options.category_list() or [], categories)
    return label_rows(
        merge([row for part in parts for row in part.rows], findings),
        root,
        source=path,
        options=options,
        name=parts[0].name,
        describe=lambda labels: f"Read {path} as COCO instances: {counts(labels)}; labels are complete.",
        findings=findings,
        categories=categories,
        report_others=False,
    )


def read_parts(files: list[Path], root: Path, findings: list[Finding]) -> list[Part]:
    """Every file's part; one whose images were not downloaded is skipped, as long as there is another."""
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
        raise UserError(f"{folder} has no instances_*{year}.json; it has the years {', '.join(by_year) or 'none'}.")
    if year is None and len(by_year) > 1:
        raise UserError(f"{folder} has instances of {', '.join(sorted(by_year))}; choose one with year=.")
    if not by_year:
        raise UserError(f"{folder} has no instances_train*.json or instances_val*.json; pass the file as the tags.")
    return next(iter(by_year.values())) if year is None else by_year[str(year)]


def image_root(path: Path) -> Path:
    if path.is_dir():
        return path
    return path.parent.parent if path.parent.name == "annotations" else path.parent


def read_instances(file: Path, root: Path, findings: list[Finding]) -> Part:
    """One file. Rows follow its `images`, including those without a box; columns follow the category ids."""
    content = load(file)
    try:
        names = {whole_number(category["id"]): str(category["name"]) for category in content["categories"]}
        records = [(whole_number(image["id"]), str(image["file_name"])) for image in content["images"]]
        marks = [(whole_number(mark["image_id"]), categories_of(mark)) for mark in content["annotations"]]
    except KeyError as error:
        raise DataError(f"{file} should be COCO instances, but an entry lacks {error}.") from None
    except (TypeError, ValueError) as error:
        raise DataError(f"{file} should be COCO instances, but an entry is malformed: {error}.") from None
    if not records or not names:
        raise DataError(f"{file} has {len(records)} images and {len(names)} categories; it needs both.")
    present: dict[int, set[str]] = {key: set() for key, _ in records}  # by image id: never by position
    for number, (image, categories) in enumerate(marks):
        for category in categories:
            if image in present and category in names:
                present[image].add(names[category])
            else:
                what = "image" if image not in present else "category"
                findings.append(stray_mark(file, number, what, image, category))
    return with_existing_images(file, root, records, present, [names[key] for key in sorted(names)], findings)


def categories_of(mark: dict[str, Any]) -> list[int]:
    if "category_ids" in mark:
        return [whole_number(category) for category in mark["category_ids"]]
    return [whole_number(mark["category_id"])]


def load(file: Path) -> dict[str, Any]:
    content = load_json(file, "COCO instances")
    for key in ("images", "annotations", "categories"):
        if not isinstance(content, dict) or not isinstance(content.get(key), list):
            raise DataError(f"{file} should be COCO instances; it has no list '{key}'.")
    return content


def stray_mark(file: Path, number: int, what: str, image: int, category: int) -> Finding:
    value = image if what == "image" else category
    message = f"annotation {number} belongs to {what} {value!r}, which the file does not list; it was skipped"
    return Finding(f"unknown {what}", str(file), message)


def with_existing_images(
    file: Path,
    root: Path,
    records: list[tuple[int, str]],
    present: dict[int, set[str]],
    categories: list[str],
    findings: list[Finding],
) -> Part:
    """The images are in a folder named after the file (train2014), in images/, or in the root itself."""
    match = INSTANCES.fullmatch(file.stem)
    split, year = match.groups() if match else ("val" if "val" in file.stem else "train", None)
    folder_name = f"{split}{year or ''}"
    roots = [root / folder_name, root / "images" / folder_name, root / "images", root]
    located = locate([name for _, name in records], roots, file)
    inside = located.root.relative_to(root)
    rows = []
    for number, (key, _) in enumerate(records):
        if (image := located.found[number]) is None:
            findings.append(located.missing(number, str(file)))
        else:
            path = (inside / image).as_posix()
            rows.append(
                Row(path, str(file), present[key], split="train" if split == "train" else "test", complete=True)
            )
    return Part(rows, categories, f"coco{year}" if year else file.stem)


def check_wanted(wanted: list[str], categories: list[str]) -> None:
    known = {fold(name) for name in categories}
    for name in wanted:
        if fold(name) not in known:
            raise UserError(f"The data has no category '{name}'; {did_you_mean(name, categories)}")
