"""One reader per dataset layout, and the table of them.

`read_annotations` inspects a folder or file, detects the layout and returns `Annotations`. Their `notes` say how the
data was read, their `findings` what could not be used. To add a layout, write `detects_<name>` and `read_<name>`, a
class of options if needed, and a row in FORMATS; from another package, call `register_format`, or
list the row under the entry point group `fewtags.formats`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from fewtags import plugins
from fewtags.data.annotations import Annotations, group_numbers
from fewtags.data.burst_times import burst_numbers
from fewtags.data.formats.booru import BooruOptions, detects_booru, read_booru
from fewtags.data.formats.camtrap import CamtrapOptions, detects_camtrap, read_camtrap
from fewtags.data.formats.coco import CocoOptions, detects_coco, read_coco
from fewtags.data.formats.csv_tags import CsvOptions, detects_csv, read_csv
from fewtags.data.formats.fiftyone import FiftyOneOptions, detects_fiftyone, read_fiftyone
from fewtags.data.formats.folders import detects_folders, read_folders
from fewtags.data.formats.format import EMBEDDED, GUESS, Format
from fewtags.data.formats.imagefolder import ImageFolderOptions, detects_imagefolder, read_imagefolder
from fewtags.data.formats.json_lines import JsonLinesOptions, detects_jsonl, read_jsonl
from fewtags.data.formats.keywords import KeywordOptions, detects_keywords, read_keywords
from fewtags.data.formats.label_studio import LabelStudioOptions, detects_label_studio, read_label_studio
from fewtags.data.formats.megadetector import (
    MegaDetectorOptions,
    detects_megadetector,
    read_megadetector,
    with_detections,
)
from fewtags.data.formats.onehot import OnehotOptions, detects_onehot, read_onehot
from fewtags.data.formats.open_images import OpenImagesOptions, detects_open_images, read_open_images
from fewtags.data.formats.options import LabelFileOptions, ReadOptions, read_lines
from fewtags.data.formats.sidecar import SidecarOptions, detects_sidecar, read_sidecar
from fewtags.data.formats.tables import table_files
from fewtags.data.formats.untagged import detects_untagged, read_untagged
from fewtags.data.formats.visual_genome import VisualGenomeOptions, detects_visual_genome, read_visual_genome
from fewtags.data.formats.voc import VocOptions, detects_voc, read_voc
from fewtags.data.remote import local_copy, remote_url
from fewtags.errors import DataError, UserError, did_you_mean
from fewtags.wording import plural, printable

__all__ = [
    "FORMATS", "Format", "LabelFileOptions", "ReadOptions", "all_formats", "read_annotations", "register_format",
]  # fmt: skip

FORMATS = {
    format.name: format
    for format in (
        Format("voc", "Pascal VOC devkit: Annotations/*.xml and ImageSets/Main", detects_voc, read_voc, VocOptions),
        Format("coco", "COCO: annotations/instances_*.json, or one such file", detects_coco, read_coco, CocoOptions),
        Format("vg", "Visual Genome: objects.json", detects_visual_genome, read_visual_genome, VisualGenomeOptions),
        Format(
            "openimages",
            "Open Images: verified labels by class id",
            detects_open_images,
            read_open_images,
            OpenImagesOptions,
        ),
        Format(
            "camtrapdp", "Camtrap DP: media.csv and observations.csv", detects_camtrap, read_camtrap, CamtrapOptions
        ),
        Format(
            "megadetector",
            "MegaDetector's results: images, detections",
            detects_megadetector,
            read_megadetector,
            MegaDetectorOptions,
        ),
        Format("csv", "CSV with an image column and a tag column", detects_csv, read_csv, CsvOptions),
        Format("onehot", "CSV with one column per tag: 1, 0, -1 or blank", detects_onehot, read_onehot, OnehotOptions),
        Format("jsonl", "JSON lines, one object per image", detects_jsonl, read_jsonl, JsonLinesOptions),
        Format(
            "imagefolder",
            "Hugging Face imagefolder: metadata.jsonl or metadata.csv",
            detects_imagefolder,
            read_imagefolder,
            ImageFolderOptions,
        ),
        Format("labelstudio", "Label Studio JSON", detects_label_studio, read_label_studio, LabelStudioOptions),
        Format("fiftyone", "FiftyOne: labels.json or samples.json", detects_fiftyone, read_fiftyone, FiftyOneOptions),
        Format("booru", "drawings with booru tag files", detects_booru, read_booru, BooruOptions),
        Format("sidecar", "images with same-name .txt files of tags", detects_sidecar, read_sidecar, SidecarOptions),
        Format(
            "keywords",
            "photos with keywords in them or in .xmp files",
            detects_keywords,
            read_keywords,
            KeywordOptions,
            rank=EMBEDDED,
        ),
        Format("folders", "one folder of images per tag", detects_folders, read_folders, rank=GUESS),
        Format("untagged", "images without tags, and the categories to find", detects_untagged, read_untagged),
    )
}


def register_format(format: Format) -> None:
    """Add a layout to the table, or replace one of the same name."""
    FORMATS[format.name] = format


@cache
def _load_plugins() -> None:
    """Adds the rows of other packages."""
    for format in plugins.loaded("fewtags.formats", Format):
        FORMATS.setdefault(format.name, format)


def all_formats() -> dict[str, Format]:
    """FORMATS, including those of other installed packages."""
    _load_plugins()
    return FORMATS


def read_annotations(
    source: str | Path, *, tags: str | Path | None = None, format: str = "auto", **options: Any
) -> Annotations:
    """Read a dataset from a folder or file, or the images of a folder with their tags from a separate file.

    `format` is a name in FORMATS, or "auto" to detect it. `options` are the fields of the options class of
    that format.
    """
    every = {field for row in all_formats().values() for field in row.options.model_fields}
    for name in options:
        if name not in every:
            raise UserError(f"No reader has an option '{name}'; {did_you_mean(name, sorted(every))}")
    source = existing(source)
    images = None
    if tags is not None:
        if not source.is_dir():
            raise UserError(f"{source} should be the image folder for {tags}; it is a file.")
        source, images = existing(tags), source
    chosen = choose_format(source, format, options)
    settings = chosen.options.parse(options, f"Format '{chosen.name}'", owners(chosen))
    annotations = with_detections(grouped(chosen.read(source, settings, images), settings), settings)
    annotations.notes[:] = map(printable, annotations.notes)  # they may quote anything that a file holds
    return split_by_lists(translated(annotations, settings), settings)


def translated(annotations: Annotations, options: ReadOptions) -> Annotations:
    """With the English names of its categories that an alias file gives."""
    english = options.tag_rules().aliases.english(annotations.categories)
    return replace(annotations, english=english) if english else annotations


def grouped(annotations: Annotations, options: ReadOptions) -> Annotations:
    """With folders or bursts as groups if that was asked for; the notes say how many groups there are."""
    if options.groups == "folders":
        folders = [str(PurePosixPath(image).parent) for image in annotations.images]
        annotations = replace(annotations, groups=group_numbers(folders))
    elif options.groups == "bursts":
        paths = [annotations.path(row) for row in range(len(annotations))]
        annotations = replace(annotations, groups=burst_numbers(paths))
    if annotations.num_groups:
        bursts = options.groups == "bursts"
        what = plural(annotations.num_groups, "burst") if bursts else plural(annotations.num_groups, "group")
        annotations.notes.append(f"{what}{'' if bursts else ' of several images'}; validation is split by them.")
    elif options.groups is not None:
        annotations.notes.append(f"No {options.groups} of several images were found.")
    return annotations


def existing(path: str | Path) -> Path:
    """The file or folder; what is on an object store is copied here first."""
    url = remote_url(path)
    path = Path(path).expanduser() if url is None else local_copy(url)
    try:
        if path.exists():
            return path
    except (OSError, ValueError) as error:  # a name that is too long, or contains NUL
        raise UserError(f"{str(path)!r} is not a valid path: {error}.") from None
    raise UserError(f"{path} does not exist.")


def owners(chosen: Format) -> dict[str, str]:
    """Option -> the format that has it, for options the chosen format lacks."""
    return {
        name: f"format '{format.name}'"
        for format in reversed(all_formats().values())
        for name in format.options.model_fields
        if name not in chosen.options.model_fields
    }


def choose_format(path: Path, name: str, options: Mapping[str, Any] | None = None) -> Format:
    formats = all_formats()
    if name != "auto":
        if name not in formats:
            raise UserError(f"There is no data format '{name}'; {did_you_mean(name, ['auto', *formats])}")
        return formats[name]
    for rank in sorted({format.rank for format in formats.values()}):
        if rank == GUESS and (options or {}).get("categories") and path.is_dir():
            return formats["untagged"]  # folder names are not tags if the user lists the categories
        matches = [format for format in formats.values() if format.rank == rank and format.detects(path)]
        if matches and (options or {}).keys() & {"tag_column"} and table_files(path):
            matches = [format for format in matches if "tag_column" in format.options.model_fields]
            matches = matches or [formats["csv"]]  # the user says it has such a column
        if len(matches) == 1:
            return matches[0]
        if matches:
            found = " and ".join(f"{format.name} ({format.sentence})" for format in matches)
            raise UserError(f"{path} can be read as {found}; choose one with format=, or pass the tag file.")
    raise UserError(f"{path} is not in a known layout: {shape_of_path(path)} Known layouts: {', '.join(formats)}.")


def shape_of_path(path: Path) -> str:
    if path.is_file():
        return f"a file ending in '{path.suffix}'."
    names = sorted(entry.name for entry in path.iterdir())
    more = f" and {len(names) - 4:,} more" if len(names) > 4 else ""
    return f"it contains {', '.join(names[:4])}{more}, but no tags next to the images." if names else "it is empty."


def split_by_lists(annotations: Annotations, options: ReadOptions) -> Annotations:
    """Splits from list files; their lines are image paths, file names or names without suffix."""
    if options.train_list is None and options.test_list is None:
        return annotations
    splits = np.full(len(annotations), "train" if options.train_list is None else "", dtype="U5")
    for split, file in (("train", options.train_list), ("test", options.test_list)):
        if file is not None:
            listed = set(read_lines(file))
            mine = [not listed.isdisjoint(names(image)) for image in annotations.images]
            if not any(mine):
                raise DataError(f"None of the names in {file} is an image of {annotations.name}.")
            splits[mine] = split
    kept = np.flatnonzero(splits != "")
    note = f"Splits from the given lists; {plural(len(splits) - len(kept), 'image')} not in them skipped."
    return replace(annotations.take(kept), splits=splits[kept], notes=[*annotations.notes, note])


def names(image: str) -> tuple[str, str, str]:
    path = PurePosixPath(image)
    return image, path.name, path.stem
