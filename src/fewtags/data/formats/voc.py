"""Pascal VOC devkit, 2007 and 2012: one XML file per image, image lists in ImageSets/Main."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np

from fewtags.data.annotations import Annotations, Finding
from fewtags.data.formats.locate import ImageFolder, missing_image
from fewtags.data.formats.options import ReadOptions, read_lines
from fewtags.data.formats.rows import Row, counts, label_rows, merge
from fewtags.data.xml import MalformedXml, parse_xml
from fewtags.errors import DataError, UserError

VOC_CATEGORIES = [
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
]  # fmt: skip


class VocOptions(ReadOptions):
    year: int | None = None
    """Which year to read when a folder holds several."""
    difficult: Literal["drop", "ignore"] = "drop"
    """A category seen only in `difficult` objects is absent (drop, as in the paper) or unknown (ignore)."""


def detects_voc(path: Path) -> bool:
    return path.is_dir() and bool(years(path))


def years(path: Path) -> list[Path]:
    """The VOC<year> folders: the folder itself or those in a VOCdevkit folder."""
    folders = [path, *sorted(path.glob("VOC*")), *sorted(path.glob("VOCdevkit/VOC*"))]
    return [folder for folder in folders if (folder / "Annotations").is_dir() and (folder / "ImageSets/Main").is_dir()]


def read_voc(path: Path, options: VocOptions, images: Path | None) -> Annotations:
    folder = choose_year(path, options.year)
    root = images or folder / "JPEGImages"
    findings: list[Finding] = []
    image_folder, xml_folder = ImageFolder(root), folder / "Annotations"
    rows = []
    for name, split in listed_images(folder):
        file = xml_folder / f"{name}.xml"
        image = image_folder.find(name)
        if image is None:
            findings.append(missing_image(str(file), name, root))
        elif (seen := read_xml(file, findings)) is not None:
            clear = {thing for thing, is_clear in seen.items() if is_clear}
            ignored = set(seen) - clear if options.difficult == "ignore" else set()
            rows.append(Row(image, str(file), clear, set(seen) - clear - ignored, ignored, split, complete=True))
    if not rows:
        raise DataError(f"{folder} lists no image that has both an image file and an XML file.")
    return label_rows(
        merge(rows, findings),
        root,
        source=folder,
        options=options,
        name=folder.resolve().name.lower(),
        describe=lambda labels: reading_note(folder, labels, options),
        findings=findings,
        categories=VOC_CATEGORIES,
    )


def choose_year(path: Path, year: int | None) -> Path:
    folders = years(path)
    if year is not None:
        folders = [folder for folder in folders if folder.name.endswith(str(year))]
    if len(folders) == 1:
        return folders[0]
    if not folders:
        wanted = f"VOC{year}" if year else "VOC devkit (a folder with Annotations, ImageSets/Main and JPEGImages)"
        raise UserError(f"{path} contains no {wanted}.")
    raise UserError(f"{path} contains {', '.join(folder.name for folder in folders)}; choose one with year=.")


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
    """Object name -> is at least one of them not `difficult`? None, with a finding, if the file cannot be read."""
    try:
        objects = parse_xml(file.read_bytes()).findall("object")
    except FileNotFoundError:
        findings.append(Finding("missing annotation", str(file), "the XML file does not exist; the image was skipped"))
        return None
    except (OSError, ValueError) as error:  # a folder of that name; a lone surrogate or NUL in the name
        findings.append(Finding("malformed file", str(file), f"cannot be read ({error}); the image was skipped"))
        return None
    except MalformedXml as error:
        where = f"{file}:{error.line}" if error.line else str(file)
        findings.append(Finding("malformed file", where, f"the XML cannot be parsed ({error}); the image was skipped"))
        return None
    seen: dict[str, bool] = {}
    for thing in objects:
        name = (thing.findtext("name") or "").strip()
        seen[name] = seen.get(name, False) or (thing.findtext("difficult") or "").strip() != "1"
    return seen


def largest_shares(annotations: Annotations) -> np.ndarray | None:
    """[N, C] part of the picture that the box of each category's largest object covers; 0 where there is none.

    None if the images do not come from a VOC devkit. Difficult objects do not count.
    """
    boxes = annotations.root.parent / "Annotations"
    if not boxes.is_dir():
        return None
    column = {name: place for place, name in enumerate(annotations.categories)}
    shares = np.zeros(annotations.labels.shape)
    for row, image in enumerate(annotations.images):
        file = boxes / f"{Path(image).stem}.xml"
        if not file.is_file():
            return None
        for name, share in object_shares(file):
            if name in column:
                shares[row, column[name]] = max(shares[row, column[name]], share)
    return shares


def object_shares(file: Path) -> Iterator[tuple[str, float]]:
    """Name and share of the picture of every object with a box that is not difficult."""
    try:
        page = parse_xml(file.read_bytes())
        area = float(page.findtext("size/width") or 0) * float(page.findtext("size/height") or 0)
        for thing in page.findall("object"):
            sides = [float(thing.findtext(f"bndbox/{side}") or 0) for side in ("xmin", "ymin", "xmax", "ymax")]
            left, top, right, bottom = sides
            if area > 0 and (thing.findtext("difficult") or "").strip() != "1":
                name = (thing.findtext("name") or "").strip()
                yield name, min(max((right - left) * (bottom - top) / area, 0.0), 1.0)
    except (MalformedXml, ValueError) as error:
        raise DataError(f"The boxes in {file} cannot be read ({error}).") from error


def reading_note(folder: Path, labels: np.ndarray, options: VocOptions) -> str:
    meaning = "absent" if options.difficult == "drop" else "unknown, and excluded from evaluation"
    return (
        f"Read {folder} as Pascal VOC: {counts(labels)}; labels are complete; "
        f"a tag seen only in `difficult` objects is {meaning}."
    )
