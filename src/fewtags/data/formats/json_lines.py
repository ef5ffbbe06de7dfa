"""JSON lines: one object per image, with or without the header of fewtags' annotation files.

The same objects in a JSON list, and the output of `fewtags predict --out x.jsonl`, are read too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from fewtags.data.annotations import Annotations, Finding, group_numbers
from fewtags.data.formats.locate import image_roots
from fewtags.data.formats.options import LabelFileOptions
from fewtags.data.formats.rows import SPLIT_WORDS, Row, as_id, assemble, drop_unknown_categories, label_matrix
from fewtags.data.formats.text import files_with_suffix, only_file, read_head, read_text
from fewtags.data.tag_tree import TagTree, with_indirect
from fewtags.errors import DataError

SUFFIXES = (".jsonl", ".ndjson")
IMAGE_KEYS = ("image", "file_name", "path", "filename", "filepath")
PRESENT_KEYS = ("present", "tags", "labels", "label")
HF_NAME = "metadata.jsonl"  # has its own reader


class JsonLinesOptions(LabelFileOptions):
    min_probability: float = Field(0.0, ge=0, le=1)
    """Minimum probability, for tags with probabilities as written by `fewtags predict`."""


def detects_jsonl(path: Path) -> bool:
    return bool(jsonl_files(path)) or (path.is_file() and is_list_of_images(path))


def jsonl_files(path: Path) -> list[Path]:
    return [file for file in files_with_suffix(path, SUFFIXES) if file.name != HF_NAME]


def is_list_of_images(file: Path) -> bool:
    """A .json file that starts with objects like those of JSON lines: `[{"image": ..., "tags": ...`."""
    head = read_head(file, 2048) if file.suffix.lower() == ".json" else ""
    begins = head.startswith("[") and head[1:].lstrip().startswith("{")
    has = [any(f'"{key}"' in head for key in keys) for keys in (IMAGE_KEYS, PRESENT_KEYS)]
    return begins and all(has) and not any(f'"{key}"' in head for key in ("data", "annotations", "annotator"))


def read_jsonl(path: Path, options: JsonLinesOptions, images: Path | None) -> Annotations:
    file = path if path.is_file() else only_file(path, jsonl_files(path))
    text, encoding = read_text(file)
    findings: list[Finding] = []
    header, records = split_header(file, parse_lines(file, text, findings))
    rows = [row for where, record in records if (row := read_record(where, record, findings, options))]
    roots = [file.parent / str(header["root"])] if "root" in header and images is None else image_roots(file, images)
    if header:  # its names are final
        options = options.model_copy(update={"hierarchy": "none"})
    annotations = assemble(
        rows,
        file=file,
        roots=roots,
        options=options,
        name=str(header.get("name", file.stem)),
        note=", ".join(filter(None, (f"Read {file}: one JSON object per image", encoding, *predicted(records)))),
        findings=findings,
        categories=header.get("categories"),
        folder=images or (path if path.is_dir() and not header else None),
    )
    return with_tree(annotations, header, file)


def with_tree(annotations: Annotations, header: dict[str, Any], file: Path) -> Annotations:
    """With the tree of a saved file; an alias file of this reading may have renamed its tags."""
    tree = tree_in(header, file).renamed(annotations.renamed_tags)
    if not tree:
        return annotations
    implied = {**tree.implied, **annotations.tree.implied}
    tree = replace(tree, implied=with_indirect(implied)).restricted(annotations.categories)
    return replace(annotations, tree=tree, labels=tree.closed(annotations.labels, annotations.categories))


def tree_in(header: dict[str, Any], file: Path) -> TagTree:
    try:
        return TagTree.from_json(header.get("tree"))
    except ValueError as error:
        raise DataError(f"{file}:1 should be the header of a fewtags annotation file; its tree is {error}.") from None


def load_saved(file: Path) -> Annotations:
    """A saved Annotations file as it is: nothing is searched for, merged or renamed."""
    text, _ = read_text(file)
    findings: list[Finding] = []
    header, records = split_header(file, parse_lines(file, text, findings))
    if not header:
        raise DataError(f"{file}:1 is not the header of a fewtags annotation file.")
    rows = [row for where, record in records if (row := read_record(where, record, findings, JsonLinesOptions()))]
    drop_unknown_categories(rows, set(header["categories"]), findings)
    findings += [Finding("unknown split", r.where, f"'{r.split}'") for r in rows if r.split not in SPLIT_WORDS]
    if findings:
        raise DataError(f"{file} has changed since it was saved: {findings[0]}.")
    return Annotations(
        file.parent / str(header.get("root", ".")),
        [row.image for row in rows],
        header["categories"],
        label_matrix(rows, header["categories"]),
        np.array([SPLIT_WORDS[row.split] for row in rows], dtype=str),
        name=str(header.get("name", file.stem)),
        ids=[row.id for row in rows] if any(row.id for row in rows) else None,
        tree=tree_in(header, file),
        groups=group_numbers([row.group for row in rows]),
    )


def split_header(
    file: Path, records: list[tuple[str, dict[str, Any]]]
) -> tuple[dict[str, Any], list[tuple[str, dict[str, Any]]]]:
    """The header of fewtags' own format, or {}, and the other records."""
    if not records or "fewtags" not in records[0][1]:
        return {}, records
    header = records[0][1]
    if header["fewtags"] != 1:
        raise DataError(f"{file} has version {header['fewtags']} of the annotation format; version 1 is supported.")
    categories = header.get("categories")
    if not (isinstance(categories, list) and all(isinstance(name, str) for name in categories)):
        raise DataError(f"{file}:1 should be the header of a fewtags annotation file; it has no list of categories.")
    return header, records[1:]


def parse_lines(file: Path, text: str, findings: list[Finding]) -> list[tuple[str, dict[str, Any]]]:
    """(file:line, object) of every line; a line that is not a JSON object becomes a finding."""
    records = []
    for where, line in lines_of(file, text):
        try:
            record = json.loads(line) if isinstance(line, str) else line
        except (ValueError, RecursionError) as error:
            findings.append(malformed(where, f"is not JSON ({error})"))
            continue
        if isinstance(record, dict):
            records.append((where, record))
        else:
            findings.append(malformed(where, "is not a JSON object"))
    return records


def lines_of(file: Path, text: str) -> Iterator[tuple[str, Any]]:
    """Lines with their location, or the items of a JSON list."""
    if file.suffix.lower() == ".json":
        try:
            items = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{file} should be a JSON list of images, but it cannot be read: {error}.") from None
        if not isinstance(items, list):
            raise DataError(f"{file} should be a JSON list of images; it holds a {type(items).__name__}.")
        yield from ((f"{file}[{number}]", item) for number, item in enumerate(items))
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield f"{file}:{number}", line


def malformed(where: str, what: str) -> Finding:
    return Finding("malformed line", where, f"the line {what}; it was skipped")


def read_record(where: str, record: dict[str, Any], findings: list[Finding], options: JsonLinesOptions) -> Row | None:
    image = next((record[key] for key in IMAGE_KEYS if key in record), None)
    if not isinstance(image, str) or not image:
        findings.append(malformed(where, f"has no image (one of {', '.join(IMAGE_KEYS)})"))
        return None
    if isinstance(record.get("error"), str) and record["error"] and not record.get("tags"):
        findings.append(Finding("unreadable image", where, f"was not tagged: {record['error']}"))
        return None
    lists: dict[str, set[str]] = {}
    for key in (*PRESENT_KEYS, "absent", "unknown"):
        tags = tag_list(record.get(key), options.min_probability)
        if tags is None:
            findings.append(malformed(where, f"has a '{key}' that is not a list of tags"))
            return None
        lists[key] = {tag.strip() for tag in tags if tag.strip()}
    present = set().union(*(lists[key] for key in PRESENT_KEYS))
    split, complete = str(record.get("split") or ""), record.get("complete") is True
    row = Row(image, where, present, lists["absent"], lists["unknown"], split, complete, as_id(record.get("id")))
    row.group = as_id(record.get("group"))
    return row


def tag_list(tags: Any, min_probability: float = 0.0) -> list[str] | None:
    """Tags as a list, as comma-separated text, or with probabilities; None for anything else."""
    if isinstance(tags, dict):
        if not all(isinstance(value, int | float) for value in tags.values()):
            return None
        return [tag for tag, value in tags.items() if value >= min_probability]
    tags = tags or []
    tags = tags.split(",") if isinstance(tags, str) else tags
    return tags if isinstance(tags, list) and all(isinstance(tag, str) for tag in tags) else None


def predicted(records: list[tuple[str, dict[str, Any]]]) -> Iterator[str]:
    if any(isinstance(record.get("tags"), dict) for _, record in records):
        yield "tags with probabilities as `fewtags predict` writes them"
