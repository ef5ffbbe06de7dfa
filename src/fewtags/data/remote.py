"""Data on an object store: `s3://bucket/photos` and everything else fsspec supports (extra: remote).

Training data is copied to this machine once, and again if a file's size or version changes. Images that are
only tagged are streamed and never stored.

A Path collapses double slashes, so "s3:/bucket/a.jpg" works too: commands pass paths around.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fewtags.atomic import atomic_write, write_json
from fewtags.data.prefetch import in_order
from fewtags.errors import MissingExtra, UserError

URL = re.compile(r"^([a-z][a-z0-9+.-]+):/+(.+)$")  # at least two letters: C:/ is a Windows drive
READERS = 16  # files copied at a time
LISTING = "listing.json"


def remote_url(path: str | Path) -> str | None:
    """The URL of a path; None for a local file."""
    match = URL.match(str(path))
    if match is None:
        return None
    scheme, rest = match.groups()
    return f"file:///{rest}" if scheme == "file" else f"{scheme}://{rest}"


def read_remote(url: str) -> bytes:
    """The content of a file. Raises FileNotFoundError, or whatever the store raises."""
    system, path = _file_system(url)
    return system.cat_file(path)


def remote_files(url: str) -> Iterator[str]:
    """The URLs of all files at or below `url`, sorted."""
    system, path = _file_system(url)
    yield from (system.unstrip_protocol(name) for name in sorted(_find(system, path, url)))


def local_copy(url: str) -> Path:
    """A local folder (or file) with the same content; only what is new or changed is copied."""
    system, path = _file_system(url)
    found = _find(system, path, url)
    place = copies() / hashlib.sha256(url.encode()).hexdigest()[:24]
    known = _listing(place)
    base = path.rstrip("/")
    one_file = list(found) == [base]
    target = place / "files" / (Path(base).name or "data")
    places = {name: target if one_file else target / _below(name, base) for name in found}
    versions = {name: version_of(about) for name, about in found.items()}
    todo = [name for name in found if known.get(name) != versions[name] or not places[name].is_file()]

    def copy(name: str) -> str:
        places[name].parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(places[name]) as temporary:
            system.get_file(name, str(temporary))
        return name

    for number, name in enumerate(in_order(copy, todo, workers=READERS, ahead=4 * READERS), start=1):
        known[name] = versions[name]
        if number % 1000 == 0:
            write_json(place / LISTING, known)
    for gone in known.keys() - found.keys():
        (target / _below(gone, base)).unlink(missing_ok=True)
    write_json(place / LISTING, versions)
    return target


def version_of(about: dict[str, Any]) -> str:
    """Changes with the file: its tag or modification time if the store has one, and its size."""
    stamp = (
        about.get("ETag")
        or about.get("etag")
        or about.get("mtime")
        or about.get("LastModified")
        or about.get("created")
    )
    return f"{about.get('size')} {stamp}"


def copies() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fewtags" / "remote"


def _listing(place: Path) -> dict[str, str]:
    try:
        known = json.loads((place / LISTING).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _below(name: str, base: str) -> str:
    """The path of a file below `base`. A name outside it is rejected."""
    inside = name[len(base) :].lstrip("/")
    if not name.startswith(base) or ".." in Path(inside).parts:
        raise UserError(f"{name} is not below {base}; the store's listing cannot be trusted.")
    return inside


def _find(system: Any, path: str, url: str) -> dict[str, dict[str, Any]]:
    try:
        found = system.find(path, detail=True)
    except Exception as error:  # every store has its own exceptions
        raise UserError(f"{url} cannot be listed: {_one_line(error)}.") from error
    if not found:
        raise UserError(f"{url} does not exist or is empty.")
    return found


def _file_system(url: str) -> tuple[Any, str]:
    try:
        import fsspec
    except ImportError:
        raise MissingExtra(f"Reading {url}", "remote") from None
    try:
        system, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:  # a store whose package is not installed, or an unknown one
        raise UserError(f"{url} cannot be reached: {_one_line(error)}.") from error
    return system, path


def _one_line(error: Exception) -> str:
    return (" ".join(str(error).split()) or type(error).__name__).rstrip(".")[:200]
