"""A folder of images that nobody has tagged, and the categories to look for: these are known by their names alone."""

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
    """Never by looking: any folder of images fits. `choose_format` takes it where categories were given and no tag is
    found."""
    return False


def read_untagged(path: Path, options: ReadOptions, images: Path | None) -> Annotations:
    if not options.category_list():
        raise UserError(
            f"{path} is to be read without tags, so name the categories to look for (--categories dog,sea)."
        )
    if not path.is_dir():
        raise UserError(f"{path} should be a folder of images; it is a file.")
    skipped = Skipped()
    rows = [Row(image, str(path / image), set()) for image in walk_images(path, skipped)]
    if not rows:
        raise DataError(f"{path} has no images in it.")
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
