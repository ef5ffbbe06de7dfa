"""Pascal VOC devkit, 2007 and 2012: one XML file per image, image lists in ImageSets/Main."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from fewtags.data.annotations import Annotations, Finding
from fewtags.data.formats.common import ImageFolder, counts, missing_image
from fewtags.data.formats.options import ReadOptions, read_lines
from fewtags.errors import DataError, UserError
from fewtags.labels import ABSENT, PRESENT, UNKNOWN

VOC_CATEGORIES = [
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
]  # fmt: skip


def detects_voc(path: Path) -> bool:
    return path.is_dir() and bool(years(path))


def years(path: Path) -> list[Path]:
    """The VOC<year> folders: the folder itself or those in a VOCdevkit folder."""
    folders = [path, *sorted(path.glob("VOC*")), *sorted(path.glob("VOCdevkit/VOC*"))]
    return [folder for folder in folders if (folder / "Annotations").is_dir() and (folder / "ImageSets/Main").is_dir()]


def read_voc(path: Path, options: ReadOptions, images: Path | None) -> Annotations:
    folder = choose_year(path, options.year)
    root = images or folder / "JPEGImages"
    categories = options.category_list() or VOC_CATEGORIES
    column = {name: c for c, name in enumerate(categories)}
    only_difficult = ABSENT if options.difficult == "drop" else UNKNOWN
    findings: list[Finding] = []
    image_folder, xml_folder = ImageFolder(root), folder / "Annotations"
    rows = []
    for name, split in listed_images(folder):
        file = xml_folder / f"{name}.xml"
        image = image_folder.find(name)
        if image is None:
            findings.append(missing_image(str(file), name, root))
        elif (seen := read_xml(file, findings)) is not None:
            rows.append((image, split, label_row(seen, column, only_difficult, file, findings)))
    if not rows:
        raise DataError(f"{folder} lists no image that has both its image file and its XML file.")
    labels = np.stack([labels for _, _, labels in rows])
    return Annotations(
        root,
        [image for image, _, _ in rows],
        list(categories),
        labels,
        np.array([split for _, split, _ in rows]),
        name=folder.resolve().name.lower(),
        notes=[describe(folder, labels, options)],
        findings=findings,
    )


def choose_year(path: Path, year: int | None) -> Path:
    folders = years(path)
    if year is not None:
        folders = [folder for folder in folders if folder.name.endswith(str(year))]
    if len(folders) == 1:
        return folders[0]
    if not folders:
        wanted = f"VOC{year}" if year else "VOC devkit (a folder with Annotations, ImageSets/Main and JPEGImages)"
        raise UserError(f"{path} holds no {wanted}.")
    raise UserError(f"{path} holds {', '.join(folder.name for folder in folders)}; choose one with year=.")


def listed_images(folder: Path) -> Iterator[tuple[str, str]]:
    """Image names with their splits. VOC 2012 has no public test labels, so its val list is the test split."""
    lists = folder / "ImageSets/Main"
    if "2012" in folder.name or not (lists / "trainval.txt").exists():
        split_lists = {"train": "train.txt", "test": "val.txt"}
    else:
        split_lists = {"train": "trainval.txt", "test": "test.txt"}
    for split, file in split_lists.items():
        if (lists / file).exists():
            for line in read_lines(lists / file):
                yield line.split()[0], split


def read_xml(file: Path, findings: list[Finding]) -> dict[str, bool] | None:
    """Object name -> is one of them not `difficult`? None, with a finding, when the file cannot be read."""
    try:
        objects = ElementTree.parse(file).getroot().findall("object")
    except FileNotFoundError:
        findings.append(Finding("missing annotation", str(file), "the XML file does not exist; the image was left out"))
        return None
    except ElementTree.ParseError as error:
        message = f"the XML cannot be parsed ({error}); the image was left out"
        findings.append(Finding("malformed file", f"{file}:{error.position[0]}", message))
        return None
    seen: dict[str, bool] = {}
    for thing in objects:
        name = (thing.findtext("name") or "").strip()
        seen[name] = seen.get(name, False) or (thing.findtext("difficult") or "").strip() != "1"
    return seen


def label_row(
    seen: dict[str, bool], column: dict[str, int], only_difficult: int, file: Path, findings: list[Finding]
) -> np.ndarray:
    labels = np.full(len(column), ABSENT, dtype=np.int8)
    for name, clear in seen.items():
        if name in column:
            labels[column[name]] = PRESENT if clear else only_difficult
        else:
            message = f"'{name}' is not among the {len(column)} categories; it was left out"
            findings.append(Finding("unknown category", str(file), message))
    return labels


def describe(folder: Path, labels: np.ndarray, options: ReadOptions) -> str:
    meaning = "absent" if options.difficult == "drop" else "unknown, and left out of the evaluation"
    return (
        f"Read {folder} as Pascal VOC: {counts(labels)}; labels are complete; "
        f"a tag seen only in `difficult` objects is {meaning}."
    )
