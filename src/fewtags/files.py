"""Files that are whole or absent, whenever the program is stopped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def written_whole(file: Path) -> Iterator[Path]:
    """A path beside `file` to write to; it is renamed to `file` when the block ends well."""
    beside = file.with_name(file.name + ".part")
    yield beside
    beside.replace(file)


def write_json(file: Path, content: Any) -> None:
    with written_whole(file) as beside:
        beside.write_text(json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8")
