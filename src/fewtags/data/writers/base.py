"""The interface of tag writers, and their common counters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from fewtags.data.formats.options import TypedOptions
from fewtags.data.tag_tree import TagTree
from fewtags.wording import plural

SHOWN = 5  # problems listed in the summary


class TagWriter(Protocol):
    """Writes predicted tags where other software reads them. The image itself is never modified."""

    folders: Sequence[Path]  # where it writes next to photos, and no other process may meanwhile
    tree: TagTree  # of the model; set before the first image

    def write(self, image: Path, tags: Mapping[str, float]) -> None:
        """`tags` with their probabilities, most probable first."""

    def close(self) -> str:
        """Finish, and return a one-sentence summary."""


@dataclass
class Tally:
    """Counts of files by outcome, and why some were not changed."""

    written: int = 0
    unchanged: int = 0
    problems: list[str] = field(default_factory=list)

    def sentence(self, what: str, dry_run: bool = False) -> str:
        done = "would be written" if dry_run else "written"
        parts = [f"{plural(self.written, what)} {done}", f"{self.unchanged:,} unchanged"]
        if self.problems:
            more = f" and {len(self.problems) - SHOWN:,} more" if len(self.problems) > SHOWN else ""
            shown = "; ".join(self.problems[:SHOWN])
            parts.append(f"{len(self.problems):,} not changed because they cannot be read or written ({shown}{more})")
        return ", ".join(parts) + "."


@dataclass(frozen=True)
class WriterKind:
    """A row of the table of writers."""

    name: str
    sentence: str  # where the tags go
    options: type[TypedOptions]
    # Options (an instance of the class above), whether it is a dry run, a callback for its messages, and the folders of
    # the photos.
    open: Callable[[Any, bool, Callable[[str], object], Sequence[Path]], TagWriter]
    resumable: bool = True  # images are independent, so a second run can resume
