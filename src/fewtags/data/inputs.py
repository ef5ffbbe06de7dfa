"""Inputs of the Python API (paths, pictures in memory, tag lists, matrices, data frames) as lists and Annotations.

Data frames and tensors are duck-typed, so neither pandas nor polars nor torch has to be there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from PIL import Image

from fewtags.data.annotations import Annotations
from fewtags.data.formats import read_annotations
from fewtags.data.formats.dataframe import cells, find_column, is_blank, read_dataframe, split_words, tag_lists
from fewtags.data.formats.tables import IMAGE_NAMES, SPLIT_NAMES, TAG_NAMES
from fewtags.data.images import picture_in_memory
from fewtags.errors import UserError

Picture = Image.Image | np.ndarray  # [H, W, 3] uint8, or [H, W] in grey
Images = Any  # a folder or file, paths, pictures, tensors, a DataLoader, a data frame, or Annotations


# --- images ---


def listed(images: Images) -> list[Path | Picture]:
    """The images as a list: from one picture or many, an array [N, H, W, 3], a data frame's column, any iterable."""
    if isinstance(images, str | Path):
        return [Path(images)]
    if isinstance(images, Annotations):
        return [images.path(row) for row in range(len(images))]
    if isinstance(images, Image.Image) or (isinstance(images, np.ndarray) and _is_one_picture(images)):
        return [images]
    if is_tensor(images):
        return list(pictures_of(images))
    if is_loader(images):
        return loaded(images)[0]
    if is_frame(images):
        name = image_column(images)
        if name is None:
            raise UserError(f"The DataFrame has the columns {', '.join(map(str, images.columns))}; none holds images.")
        images = cells(images, name)
    return [picture for image in images for picture in _one(image)]


def _one(image: Any) -> list[Path | Picture]:
    if is_tensor(image):
        return list(pictures_of(image))
    return [image if isinstance(image, Image.Image | np.ndarray) else _path(image)]


def _is_one_picture(array: np.ndarray) -> bool:
    """True for numbers of shape [H, W] or [H, W, 3 or 4]; [N, H, W, 3] is many pictures, and so are strings."""
    return array.dtype.kind not in "OUS" and (array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4)))


def _path(image: Any) -> Path:
    try:
        return Path(image)
    except TypeError:
        raise UserError(
            f"An image must be a path, a PIL image, an array or a tensor, not {type(image).__name__}."
        ) from None


# --- tensors ---


def is_tensor(value: Any) -> bool:
    return hasattr(value, "detach") and hasattr(value, "numpy")


def is_loader(value: Any) -> bool:
    """A DataLoader of torch."""
    return hasattr(value, "dataset") and hasattr(value, "batch_size") and hasattr(value, "__iter__")


def pictures_of(tensor: Any) -> Iterator[np.ndarray]:
    """Pictures [H, W, 3] of bytes, from a tensor [N, 3, H, W] or [3, H, W] of bytes or of numbers from 0 to 1."""
    array = tensor.detach().cpu().numpy()
    if array.ndim not in (3, 4) or array.shape[-3] not in (1, 3):
        raise UserError(f"A tensor of images should have the shape [N, 3, H, W]; this one has {list(array.shape)}.")
    if array.dtype.kind == "f":
        if not (array.min(initial=0) >= 0 and array.max(initial=0) <= 1):
            raise UserError(
                f"A tensor of images should hold bytes, or numbers from 0 to 1; this one goes from "
                f"{array.min():.2f} to {array.max():.2f}. Do not normalise: fewtags does what its backbone needs."
            )
        array = (255 * array).round().astype(np.uint8)
    channels_last = np.moveaxis(array, -3, -1)
    pictures = channels_last if array.ndim == 4 else channels_last[None]
    yield from (np.repeat(picture, 3, axis=2) if picture.shape[2] == 1 else picture for picture in pictures)


def loaded(loader: Any) -> tuple[list[Path | Picture], np.ndarray | None]:
    """All images of a DataLoader, and the labels [N, C] that come with them, if there are any."""
    images: list[Path | Picture] = []
    labels: list[np.ndarray] = []
    for batch in loader:
        parts = batch if isinstance(batch, list | tuple) else [batch]
        if not parts or not is_tensor(parts[0]):
            raise UserError("A DataLoader should yield a tensor of images [N, 3, H, W], or one and a tensor of labels.")
        images += pictures_of(parts[0])
        if len(parts) > 1 and is_tensor(parts[1]) and parts[1].ndim == 2:
            labels.append(parts[1].detach().cpu().numpy())
    return images, np.concatenate(labels) if labels else None


@contextmanager
def as_files(images: Sequence[Path | Picture], folder: Path | None = None) -> Iterator[list[Path]]:
    """Paths of the images; pictures in memory become PNG files, in `folder` or in a temporary folder."""
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
    images: Images,
    tags: Any = None,
    *,
    classes: Sequence[str] | None = None,
    pictures: Path | None = None,
    **options: Any,
) -> Iterator[Annotations]:
    """Images with their tags, of `classes` if they are given. Pictures in memory become files in `pictures` or in a
    temporary folder."""
    by_reader = options if classes is None else {**options, "categories": list(classes)}
    frame = tags if image_column(tags) else images if tags is None and is_frame(images) else None
    if isinstance(images, Annotations):
        yield images
    elif frame is not None and not holds_pictures(frame):
        root = images if isinstance(images, str | Path) else "."
        yield read_dataframe(frame, root=Path(root).absolute(), **by_reader)
    elif isinstance(images, str | Path):
        yield read_annotations(images, tags=tags, **by_reader)
    else:
        if frame is not None:
            tags, options = cells(frame, tag_column(frame)), dict[str, Any](options, splits=splits_of(frame))
        with as_files(listed(images), pictures) as files:
            yield from_lists(files, tags, classes=classes, **options)


def from_lists(
    images: Sequence[Path],
    tags: Any,
    classes: Sequence[str] | None = None,
    complete: bool = False,
    splits: Sequence[str] | None = None,
    **options: Any,
) -> Annotations:
    """A list of images with a label matrix, or with each image's tags as a list or a string."""
    if options:
        raise UserError(
            f"{next(iter(options))}= is an option for reading files; lists of images take classes=, complete=."
        )
    if tags is None:
        raise UserError("Tags are missing: give a tag file, a list of tag lists, or a matrix with classes=[...].")
    if isinstance(tags, str | Path):
        raise UserError(f"The tag file {tags} goes with an image folder, but a list of images was given.")
    paths = [str(path.absolute()) for path in images]
    if is_frame(tags):
        classes, tags = list(map(str, tags.columns)), tags.to_numpy()
    if isinstance(tags, np.ndarray) and tags.ndim == 2:
        if classes is None:
            raise UserError("A label matrix needs the names of its columns: classes=[...].")
        zero = "absent" if complete else "unknown"
        return Annotations.from_onehot(paths, tags, classes, zero=zero, root="/", splits=splits)
    must_be_words(tags)
    lists = [row or () for row in tag_lists(list(tags), None)]
    return Annotations.from_tags(paths, lists, categories=classes, complete=complete, root="/", splits=splits)


def must_be_words(tags: Sequence[Any]) -> None:
    """A number is no tag: one per image would be a matrix with one column."""
    for number, row in enumerate(tags):
        values = row if isinstance(row, list | tuple | set | np.ndarray) else [row]
        for value in values:
            if isinstance(value, int | float | np.number) and not is_blank(value):
                raise UserError(
                    f"The tags of image {number} hold the number {value}. Pass words for each image, such as "
                    "['dog', 'sea'], or a matrix [images, classes] of 1, 0 and -1 with classes=[...]."
                )


# --- data frames ---


def is_frame(value: Any) -> bool:
    return hasattr(value, "columns") and hasattr(value, "to_numpy")


def image_column(frame: Any) -> str | None:
    """The column with images or their names, if this is a data frame that has one."""
    return find_column(list(map(str, frame.columns)), None, IMAGE_NAMES, "image") if is_frame(frame) else None


def tag_column(frame: Any) -> str:
    names = list(map(str, frame.columns))
    found = find_column(names, None, TAG_NAMES, "tags")
    if found is None:
        raise UserError(f"The DataFrame has the columns {', '.join(names)}; rename the tag column to 'tags'.")
    return found


def splits_of(frame: Any) -> list[str]:
    name = find_column(list(map(str, frame.columns)), None, SPLIT_NAMES, "split")
    return [word or "train" for word in split_words(frame, name, len(frame))]


def holds_pictures(frame: Any) -> bool:
    """Does it hold pictures in memory instead of file names?"""
    name = image_column(frame)
    return name is not None and any(isinstance(image, Image.Image | np.ndarray) for image in cells(frame, name))
