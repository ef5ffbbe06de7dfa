"""One process at a time in a folder or a file. A lock is released when its process ends, however it ends: no stale
locks."""

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
PATIENCE = 3.0  # seconds to wait for a process that is about to end, such as a run whose bench was just killed
FAR = 2**40  # offset of the byte locked on Windows, where locked bytes cannot be read


@contextmanager
def only_process_in(folder: Path, doing: str, *, patience: float | None = None) -> Iterator[None]:
    """Raises while another process works in `folder`. A folder created for the lock is removed if it stays empty."""
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
def one_at_a_time(result: Path) -> Iterator[None]:
    """Of the processes that need `result`, one computes it and the others wait. Not on Windows, where each computes."""
    locks = result.parent / ".locks"
    locks.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:
        yield
        return
    with (locks / result.name).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _locked(file: Path, in_use: str, doing: str, patience: float) -> Iterator[None]:
    stream = _open_and_lock(file, patience)
    if stream is None:
        raise UserError(f"{in_use} by {_holder(file)}; wait until it has ended, or stop it.")
    with stream:
        stream.truncate(0)
        stream.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "doing": doing}))
        stream.flush()
        try:
            yield
        finally:
            with suppress(OSError):  # Windows cannot remove open files; a leftover does no harm
                file.unlink()


def _open_and_lock(file: Path, patience: float) -> IO[str] | None:
    """The open and locked file; None if another process holds it for longer than `patience` seconds."""
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
    """Lock an open file until it is closed. Also True if the file system does not support locks."""
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
    """The previous holder may have removed the file after it was opened here; then the lock is void."""
    try:
        return os.path.samestat(file.stat(), os.fstat(stream.fileno()))
    except OSError:
        return False


def _holder(file: Path) -> str:
    try:
        about = json.loads(file.read_text(encoding="utf-8"))
        return f"another process ({about['doing']}, process {about['pid']} on {about['host']})"
    except (OSError, ValueError, KeyError, TypeError):  # it has just started or ended
        return "another process"
