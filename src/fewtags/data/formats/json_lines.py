"""JSON lines: one object per image, with or without the header of fewtags' own annotation file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fewtags.data.annotations import Annotations, Finding
from fewtags.data.formats.common import Row, assemble, files_with_suffix, image_roots, only_file, read_text
from fewtags.data.formats.options import ReadOptions
from fewtags.errors import DataError

SUFFIXES = (".jsonl", ".ndjson")
IMAGE_KEYS = ("image", "file_name", "path")
PRESENT_KEYS = ("present", "tags", "labels")


def detects_jsonl(path: Path) -> bool:
    return bool(files_with_suffix(path, SUFFIXES))


def read_jsonl(path: Path, options: ReadOptions, images: Path | None) -> Annotations:
    file = path if path.is_file() else only_file(path, files_with_suffix(path, SUFFIXES))
    text, encoding = read_text(file)
    findings: list[Finding] = []
    records = parse_lines(file, text, findings)
    header = records.pop(0)[1] if records and "fewtags" in records[0][1] else {}
    if header.get("fewtags", 1) != 1:
        raise DataError(f"{file} has version {header['fewtags']} of the fewtags form; this fewtags reads version 1.")
    categories = header.get("categories")
    if header and not (isinstance(categories, list) and all(isinstance(name, str) for name in categories)):
        raise DataError(f"{file}:1 should be the header of a fewtags annotation file; it has no list of categories.")
    rows = [row for where, record in records if (row := read_record(where, record, findings))]
    roots = [file.parent / str(header["root"])] if "root" in header and images is None else image_roots(file, images)
    return assemble(
        rows,
        file=file,
        roots=roots,
        options=options,
        name=str(header.get("name", file.stem)),
        note=", ".join(filter(None, (f"Read {file}: one JSON object per image", encoding))),
        findings=findings,
        categories=categories,
    )


def parse_lines(file: Path, text: str, findings: list[Finding]) -> list[tuple[str, dict[str, Any]]]:
    """(file:line, object) of every line; a line that is not a JSON object becomes a finding."""
    records = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            findings.append(malformed(f"{file}:{number}", f"is not JSON ({error})"))
            continue
        if isinstance(record, dict):
            records.append((f"{file}:{number}", record))
        else:
            findings.append(malformed(f"{file}:{number}", "is not a JSON object"))
    return records


def malformed(where: str, what: str) -> Finding:
    return Finding("malformed line", where, f"the line {what}; it was left out")


def read_record(where: str, record: dict[str, Any], findings: list[Finding]) -> Row | None:
    image = next((record[key] for key in IMAGE_KEYS if key in record), None)
    if not isinstance(image, str) or not image:
        findings.append(malformed(where, f"names no image (one of {', '.join(IMAGE_KEYS)})"))
        return None
    lists: dict[str, set[str]] = {}
    for key in (*PRESENT_KEYS, "absent", "unknown"):
        tags = record.get(key) or []
        tags = tags.split(",") if isinstance(tags, str) else tags
        if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
            findings.append(malformed(where, f"has '{key}' that is not a list of tags"))
            return None
        lists[key] = {tag.strip() for tag in tags if tag.strip()}
    present = set().union(*(lists[key] for key in PRESENT_KEYS))
    split, complete = str(record.get("split") or ""), record.get("complete") is True
    return Row(image, where, present, lists["absent"], lists["unknown"], split, complete)
