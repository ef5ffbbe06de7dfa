"""One checkpoint: written atomically, so it is complete or absent; read without executing pickled code."""

from __future__ import annotations

import os
import zipfile
import zlib
from pathlib import Path
from typing import Any

import torch

from fewtags.atomic import atomic_write
from fewtags.errors import UserError
from fewtags.models.tensor_files import read_tensors

FORMAT = 1


def save_checkpoint(content: dict[str, Any], file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(file) as temporary, temporary.open("wb") as out:
        torch.save({"format": FORMAT, **content}, out)
        out.flush()
        os.fsync(out.fileno())


def check_sums(file: Path) -> None:
    """A checkpoint is a zip archive with checksums, which torch does not verify. Raises ValueError."""
    try:
        with zipfile.ZipFile(file) as archive:
            damaged = archive.testzip()
    except (zipfile.BadZipFile, OSError, EOFError, zlib.error, NotImplementedError, RuntimeError) as error:
        raise ValueError(str(error) or type(error).__name__) from error
    if damaged is not None:
        raise ValueError(f"the checksum of {damaged} is wrong")


def load_checkpoint(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise UserError(f"There is no checkpoint {file}; was the run stopped during its first epoch?")
    try:
        check_sums(file)
        content = read_tensors(file)
    except ValueError as error:
        raise UserError(f"{file} is damaged or not a fewtags checkpoint ({error}).") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        found = content.get("format") if isinstance(content, dict) else None
        raise UserError(f"{file} is not a checkpoint of format {FORMAT} (found {found!r}).")
    return content
