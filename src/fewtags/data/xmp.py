"""Keywords in XMP packets: where photo software writes them, and how to read them all.

    dc:subject                      flat list; Lightroom, digiKam, Bridge, Windows, exiftool
    lr:hierarchicalSubject          "animal|dog"; Lightroom, darktable, Capture One
    digiKam:TagsList                "animal/dog"; digiKam, Immich
    MicrosoftPhoto:LastKeywordXMP   "animal/dog"; Windows
    mediapro:CatalogSets            "animal|dog"; Media Pro

Programs differ in which of these they read, so we write to the first three (`fewtags.data.writers.xmp`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.etree.ElementTree import Element

from fewtags.data.aliases import clean, fold
from fewtags.data.xml import MalformedXml, parse_xml

RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
DC = "http://purl.org/dc/elements/1.1/"
LIGHTROOM = "http://ns.adobe.com/lightroom/1.0/"
DIGIKAM = "http://www.digikam.org/ns/1.0/"
MICROSOFT = "http://ns.microsoft.com/photo/1.0/"  # Windows, Exiv2
MICROSOFT_BY_EXIFTOOL = "http://ns.microsoft.com/photo/1.0"
MEDIA_PRO = "http://ns.iview-multimedia.com/mediapro/1.0/"
FEWTAGS = "urn:fewtags:xmp:1#"  # fewtags' own records in a sidecar

HIERARCHIES = (  # namespace, property, separator between levels
    (LIGHTROOM, "hierarchicalSubject", "|"),
    (DIGIKAM, "TagsList", "/"),
    (MICROSOFT, "LastKeywordXMP", "/"),
    (MICROSOFT_BY_EXIFTOOL, "LastKeywordXMP", "/"),
    (MEDIA_PRO, "CatalogSets", "|"),
)
WRITTEN_HIERARCHIES = (("lr", "hierarchicalSubject", "|"), ("digiKam", "TagsList", "/"))  # as fewtags:Added names them
INTERNAL = ("darktable", "_digikam_internal_tags_")  # first levels of programs' internal tags


@dataclass
class Keywords:
    """The keywords of one photo."""

    flat: list[str] = field(default_factory=list)
    paths: list[tuple[str, ...]] = field(default_factory=list)  # from the top level down
    predicted: list[str] = field(default_factory=list)  # written by fewtags
    rejected: list[str] = field(default_factory=list)  # written by fewtags and removed by a person
    added: list[str] = field(default_factory=list)  # fewtags' record of what it added to which list: "dc:subject=dog"

    def add(self, other: Keywords) -> None:
        self.flat += other.flat
        self.paths += other.paths
        self.predicted += other.predicted
        self.rejected += other.rejected
        self.added += other.added

    def tags(self) -> set[str]:
        """Each keyword once: all levels of every path. A flat keyword may also be a path."""
        return {level for path in self.places() for level in path}

    def places(self) -> list[tuple[str, ...]]:
        """All keywords as paths, without those that programs note for themselves."""
        paths = [*self.paths, *(split_path(keyword, "|") for keyword in self.flat)]
        return [path for path in paths if path and path[0].casefold() not in INTERNAL]

    def __bool__(self) -> bool:
        return bool(self.flat or self.paths)


def split_path(text: str, separator: str) -> tuple[str, ...]:
    return tuple(level for level in map(clean, text.split(separator)) if level)


def read_packet(packet: bytes) -> Keywords:
    """The keywords of an XMP packet or sidecar file. Raises MalformedXml."""
    if packet[:2] not in (b"\xff\xfe", b"\xfe\xff"):  # UTF-16 is full of such bytes
        packet = packet.strip(b"\0 \t\r\n")  # padding
    root = parse_xml(packet)
    if not any(True for _ in root.iter(f"{{{RDF}}}RDF")):
        raise MalformedXml("it is XML but not XMP: it has no rdf:RDF")
    keywords = Keywords([clean(text) for text in values(root, DC, "subject") if clean(text)])
    for namespace, name, separator in HIERARCHIES:
        keywords.paths += filter(None, (split_path(text, separator) for text in values(root, namespace, name)))
    keywords.added = [text for text in values(root, FEWTAGS, "Added") if "=" in text]
    present, moved = {fold(tag) for tag in keywords.tags()}, _moved_by_a_person(keywords)
    for text in map(clean, values(root, FEWTAGS, "Predicted")):
        if fold(text) not in moved:  # what a person has put elsewhere in the tree is the person's
            (keywords.predicted if fold(text) in present else keywords.rejected).append(text)
    rejected = map(clean, values(root, FEWTAGS, "Rejected"))
    keywords.rejected += [text for text in rejected if fold(text) not in present]
    return keywords


def _moved_by_a_person(keywords: Keywords) -> set[str]:
    """Folded keywords in a place of the tree where fewtags has not put them. Other programs' copies in other lists, and
    of the levels above, are nobody's decision."""
    places = {path[:depth] for path in map(recorded_path, keywords.added) for depth in range(1, len(path) + 1)}
    paths = (tuple(map(fold, path)) for path in keywords.paths)
    return {path[-1] for path in paths if len(path) > 1 and path not in places}


def recorded_path(item: str) -> tuple[str, ...]:
    """Folded levels of an item of fewtags:Added; () for one of a flat list."""
    name, _, text = item.partition("=")
    separators = {f"{prefix}:{name}": separator for prefix, name, separator in WRITTEN_HIERARCHIES}
    return tuple(map(fold, split_path(text, separators[name]))) if name in separators else ()


def values(root: Element, namespace: str, name: str) -> Iterator[str]:
    """The items of a property, whether it is a list, a single text or an attribute."""
    tag = f"{{{namespace}}}{name}"
    for description in root.iter(f"{{{RDF}}}Description"):
        if tag in description.attrib:
            yield description.attrib[tag]
    for element in root.iter(tag):
        items = list(element.iter(f"{{{RDF}}}li"))
        yield from ("".join(item.itertext()) for item in items)
        if not items and (element.text or "").strip():
            yield element.text or ""
