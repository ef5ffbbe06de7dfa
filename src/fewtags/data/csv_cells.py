"""Cells of CSV files that spreadsheets would run as formulas (`=cmd|...`), made harmless and read back."""

from __future__ import annotations

from typing import Any

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def protected(cell: Any) -> Any:
    """With an apostrophe before a text that a spreadsheet would take as a formula: it shows the text instead."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA_STARTS) else cell


def unprotected(cell: str) -> str:
    """What was written, without that apostrophe."""
    return cell[1:] if cell[:1] == "'" and cell[1:].startswith(FORMULA_STARTS) else cell
