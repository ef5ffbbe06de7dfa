"""One process at a time in a folder or a file. A lock ends with its process, however that ends: none is ever stale."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from fewtags.errors import UserError

LOCK = ".lock"
PATIENCE = 3.0  # seconds for one that is about to end, such as a run whose bench was killed a moment ago
FAR = 2**40  # where Windows locks a byte: what is locked cannot be read there, and nobody reads this


@contextmanager
def only_process_in(folder: Path, doing: str, *, patience: float | None = None) -> Iterator[None]:
    """Refuse to go on while another process works in `folder`. A folder made for the lock goes if it stays empty."""
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with _locked(folder / LOCK, f"{folder} is in use", doing, PATIENCE if patience is None else patience):
            yield
    finally:
        if made:
            with suppress(OSError):
                folder.rmdir()


@contextmanager
def _locked(file: Path, in_use: str, doing: str, patience: float) -> Iterator[None]:
    stream = _open_and_lock(file, patience)
    if stream is None:
        raise UserError(f"{in_use} by {_holder(file)}; wait until that one has ended, or stop it.")
    with stream:
        stream.truncate(0)
        stream.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "doing": doing}))
        stream.flush()
        try:
            yield
        finally:
            with suppress(OSError):  # Windows removes no file that is open; one that stays hinders nobody
                file.unlink()


def _open_and_lock(file: Path, patience: float) -> IO[str] | None:
    """The open and locked file; None where another process keeps it for longer than `patience` seconds."""
    last_try = time.monotonic() + patience
    while True:
        stream = file.open("a+", encoding="utf-8")
        if try_to_lock(stream) and _is_still(file, stream):
            return stream
        stream.close()
        if time.monotonic() > last_try:
            return None
        time.sleep(0.05)


def try_to_lock(stream: IO[Any]) -> bool:
    """Lock an open file until it is closed. True also where the file system knows no locks."""
    try:
        import fcntl
    except ImportError:
        return _try_on_windows(stream)
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _try_on_windows(stream: IO[Any]) -> bool:
    import msvcrt

    place = stream.tell()
    try:
        stream.seek(FAR)
        msvcrt.locking(stream.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined, unused-ignore]
    except OSError:
        return False
    finally:
        stream.seek(place)
    return True


def _is_still(file: Path, stream: IO[str]) -> bool:
    """The one before may have removed the file after it was opened here; then the lock is worth nothing."""
    try:
        return os.path.samestat(file.stat(), os.fstat(stream.fileno()))
    except OSError:
        return False


def _holder(file: Path) -> str:
    try:
        about = json.loads(file.read_text(encoding="utf-8"))
        return f"another process ({about['doing']}, process {about['pid']} on {about['host']})"
    except (OSError, ValueError, KeyError, TypeError):  # it has just begun, or has just ended
        return "another process"
