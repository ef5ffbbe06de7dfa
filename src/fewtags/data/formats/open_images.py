"""Open Images: human-verified image-level labels (present or absent), and the names of the class ids.

The label files list nine million images; only rows of images that exist here are kept, so a downloaded subset is
read in one pass.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from pydantic import Field

from fewtags.data.annotations import Annotations, Finding
from fewtags.data.formats.options import LabelFileOptions
from fewtags.data.formats.rows import Row, counts, label_rows, untagged
from fewtags.data.formats.text import read_head
from fewtags.data.image_files import Skipped, walk_images
from fewtags.errors import DataError, UserError
from fewtags.wording import plural

COLUMNS = {"imageid", "labelname", "confidence"}
SPLIT = re.compile(r"train|validation|val|test")
PLACES = ("", "annotations", "labels", "metadata")


class OpenImagesOptions(LabelFileOptions):
    classes: Path | None = None
    """CSV file of class ids and their names. Default: class-descriptions*.csv next to the labels."""
    min_confidence: float | None = Field(None, gt=0, lt=1)
    """Minimum confidence of machine-generated labels to count as present. Default: only verified labels count."""


def is_open_images(file: Path) -> bool:
    header = read_head(file, 1024).split("\n")[0].lower()
    names = {name.strip().strip('"') for name in header.split(",")}
    return names >= COLUMNS and "xmin" not in names


def label_files(path: Path) -> list[Path]:
    if path.is_file():
        return [path] if path.suffix.lower() == ".csv" and is_open_images(path) else []
    return [file for file in csv_files(path) if is_open_images(file)]


def csv_files(path: Path) -> list[Path]:
    """CSV files in the folder, in its annotation folders, and in those of its split folders."""
    folders = [path, *(path / split for split in ("train", "validation", "val", "test"))]
    return sorted(file for folder in folders for place in PLACES for file in (folder / place).glob("*.csv"))


def detects_open_images(path: Path) -> bool:
    return bool(label_files(path))


def read_open_images(path: Path, options: OpenImagesOptions, images: Path | None) -> Annotations:
    files = label_files(path)
    if not files:
        raise UserError(f"{path} has no CSV file with the columns ImageID, LabelName and Confidence.")
    root = images or (path if path.is_dir() else path.parent)
    skipped = Skipped()
    image_of = images_by_id(root, skipped)
    names, map_note = class_names(path, files, options)
    findings: list[Finding] = []
    rows: dict[str, Row] = {}
    ignored: Counter[str] = Counter()
    for file in files:
        read_labels(file, image_of, names, options, rows, ignored, findings)
    if not rows:
        total = plural(ignored["elsewhere"], "label")
        raise DataError(f"None of the images listed in {files[0]} is in {root} ({total} for other images).")
    others, words = untagged(rows, options.complete, root, root, options)
    for row in rows.values():
        row.complete = options.complete
    return label_rows(
        [*rows.values(), *(Row(image, str(root), set()) for image in others)],
        root,
        source=files[0],
        options=options,
        name=path.stem,
        describe=lambda labels: (
            f"Read {' and '.join(str(file) for file in files)} as Open Images: {counts(labels)}; "
            "verified labels are present or absent, all others unknown."
        ),
        findings=findings,
        notes=[*map_note, *ignored_notes(ignored), *words],
    )


def images_by_id(root: Path, skipped: Skipped) -> dict[str, str]:
    """The id is the name without suffix; the full name works too, for labels written by hand."""
    found = {}
    for image in walk_images(root, skipped):
        path = PurePosixPath(image)
        found[path.stem] = found[path.name] = image
    return found


def class_names(path: Path, files: list[Path], options: OpenImagesOptions) -> tuple[dict[str, str], list[str]]:
    """Class id -> name, and a note about their source."""
    folder = path if path.is_dir() else path.parent
    maps = [options.classes] if options.classes is not None else [file for file in csv_files(folder) if is_map(file)]
    names: dict[str, str] = {}
    for file in maps:
        try:
            with file.open(encoding="utf-8-sig", errors="replace", newline="") as stream:
                names |= {row[0]: row[1] for row in csv.reader(stream) if len(row) > 1 and row[0] != "LabelName"}
        except (OSError, csv.Error) as error:
            raise UserError(f"{file} cannot be read as a table of class ids and names: {error}.") from None
    if names:
        return names, [f"Class names from {maps[0]}."]
    return {}, [f"{files[0]} was read without class names; pass them as classes=class-descriptions.csv."]


def is_map(file: Path) -> bool:
    return "class" in file.name.lower() and read_head(file, 256).startswith(("/m/", "/g/", "/t/", "LabelName,"))


def read_labels(
    file: Path,
    image_of: dict[str, str],
    names: dict[str, str],
    options: OpenImagesOptions,
    rows: dict[str, Row],
    ignored: Counter[str],
    findings: list[Finding],
) -> None:
    """Add one file's labels to `rows`, by image; skipped labels are counted in `ignored`."""
    split = split_of(file)
    for line, key, label, confidence in verified(file, findings):
        image = image_of.get(key)
        if image is None:
            ignored["elsewhere"] += 1
            continue
        row = rows.setdefault(image, Row(image, f"{file}:{line}", set(), split=split, id=key))
        tag = names.get(label, label).strip()
        if confidence in (1.0, 0.0):
            (row.present if confidence else row.absent).add(tag)
        elif options.min_confidence is not None and confidence >= options.min_confidence:
            row.present.add(tag)
        else:
            ignored["machine"] += 1
    for row in rows.values():
        for tag in sorted(row.present & row.absent):
            row.absent.discard(tag)
            message = f"'{tag}' is both present and absent for {row.image}; it counts as present"
            findings.append(Finding("conflicting label", row.where, message))


def verified(file: Path, findings: list[Finding]) -> Iterator[tuple[int, str, str, float]]:
    """(line, image id, class id, confidence) of every row."""
    try:
        with file.open(encoding="utf-8-sig", errors="replace", newline="") as stream:
            reader = csv.reader(stream)
            header = [name.strip().lower() for name in next(reader, [])]
            places = [header.index(name) for name in ("imageid", "labelname", "confidence")]
            for cells in reader:
                try:
                    key, label, confidence = (cells[place].strip() for place in places)
                    yield reader.line_num, key, label, float(confidence)
                except (IndexError, ValueError):
                    if any(cell.strip() for cell in cells):
                        message = "the row has no confidence between 0 and 1; it was skipped"
                        findings.append(Finding("malformed row", f"{file}:{reader.line_num}", message))
    except (csv.Error, ValueError, OSError) as error:
        raise DataError(f"{file} cannot be read as labels of Open Images: {error}.") from None


def split_of(file: Path) -> str:
    """train, val or test, from the file's name or its folder; '' if neither says."""
    for name in (file.name, *(parent.name for parent in list(file.parents)[:2])):
        if match := SPLIT.search(name.lower()):
            return {"validation": "val"}.get(match.group(), match.group())
    return ""


def ignored_notes(ignored: Counter[str]) -> list[str]:
    notes = []
    if ignored["elsewhere"]:
        notes.append(f"{plural(ignored['elsewhere'], 'label')} for images that are not here skipped.")
    if ignored["machine"]:
        machine = plural(ignored["machine"], "machine-generated label")
        notes.append(f"{machine} skipped (min_confidence=0.8 reads the more confident ones).")
    return notes
