"""What Python users hand over (paths, pictures in memory, tag lists, matrices, data frames) as lists and Annotations.

Data frames are recognised by what they can do, so that neither pandas nor polars has to be installed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from PIL import Image

from fewtags.data.annotations import Annotations
from fewtags.data.formats import read_annotations
from fewtags.data.formats.csv_tags import sniff_separator, split_tags
from fewtags.data.images import picture_in_memory
from fewtags.errors import UserError
from fewtags.wording import plural

Picture = Image.Image | np.ndarray  # [H, W, 3] uint8, or [H, W] in grey
Images = Any  # a folder or file, paths, pictures, a data frame with a column 'image', or Annotations
IMAGE_COLUMN, TAG_COLUMN, SPLIT_COLUMN = "image", "tags", "split"


# --- images ---


def listed(images: Images) -> list[Path | Picture]:
    """The images one by one: one picture or many, an array [N, H, W, 3], a data frame's column, any iterable."""
    if isinstance(images, str | Path):
        return [Path(images)]
    if isinstance(images, Annotations):
        return [images.path(row) for row in range(len(images))]
    if isinstance(images, Image.Image) or (isinstance(images, np.ndarray) and _is_one_picture(images)):
        return [images]
    if is_frame(images):
        images = column(images, IMAGE_COLUMN)
    return [image if isinstance(image, Image.Image | np.ndarray) else _path(image) for image in images]


def _is_one_picture(array: np.ndarray) -> bool:
    """[H, W] or [H, W, 3 or 4] of numbers; [N, H, W, 3] are many, and so are texts."""
    return array.dtype.kind not in "OUS" and (array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4)))


def _path(image: Any) -> Path:
    try:
        return Path(image)
    except TypeError:
        raise UserError(
            f"An image is a path, a PIL image or an array; {type(image).__name__} is none of them."
        ) from None


@contextmanager
def as_files(images: Sequence[Path | Picture], folder: Path | None = None) -> Iterator[list[Path]]:
    """Paths of the images; pictures in memory become PNG files, in `folder` or for as long as the block takes."""
    with TemporaryDirectory(prefix="fewtags-") as temporary:
        place = folder or Path(temporary)
        if not all(isinstance(image, Path) for image in images):
            place.mkdir(parents=True, exist_ok=True)
        files = []
        for number, image in enumerate(images):
            if not isinstance(image, Path):
                file = place / f"{number:06d}.png"
                picture_in_memory(image, number).save(file, compress_level=1)
                image = file
            files.append(image)
        yield files


# --- labels ---


@contextmanager
def annotations_of(
    images: Images, tags: Any = None, *, pictures: Path | None = None, **options: Any
) -> Iterator[Annotations]:
    """Images with their tags. Pictures in memory become files in the folder `pictures`, or only for a while."""
    if isinstance(images, Annotations):
        yield images
        return
    if isinstance(images, str | Path) and not has_images(tags):
        yield read_annotations(images, tags=tags, **options)
        return
    frame = tags if has_images(tags) else images if tags is None and is_frame(images) else None
    if frame is not None:
        names, tags = column(frame, IMAGE_COLUMN), column(frame, TAG_COLUMN)
        images = [Path(images) / name for name in names] if isinstance(images, str | Path) else names
        if SPLIT_COLUMN in frame.columns:
            options["splits"] = column(frame, SPLIT_COLUMN)
    with as_files(listed(images), pictures) as files:
        yield from_lists(files, tags, **options)


def from_lists(
    images: Sequence[Path],
    tags: Any,
    classes: Sequence[str] | None = None,
    *,
    complete: bool = False,
    splits: Sequence[str] | None = None,
    **options: Any,
) -> Annotations:
    """Images one by one with a matrix of labels, or with a list of tags each."""
    if options:
        raise UserError(
            f"{next(iter(options))}= is an option for reading files; lists of images take classes=, complete=."
        )
    if tags is None:
        raise UserError("Tags are missing: give a tag file, a list of tag lists, or a matrix with classes=[...].")
    if isinstance(tags, str | Path):
        raise UserError(f"The tag file {tags} goes with the folder of its images; here is a list of images instead.")
    paths = [str(path.absolute()) for path in images]
    if is_frame(tags):
        classes, tags = list(map(str, tags.columns)), tags.to_numpy()
    if isinstance(tags, np.ndarray) and tags.ndim == 2:
        if classes is None:
            raise UserError("A matrix of labels needs the names of its columns: classes=[...].")
        zero = "absent" if complete else "unknown"
        return Annotations.from_onehot(paths, tags, classes, zero=zero, root="/", splits=splits)
    lists = tag_lists(tags)
    return Annotations.from_tags(paths, lists, categories=classes, complete=complete, root="/", splits=splits)


def tag_lists(tags: Iterable[Any]) -> list[list[str]]:
    """A list of tags for each image. A text holds tags with a comma, semicolon or bar between, as in a CSV file."""
    rows = [None if is_missing(row) else row for row in tags]
    separator = sniff_separator([row for row in rows if isinstance(row, str)])
    return [_tags_of(row, number, separator) for number, row in enumerate(rows)]


def _tags_of(row: Any, number: int, separator: str | None) -> list[str]:
    if row is None:
        return []
    if isinstance(row, str):
        return sorted(split_tags(row, separator))
    tags = list(row) if isinstance(row, Iterable) else [row]
    wrong = [tag for tag in tags if not isinstance(tag, str)]
    if wrong:
        raise UserError(
            f"The tags of image {number} hold {wrong[0]!r}; a tag is a text, and an image has a list of them."
        )
    return tags


def is_missing(value: Any) -> bool:
    """None, NaN, or pandas' own mark: nobody said anything."""
    return value is None or type(value).__name__ == "NAType" or (isinstance(value, float) and math.isnan(value))


# --- data frames ---


def is_frame(value: Any) -> bool:
    return hasattr(value, "columns") and hasattr(value, "to_numpy")


def has_images(tags: Any) -> bool:
    """Is it a data frame that names the images beside their tags?"""
    return is_frame(tags) and IMAGE_COLUMN in tags.columns


def column(frame: Any, name: str) -> list[Any]:
    if name not in frame.columns:
        there = ", ".join(map(str, frame.columns))
        raise UserError(
            f"The data frame has no column '{name}' ({plural(len(frame.columns), 'column')}: {there}); rename one."
        )
    return list(frame[name])
