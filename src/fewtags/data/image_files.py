"""Which files in a folder are photos: those that can be opened, and those that cannot (RAW, HEIC without their extra).

A RAW file next to a picture of the same name is the same photo; the picture stands for both.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections import Counter
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path

from fewtags.data.remote import remote_files, remote_url
from fewtags.errors import UserError

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".jfif", ".ppm")
HEIF_SUFFIXES = (".heic", ".heif", ".hif")
RAW_SUFFIXES = (
    ".cr2", ".cr3", ".crw", ".nef", ".nrw", ".arw", ".srf", ".sr2", ".dng", ".raf", ".orf", ".rw2", ".pef", ".srw",
    ".x3f", ".iiq", ".3fr", ".erf", ".kdc", ".mrw", ".raw",
)  # fmt: skip
HEIC, RAW, UNNAMEABLE = "HEIC", "RAW", "unnameable"
SORTED = 50_000  # entries of one folder that are put in order; more come as the folder has them
REMEDIES = {
    HEIC: "{} (to read them: pip install 'fewtags[heic]')",
    RAW: "{} (to read them: pip install 'fewtags[raw]')",
    UNNAMEABLE: "{} whose name is not valid Unicode (rename them to use them)",
}


@functools.cache
def heif_is_installed() -> bool:
    return importlib.util.find_spec("pillow_heif") is not None


@functools.cache
def raw_is_installed() -> bool:
    return importlib.util.find_spec("rawpy") is not None


def is_raw(name: str) -> bool:
    return name.lower().endswith(RAW_SUFFIXES)


def is_image(name: str) -> bool:
    """Can a file with this suffix be opened? HEIC and RAW only if the extra `heic` or `raw` is installed."""
    lower = name.lower()
    if lower.endswith(IMAGE_SUFFIXES):
        return True
    return (lower.endswith(HEIF_SUFFIXES) and heif_is_installed()) or (is_raw(name) and raw_is_installed())


def stems_of_pictures(names: Iterable[str]) -> set[str]:
    """Names, without suffix, of the pictures among the files of a folder that stand for a RAW file next to them."""
    return {os.path.splitext(name)[0].casefold() for name in names if is_image(name) and not is_raw(name)}


def is_half_of_a_pair(name: str, pictures: Container[str]) -> bool:
    """Is this a RAW file next to a picture of the same photo?"""
    return is_raw(name) and os.path.splitext(name)[0].casefold() in pictures


def raw_of(picture: Path) -> Path | None:
    """The RAW file of the same photo next to a picture."""
    if is_raw(picture.name):
        return None
    try:
        raws = _raw_files(picture.parent, picture.parent.stat().st_mtime_ns)
    except OSError:
        return None
    name = raws.get(picture.stem.casefold())
    return None if name is None else picture.with_name(name)


@functools.lru_cache(maxsize=256)
def _raw_files(folder: Path, changed: int) -> dict[str, str]:
    """Stem -> RAW file. Most folders have none, and asking for every possible name of every photo takes long."""
    return {os.path.splitext(name)[0].casefold(): name for name in sorted(os.listdir(folder)) if is_raw(name)}


def unsupported_kind(name: str) -> str | None:
    """HEIC or RAW for a photo that cannot be opened; None for every other file."""
    if is_raw(name):
        return None if raw_is_installed() else RAW
    return HEIC if name.lower().endswith(HEIF_SUFFIXES) and not heif_is_installed() else None


def unsupported_reason(kind: str) -> str:
    """Why a photo of this kind cannot be used and what to do; follows the file name."""
    if kind == HEIC:
        return "is a HEIC photo, which needs an extra: pip install 'fewtags[heic]'"
    return "is a RAW photo, which needs an extra: pip install 'fewtags[raw]'"


@dataclass
class Skipped:
    """Number of skipped photos, by kind."""

    kinds: Counter[str] = field(default_factory=Counter)

    def sentence(self, folder: Path) -> str:
        """'' if nothing was skipped."""
        parts = [REMEDIES[kind].format(_photos(kind, count)) for kind, count in sorted(self.kinds.items())]
        return f"Skipped in {folder}: {' and '.join(parts)}." if parts else ""


def _photos(kind: str, count: int) -> str:
    noun = "photo" if count == 1 else "photos"
    return f"{count:,} {noun}" if kind == UNNAMEABLE else f"{count:,} {kind} {noun}"


def walk_images(root: Path, skipped: Skipped | None = None) -> Iterator[str]:
    """Image files below a folder, relative to it, in a stable order; hidden files and folders are skipped.

    Photos that cannot be opened are counted in `skipped`.
    """
    skipped = skipped or Skipped()
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        relative, pictures = Path(folder).relative_to(root), stems_of_pictures(files)
        for name in sorted(files):
            if name.startswith(".") or is_half_of_a_pair(name, pictures):
                continue
            if is_image(name):
                path = (relative / name).as_posix()
                if _has_valid_name(path):
                    yield path
                else:
                    skipped.kinds[UNNAMEABLE] += 1
            elif (kind := unsupported_kind(name)) is not None:
                skipped.kinds[kind] += 1


def _has_valid_name(path: str) -> bool:
    """Names that are not valid text (lone surrogates in Python) can be neither printed nor written to a label file."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


# --- what a user names: files and folders ---


def find_images(paths: Iterable[str | Path]) -> list[Path]:
    """Image files as given, and those below the given folders, in sorted order."""
    found = list(iter_images(paths))
    if not found:
        raise no_images()
    return found


def no_images() -> UserError:
    return UserError(f"No images were found; searched for files ending in {', '.join(IMAGE_SUFFIXES)}.")


def iter_images(paths: Iterable[str | Path], skipped: Skipped | None = None) -> Iterator[Path]:
    """The same one by one: of folders with more than SORTED entries in no order, but without keeping them in memory.

    Hidden files are skipped, and photos that cannot be opened are counted in `skipped`.
    """
    for path in paths:
        if (url := remote_url(path)) is not None:
            yield from map(Path, filter(is_image, remote_files(url)))
        elif os.path.isdir(path):
            yield from map(Path, _below(os.fspath(path), skipped or Skipped()))
        elif os.path.isfile(path):
            yield Path(path)
        else:
            raise UserError(f"{path} does not exist.")


def _below(folder: str, skipped: Skipped) -> Iterator[str]:
    with os.scandir(folder) as entries:
        first = list(islice(entries, SORTED + 1))
        if len(first) <= SORTED:
            first.sort(key=lambda entry: entry.name)
        large = len(first) > SORTED  # then the rest of the names is not known yet
        pictures = set() if large else stems_of_pictures(entry.name for entry in first)
        for entry in chain(first, entries):
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from _below(entry.path, skipped)
            elif is_half_of_a_pair(entry.name, pictures) or (large and is_raw(entry.name) and _has_picture(entry.path)):
                continue
            elif is_image(entry.name) and entry.is_file():
                yield entry.path
            elif (kind := unsupported_kind(entry.name)) is not None:
                skipped.kinds[kind] += 1


def _has_picture(raw: str) -> bool:
    stem = os.path.splitext(raw)[0]
    return any(os.path.isfile(stem + form) for suffix in IMAGE_SUFFIXES for form in (suffix, suffix.upper()))
