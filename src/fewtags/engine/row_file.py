"""Rows of a file, read rather than mapped: a mapped file counts as the process's memory as far as it was touched."""

from __future__ import annotations

from typing import IO

import numpy as np


def read_places(file: IO[bytes], places: np.ndarray, row_bytes: int) -> np.ndarray:
    """[M, row_bytes] bytes of the rows at these places; a row behind the file's end is 0. Neighbours are one read."""
    out = np.zeros((len(places), row_bytes), dtype=np.uint8)
    breaks = np.flatnonzero(np.diff(places) != 1) + 1
    for first, end in zip([0, *breaks], [*breaks, len(places)], strict=True):
        if first == end:
            continue
        file.seek(int(places[first]) * row_bytes)
        view = out[first:end].reshape(-1).data
        while view and (count := file.readinto(view)):  # pyrefly: ignore[missing-attribute]  # at most 2 GB in one call
            view = view[count:]
    return out
