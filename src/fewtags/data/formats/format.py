"""A row of the table of formats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fewtags.data.annotations import Annotations
from fewtags.data.formats.options import ReadOptions

LABELS, EMBEDDED, GUESS = 0, 1, 2


@dataclass(frozen=True)
class Format:
    name: str
    sentence: str  # description of the layout
    detects: Callable[[Path], bool]  # inspects a folder or file; opens at most a sample
    # The options are an instance of the class below; the last argument is the folder image names are relative
    # to, if one was given next to the label file.
    read: Callable[[Path, Any, Path | None], Annotations]
    options: type[ReadOptions] = ReadOptions
    # A layout is considered only if none of a lower rank matches: label files (0) come before keywords in the photos
    # themselves (1), and these before folder names (2), which match almost any folder of images.
    rank: int = LABELS
