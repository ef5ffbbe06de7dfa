"""MegaDetector's results: which images of a camera trap have an animal, a person or a vehicle, and where.

As labels of their own (format `megadetector`): a category is present if a detection is at least `min_confidence` sure,
and absent if none reaches `blank_below`; between the two it is unknown. Species of a classifier imply their detection's
category. With any other labels (`-o detections=md.json`): images without detections are left out as blank, and
`-o crops=FOLDER` replaces every image by its surest detection.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from fewtags.atomic import atomic_write
from fewtags.data.annotations import Annotations, Finding
from fewtags.data.formats.locate import image_roots, locate
from fewtags.data.formats.options import LabelFileOptions, ReadOptions
from fewtags.data.formats.rows import Row, assemble
from fewtags.data.formats.text import files_with_suffix, load_json, only_file, read_head
from fewtags.data.images import BadImage, open_image
from fewtags.data.tag_tree import SEPARATOR
from fewtags.errors import DataError
from fewtags.wording import plural

MARGIN = 0.1  # of the longer side of a box, around a crop
Box = tuple[float, float, float, float]  # left, top, width, height, as shares of the image


class MegaDetectorOptions(LabelFileOptions):
    min_confidence: float = Field(0.2, ge=0, le=1)
    """A detection this sure is present."""
    blank_below: float = Field(0.05, ge=0, le=1)
    """A category is absent if no detection of it is this sure."""
    min_species: float = Field(0.65, ge=0, le=1)
    """A species that the file's classifier is this sure of is present."""


@dataclass(frozen=True)
class Detection:
    category: str
    confidence: float
    box: Box
    species: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Detections:
    file: Path
    categories: list[str]
    images: dict[str, list[Detection]]
    findings: list[Finding]


def is_results_file(file: Path) -> bool:
    """MegaDetector writes the images first, other programs what they are about."""
    head = read_head(file, 4096) if file.suffix.lower() == ".json" else ""
    images = head.startswith("{") and '"file"' in head and ('"detections"' in head or '"failure"' in head)
    return images or '"detection_categories"' in head or ('"format_version"' in head and '"detector"' in head)


def results_files(path: Path) -> list[Path]:
    return [file for file in files_with_suffix(path, (".json",)) if is_results_file(file)]


def detects_megadetector(path: Path) -> bool:
    return bool(results_files(path))


def read_megadetector(path: Path, options: MegaDetectorOptions, images: Path | None) -> Annotations:
    file = path if path.is_file() else only_file(path, results_files(path))
    found = read_detections(file)
    rows = [
        Row(image, f"{file}: {image}", *labels(detections, found.categories, options))
        for image, detections in found.images.items()
    ]
    return assemble(
        rows,
        file=file,
        roots=image_roots(file, images),
        options=options,
        name=file.stem,
        note=f"Read {file} as MegaDetector's results: present from {options.min_confidence:g}, absent below "
        f"{options.blank_below:g}, else unknown",
        findings=list(found.findings),
        folder=images or (path if path.is_dir() else None),
    )


def labels(
    detections: list[Detection], categories: list[str], options: MegaDetectorOptions
) -> tuple[set[str], set[str]]:
    """Tags that are present and absent in an image."""
    surest = {name: max((d.confidence for d in detections if d.category == name), default=0.0) for name in categories}
    present = {name for name, confidence in surest.items() if confidence >= options.min_confidence}
    absent = {
        name for name, confidence in surest.items() if confidence < min(options.blank_below, options.min_confidence)
    }
    for detection in detections:
        if detection.confidence >= options.min_confidence:
            sure = [name for name, confidence in detection.species if confidence >= options.min_species]
            present |= {SEPARATOR.join((detection.category, name)) for name in sure}
    return present, absent


def read_detections(file: Path) -> Detections:
    """Raises DataError if the file is not what MegaDetector writes."""
    content = load_json(file, "MegaDetector's results")
    entries = content.get("images") if isinstance(content, dict) else None
    if not isinstance(content, dict) or not isinstance(entries, list):
        raise DataError(f"{file} should be MegaDetector's results; it has no list of images.")
    categories, species = names_in(content, "detection_categories"), names_in(content, "classification_categories")
    images: dict[str, list[Detection]] = {}
    findings: list[Finding] = []
    for number, entry in enumerate(entries):
        where = f"{file}: images[{number}]"
        name = entry.get("file") if isinstance(entry, dict) else None
        if not isinstance(name, str) or not name:
            findings.append(Finding("malformed line", where, "the entry has no file; it was skipped"))
        elif entry.get("failure") or not isinstance(entry.get("detections"), list):
            reason = str(entry.get("failure") or "it has no detections")
            findings.append(Finding("unreadable image", where, f"{name} was not searched: {reason}"))
        else:
            images[name] = list(detections_in(entry["detections"], categories, species))
    return Detections(file, list(dict.fromkeys(categories.values())), images, findings)


def names_in(content: Mapping[str, Any], key: str) -> dict[str, str]:
    names = content.get(key)
    return {str(number): str(name) for number, name in names.items()} if isinstance(names, dict) else {}


def detections_in(items: list[Any], categories: Mapping[str, str], species: Mapping[str, str]) -> Iterator[Detection]:
    """Detections of categories that the file does not name are none, says the format."""
    for item in items:
        try:
            name = categories[str(item["category"])]
            left, top, width, height = (float(value) for value in item["bbox"])
            pairs = item.get("classifications") or []
            seen = tuple((species[str(number)], float(sure)) for number, sure in pairs if str(number) in species)
            yield Detection(name, float(item["conf"]), (left, top, width, height), seen)
        except (KeyError, TypeError, ValueError, AttributeError):
            continue


# --- as a filter, and as crops ---


def with_detections(annotations: Annotations, options: ReadOptions) -> Annotations:
    """Images with detections only; as crops if that was asked for."""
    if options.detections is None:
        return annotations
    found = read_detections(options.detections)
    sure = {
        image: [d for d in detections if d.confidence >= options.min_detection]
        for image, detections in found.images.items()
    }
    names = list(found.images)
    located = locate(names, [annotations.root, options.detections.parent], found.file, allow_outside=True)
    place = {
        os.path.abspath(located.root / file): name for name, file in zip(names, located.found, strict=True) if file
    }
    of_row = [place.get(os.path.abspath(annotations.path(row))) for row in range(len(annotations))]
    kept = [row for row, name in enumerate(of_row) if name is None or sure[name]]
    blank, unsearched = len(of_row) - len(kept), of_row.count(None)
    if not kept:
        raise DataError(f"{found.file} has no detection in any of the {len(annotations):,} images.")
    notes = [f"{plural(blank, 'image')} without a detection in {found.file} left out as blank."]
    notes += [f"{plural(unsearched, 'image')} not in {found.file} kept."] if unsearched else []
    taken = replace(annotations.take(np.array(kept)), notes=[*annotations.notes, *notes])
    if options.crops is None:
        return taken
    return cropped(taken, options.crops, lambda row: sure.get(of_row[kept[row]] or "", []), found.file)


def cropped(
    annotations: Annotations, folder: Path, boxes: Callable[[int], list[Detection]], results: Path
) -> Annotations:
    """The same labels for pictures of the surest detection of each image, made in `folder`, where they stay until the
    image or the `results` are newer."""
    names = []
    for row, image in enumerate(annotations.images):
        name = crop_name(image)
        place, found = folder / name, boxes(row)
        names.append(name)
        if is_newer(place, [annotations.path(row), results]):
            continue
        try:
            picture = open_image(annotations.path(row))
        except BadImage:
            names[-1] = os.path.relpath(annotations.path(row), folder)  # reading it says again what is wrong with it
            continue
        if found:
            picture = picture.crop(pixels_of(max(found, key=lambda d: d.confidence).box, picture.size))
        place.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(place) as temporary:
            picture.save(temporary, "JPEG", quality=95)
    note = f"Every image is its surest detection; the pictures are in {folder}."
    return replace(annotations, root=folder, images=names, notes=[*annotations.notes, note])


def crop_name(image: str) -> str:
    """a.png is another image than a.jpg; and a crop is in its folder, wherever the image is."""
    path = Path(image)
    inside = "/".join(part for part in path.parts if part not in ("..", path.anchor))
    return inside if path.suffix.lower() in (".jpg", ".jpeg") else f"{inside}.jpg"


def is_newer(made: Path, sources: Iterable[Path]) -> bool:
    times = [file.stat().st_mtime for file in sources if file.is_file()]
    return made.is_file() and made.stat().st_mtime >= max(times, default=0.0)


def pixels_of(box: Box, size: tuple[int, int]) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of a box with its margin, inside the image."""
    left, top, width, height = (share * side for share, side in zip(box, (*size, *size), strict=True))
    margin = MARGIN * max(width, height)
    right, bottom = min(left + width + margin, size[0]), min(top + height + margin, size[1])
    left, top = max(left - margin, 0), max(top - margin, 0)
    return int(left), int(top), max(int(right), int(left) + 1), max(int(bottom), int(top) + 1)
