"""What a writer of tags is, and what all of them count."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from fewtags.data.formats.options import TypedOptions
from fewtags.wording import plural

SHOWN = 5  # problems in the last sentence


class TagWriter(Protocol):
    """Puts predicted tags where another program looks for them. The image itself is never written to."""

    def write(self, image: Path, tags: Mapping[str, float]) -> None:
        """`tags` with their probabilities, most probable first."""

    def close(self) -> str:
        """Finish, and say in a sentence what was done."""


@dataclass
class Tally:
    """Files by what became of them, and why some were left as they are."""

    written: int = 0
    unchanged: int = 0
    problems: list[str] = field(default_factory=list)

    def sentence(self, what: str, dry_run: bool = False) -> str:
        done = "would be written" if dry_run else "written"
        parts = [f"{plural(self.written, what)} {done}", f"{self.unchanged:,} unchanged"]
        if self.problems:
            more = f" and {len(self.problems) - SHOWN:,} more" if len(self.problems) > SHOWN else ""
            shown = "; ".join(self.problems[:SHOWN])
            parts.append(f"{len(self.problems):,} left as they are because they cannot be read ({shown}{more})")
        return ", ".join(parts) + "."


@dataclass(frozen=True)
class WriterKind:
    """A row of the table of writers."""

    name: str
    sentence: str  # where the tags go, for people
    options: type[TypedOptions]
    # Options (an instance of the class above), whether only to say what would be done, and where to say it.
    open: Callable[[Any, bool, Callable[[str], object]], TagWriter]
    resumable: bool = True  # each image by itself, so a second start can go on with the rest
