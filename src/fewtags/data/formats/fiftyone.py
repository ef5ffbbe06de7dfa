"""FiftyOne exports: labels.json of image classification, or samples.json of a whole dataset.

labels.json    {"classes": ["cat", "dog"], "labels": {"a": 0, "b": [0, 1], "c": null}}
samples.json   {"samples": [{"filepath": "data/a.jpg", "ground_truth": {"classifications": [{"label": "cat"}]}}]}
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fewtags.data.annotations import Annotations, Finding
from fewtags.data.formats.locate import image_roots
from fewtags.data.formats.options import LabelFileOptions
from fewtags.data.formats.rows import SPLIT_WORDS, Row, as_id, assemble
from fewtags.data.formats.text import load_json, read_head
from fewtags.errors import DataError, UserError, did_you_mean
from fewtags.wording import plural

LABEL_LISTS = ("classifications", "detections", "polylines", "keypoints")
POSITIVE, NEGATIVE = "positive_labels", "negative_labels"  # FiftyOne's names for the Open Images labels


class FiftyOneOptions(LabelFileOptions):
    field: str | None = None
    """The field with the labels. Default: ground_truth, or the only one; `tags` reads the samples' tags."""


def detects_fiftyone(path: Path) -> bool:
    return bool(label_files(path))


def label_files(path: Path) -> list[Path]:
    """labels.json or samples.json: the file itself, in the folder, or in its folders train, validation and test."""
    if path.is_file():
        return [path] if is_fiftyone(path) else []
    folders = [path, *sorted(folder for folder in path.iterdir() if folder.name.lower() in SPLIT_WORDS)]
    files = [folder / name for folder in folders for name in ("labels.json", "samples.json")]
    return [file for file in files if file.is_file() and is_fiftyone(file)]


def is_fiftyone(file: Path) -> bool:
    if file.suffix.lower() != ".json":
        return False
    head = read_head(file).replace(" ", "").replace("\n", "")
    return head.startswith(('{"classes":', '{"labels":{', '{"samples":[')) or (
        head.startswith("{") and '"classes":[' in head and '"labels":{' in head
    )


def read_fiftyone(path: Path, options: FiftyOneOptions, images: Path | None) -> Annotations:
    files = label_files(path) or [path]
    if files == [path] and path.is_dir():
        raise UserError(f"{path} contains no FiftyOne labels.json or samples.json.")
    findings: list[Finding] = []
    rows: list[Row] = []
    for file in files:
        content = load_json(file, "a FiftyOne export")
        rows += read_content(content, file, path, options, findings)
    root = path if path.is_dir() else path.parent
    return assemble(
        rows,
        file=files[0],
        roots=[root, root / "data", *image_roots(files[0], images)]
        if images is None
        else image_roots(files[0], images),
        options=options,
        name=root.resolve().name,
        note=f"Read {' and '.join(str(file) for file in files)}: {plural(len(rows), 'FiftyOne sample')}",
        findings=findings,
        folder=images or (path if path.is_dir() else None),
    )


def read_content(
    content: Any, file: Path, source: Path, options: FiftyOneOptions, findings: list[Finding]
) -> Iterator[Row]:
    if isinstance(content, dict) and isinstance(content.get("samples"), list):
        yield from sample_rows(content["samples"], file, options, findings)
    elif isinstance(content, dict) and isinstance(content.get("labels"), dict):
        yield from label_rows_of(content, file, source, findings)
    else:
        raise DataError(f"{file} should be a FiftyOne export; it has neither 'labels' nor 'samples'.")


# --- labels.json ---


def label_rows_of(content: dict[str, Any], file: Path, source: Path, findings: list[Finding]) -> Iterator[Row]:
    """Image keys are names without suffix, in the folder data/ next to the file."""
    classes = content.get("classes")
    if classes is not None and not (isinstance(classes, list) and all(isinstance(name, str) for name in classes)):
        raise DataError(f"{file} should have 'classes' as a list of names.")
    inside = file.parent.relative_to(source) if source.is_dir() else Path()
    split = inside.name.lower() if inside.name.lower() in SPLIT_WORDS else ""
    for name, target in content["labels"].items():
        where = f"{file}[{name}]"
        try:
            tags = set(target_names(target, classes))
        except (ValueError, IndexError):
            findings.append(Finding("malformed entry", where, f"{target!r:.60} is not a label; the image was skipped"))
            continue
        yield Row((inside / "data" / name).as_posix(), where, tags, split=split, listed=target is not None)


def target_names(target: Any, classes: list[str] | None) -> Iterator[str]:
    """A name, a class index, an object with a label, a list of these, or nothing."""
    if target is None:
        return
    if isinstance(target, list):
        for item in target:
            yield from target_names(item, classes)
    elif isinstance(target, dict):
        yield from target_names(
            next((target[key] for key in ("label", "labels", *LABEL_LISTS) if key in target), None), classes
        )
    elif isinstance(target, str):
        yield target
    elif isinstance(target, int) and not isinstance(target, bool) and classes is not None and target >= 0:
        yield classes[target]
    else:
        raise ValueError(target)


# --- samples.json ---


def sample_rows(samples: list[Any], file: Path, options: FiftyOneOptions, findings: list[Finding]) -> Iterator[Row]:
    good = [sample for sample in samples if isinstance(sample, dict) and isinstance(sample.get("filepath"), str)]
    for number, sample in enumerate(samples):
        if not (isinstance(sample, dict) and isinstance(sample.get("filepath"), str)):
            findings.append(Finding("no image", f"{file}[{number}]", "the sample has no filepath; it was skipped"))
    present, absent = choose_fields(good, file, options)
    for number, sample in enumerate(good):
        where = f"{file}[{number}]"
        tags = sample.get("tags")
        tags = [tag for tag in tags if isinstance(tag, str)] if isinstance(tags, list) else []
        split = next((tag for tag in tags if tag.lower() in SPLIT_WORDS), "")
        key = sample.get("id", sample.get("_id"))
        key = key.get("$oid", "") if isinstance(key, dict) else key
        try:
            names = set(tags) if present == "tags" else set(target_names(sample.get(present), None))
            denied = set(target_names(sample.get(absent), None)) if absent else set()
        except ValueError:
            findings.append(Finding("malformed entry", where, f"'{present}' holds no labels; the sample was skipped"))
            continue
        listed = sample.get(present) is not None
        yield Row(sample["filepath"], where, names, denied, split=split, id=as_id(key), listed=listed)


def choose_fields(samples: list[dict[str, Any]], file: Path, options: FiftyOneOptions) -> tuple[str, str]:
    """The field with the present labels, and the one with the absent labels or ''."""
    fields = sorted({key for sample in samples for key, value in sample.items() if holds_labels(value)})
    if options.field is not None:
        if options.field not in (*fields, "tags"):
            raise UserError(f"{file} has no labels in a field '{options.field}'; {did_you_mean(options.field, fields)}")
        return options.field, ""
    if POSITIVE in fields:
        return POSITIVE, NEGATIVE
    if "ground_truth" in fields or len(fields) == 1:
        return ("ground_truth" if "ground_truth" in fields else fields[0]), ""
    found = f"labels in {', '.join(fields)}; choose one with field=" if fields else "no labels"
    raise UserError(f"{file} has {found}.")


def holds_labels(value: Any) -> bool:
    return isinstance(value, dict) and ("label" in value or any(key in value for key in LABEL_LISTS))
