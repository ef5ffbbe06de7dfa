"""The three states of a label, stored as int8, and the names of the splits."""

from __future__ import annotations

PRESENT, UNKNOWN, ABSENT = 1, 0, -1
SPLITS = ("train", "val", "test")
