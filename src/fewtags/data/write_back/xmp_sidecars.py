"""Keywords in .xmp files next to the photos; the photos themselves are not modified."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import takewhile
from pathlib import Path

from fewtags.data.aliases import fold
from fewtags.data.annotations import Annotations
from fewtags.data.image_files import walk_images
from fewtags.data.photo_keywords import BadKeywords, sidecars
from fewtags.data.tag_tree import TagTree
from fewtags.data.write_back.changes import Change, LabelSource, Rewritten, TagSpelling
from fewtags.data.writers.xmp import start_of
from fewtags.data.writers.xmp_packet import FLAT, TREES, KeywordList, Packet, keyword_of
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
            packet = with_decisions(*start_of(file, photo), mine, spelling, annotations.tree)
        except (MalformedXml, BadKeywords) as error:
            raise DataError(f"{file if file.is_file() else photo}: {error}; --as jsonl writes one file.") from None
        files[file.relative_to(source.path).as_posix()] = packet
    return Rewritten(source.path.resolve().name, files, "keywords", source.given)


def sidecar_of(photo: Path) -> Path:
    """The photo's own one before one that it may share with another photo of the same stem, or a new one's name."""
    there = sorted(sidecars(photo), key=lambda file: not file.name.startswith(photo.name))
    return there[0] if there else photo.with_name(f"{photo.name}.xmp")


def with_decisions(
    base: bytes, others: Sequence[str], changes: Mapping[str, Change], spelling: TagSpelling, tree: TagTree
) -> bytes:
    """An XMP packet with the tags that people decided about; `others` are keywords of the photo that are not in it.

    A tag that is known absent is noted in fewtags:Rejected, which is read as that. What a person said is no prediction
    any more.
    """
    before, packet = read_packet(base), Packet(base)
    present = [tree.path(tag) for tag, change in changes.items() if change.new == PRESENT]
    absent = [tree.path(tag)[-1] for tag, change in changes.items() if change.new == ABSENT]
    stay = {fold(path[-1]) for path in present}

    def undecided(words: Sequence[str]) -> list[str]:
        return [word for word in words if spelling.category(word) not in changes]

    keywords = {fold(tree.path(tag)[-1]) for tag in changes}
    gone = keywords | {fold(word) for word in before.flat if spelling.category(word) in changes}
    packet.change(FLAT, [*undecided(others), *(path[-1] for path in present)], gone - stay)
    for place in TREES:
        if packet.has(place):  # a program that prefers this list would not see the others
            change_tree(packet, place, present if tree.lists_parents else tree.without_parents(present), gone - stay)
    packet.replace(FEWTAGS, "Predicted", undecided(before.predicted))
    packet.replace(FEWTAGS, "Added", [item for item in before.added if keyword_of(item) not in keywords])
    packet.replace(FEWTAGS, "Rejected", [*undecided(before.rejected), *absent])
    packet.replace(FEWTAGS, "Probability", [])
    return packet.to_bytes()


def change_tree(packet: Packet, place: KeywordList, present: Sequence[Sequence[str]], gone: Collection[str]) -> None:
    """Of animal|dog, animal stays where only the dog goes."""
    levels = {text: text.split(place.separator) for text in packet.texts(place)}
    removed = {text for text, path in levels.items() if any(fold(level) in gone for level in path)}
    shorter = [list(takewhile(lambda level: fold(level) not in gone, levels[text])) for text in removed]
    there = {fold(level) for text, path in levels.items() if text not in removed for level in path}
    kept = [path for path in shorter if path and fold(path[-1]) not in there]
    new = [path for path in present if fold(path[-1]) not in there]
    packet.change(place, filter(None, map(place.text, [*kept, *new])), {fold(text) for text in removed})
