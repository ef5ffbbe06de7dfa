"""Rows that other installed packages add to our tables, through entry points in their pyproject.toml:

[project.entry-points."fewtags.methods"]
second-opinion = "my_package:SECOND_OPINION"        # a fewtags.extend.Method

[project.entry-points."fewtags.heads"]
mine = "my_package.heads:MyHead"                    # a subclass of fewtags.extend.Head

[project.entry-points."fewtags.formats"]
photo-db = "my_package.photo_db:FORMAT"             # a fewtags.data.formats.Format

[project.entry-points."fewtags.loggers"]
mine = "my_package:MyLogger"                        # a subclass of fewtags.loggers.Logger
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import TypeVar

T = TypeVar("T")


def named(group: str) -> Iterator[EntryPoint]:
    """The entry points of a group, not loaded yet."""
    yield from entry_points(group=group)


def loaded(group: str, kind: type[T]) -> Iterator[T]:
    """The objects they point to. One that cannot be imported, or has the wrong type, gives a warning and is skipped."""
    for entry in named(group):
        try:
            found = entry.load()
            if not isinstance(found, kind):
                raise TypeError(f"it is a {type(found).__name__}, not a {kind.__name__}")
        except Exception as error:  # another package's code may raise anything
            warnings.warn(f"{group} '{entry.name}' ({entry.value}) was not loaded: {error}.", stacklevel=2)
        else:
            yield found
