"""Resolves the image names of a label file to files: in which folder, under which spelling."""

from __future__ import annotations

import os
import posixpath
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fewtags.data.annotations import Finding
from fewtags.data.image_files import (
    is_half_of_a_pair,
    is_image,
    is_raw,
    stems_of_pictures,
    unsupported_kind,
    unsupported_reason,
    walk_images,
)
from fewtags.errors import DataError
from fewtags.wording import printable

DRIVE = re.compile(r"[A-Za-z]:(?=/)")
MAX_PREFIXES = 3  # path prefixes of other machines per label file


class NoImagesError(DataError):
    """None of the images in a label file exists."""


@dataclass
class Located:
    """Where the images are: `found[n]` is the file for `names[n]`, relative to `root`, or None."""

    root: Path
    names: list[str]
    found: list[str | None]
    outside: set[int] = field(default_factory=set)  # rows rejected because their path is outside the root
    notes: list[str] = field(default_factory=list)  # what had to be guessed

    def missing(self, row: int, where: str) -> Finding:
        """The finding about a row without an image."""
        name = self.names[row]
        if row in self.outside:
            message = f"'{name}' is outside {self.root}; the row was skipped (--allow-outside accepts it)"
            return Finding("image outside the folder", where, message)
        kind = unsupported_kind(name)
        if kind is not None and _exists(self.root / _forward(name)):
            return Finding("unsupported image", where, f"{name} {unsupported_reason(kind)}; the row was skipped")
        return missing_image(where, name, self.root)


def missing_image(where: str, image: str, root: Path) -> Finding:
    return Finding("missing image", where, f"there is no image '{image}' in {root}; the row was skipped")


class ImageFolder:
    """Which image files exist below a folder: one directory listing per folder instead of one lookup per image."""

    def __init__(self, root: Path):
        self.root = root
        self._listings: dict[str, dict[str, str]] = {}

    def find(self, name: str) -> str | None:
        """The file for `name` in a label file.

        The suffix may be missing or be that of a RAW file next to a picture; a backslash is read as a slash,
        and case may differ if that is unambiguous.
        """
        folder, base = posixpath.split(posixpath.normpath(_forward(name)))
        listing = self._listing(folder)
        file = listing.get(base) or listing.get(_folded(base))
        if file is None and (is_raw(base) or unsupported_kind(base) is not None):
            stem = os.path.splitext(base)[0]
            file = listing.get(stem) or listing.get(_folded(stem))
        return posixpath.join(folder, file) if file else None

    def _listing(self, folder: str) -> dict[str, str]:
        if folder not in self._listings:
            try:
                files = sorted(filter(is_image, os.listdir(self.root / folder)))
            except (OSError, ValueError):  # no such folder; NUL or a lone surrogate in its name
                files = []
            pictures = stems_of_pictures(files)
            files = [file for file in files if not is_half_of_a_pair(file, pictures)]
            stems = {os.path.splitext(file)[0]: file for file in files}
            exact = stems | {file: file for file in files}
            same = Counter(_folded(name) for name in exact)
            self._listings[folder] = {_folded(n): f for n, f in exact.items() if same[_folded(n)] == 1} | exact
        return self._listings[folder]


def image_roots(file: Path, images: Path | None) -> list[Path]:
    """Where the images of a label file may be: the given folder, next to the file, or in a folder next to it."""
    if images is not None:
        return list(dict.fromkeys((images, images.parent, file.parent)))
    return [file.parent, *sorted(path for path in file.parent.iterdir() if path.is_dir())]


def locate(
    names: Sequence[str], roots: Iterable[Path], file: Path, *, allow_outside: bool = False, search: bool = False
) -> Located:
    """Each image's file below the first root that has most of them, else the root that has the most.

    With `search`, a bare name may also be the only image of that name in any folder below the root.
    """
    best, tried = None, []
    for root in roots:
        tried.append(root)
        located = search_below(root, names, allow_outside)
        hits = len(names) - located.found.count(None)
        if best is None or hits > len(names) - best.found.count(None):
            best = located
        if 2 * hits >= len(names):
            break
    if best is not None:
        map_prefixes(best)
        if search:
            find_by_name(best)
    if best is None or best.found.count(None) == len(names):
        raise NoImagesError(none_found(names, best, tried, file))
    return best


def search_below(root: Path, names: Sequence[str], allow_outside: bool) -> Located:
    folder, absolute = ImageFolder(root), Path(os.path.abspath(root)).as_posix()
    located = Located(root, list(names), [])
    for row, name in enumerate(names):
        path = below(_forward(name), absolute)
        if leads_out(path) and not allow_outside:
            located.outside.add(row)
            located.found.append(None)
        else:
            located.found.append(folder.find(path))
    return located


def below(path: str, root: str) -> str:
    """An absolute path inside the root, made relative to it; any other path unchanged."""
    return path[len(root) + 1 :] if path.startswith(root.rstrip("/") + "/") else path


def leads_out(path: str) -> bool:
    return path.startswith("/") or bool(DRIVE.match(path)) or posixpath.normpath(path).split("/")[0] == ".."


def map_prefixes(located: Located) -> None:
    """Names from another machine: `C:\\photos\\2021\\x.jpg` means 2021/x.jpg where such files exist."""
    folder = ImageFolder(located.root)
    for _ in range(MAX_PREFIXES):
        foreign = foreign_rows(located)
        prefix = best_prefix([_forward(located.names[row]) for row in foreign], folder)
        if prefix is None:
            return
        count = 0
        for row in foreign:
            path = _forward(located.names[row])
            if path.startswith(prefix) and (image := folder.find(path[len(prefix) :])):
                located.found[row] = image
                located.outside.discard(row)
                count += 1
        located.notes.append(f"'{prefix}' in {count:,} image names was read as {located.root}.")


def foreign_rows(located: Located) -> list[int]:
    """Rows still without an image whose paths are outside the root; all rows if no image was found."""
    nothing = located.found.count(None) == len(located.found)
    rows = [row for row, image in enumerate(located.found) if image is None]
    return [row for row in rows if nothing or row in located.outside]


def best_prefix(paths: Sequence[str], folder: ImageFolder) -> str | None:
    """The other machine's folder that corresponds to ours: with it removed, most of the paths exist."""
    prefixes = Counter(prefix for path in paths for prefix in folders_of(path))
    for prefix, count in sorted(prefixes.items(), key=lambda entry: (-entry[1], len(entry[0])))[:50]:
        rest = [path[len(prefix) :] for path in paths if path.startswith(prefix)]
        if 2 * sum(not leads_out(name) and folder.find(name) is not None for name in rest) > count:
            return prefix
    return None


def folders_of(path: str) -> list[str]:
    """C:/photos/x.jpg -> C:/, C:/photos/."""
    return [path[: place + 1] for place, character in enumerate(path) if character == "/"]


def find_by_name(located: Located) -> None:
    """A bare name means the only image of that name anywhere below the root."""
    rows = [row for row, image in enumerate(located.found) if image is None and "/" not in _forward(located.names[row])]
    everywhere: dict[str, list[str]] = {}
    for image in walk_images(located.root) if rows else ():
        base = posixpath.basename(image)
        for name in {base, os.path.splitext(base)[0]}:
            everywhere.setdefault(name, []).append(image)
    count = 0
    for row in rows:
        images = everywhere.get(located.names[row], [])
        if len(images) == 1:
            located.found[row] = images[0]
            count += 1
    if count:
        located.notes.append(f"{count:,} images were found by name in folders below {located.root}.")


def none_found(names: Sequence[str], best: Located | None, tried: Sequence[Path], file: Path) -> str:
    count = "1 image" if len(names) == 1 else f"{len(names):,} images"
    example = f" (the first is '{printable(names[0])}')" if names else ""
    if best is not None and len(best.outside) == len(names):
        return (
            f"The {count} listed in {file}{example} are outside {best.root}; pass their folder, with this "
            "file as its tags, or use --allow-outside."
        )
    kinds = {unsupported_kind(name) for name in names}
    if len(kinds) == 1 and (kind := kinds.pop()) is not None and _exists(tried[0] / _forward(names[0])):
        return f"{file} lists no readable image: the first, {names[0]}, {unsupported_reason(kind)}."
    places = " or ".join(str(root) for root in tried[:3])
    return (
        f"None of the {count} listed in {file}{example} is in {places}; "
        "pass the image folder, with this file as the tags."
    )


def _forward(name: str) -> str:
    return name.replace("\\", "/")


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def _exists(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False
