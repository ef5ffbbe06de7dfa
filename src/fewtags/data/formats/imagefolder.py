"""Hugging Face `imagefolder`: metadata.jsonl or metadata.csv, in the folder or in its split folders."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from fewtags.data.annotations import Annotations, Finding
from fewtags.data.formats.json_lines import parse_lines
from fewtags.data.formats.options import LabelFileOptions
from fewtags.data.formats.rows import SPLIT_WORDS, Row, assemble
from fewtags.data.formats.tables import TAG_NAMES
from fewtags.data.formats.text import read_head, read_text
from fewtags.errors import DataError, UserError, did_you_mean

NAMES = ("metadata.jsonl", "metadata.csv")
FILE_KEY = "file_name"
FRONT_MATTER = re.compile(r"\A---\s*\n(.*?)\n---\s*$", re.DOTALL | re.MULTILINE)


class ImageFolderOptions(LabelFileOptions):
    tag_column: str | None = None
    """The key or column with the tags. Default: found by its name (tags, labels, label, ...)."""


def is_metadata(file: Path) -> bool:
    return file.name.lower() in NAMES and FILE_KEY in read_head(file, 4096)


def metadata_files(path: Path) -> list[Path]:
    if path.is_file():
        return [path] if is_metadata(path) else []
    places = [path, *(folder for top in (path, path / "data") for folder in split_folders(top))]
    files = [folder / name for folder in dict.fromkeys([*places, path / "data"]) for name in NAMES]
    return [file for file in files if file.is_file() and is_metadata(file)]


def split_folders(folder: Path) -> list[Path]:
    entries = sorted(folder.iterdir()) if folder.is_dir() else []
    return [entry for entry in entries if entry.is_dir() and entry.name.lower() in SPLIT_WORDS]


def detects_imagefolder(path: Path) -> bool:
    return bool(metadata_files(path))


def read_imagefolder(path: Path, options: ImageFolderOptions, images: Path | None) -> Annotations:
    files = metadata_files(path)
    if not files:
        raise UserError(f"{path} contains no metadata.jsonl or metadata.csv with '{FILE_KEY}'.")
    root = images or (path if path.is_dir() else path.parent)
    findings: list[Finding] = []
    records = [(file, where, record) for file in files for where, record in read_records(file, findings)]
    key = choose_key([record for _, _, record in records], files[0], options)
    names = class_names(path if path.is_dir() else path.parent, key)
    rows = []
    for file, where, record in records:
        row = read_row(file, where, record, key, names, root, findings)
        rows += [row] if row is not None else []
    return assemble(
        rows,
        file=files[0],
        roots=[root],
        options=options,
        name=root.resolve().name,
        note=f"Read {' and '.join(str(file) for file in files)}: Hugging Face imagefolder, tags in '{key}'",
        findings=findings,
        folder=root if path.is_dir() or images else None,
    )


def read_records(file: Path, findings: list[Finding]) -> Iterator[tuple[str, dict[str, Any]]]:
    text, _ = read_text(file)
    if file.suffix.lower() == ".jsonl":
        yield from parse_lines(file, text, findings)
        return
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        for record in reader:
            yield f"{file}:{reader.line_num}", {key: value for key, value in record.items() if isinstance(key, str)}
    except csv.Error as error:
        raise DataError(f"{file}:{reader.line_num} cannot be read as CSV: {error}.") from None


def choose_key(records: list[dict[str, Any]], file: Path, options: ImageFolderOptions) -> str:
    keys = list(dict.fromkeys(key for record in records for key in record if key != FILE_KEY))
    if options.tag_column is not None:
        if options.tag_column not in keys:
            raise UserError(f"{file} has no '{options.tag_column}'; {did_you_mean(options.tag_column, keys)}")
        return options.tag_column
    usual = [key for name in TAG_NAMES for key in keys if key.lower() == name]
    if usual or len(keys) == 1:
        return (usual or keys)[0]
    raise UserError(f"Which of {', '.join(keys) or 'no keys'} in {file} holds the tags? Set tag_column=.")


def read_row(
    file: Path,
    where: str,
    record: dict[str, Any],
    key: str,
    names: dict[int, str],
    root: Path,
    findings: list[Finding],
) -> Row | None:
    """Image names are relative to the metadata file; numbers are classes named in README.md."""
    image, value = record.get(FILE_KEY), record.get(key)
    if not isinstance(image, str) or not image:
        findings.append(Finding("no image", where, f"the line has no {FILE_KEY}; it was skipped"))
        return None
    try:
        tags = {tag.strip() for tag in tag_names(value, names) if tag.strip()}
    except (ValueError, KeyError):
        message = f"'{key}' holds {value!r:.60}, which is not a tag or class; the line was skipped"
        findings.append(Finding("malformed line", where, message))
        return None
    inside = file.parent.relative_to(root) if file.parent.is_relative_to(root) else Path()
    split = next((part for part in reversed(inside.parts) if part.lower() in SPLIT_WORDS), "")
    image = (inside / image).as_posix() if not image.startswith("/") else image
    return Row(image, where, tags, split=str(record.get("split") or split), listed=value is not None)


def tag_names(value: Any, names: dict[int, str]) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from tag_names(item, names)
    elif isinstance(value, str):
        yield from value.split(",")
    elif isinstance(value, int) and not isinstance(value, bool):
        yield names[value]
    elif value is not None:
        raise ValueError(value)


def class_names(folder: Path, key: str) -> dict[int, str]:
    """Number -> name of the classes, from the dataset card: `dataset_info: features: - name: labels`."""
    card = folder / "README.md"
    match = FRONT_MATTER.search(read_text(card)[0]) if card.is_file() else None
    if match is None or len(match.group(1)) > 1_000_000 or "&" in match.group(1):  # aliases can expand to gigabytes
        return {}
    try:
        content = yaml.safe_load(match.group(1))
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}
    info = content.get("dataset_info") if isinstance(content, dict) else None
    for part in info if isinstance(info, list) else [info]:
        for feature in (part.get("features") or []) if isinstance(part, dict) else []:
            if isinstance(feature, dict) and feature.get("name") == key:
                return numbered(feature)
    return {}


def numbered(feature: Any) -> dict[int, str]:
    """The names under `class_label`, in the dtype or in the dtype of a sequence."""
    if isinstance(feature, dict):
        label = feature.get("class_label")
        names = label.get("names") if isinstance(label, dict) else None
        if isinstance(names, list):
            return dict(enumerate(map(str, names)))
        if isinstance(names, dict):
            return {int(number): str(name) for number, name in names.items() if str(number).isdigit()}
        for value in feature.values():
            if found := numbered(value):
                return found
    return {}
