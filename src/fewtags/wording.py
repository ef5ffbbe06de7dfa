"""Counts in sentences."""

from __future__ import annotations


def plural(number: int, word: str, plural_word: str = "") -> str:
    """1 image, 2 images, 1,000 images; where an s is not enough the plural is given."""
    return f"{number:,} {word if number == 1 else plural_word or word + 's'}"
