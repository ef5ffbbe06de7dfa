"""Bursts by the time of day: photos of one folder and camera that were taken within seconds of each other."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import numpy as np
from PIL import Image

from fewtags.data.prefetch import default_workers, in_order

SECONDS = 2.0  # between two photos of a burst
_MODEL, _EXIF, _TAKEN, _FRACTION = 0x0110, 0x8769, 0x9003, 0x9291


def burst_numbers(photos: Sequence[Path]) -> np.ndarray | None:
    """[N] equal for photos of one burst; None if there is no burst. A photo without a time is alone."""
    workers = default_workers()
    taken = list(in_order(camera_and_time, photos, workers=workers, ahead=8 * workers))
    numbers = np.arange(len(photos), dtype=np.int64)
    pairs = enumerate(zip(photos, taken, strict=True))
    known = [(os.path.dirname(photo), *when, row) for row, (photo, when) in pairs if when is not None]
    known.sort()
    for before, after in pairwise(known):
        if before[:2] == after[:2] and after[2] - before[2] <= SECONDS:
            numbers[after[3]] = numbers[before[3]]
    return None if len(np.unique(numbers)) == len(numbers) else numbers


def camera_and_time(photo: Path) -> tuple[str, float] | None:
    """None if the photo does not say when it was taken, or cannot be read."""
    try:
        with Image.open(photo) as image:
            exif = image.getexif()
        inner = exif.get_ifd(_EXIF)
        taken = datetime.strptime(str(inner[_TAKEN]).strip("\0 "), "%Y:%m:%d %H:%M:%S")
        fraction = str(inner.get(_FRACTION, "")).strip("\0 ")
    except Exception:  # Pillow raises anything for a damaged file, and readers must not stop at one
        return None
    seconds = taken.timestamp() + (float(f"0.{fraction}") if fraction.isdigit() else 0.0)
    return str(exif.get(_MODEL, "")).strip("\0 "), seconds
