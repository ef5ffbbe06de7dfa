"""Pascal VOC devkit, 2007 and 2012: one XML file per image, image lists in ImageSets/Main."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from fewtags.data.annotations import ABSENT, PRESENT, UNKNOWN, Annotations, Finding
from fewtags.data.formats.common import ImageFolder, counts, missing_image
from fewtags.data.formats.options import ReadOptions, read_lines
from fewtags.errors import DataError, UserError

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
    categories = options.category_list() or VOC_CATEGORIES
    findings: list[Finding] = []
    names, splits = listed_images(folder)
    root = images or folder / "JPEGImages"
    image_folder = ImageFolder(root)
    kept, rows = [], []
    for number, name in enumerate(names):
        file = folder / "Annotations" / f"{name}.xml"
        image = image_folder.find(name)
        if image is None:
            findings.append(missing_image(str(file), name, root))
        elif (labels := read_xml(file, categories, options.difficult, findings)) is not None:
            kept.append(number)
            rows.append((image, labels))
    if not rows:
        raise DataError(f"{folder} lists {len(names):,} images, and none has both its image file and its XML file.")
    labels = np.stack([labels for _, labels in rows])
    return Annotations(
        root,
        [image for image, _ in rows],
        list(categories),
        labels,
        np.array(splits)[kept],
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


def listed_images(folder: Path) -> tuple[list[str], list[str]]:
    """Image names and their splits. VOC 2012 has no public test labels, so its val list is the test split."""
    lists = folder / "ImageSets/Main"
    if "2012" in folder.name or not (lists / "trainval.txt").exists():
        split_lists = {"train": "train.txt", "test": "val.txt"}
    else:
        split_lists = {"train": "trainval.txt", "test": "test.txt"}
    names: list[str] = []
    splits: list[str] = []
    for split, file in split_lists.items():
        listed = read_lines(lists / file) if (lists / file).exists() else []
        names += [line.split()[0] for line in listed]
        splits += [split] * len(listed)
    return names, splits


def read_xml(file: Path, categories: list[str], difficult: str, findings: list[Finding]) -> np.ndarray | None:
    """One image's labels [C]; None, with a finding, when the file cannot be read."""
    try:
        objects = ElementTree.parse(file).getroot().findall("object")
    except FileNotFoundError:
        findings.append(Finding("missing annotation", str(file), "the XML file does not exist; the image was left out"))
        return None
    except ElementTree.ParseError as error:
        message = f"the XML cannot be parsed ({error}); the image was left out"
        findings.append(Finding("malformed file", f"{file}:{error.position[0]}", message))
        return None
    labels = np.full(len(categories), ABSENT, dtype=np.int8)
    for thing in objects:
        name = (thing.findtext("name") or "").strip()
        if name not in categories:
            message = f"'{name}' is not among the {len(categories)} categories; it was left out"
            findings.append(Finding("unknown category", str(file), message))
            continue
        column = categories.index(name)
        if (thing.findtext("difficult") or "0").strip() != "1":
            labels[column] = PRESENT
        elif difficult == "ignore" and labels[column] == ABSENT:
            labels[column] = UNKNOWN
    return labels


def describe(folder: Path, labels: np.ndarray, options: ReadOptions) -> str:
    meaning = "absent" if options.difficult == "drop" else "unknown, and left out of the evaluation"
    return (
        f"Read {folder} as Pascal VOC: {counts(labels)}; labels are complete; "
        f"a tag seen only in `difficult` objects is {meaning}"
    )
