"""CSV cells that spreadsheets would run as formulas (`=cmd|...`): escaped when written, unescaped when read."""

from __future__ import annotations

from typing import Any

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def protected(cell: Any) -> Any:
    """Prefixes text that a spreadsheet would run as a formula with an apostrophe, so that it is shown as text."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA_STARTS) else cell


def unprotected(cell: str) -> str:
    """The text without that apostrophe."""
    return cell[1:] if cell[:1] == "'" and cell[1:].startswith(FORMULA_STARTS) else cell
