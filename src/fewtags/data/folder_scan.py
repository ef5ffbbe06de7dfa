"""Which files of a folder are new, changed, moved or gone since the last look: by size, modification time and inode.

Nothing is opened, so a look at 100,000 photos takes about a second.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fewtags.atomic import atomic_write
from fewtags.data.image_files import is_image
from fewtags.errors import UserError

_POSITIVE = 2**63 - 1


@dataclass(frozen=True)
class Snapshot:
    """All files that are not hidden, sorted by their absolute path."""

    paths: list[str] = field(default_factory=list)
    stamps: np.ndarray = field(default_factory=lambda: np.zeros((0, 3), dtype=np.int64))  # size, time in ns, inode

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Snapshot)
            and self.paths == other.paths
            and np.array_equal(self.stamps, other.stamps)
        )  # fmt: skip

    def stamp_of(self) -> dict[str, tuple[int, ...]]:
        return dict(zip(self.paths, map(tuple, self.stamps.tolist()), strict=True))

    @classmethod
    def of(cls, stamps: dict[str, tuple[int, ...]]) -> Snapshot:
        paths = sorted(stamps)
        return cls(paths, np.array([stamps[path] for path in paths], dtype=np.int64).reshape(-1, 3))

    def save(self, file: Path, about: dict[str, Any]) -> None:
        """With `about`, whose values are text or lists of text."""
        file.parent.mkdir(parents=True, exist_ok=True)
        arrays: dict[str, Any] = {name: packed(texts) for name, texts in {"paths": self.paths, **about}.items()}
        with atomic_write(file) as temporary, temporary.open("wb") as out:
            np.savez(out, stamps=self.stamps, **arrays)

    @classmethod
    def load(cls, file: Path) -> tuple[Snapshot, dict[str, list[str]]] | None:
        """None if there is none, or it cannot be read."""
        try:
            with np.load(file) as content:
                texts = {name: unpacked(content[name]) for name in content.files if name != "stamps"}
                return cls(texts.pop("paths"), content["stamps"]), texts
        except (OSError, ValueError, KeyError, EOFError):
            return None


def packed(texts: Sequence[str]) -> np.ndarray:
    """Texts as bytes, each ended by a NUL, which no file name has: loaded much faster than an array of texts."""
    return np.frombuffer("\0".join([*texts, ""]).encode(errors="surrogateescape"), dtype=np.uint8)


def unpacked(content: np.ndarray) -> list[str]:
    return content.tobytes().decode(errors="surrogateescape").split("\0")[:-1]


def look(places: Iterable[str | Path], *, besides: Iterable[str | Path] = ()) -> Snapshot:
    """At files and folders, `besides` some of them."""
    excluded = {(status.st_dev, status.st_ino) for place in besides if (status := _status(place)) is not None}
    stamps: dict[str, tuple[int, ...]] = {}
    for place in sorted({os.path.abspath(place) for place in places}):
        if os.path.isfile(place):
            stamps[place] = _stamp(os.stat(place))
        elif os.path.isdir(place):
            stamps.update(_below(place, excluded))
        else:
            raise UserError(f"{place} does not exist.")
    return Snapshot.of(stamps)


def _below(folder: str, excluded: set[tuple[int, int]]) -> Iterator[tuple[str, tuple[int, ...]]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            is_folder = entry.is_dir(follow_symlinks=False)
            if entry.name.startswith(".") or not (is_folder or entry.is_file()):
                continue
            status = os.stat(entry.path)  # that of the entry has no inode on Windows
            if (status.st_dev, status.st_ino) in excluded:
                continue
            if is_folder:
                yield from _below(entry.path, excluded)
            else:
                yield entry.path, _stamp(status)


def _status(place: str | Path) -> os.stat_result | None:
    try:
        return os.stat(place)
    except OSError:
        return None


def _stamp(status: os.stat_result) -> tuple[int, ...]:
    return status.st_size, status.st_mtime_ns, status.st_ino & _POSITIVE


@dataclass(frozen=True)
class Changes:
    """Of photos, by absolute path; and whether any other file differs, which may hold labels."""

    new: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    moved: dict[str, str] = field(default_factory=dict)  # new path -> old path
    removed: list[str] = field(default_factory=list)
    others: bool = False

    def __bool__(self) -> bool:
        return bool(self.new or self.changed or self.moved or self.removed or self.others)


def changes_between(before: Snapshot, after: Snapshot) -> Changes:
    old, now = before.stamp_of(), after.stamp_of()
    differ = [path for path in now if old.get(path) != now[path]]
    gone = [path for path in old if path not in now]
    new = [path for path in differ if path not in old and is_image(path)]
    removed = [path for path in gone if is_image(path)]
    moved = _moves(new, removed, now, old)
    left = set(moved.values())
    return Changes(
        [path for path in new if path not in moved],
        [path for path in differ if path in old and is_image(path)],
        moved,
        [path for path in removed if path not in left],
        any(not is_image(path) for path in (*differ, *gone)),
    )


def _moves(
    new: Sequence[str], removed: Sequence[str], now: dict[str, tuple[int, ...]], old: dict[str, tuple[int, ...]]
) -> dict[str, str]:
    """New path -> old path, of the same file (by inode) or of a copy (by name); size and time agree in both cases."""

    def signs(path: str, stamp: tuple[int, ...]) -> list[tuple[object, ...]]:
        return [stamp, (os.path.basename(path), *stamp[:2])]

    by_sign = {sign: path for path in removed for sign in signs(path, old[path])}
    moves: dict[str, str] = {}
    taken: set[str] = set()
    for path in new:
        was = next((by_sign[sign] for sign in signs(path, now[path]) if sign in by_sign), None)
        if was is not None and was not in taken:
            moves[path] = was
            taken.add(was)
    return moves
