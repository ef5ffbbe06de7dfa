"""Files that are whole or absent, whenever the program is stopped."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


@contextmanager
def atomic_write(file: Path) -> Iterator[Path]:
    """A path beside `file` to write to; it is renamed to `file` when the block ends well, and removed otherwise.

    What was written is on the disk before it is renamed, and has the permissions of any new file. An error names
    `file`, not the path beside it, which nobody asked for.
    """
    beside = file.with_name(file.name + ".part")
    try:
        yield beside
        _flush(beside)
        beside.chmod(0o666 & ~_umask())
        beside.replace(file)
    except OSError as error:
        with suppress(OSError):
            beside.unlink()
        if error.filename in (None, str(beside), beside):
            raise type(error)(error.errno, error.strerror, str(file)) from error
        raise
    except BaseException:
        with suppress(OSError):
            beside.unlink()
        raise


def _flush(file: Path) -> None:
    handle = os.open(file, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    """The process has no way to read its umask but to set it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def write_json(file: Path, content: Any) -> None:
    with atomic_write(file) as beside:
        beside.write_text(json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8")
