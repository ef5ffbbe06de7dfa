"""One process at a time in a folder or a file. A lock is released when its process ends, however it ends: no stale
locks. filelock does the locking; what is added here is the sentence that says who holds it."""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from fewtags.errors import UserError

LOCK = ".lock"
PATIENCE = 3.0  # seconds to wait for a process that is about to end, such as a run whose bench was just killed
CANNOT_LOCK = (errno.ENOLCK, errno.ENOTSUP)  # a network file system without locks; working unlocked beats not working


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
def only_writer_of(file: Path, doing: str) -> Iterator[None]:
    """Raises while another process writes to `file`."""
    with _locked(file.with_name(f".{file.name}{LOCK}"), f"{file} is being written", doing, patience=0):
        yield


@contextmanager
def one_at_a_time(result: Path) -> Iterator[None]:
    """Of the processes that need `result`, one computes it and the others wait."""
    locks = result.parent / ".locks"
    locks.mkdir(parents=True, exist_ok=True)
    with _acquired(locks / result.name, patience=-1):  # filelock's word for: however long it takes
        yield


@contextmanager
def _locked(file: Path, in_use: str, doing: str, patience: float) -> Iterator[None]:
    about = file.with_name(file.name + ".json")  # its own file, because nobody can read a locked one on Windows
    try:
        lock = _acquired(file, patience)
    except Timeout:
        raise UserError(f"{in_use} by {_holder(about)}; wait until it has ended, or stop it.") from None
    with lock:
        about.unlink(missing_ok=True)
        with about.open("x", encoding="utf-8") as stream:  # a new file: a link laid out under its name is not followed
            json.dump({"pid": os.getpid(), "host": socket.gethostname(), "doing": doing}, stream)
        try:
            yield
        finally:
            for leftover in (about, file):
                with suppress(OSError):  # Windows cannot remove open files; a leftover does no harm
                    leftover.unlink()


def _acquired(file: Path, patience: float) -> AbstractContextManager[object]:
    lock = FileLock(file)
    try:
        return lock.acquire(timeout=patience)
    except OSError as error:
        if error.errno in CANNOT_LOCK:
            return nullcontext()
        raise


def _holder(about: Path) -> str:
    try:
        holder = json.loads(about.read_text(encoding="utf-8"))
        return f"another process ({holder['doing']}, process {holder['pid']} on {holder['host']})"
    except (OSError, ValueError, KeyError, TypeError):  # it has just started or ended
        return "another process"
