"""Files that are complete or absent, whenever the program is stopped."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

LEFTOVER = re.compile(r"\.?fewtags-[0-9a-f]{16}\.part(\.\w+)?")


@contextmanager
def atomic_write(file: Path) -> Iterator[Path]:
    """A new file next to `file`; it is renamed to `file` if the block succeeds, and removed otherwise.

    Nobody can guess its name, so it is never somebody's own file nor a link laid out to lead elsewhere, and two
    processes never share one. Content and name are on disk when the block ends. The permissions are those of the file
    that is replaced. Errors mention `file`, not the temporary path.
    """
    temporary = file.with_name(f".fewtags-{secrets.token_hex(8)}.part")  # short: `file` may have the longest name
    try:
        with naming(file, instead_of=temporary):
            permissions = _create(temporary, file)
            yield temporary
            _flush(temporary)
            temporary.chmod(permissions)
            temporary.replace(file)
            flush_folder(file.parent)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def _create(temporary: Path, file: Path) -> int:
    """Make the temporary file; returns the permissions it should have in the end."""
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o666)
    try:
        permissions = os.fstat(handle).st_mode
        with suppress(FileNotFoundError):
            old = file.lstat()
            if stat.S_ISREG(old.st_mode):
                permissions = old.st_mode
                temporary.chmod(0o600)  # what was private stays so while it is written
    finally:
        os.close(handle)
    return stat.S_IMODE(permissions)


def remove_leftovers(folder: Path, *, older_than: float = 3600.0, folders: bool = False) -> None:
    """Remove temporary files, and folders on request, of processes killed more than `older_than` seconds ago."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                age = time.time() - entry.stat(follow_symlinks=False).st_mtime
                if not LEFTOVER.fullmatch(entry.name) or age < older_than:
                    continue
                if not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.path)
                elif folders:
                    shutil.rmtree(entry.path)


@contextmanager
def naming(file: Path, instead_of: Path | None = None) -> Iterator[None]:
    """Adds this file to system errors without a file name, such as a full disk, whichever library reports them."""
    try:
        yield
    except Exception as error:
        system = _system_error(error)
        if system is None or system.errno is None or system.filename not in (None, str(instead_of), instead_of):
            raise
        raise type(system)(system.errno, system.strerror, str(file)) from error


def _system_error(error: Exception) -> OSError | None:
    """The OSError itself, or the one wrapped by torch (in its context) or a Rust library (in its text)."""
    if isinstance(error, OSError):
        return error
    if isinstance(error, RuntimeError) and isinstance(error.__context__, OSError):
        return error.__context__
    number = re.search(r"\(os error (\d+)\)", str(error))
    return None if number is None else OSError(int(number[1]), os.strerror(int(number[1])))


def append_line(file: Path, line: str) -> None:
    """Write the whole line or, if the disk is full, nothing of it."""
    with naming(file), file.open("ab", buffering=0) as out:
        end = out.tell()
        content = (line + "\n").encode("utf-8")
        try:
            while content:
                content = content[out.write(content) :]
        except OSError:
            with suppress(OSError):
                out.truncate(end)
            raise


def file_checksum(file: Path) -> str:
    """SHA-256 of its content."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _flush(file: Path) -> None:
    handle = os.open(file, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def flush_all(place: Path) -> None:
    """Write a file, or all files and names of a folder, to disk; but no hard links, whose content was there before."""
    if not place.is_dir():
        _flush(place)
        return
    for folder, _, names in os.walk(place):
        for file in (Path(folder) / name for name in names):
            if file.lstat().st_nlink == 1:
                _flush(file)
        flush_folder(Path(folder))


def flush_folder(folder: Path) -> None:
    """Write a folder's names to disk: without that, a power cut may take back a rename. Not possible on Windows."""
    if os.name != "nt":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems know no such thing
                raise
        finally:
            os.close(handle)


def write_json(file: Path, content: Any) -> None:
    with atomic_write(file) as temporary:
        temporary.write_text(json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8")
