"""Files next to photos, which belong to people: replaced as a whole, and only where nothing else changes by it."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fewtags.atomic import atomic_write, remove_leftovers
from fewtags.data.photo_keywords import BadKeywords
from fewtags.data.writers.base import Tally
from fewtags.data.xml import MalformedXml
from fewtags.errors import UserError
from fewtags.locks import LOCK, only_process_in

LOCK_FOLDER = ".fewtags"  # there only while something is written next to photos
TRIES = 5  # how often a file that somebody else changes meanwhile is read again
EVERY_FILE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)  # errors that the next file would have as well


def folders_of(images: Sequence[Path]) -> list[Path]:
    """The folders that were given, and those of the files that were."""
    return list(dict.fromkeys(path if path.is_dir() else path.parent for path in images))


@contextmanager
def alone_in(folders: Sequence[Path], doing: str) -> Iterator[None]:
    """Only one process may write next to these photos. The lock has a folder of its own: a photo folder's .lock may
    belong to another program."""
    with ExitStack() as locks:
        for folder in sorted({folder.resolve() for folder in folders}):
            own = folder / LOCK_FOLDER
            if own.is_symlink() or (own / LOCK).is_symlink():
                raise UserError(f"{own} should be a folder of fewtags, but it is or holds a link; remove it.")
            locks.enter_context(only_process_in(own, doing))
        yield


class NotWritten(Exception):
    """Why a file is left as it is; follows its name."""


class ChangedMeanwhile(Exception):
    """Somebody else wrote to the file after it was read."""


@dataclass(frozen=True)
class Update:
    content: bytes | None  # None removes the file
    what: str  # for the person who asked for a dry run


@dataclass
class Beside:
    folders: Sequence[Path]  # links may lead to files in these; by default only within the photo's own folder
    dry_run: bool
    say: Callable[[str], object]
    tally: Tally = field(default_factory=Tally)
    _tidy: set[Path] = field(default_factory=set)

    def update(self, file: Path, image: Path, make: Callable[[], Update | None]) -> bool:
        """Replace the image's `file` by what `make` makes of it, None for no change; False if it stays as it is. A
        failure is counted, with why."""
        try:
            done = self._update(file, make)
        except UserError as error:  # it has the name of the file
            self.tally.problems.append(str(error).rstrip("."))
        except (NotWritten, MalformedXml, BadKeywords, RecursionError, OSError) as error:
            if isinstance(error, OSError) and error.errno in EVERY_FILE:
                raise
            self.tally.problems.append(f"{file if os.path.lexists(file) else image}: {reason(error)}")
        else:
            self.tally.written += done
            self.tally.unchanged += not done
            return done
        return False

    def _update(self, file: Path, make: Callable[[], Update | None]) -> bool:
        for _ in range(TRIES):
            before = stamp(file)
            update = make()
            if update is None:
                return False
            place = self.place(file)
            if self.dry_run:
                self.say(f"{file}: {update.what}")
                return True
            try:
                self._replace(place, update.content, before)
            except ChangedMeanwhile:
                continue
            return True
        raise NotWritten("another program keeps writing to it")

    def _replace(self, place: Path, content: bytes | None, before: tuple[int, ...]) -> None:
        if content is None:
            if stamp(place) != before:
                raise ChangedMeanwhile
            place.unlink()
            return
        if place.parent not in self._tidy:
            remove_leftovers(place.parent)
            self._tidy.add(place.parent)
        with atomic_write(place) as temporary:
            temporary.write_bytes(content)
            if stamp(place) != before:
                raise ChangedMeanwhile

    def place(self, file: Path) -> Path:
        """The file to replace: `file`, or what it links to. Raises NotWritten."""
        place = file
        if file.is_symlink():
            place = file.resolve()
            folders = self.folders or [file.parent]
            if not any(place.is_relative_to(folder.resolve()) for folder in folders):
                raise NotWritten(f"it is a link that leads out of the folder, to {place}")
        try:
            found = place.lstat()
        except FileNotFoundError:
            return place
        if not stat.S_ISREG(found.st_mode):
            raise NotWritten("it is a folder" if stat.S_ISDIR(found.st_mode) else "it is not an ordinary file")
        if found.st_nlink > 1:
            raise NotWritten(f"it is one file under {found.st_nlink} names (hard links), which writing would separate")
        if not found.st_mode & 0o222 or not os.access(place, os.W_OK):
            raise NotWritten("it is read-only")
        return place


def reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"its tags cannot be written: {error.strerror}"
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)


def stamp(file: Path) -> tuple[int, ...]:
    """What differs once anybody has written to the file."""
    try:
        found = file.stat()
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns
