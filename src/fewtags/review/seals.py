"""Seals over the decisions of a review, and their second copy, so that none is lost or changed unnoticed.

The seal of a decision is a checksum of its row and of the seal before it: the last one seals all. The same rows and
seals are lines of a text file next to the database. A decision is acknowledged once it is in both. What the database
has lost (its -wal file was damaged or removed, it was emptied) is put back from the lines, if their seals fit.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fewtags.atomic import atomic_write, naming

Row = tuple[Any, ...]  # the fields of a decision; the first is its id, which counts from 1
NO_SEAL = ""  # before the first decision


def seal_of(before: str, row: Sequence[Any]) -> str:
    return hashlib.sha256(f"{before}{tuple(row)!a}".encode("ascii")).hexdigest()  # four times as fast as JSON


def sealed(rows: Iterable[Sequence[Any]], before: str = NO_SEAL) -> list[tuple[Row, str]]:
    """Every row with its seal."""
    found = []
    for row in rows:
        before = seal_of(before, row)
        found.append((tuple(row), before))
    return found


class BrokenSeal(Exception):
    """Which decision is not as it was written."""


def check_chain(rows: Iterable[tuple[Row, str | None]]) -> tuple[int, str]:
    """The number of decisions and the last seal. Raises BrokenSeal at the first one that is missing or changed."""
    number, last = 0, NO_SEAL
    for row, seal in rows:
        number += 1
        last = seal_of(last, row)
        if row[0] != number or last != seal:
            why = "is missing" if row[0] != number else "is not as it was written"
            raise BrokenSeal(f"decision {number} {why} ({number - 1} before it are as they were written)")
    return number, last


@dataclass(frozen=True)
class SealedLines:
    """The text file. All methods that write are called while the database is locked."""

    file: Path

    @classmethod
    def beside(cls, database: Path) -> SealedLines:
        return cls(database.with_name(f"{database.name}-sealed.jsonl"))

    def exists(self) -> bool:
        return self.file.is_file()

    def rewrite(self, rows: Iterable[tuple[Row, str]]) -> None:
        with atomic_write(self.file) as temporary:
            temporary.write_bytes(b"".join(map(_line, rows)))

    def append(self, rows: Sequence[tuple[Row, str]]) -> tuple[int, int]:
        """Returns the size before and after, for `take_back`."""
        with naming(self.file):
            handle = os.open(self.file, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0), 0o666)
            with os.fdopen(handle, "r+b", buffering=0) as out:
                size = out.seek(0, os.SEEK_END)
                cut_off = b""
                if size:
                    out.seek(size - 1)
                    cut_off = b"" if out.read(1) == b"\n" else b"\n"  # a line that was cut off when it was written
                content = cut_off + b"".join(map(_line, rows))
                while content:
                    content = content[out.write(content) :]
                os.fsync(out.fileno())
                return size, out.seek(0, os.SEEK_END)

    def take_back(self, before: int, after: int) -> None:
        """Remove what was appended last, unless somebody else has appended since."""
        if self.file.stat().st_size == after:
            os.truncate(self.file, before)

    def last_number(self) -> int:
        """The number of the last decision; 0 without any."""
        with self.file.open("rb") as lines:
            size = lines.seek(0, os.SEEK_END)
            lines.seek(max(0, size - 2**20))
            numbers = [row[0] for row, _ in map(_parsed, lines.read().split(b"\n")) if row]
        return numbers[-1] if numbers else 0

    def after(self, number: int, seal: str) -> list[tuple[Row, str]]:
        """The decisions that follow the one with this number and seal, as far as the seals fit."""
        by_number: dict[int, tuple[Row, str]] = {}
        with self.file.open("rb") as lines:
            for row, its_seal in map(_parsed, lines):
                if row and row[0] > number:
                    by_number[row[0]] = row, its_seal  # of two, the first was never acknowledged
        found = []
        while (following := by_number.get(number + 1)) is not None and seal_of(seal, following[0]) == following[1]:
            found.append(following)
            number, seal = number + 1, following[1]
        return found


def _line(row: tuple[Row, str]) -> bytes:
    return (json.dumps([*row[0], row[1]], ensure_ascii=False) + "\n").encode()


def _parsed(line: bytes) -> tuple[Row, str]:
    """An empty row if the line is damaged."""
    try:
        *row, seal = json.loads(line)
        return (tuple(row), seal) if isinstance(row[0], int) and isinstance(seal, str) else ((), "")
    except (ValueError, TypeError, IndexError, RecursionError):
        return (), ""
