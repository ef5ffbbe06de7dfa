"""Writes predicted tags to same-name .txt files, appended to the existing tags."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from fewtags.atomic import atomic_write
from fewtags.data.aliases import fold
from fewtags.data.formats.options import TypedOptions
from fewtags.data.formats.sidecar import sidecar, split_tags
from fewtags.data.formats.text import read_text
from fewtags.data.tag_tree import TagTree
from fewtags.data.writers.base import Tally
from fewtags.errors import UserError


class SidecarWriteOptions(TypedOptions):
    separator: str = ", "
    """Separator between tags, unless the file has one per line."""
    existing: Literal["keep", "replace"] = "keep"
    """Append to the tags in a file, or replace them with the predicted ones."""
    marker: str | None = None
    """A tag to add to every file that gets a predicted tag, such as auto."""


class SidecarWriter:
    def __init__(self, options: SidecarWriteOptions, dry_run: bool, say: Callable[[str], object]):
        self.options, self.dry_run, self.say = options, dry_run, say
        self.tally, self.tree = Tally(), TagTree()

    def write(self, image: Path, tags: Mapping[str, float]) -> None:
        file = sidecar(image)
        try:
            text = read_text(file)[0] if file.is_file() else ""
        except UserError as error:
            self.tally.problems.append(str(error).rstrip("."))
            return
        wanted = [*tags, *([self.options.marker] if self.options.marker and tags else [])]
        new = self._text(text, wanted)
        if new == text:
            self.tally.unchanged += 1
            return
        self.tally.written += 1
        if self.dry_run:
            self.say(f"{file}: {', '.join(wanted)}")
        else:
            with atomic_write(file) as temporary:
                temporary.write_text(new, encoding="utf-8")

    def close(self) -> str:
        return self.tally.sentence("text file", self.dry_run)

    def _text(self, text: str, wanted: list[str]) -> str:
        if self.options.existing == "replace":
            return self.options.separator.join(wanted) + "\n" if wanted else ""
        lines = [line for line in text.splitlines() if line.strip()]
        by_line = len(lines) > 1 and "," not in text
        known = {fold(tag) for tag in split_tags(text, None if by_line else self.options.separator.strip() or None)}
        added = [tag for tag in wanted if fold(tag) not in known]
        if not added:
            return text
        separator = "\n" if by_line else self.options.separator
        return separator.join(part for part in (text.rstrip().rstrip(",").rstrip(), *added) if part) + "\n"
