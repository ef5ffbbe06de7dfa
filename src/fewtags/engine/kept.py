"""What takes seconds to compute for 100,000 images, kept beside the run: arrays, with the key of all they depend on.

    key = key_of(labels.tobytes(), code_of(presence))
    kept = load_kept(file, key)                  # None if it is not there, damaged, or of something else
    keep(file, key, odds=odds)

A kept file can be deleted at any time: it only saves time.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from zipfile import BadZipFile

import numpy as np

import fewtags
from fewtags.atomic import atomic_write

Arrays = dict[str, np.ndarray]


def load_kept(file: Path, key: str) -> Arrays | None:
    """A .npz has a checksum of every array, which is compared when it is read."""
    with suppress(OSError, ValueError, KeyError, EOFError, BadZipFile), np.load(file, allow_pickle=False) as content:
        if str(content["key"]) == key:
            return {name: content[name] for name in content.files if name != "key"}
    return None


def keep(file: Path, key: str, **arrays: np.ndarray) -> None:
    with suppress(OSError):  # a run may be on a read-only or full disk
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(file) as temporary, temporary.open("wb") as out:
            np.savez(out, key=np.array(key), **arrays)  # pyrefly: ignore[bad-argument-type]  # its stubs take none but positional


def key_of(*parts: str | bytes | None) -> str:
    digest = hashlib.sha256()
    for part in parts:
        content = repr(part).encode() if isinstance(part, str) or part is None else part
        digest.update(f"{len(content)} ".encode() + content)
    return digest.hexdigest()


@cache
def code_of(*modules: ModuleType) -> str:
    """A hash of their source files, so that what was computed by other code is computed again; of packages, of all
    modules in them. Without source files, the version has to do."""
    digest = hashlib.sha256(fewtags.__version__.encode())
    for module in modules:
        for file in sorted(_files_of(module)):
            with suppress(OSError):
                digest.update(file.read_bytes())
    return digest.hexdigest()


def _files_of(module: ModuleType) -> list[Path]:
    if module.__file__ is None:
        return []
    return list(Path(module.__file__).parent.rglob("*.py")) if hasattr(module, "__path__") else [Path(module.__file__)]
