"""Files that are complete or absent, whenever the program is stopped."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


@contextmanager
def atomic_write(file: Path) -> Iterator[Path]:
    """A temporary path next to `file`; it is renamed to `file` if the block succeeds, and removed otherwise.

    The content is on disk before it is renamed, and has the permissions of any new file. Errors mention
    `file`, not the temporary path.
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
    """A process can only read its umask by setting it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def write_json(file: Path, content: Any) -> None:
    with atomic_write(file) as beside:
        beside.write_text(json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8")
