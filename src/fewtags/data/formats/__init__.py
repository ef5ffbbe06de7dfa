"""One reader per dataset layout, and the table of them.

`read_annotations` looks at a folder or file, finds the layout and returns `Annotations`. What a reader understood is
in their `notes`, what it stumbled on in their `findings`. To add a layout, write `detects_<name>` and `read_<name>`
and give them a row in FORMATS.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from fewtags.data.annotations import Annotations
from fewtags.data.formats.coco import detects_coco, read_coco
from fewtags.data.formats.common import Format, plural
from fewtags.data.formats.csv_tags import detects_csv, read_csv
from fewtags.data.formats.folders import detects_folders, detects_sidecar, read_folders, read_sidecar
from fewtags.data.formats.json_lines import detects_jsonl, read_jsonl
from fewtags.data.formats.onehot import detects_onehot, read_onehot
from fewtags.data.formats.options import ReadOptions, read_lines
from fewtags.data.formats.visual_genome import detects_visual_genome, read_visual_genome
from fewtags.data.formats.voc import detects_voc, read_voc
from fewtags.errors import DataError, UserError, did_you_mean

__all__ = ["FORMATS", "Format", "ReadOptions", "read_annotations"]

FORMATS = {
    format.name: format
    for format in (
        Format("voc", "Pascal VOC devkit: Annotations/*.xml and ImageSets/Main", detects_voc, read_voc),
        Format("coco", "COCO instances: annotations/instances_*.json, or one such file", detects_coco, read_coco),
        Format("vg", "Visual Genome: objects.json", detects_visual_genome, read_visual_genome),
        Format("csv", "CSV with an image column and a tag column", detects_csv, read_csv),
        Format("onehot", "CSV with one column per tag: 1, 0, -1 or blank", detects_onehot, read_onehot),
        Format("jsonl", "JSON lines, one object per image", detects_jsonl, read_jsonl),
        Format("sidecar", "images with same-name .txt files of tags", detects_sidecar, read_sidecar),
        Format("folders", "one folder of images per tag", detects_folders, read_folders, fallback=True),
    )
}


def read_annotations(
    source: str | Path, *, tags: str | Path | None = None, format: str = "auto", **options: Any
) -> Annotations:
    """Read a dataset from a folder or file, or the images of a folder with their tags from a separate file.

    `format` is a name in FORMATS, or "auto" to find out by looking. `options` are the fields of ReadOptions.
    """
    settings = ReadOptions.parse(options)
    source = existing(source)
    images = None
    if tags is not None:
        if not source.is_dir():
            raise UserError(f"{source} should be the folder of the images that {tags} is about; it is a file.")
        source, images = existing(tags), source
    if format == "auto" and settings.tag_column is not None:
        format = "csv"  # only that layout has a tag column
    annotations = choose_format(source, format).read(source, settings, images)
    return split_by_lists(annotations, settings)


def existing(path: str | Path) -> Path:
    path = Path(path).expanduser()
    if not path.exists():
        raise UserError(f"{path} does not exist.")
    return path


def choose_format(path: Path, name: str) -> Format:
    if name != "auto":
        if name not in FORMATS:
            raise UserError(f"There is no data format '{name}'; {did_you_mean(name, ['auto', *FORMATS])}")
        return FORMATS[name]
    matches = [format for format in FORMATS.values() if not format.fallback and format.detects(path)]
    matches = matches or [format for format in FORMATS.values() if format.fallback and format.detects(path)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        found = " and ".join(f"{format.name} ({format.sentence})" for format in matches)
        raise UserError(f"{path} can be read as {found}; choose one with format=, or name the file of the tags.")
    raise UserError(f"{path} is in no layout that fewtags knows: {describe(path)} It reads {', '.join(FORMATS)}.")


def describe(path: Path) -> str:
    if path.is_file():
        return f"a file ending in '{path.suffix}'."
    names = sorted(entry.name for entry in path.iterdir())
    more = f" and {len(names) - 4:,} more" if len(names) > 4 else ""
    return f"it holds {', '.join(names[:4])}{more}, and no tags beside the images." if names else "it is empty."


def split_by_lists(annotations: Annotations, options: ReadOptions) -> Annotations:
    """Splits from list files, whose lines are image paths, file names or names without suffix."""
    if options.train_list is None and options.test_list is None:
        return annotations
    splits = np.full(len(annotations), "train" if options.train_list is None else "", dtype="U5")
    for split, file in (("train", options.train_list), ("test", options.test_list)):
        if file is not None:
            listed = set(read_lines(file))
            mine = [not listed.isdisjoint(names(image)) for image in annotations.images]
            if not any(mine):
                raise DataError(f"{file} names no image of {annotations.name}.")
            splits[mine] = split
    kept = np.flatnonzero(splits != "")
    note = f"Splits from the given lists; {plural(len(splits) - len(kept), 'image')} not in them left out."
    return replace(annotations.take(kept), splits=splits[kept], notes=[*annotations.notes, note])


def names(image: str) -> tuple[str, str, str]:
    path = PurePosixPath(image)
    return image, path.name, path.stem
