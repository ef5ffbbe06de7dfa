"""What other installed packages add to our tables, by entry points in their pyproject.toml:

[project.entry-points."fewtags.methods"]
second-opinion = "my_package:SECOND_OPINION"        # a fewtags.extend.Method

[project.entry-points."fewtags.heads"]
mine = "my_package.heads:MyHead"                    # a class below fewtags.extend.Head

[project.entry-points."fewtags.formats"]
photo-db = "my_package.photo_db:FORMAT"             # a fewtags.data.formats.Format
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
    """What they point to. One that cannot be imported, or is something else, is told and stops no other."""
    for entry in named(group):
        try:
            found = entry.load()
            if not isinstance(found, kind):
                raise TypeError(f"it is a {type(found).__name__}, not a {kind.__name__}")
        except Exception as error:  # another package's code may raise anything
            warnings.warn(f"{group} '{entry.name}' ({entry.value}) was not loaded: {error}.", stacklevel=2)
        else:
            yield found
