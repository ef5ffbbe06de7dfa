"""Which files in a folder are photos: those that can be opened, and those that cannot (RAW, HEIC)."""

from __future__ import annotations

import functools
import importlib.util
import os
from collections import Counter
from collections.abc import Iterable, Iterator
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
    RAW: "{} (export them as JPEG to use them)",
    UNNAMEABLE: "{} whose name is not valid Unicode (rename them to use them)",
}


@functools.cache
def heif_is_installed() -> bool:
    return importlib.util.find_spec("pillow_heif") is not None


def is_image(name: str) -> bool:
    """Can a file with this suffix be opened? HEIC only if the extra `heic` is installed."""
    lower = name.lower()
    return lower.endswith(IMAGE_SUFFIXES) or (lower.endswith(HEIF_SUFFIXES) and heif_is_installed())


def unsupported_kind(name: str) -> str | None:
    """HEIC or RAW for a photo that cannot be opened; None for every other file."""
    lower = name.lower()
    if lower.endswith(RAW_SUFFIXES):
        return RAW
    return HEIC if lower.endswith(HEIF_SUFFIXES) and not heif_is_installed() else None


def unsupported_reason(kind: str) -> str:
    """Why a photo of this kind cannot be used and what to do; follows the file name."""
    if kind == HEIC:
        return "is a HEIC photo, which needs an extra: pip install 'fewtags[heic]'"
    return "is a RAW photo, which fewtags cannot read; export it as JPEG"


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
        relative = Path(folder).relative_to(root)
        for name in sorted(files):
            if name.startswith("."):
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
        for entry in chain(first, entries):
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from _below(entry.path, skipped)
            elif is_image(entry.name) and entry.is_file():
                yield entry.path
            elif (kind := unsupported_kind(entry.name)) is not None:
                skipped.kinds[kind] += 1
