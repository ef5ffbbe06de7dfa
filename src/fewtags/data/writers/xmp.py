"""Writes predicted tags to .xmp sidecars, merged with their content; the photo itself is never modified.

Tags go to dc:subject, lr:hierarchicalSubject and digiKam:TagsList, because programs differ in which they read: Immich
and digiKam read TagsList first, darktable hierarchicalSubject. A new list also gets the keywords of
the others, or a program that prefers it would no longer show them; for the same reason a new sidecar starts as a copy
of the XMP inside the photo. Everything else in the file stays as it was.

Keywords written by fewtags are recorded in fewtags:Predicted. With that, a later run can remove what it no longer
predicts, does not re-add what a person removed (fewtags:Rejected), and `fewtags train` does not mistake either for
a person's label: a keyword written by fewtags is unknown, a removed one is absent. fewtags:Added has every item that
was added to a list (`dc:subject=dog`), and `sidecar=new` for the file itself; `fewtags untag` takes out exactly that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fewtags.data.aliases import clean, fold
from fewtags.data.formats.options import TypedOptions
from fewtags.data.image_files import is_image, is_raw, raw_of
from fewtags.data.photo_keywords import BadKeywords, embedded_keywords, embedded_packet, sidecars
from fewtags.data.tag_tree import TagTree
from fewtags.data.writers.beside import Beside, Update
from fewtags.data.writers.xmp_packet import FLAT, TREES, KeywordList, Packet
from fewtags.data.xml import MalformedXml
from fewtags.data.xmp import FEWTAGS, RDF, Keywords, read_packet

NEW_FILE = "sidecar=new"  # in fewtags:Added
TEMPLATE = (
    '<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>\n<x:xmpmeta xmlns:x="adobe:ns:meta/" x:xmptk="fewtags">\n'
    f' <rdf:RDF xmlns:rdf="{RDF}">\n  <rdf:Description rdf:about="">\n  </rdf:Description>\n </rdf:RDF>\n</x:xmpmeta>\n'
    '<?xpacket end="w"?>\n'
).encode()


class XmpWriteOptions(TypedOptions):
    naming: Literal["full", "stem"] = "full"
    """New sidecars are named a.jpg.xmp (digiKam, darktable, Immich) or a.xmp (Lightroom, Bridge)."""
    marker: str | None = None
    """A keyword to add to every photo that gets a predicted keyword, such as auto-tagged."""
    confidence: bool = False
    """Also record the probabilities, in fewtags:Probability, in the order of fewtags:Predicted."""


class XmpWriter:
    def __init__(
        self, options: XmpWriteOptions, dry_run: bool, say: Callable[[str], object], folders: Sequence[Path] = ()
    ):
        self.options, self.tree = options, TagTree()
        self.folders = () if dry_run else folders
        self.beside = Beside(folders, dry_run, say)
        self._shared_stems: dict[Path, set[str]] = {}

    def write(self, image: Path, tags: Mapping[str, float]) -> None:
        file = self._sidecar(image)

        def merged() -> Update | None:
            base, others = start_of(file, image)
            merge = merge_keywords(base, others, tags, self.options, self.tree, new_file=not file.is_file())
            if merge is None or (not file.is_file() and not merge.added):
                return None
            return Update(merge.packet, str(merge))

        self.beside.update(file, image, merged)

    def close(self) -> str:
        return self.beside.tally.sentence("sidecar", self.beside.dry_run)

    def _sidecar(self, image: Path) -> Path:
        """A photo's existing sidecar, or a new one, which has the name of its RAW file if there is one. `a.xmp` is not
        used if a.jpg and a.png share it."""
        original = raw_of(image) or image
        shared = image.stem in self._stems_of_several(image.parent)
        own = (image.name, original.name)
        existing = [file for file in sidecars(image) if not shared or file.name.startswith(own)]
        name = image.stem if self.options.naming == "stem" and not shared else original.name
        return existing[0] if existing else image.with_name(f"{name}.xmp")

    def _stems_of_several(self, folder: Path) -> set[str]:
        if folder not in self._shared_stems:
            seen: set[str] = set()
            several: set[str] = set()
            for file in folder.iterdir():
                if is_image(file.name) and not is_raw(file.name):
                    (several if file.stem in seen else seen).add(file.stem)
            self._shared_stems[folder] = several
        return self._shared_stems[folder]


@dataclass(frozen=True)
class Merge:
    packet: bytes
    added: list[str]
    removed: list[str]

    def __str__(self) -> str:
        parts = [f"+ {', '.join(self.added)}"] if self.added else []
        parts += [f"- {', '.join(self.removed)}"] if self.removed else []
        return "; ".join(parts) or "probabilities"


def start_of(file: Path, image: Path) -> tuple[bytes, list[str]]:
    """The packet to add to, and keywords of the photo that are not in it. Raises MalformedXml or BadKeywords."""
    if file.is_file():
        try:
            return file.read_bytes(), []
        except OSError as error:
            raise BadKeywords(f"cannot be read: {error.strerror}") from None
    return start_of_new(image)


def start_of_new(image: Path) -> tuple[bytes, list[str]]:
    """The same for a photo without a sidecar."""
    keywords = embedded_keywords(image)
    return embedded_packet(image) or TEMPLATE, keywords.flat


def merge_keywords(
    base: bytes,
    others: Sequence[str],
    tags: Mapping[str, float],
    options: XmpWriteOptions,
    tree: TagTree,
    *,
    new_file: bool = False,
) -> Merge | None:
    """`base` with the predicted tags; None if that changes nothing. Raises MalformedXml."""
    before, packet = read_packet(base), Packet(base)
    written = keywords_for(tags, tree, options.marker)
    ours = {fold(tag): tag for tag in before.predicted}
    people = {fold(tag) for tag in (*before.flat, *others, *before.tags())} - ours.keys()
    rejected = {fold(tag) for tag in before.rejected}
    stale = {key: tag for key, tag in ours.items() if key not in written}
    added = [one.keyword for key, one in written.items() if key not in people | rejected | ours.keys()]
    own = [*(tag for key, tag in ours.items() if key not in stale), *added]

    paths = [path for tag in own for path in written[fold(tag)].paths]
    record = [NEW_FILE] if new_file or NEW_FILE in before.added else []
    record += change_list(packet, FLAT, before, paths if tree.flat_parents else tree.without_parents(paths), others)
    for place in TREES:
        copied = copies(packet, place, before, others, tree) if own else []
        wanted = paths if tree.lists_parents else [p for p in tree.without_parents([*copied, *paths]) if p in paths]
        record += change_list(packet, place, before, wanted, filter(None, map(place.text, copied)))
    packet.replace(FEWTAGS, "Predicted", own)
    packet.replace(FEWTAGS, "Rejected", before.rejected)
    packet.replace(FEWTAGS, "Added", record)
    chances = [f"{written[fold(tag)].probability:.3f}" for tag in own] if options.confidence else []
    packet.replace(FEWTAGS, "Probability", chances)
    if not packet.changed:
        return None
    result = packet.to_bytes()
    check_nothing_lost(result, [*before.flat, *others, *added], stale)
    return Merge(result, added, sorted(stale.values()))


@dataclass
class Written:
    """A predicted keyword: its places in the tree, usually one."""

    keyword: str
    probability: float
    paths: list[tuple[str, ...]]


def keywords_for(tags: Mapping[str, float], tree: TagTree, marker: str | None) -> dict[str, Written]:
    """Folded keyword -> what to write for it."""
    found: dict[str, Written] = {}
    for tag, probability in tags.items():
        path = tuple(map(clean, tree.path(tag)))
        if path[-1]:
            found.setdefault(fold(path[-1]), Written(path[-1], probability, [])).paths.append(path)
    if marker and clean(marker) and found:
        found[fold(marker)] = Written(clean(marker), 1.0, [(clean(marker),)])
    return found


def change_list(
    packet: Packet, place: KeywordList, before: Keywords, own: Iterable[Sequence[str]], copied: Iterable[str]
) -> list[str]:
    """Make `own` our part of a list, and add `copied`. Returns this list's part of fewtags:Added."""
    recorded, ours = recorded_items(packet, place, before), {fold(tag) for tag in before.predicted}
    wanted = [text for path in own if (text := place.text(path))]
    kept = {fold(text) for text in wanted}
    gone = {fold(text) for text in recorded if place.keyword(text) in ours} - kept
    added = packet.change(place, [*copied, *wanted], gone)
    return [place.label + text for text in (*recorded, *added) if fold(text) not in gone]


def recorded_items(packet: Packet, place: KeywordList, before: Keywords) -> list[str]:
    """The items of a list that fewtags added: predicted keywords, and copies of a person's from another list."""
    there = packet.texts(place)
    added = {fold(item.removeprefix(place.label)) for item in before.added if item.startswith(place.label)}
    if not before.added:  # version 0.1.0 recorded only the keywords, which it wrote without levels
        added = {fold(tag) for tag in before.predicted}
    return [text for text in there if fold(text) in added]


def copies(
    packet: Packet, place: KeywordList, before: Keywords, others: Iterable[str], tree: TagTree
) -> list[tuple[str, ...]]:
    """A person's keywords for a new list, which must not hide those of the other lists; each where the tree has it."""
    if packet.has(place):
        return []
    ours = {fold(tag) for tag in before.predicted}
    placed = {fold(level) for path in before.paths for level in path}
    flat = [tree.path_of_keyword(tag) for tag in (*before.flat, *others) if fold(tag) not in placed]
    paths = [path for path in (*before.paths, *flat) if fold(path[-1]) not in ours]
    return list(dict.fromkeys(paths)) if tree.lists_parents else tree.without_parents(paths)


def check_nothing_lost(packet: bytes, keywords: Collection[str], stale: Mapping[str, str]) -> None:
    """Verify the output by reading it back."""
    after = read_packet(packet)
    found = {fold(tag) for tag in (*after.flat, *after.tags())}
    missing = [tag for tag in keywords if fold(tag) not in found and fold(tag) not in stale]
    if missing:
        raise MalformedXml(f"'{missing[0]}' would be lost by writing to it")
