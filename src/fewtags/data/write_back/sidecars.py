"""Text files of tags next to the images."""

from __future__ import annotations

from collections.abc import Mapping

from fewtags.data.annotations import Annotations
from fewtags.data.formats.sidecar import sidecar
from fewtags.data.formats.text import decoded, line_end_of
from fewtags.data.image_files import walk_images
from fewtags.data.write_back.changes import Change, LabelSource, Rewritten, TagSpelling
from fewtags.labels import ABSENT, PRESENT


def rewrite_sidecar(source: LabelSource, annotations: Annotations, changes: dict[str, dict[str, Change]]) -> Rewritten:
    """All text files, changed or not. A text file cannot say that a tag is absent."""
    spelling, separator = TagSpelling(annotations), getattr(source.options, "separator", None)
    files = {}
    for image in walk_images(source.path):
        file = sidecar(source.path / image)
        if file.is_file():
            files[file.relative_to(source.path).as_posix()] = file.read_bytes()
    unwritten = []
    for image, mine in changes.items():
        file = sidecar(source.path / image)
        text, encoding, mark = decoded(file) if file.is_file() else ("", "utf-8", b"")
        content = tags_changed(text, mine, separator, spelling)
        files[file.relative_to(source.path).as_posix()] = mark + content.encode(encoding, errors="xmlcharrefreplace")
        unwritten += [change for change in mine.values() if change.new == ABSENT]
    return Rewritten(source.path.resolve().name, files, "sidecar", source.given, unwritten)


def tags_changed(text: str, changes: Mapping[str, Change], separator: str | None, spelling: TagSpelling) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    by_line = len(lines) > 1 and (separator or ",") not in text
    end = line_end_of(text)
    between = end if by_line else separator or ","
    tags = [tag.strip() for line in lines for tag in line.split(separator or ",") if tag.strip()]
    kept = [tag for tag in tags if spelling.category(tag) not in changes]
    kept += [tag for tag, change in changes.items() if change.new == PRESENT]
    spaced = between if by_line or (f"{between} " not in text and between in text) else f"{between} "
    return spaced.join(kept) + (end if not text or text.endswith(("\n", "\r")) else "")
