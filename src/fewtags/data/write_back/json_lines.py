"""JSON lines, or a JSON list, of one record per image."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fewtags.data.annotations import Annotations
from fewtags.data.formats.json_lines import IMAGE_KEYS, PRESENT_KEYS, lines_of, tag_list
from fewtags.data.write_back.changes import Change, LabelSource, Rewritten, TagSpelling
from fewtags.data.write_back.raw import decoded
from fewtags.labels import ABSENT, PRESENT, UNKNOWN


def rewrite_jsonl(source: LabelSource, annotations: Annotations, changes: dict[str, dict[str, Change]]) -> Rewritten:
    assert source.file is not None
    text, encoding, mark = decoded(source.file)
    spelling = TagSpelling(annotations)
    records = [json.loads(line) if isinstance(line, str) else line for _, line in lines_of(source.file, text)]
    named = [(place, record) for place, record in enumerate(records) if image_of(record)]
    found = source.rows_of([image_of(record) for _, record in named])
    places = {image: [named[row][0] for row in rows] for image, rows in found.items()}
    edited: dict[int, Any] = {}
    new = []
    for image, mine in changes.items():
        rows = places.get(image, [])
        if rows:
            for row in rows:
                edited[row] = without_tags(edited.get(row, records[row]), set(mine), spelling)
            edited[rows[0]] = with_changes(edited[rows[0]], mine, bool(getattr(source.options, "complete", False)))
        else:
            new.append(with_changes({"image": image}, mine, False))
    content = json_content(source.file, text, records, edited, new)
    return Rewritten(source.file.name, mark + content.encode(encoding), "jsonl", source.given)


def image_of(record: Any) -> str:
    if not isinstance(record, dict) or "fewtags" in record:
        return ""
    image = next((record[key] for key in IMAGE_KEYS if key in record), None)
    return image if isinstance(image, str) else ""


def without_tags(record: dict[str, Any], tags: set[str], spelling: TagSpelling) -> dict[str, Any]:
    """The record with every mention of these tags removed."""
    record = dict(record)
    for key in (*PRESENT_KEYS, "absent", "unknown"):
        listed = record.get(key)
        named = tag_list(listed)
        if not listed or named is None:
            continue
        kept = [tag for tag in named if spelling.category(tag.strip()) not in tags]
        if len(kept) < len(named):
            if isinstance(listed, dict):
                record[key] = {tag: listed[tag] for tag in kept}
            else:
                record[key] = ",".join(kept) if isinstance(listed, str) else kept
    return record


def with_changes(record: dict[str, Any], changes: Mapping[str, Change], complete: bool) -> dict[str, Any]:
    complete = complete or record.get("complete") is True
    present = next((key for key in PRESENT_KEYS if key in record), "present")
    for tag, change in changes.items():
        if change.new == PRESENT:
            append_tag(record, present, tag)
        elif change.new == ABSENT and not complete:
            append_tag(record, "absent", tag)
        elif change.new == UNKNOWN and complete:
            append_tag(record, "unknown", tag)
    return record


def append_tag(record: dict[str, Any], key: str, tag: str) -> None:
    listed = record.get(key)
    if isinstance(listed, dict):
        record[key] = {**listed, tag: 1.0}
    elif isinstance(listed, str):
        record[key] = f"{listed},{tag}" if listed.strip() else tag
    else:
        record[key] = [*(listed or []), tag]


def json_content(file: Path, text: str, records: Sequence[Any], edited: Mapping[int, Any], new: Sequence[Any]) -> str:
    """Unedited lines stay as they are; a JSON list is rewritten as a whole."""
    if file.suffix.lower() == ".json":
        everything = [edited.get(place, record) for place, record in enumerate(records)]
        return json.dumps([*everything, *new], indent=1, ensure_ascii=False) + "\n"
    parts, place = [], 0
    for line in text.splitlines(keepends=True):
        if line.strip():
            end = line[len(line.rstrip("\r\n")) :]
            parts.append(json.dumps(edited[place], ensure_ascii=False) + end if place in edited else line)
            place += 1
        else:
            parts.append(line)
    content = "".join(parts)
    if new and content and not content.endswith("\n"):
        content += "\n"
    return content + "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in new)
