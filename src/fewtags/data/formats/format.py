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
    sentence: str  # what the layout is, for people
    detects: Callable[[Path], bool]  # looks at a folder or file; opens a sample at most
    # The options are an instance of the class below; the last argument is the folder that image names are relative
    # to, where a person gave one beside the label file.
    read: Callable[[Path, Any, Path | None], Annotations]
    options: type[ReadOptions] = ReadOptions
    # A layout counts only where none of a lower rank fits: label files (0) come before keywords in the photos
    # themselves (1), and these before folder names (2), which fit almost any folder of images.
    rank: int = LABELS
