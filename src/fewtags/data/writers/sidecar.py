"""Writes predicted tags to same-name .txt files, appended to the existing tags."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from fewtags.data.aliases import fold
from fewtags.data.formats.options import TypedOptions
from fewtags.data.formats.sidecar import sidecar, split_tags
from fewtags.data.formats.text import decoded, line_end_of, read_text
from fewtags.data.tag_tree import TagTree
from fewtags.data.writers.beside import Beside, NotWritten, Update


class SidecarWriteOptions(TypedOptions):
    separator: str = ", "
    """Separator between tags, unless the file has one per line."""
    existing: Literal["keep", "replace"] = "keep"
    """Append to the tags in a file, or replace them with the predicted ones."""
    marker: str | None = None
    """A tag to add to every file that gets a predicted tag, such as auto."""


class SidecarWriter:
    def __init__(
        self, options: SidecarWriteOptions, dry_run: bool, say: Callable[[str], object], folders: Sequence[Path] = ()
    ):
        self.options, self.tree = options, TagTree()
        self.folders = () if dry_run else folders
        self.beside = Beside(folders, dry_run, say)

    def write(self, image: Path, tags: Mapping[str, float]) -> None:
        file = sidecar(image)
        wanted = [*tags, *([self.options.marker] if self.options.marker and tags else [])]

        def with_tags() -> Update | None:
            if not file.is_file():
                new = self._text("", wanted)
                return Update(new.encode(), ", ".join(wanted)) if new else None
            read_text(file)  # raises if it is no text
            text, encoding, mark = decoded(file)
            new = self._text(text, wanted)
            return None if new == text else Update(mark + encoded(new, encoding), ", ".join(wanted))

        self.beside.update(file, image, with_tags)

    def close(self) -> str:
        return self.beside.tally.sentence("text file", self.beside.dry_run)

    def _text(self, text: str, wanted: list[str]) -> str:
        """With the byte order mark, the encoding and the line ends of the file, if there is one."""
        end = line_end_of(text)
        if self.options.existing == "replace":
            return self.options.separator.join(wanted) + end if wanted else ""
        lines = [line for line in text.splitlines() if line.strip()]
        by_line = len(lines) > 1 and "," not in text
        known = {fold(tag) for tag in split_tags(text, None if by_line else self.options.separator.strip() or None)}
        added = [tag for tag in wanted if fold(tag) not in known]
        if not added:
            return text
        separator = end if by_line else self.options.separator
        last = end if not text.strip() or text.endswith(("\n", "\r")) else ""
        return separator.join(part for part in (text.rstrip().rstrip(",").rstrip(), *added) if part) + last


def encoded(text: str, encoding: str) -> bytes:
    try:
        return text.encode(encoding)
    except UnicodeEncodeError as error:
        raise NotWritten(f"its encoding ({encoding}) has no '{text[error.start]}'; save it as UTF-8") from None
