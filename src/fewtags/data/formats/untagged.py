"""A folder of untagged images, and the categories to find: they are known only by name."""

from __future__ import annotations

from pathlib import Path

from fewtags.data.annotations import Annotations
from fewtags.data.formats.folders import folder_name
from fewtags.data.formats.options import ReadOptions
from fewtags.data.formats.rows import Row, label_rows
from fewtags.data.image_files import Skipped, walk_images
from fewtags.errors import DataError, UserError
from fewtags.wording import plural


def detects_untagged(path: Path) -> bool:
    """Never detected: any folder of images matches. `choose_format` uses it if categories were given and no tags are
    found."""
    return False


def read_untagged(path: Path, options: ReadOptions, images: Path | None) -> Annotations:
    if not options.category_list():
        raise UserError(f"{path} is read without tags, so list the categories to find (--categories dog,sea).")
    if not path.is_dir():
        raise UserError(f"{path} should be a folder of images; it is a file.")
    skipped = Skipped()
    rows = [Row(image, str(path / image), set()) for image in walk_images(path, skipped)]
    if not rows:
        raise DataError(f"{path} contains no images.")
    annotations = label_rows(
        rows,
        path,
        source=path,
        options=options,
        name=folder_name(path),
        describe=lambda labels: f"Read {path}: {plural(len(rows), 'image')} without tags.",
        findings=[],
    )
    annotations.notes.extend(filter(None, [skipped.sentence(path)]))
    return annotations
