"""Label Studio's JSON and JSON-MIN exports: choices, taxonomies and the labels of regions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from fewtags.data.annotations import Annotations, Finding
from fewtags.data.formats.locate import ImageFolder, image_roots
from fewtags.data.formats.options import LabelFileOptions
from fewtags.data.formats.rows import Row, as_id, assemble
from fewtags.data.formats.text import files_with_suffix, load_json, only_file, read_head
from fewtags.data.image_files import is_image, unsupported_kind
from fewtags.data.tag_tree import SEPARATOR
from fewtags.errors import DataError

IMAGE_KEYS = ("image", "img", "photo", "picture", "url")
TAG_KEYS = ("tags", "tag", "choices", "choice", "labels", "label", "categories", "category", "taxonomy")
UPLOAD = re.compile(r"[0-9a-f]{8}-(?=.)")  # put before the names of uploaded files


class LabelStudioOptions(LabelFileOptions):
    control: str | None = None
    """Read only this control of the labelling interface (`from_name`). Default: all."""
    image_key: str | None = None
    """The key of a task's data that holds the image. Default: image, or the first whose value is an image file."""
    predictions: bool = False
    """Read predictions as if they were annotations. Default: they are ignored."""


def is_label_studio(file: Path) -> bool:
    head = read_head(file) if file.suffix.lower() == ".json" else ""
    full = '"data"' in head and any(f'"{key}"' in head for key in ("annotations", "completions", "predictions"))
    return head.startswith("[") and (full or '"annotation_id"' in head or '"annotator"' in head)


def label_studio_files(path: Path) -> list[Path]:
    return [file for file in files_with_suffix(path, (".json",)) if is_label_studio(file)]


def detects_label_studio(path: Path) -> bool:
    return bool(label_studio_files(path))


def read_label_studio(path: Path, options: LabelStudioOptions, images: Path | None) -> Annotations:
    file = path if path.is_file() else only_file(path, label_studio_files(path))
    findings: list[Finding] = []
    rows, candidates = [], []
    for number, task in enumerate(load_tasks(file)):
        where = f"{file}[{number}]"
        names = image_names(task, options.image_key)
        if not names:
            findings.append(Finding("no image", where, "the task has no image; it was skipped"))
            continue
        tags, listed = task_tags(task, options)
        rows.append(Row(names[0], where, tags, id=as_id(task.get("id")), listed=listed))
        candidates.append(names)
    roots = image_roots(file, images)
    choose_names(rows, candidates, roots)
    unlabelled = sum(not row.listed for row in rows)
    return assemble(
        rows,
        file=file,
        roots=roots,
        options=options,
        name=file.stem,
        note=f"Read {file}: Label Studio tasks, {unlabelled:,} without annotations",
        findings=findings,
        folder=images or (path if path.is_dir() else None),
    )


def load_tasks(file: Path) -> list[dict[str, Any]]:
    what = "a Label Studio export"
    tasks = load_json(file, what)
    tasks = [tasks] if isinstance(tasks, dict) and "data" in tasks else tasks  # one task per file, as in cloud storage
    if not isinstance(tasks, list) or not all(isinstance(task, dict) for task in tasks):
        raise DataError(f"{file} should be {what}, a list of tasks; it is something else.")
    return tasks


# --- images ---


def image_names(task: dict[str, Any], key: str | None = None) -> list[str]:
    """Possible local names of the task's image, the longest first."""
    data = task["data"] if isinstance(task.get("data"), dict) else task
    keys = [key] if key is not None else [*IMAGE_KEYS, *data]
    for name in keys:
        value = data.get(name)
        if isinstance(value, str) and value and (key is not None or is_photo(file_path(value))):
            path = file_path(value)
            base = PurePosixPath(path).name
            return list(dict.fromkeys(name for name in (path, base, UPLOAD.sub("", base, count=1)) if name))
    return []


def file_path(value: str) -> str:
    """The path in /data/local-files/?d=x.jpg, /data/upload/1/x.jpg, s3://bucket/x.jpg or x.jpg."""
    try:
        parts = urlsplit(value)
    except ValueError:
        return value
    if parts.query.startswith("d="):
        return unquote(parts.query[2:])
    if len(parts.scheme) > 1 or value.startswith("/data/"):  # one letter is a Windows drive
        return unquote(parts.path).lstrip("/")
    return value


def is_photo(path: str) -> bool:
    return is_image(path) or unsupported_kind(path) is not None


def choose_names(rows: list[Row], candidates: list[list[str]], roots: list[Path]) -> None:
    """Give each row the candidate that exists, below the root where most do; else the last, shortest one."""
    best: list[str | None] = [None] * len(rows)
    for root in roots:
        folder = ImageFolder(root)
        found = [next((name for name in names if folder.find(name)), None) for names in candidates]
        if found.count(None) < best.count(None):
            best = found
        if 2 * found.count(None) <= len(found):
            break
    for row, name, names in zip(rows, best, candidates, strict=True):
        row.image = name or names[-1]


# --- tags ---


def task_tags(task: dict[str, Any], options: LabelStudioOptions) -> tuple[set[str], bool]:
    """The tags of a task, and whether it was annotated."""
    if not isinstance(task.get("data"), dict):
        return set(minimal_tags(task, options)), True
    made = [entry for key in ("annotations", "completions") for entry in dicts(task.get(key))]
    made = [entry for entry in made if not entry.get("was_cancelled")]
    if options.predictions:
        made += dicts(task.get("predictions"))
    tags = {tag for entry in made for item in dicts(entry.get("result")) for tag in result_tags(item, options)}
    return tags, bool(made)


def dicts(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def result_tags(item: dict[str, Any], options: LabelStudioOptions) -> Iterator[str]:
    if options.control is None or item.get("from_name") == options.control:
        value = item.get("value")
        yield from value_tags(value if isinstance(value, dict) else {})


def value_tags(value: dict[str, Any]) -> Iterator[str]:
    for key, content in value.items():
        items = content if isinstance(content, list) else [content]
        if key == "taxonomy":
            for path in items:
                levels = (
                    [level for level in path if isinstance(level, str) and level.strip()]
                    if isinstance(path, list)
                    else []
                )
                yield SEPARATOR.join(levels)
        elif key == "choices" or key.endswith("labels"):
            yield from (item for item in items if isinstance(item, str))


def minimal_tags(task: dict[str, Any], options: LabelStudioOptions) -> Iterator[str]:
    """JSON-MIN: each control is a key of the task; its value is a string, `{"choices": [...]}` or a list of regions."""
    for key, value in task.items():
        if options.control is not None and key != options.control:
            continue
        if isinstance(value, str) and (options.control is not None or key.lower() in TAG_KEYS):
            yield value
        elif isinstance(value, list) and all(isinstance(path, list) for path in value):
            yield from value_tags({"taxonomy": value})
        for region in [value] if isinstance(value, dict) else dicts(value):
            yield from value_tags(region)
