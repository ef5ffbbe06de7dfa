"""Keywords in .xmp files next to the photos; the photos themselves are not modified."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fewtags.data.aliases import fold
from fewtags.data.annotations import Annotations
from fewtags.data.image_files import walk_images
from fewtags.data.photo_keywords import BadKeywords, sidecars
from fewtags.data.write_back.changes import Change, LabelSource, Rewritten, TagSpelling
from fewtags.data.writers.xmp import start_of
from fewtags.data.writers.xmp_packet import FLAT, TREES, Packet, keyword_of
from fewtags.data.xml import MalformedXml
from fewtags.data.xmp import FEWTAGS, read_packet
from fewtags.errors import DataError
from fewtags.labels import ABSENT, PRESENT


def rewrite_keywords(source: LabelSource, annotations: Annotations, changes: dict[str, dict[str, Change]]) -> Rewritten:
    """All .xmp files, changed or not, and new ones for photos without one."""
    spelling, files = TagSpelling(annotations), {}
    for image in walk_images(source.path):
        for file in sidecars(source.path / image):
            files[file.relative_to(source.path).as_posix()] = file.read_bytes()
    for image, mine in changes.items():
        photo = source.path / image
        file = sidecar_of(photo)
        try:
            packet = with_decisions(*start_of(file, photo), mine, spelling)
        except (MalformedXml, BadKeywords) as error:
            raise DataError(f"{file if file.is_file() else photo}: {error}; --as jsonl writes one file.") from None
        files[file.relative_to(source.path).as_posix()] = packet
    return Rewritten(source.path.resolve().name, files, "keywords", source.given)


def sidecar_of(photo: Path) -> Path:
    """The photo's own one before one that it may share with another photo of the same stem, or a new one's name."""
    there = sorted(sidecars(photo), key=lambda file: not file.name.startswith(photo.name))
    return there[0] if there else photo.with_name(f"{photo.name}.xmp")


def with_decisions(base: bytes, others: Sequence[str], changes: Mapping[str, Change], spelling: TagSpelling) -> bytes:
    """An XMP packet with the tags that people decided about; `others` are keywords of the photo that are not in it.

    A tag that is known absent is noted in fewtags:Rejected, which is read as that. What a person said is no prediction
    any more.
    """
    before, packet = read_packet(base), Packet(base)
    present = [tag for tag, change in changes.items() if change.new == PRESENT]
    absent = [tag for tag, change in changes.items() if change.new == ABSENT]

    def undecided(words: Sequence[str]) -> list[str]:
        return [word for word in words if spelling.category(word) not in changes]

    gone = {fold(word) for word in (*before.flat, *changes) if spelling.category(word) in changes} - {
        *map(fold, present)
    }
    packet.change(FLAT, [*undecided(others), *present], gone)
    for place in TREES:
        if packet.has(place):  # a program that prefers this list would not see the others
            packet.change(place, filter(None, (place.text((tag,)) for tag in present)), gone)
    packet.replace(FEWTAGS, "Predicted", undecided(before.predicted))
    packet.replace(FEWTAGS, "Added", [item for item in before.added if keyword_of(item) not in {*map(fold, changes)}])
    packet.replace(FEWTAGS, "Rejected", [*undecided(before.rejected), *absent])
    packet.replace(FEWTAGS, "Probability", [])
    return packet.to_bytes()
