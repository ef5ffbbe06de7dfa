"""Writes predicted tags to .xmp sidecars, merged with their content; the photo itself is never modified.

Tags go to dc:subject, lr:hierarchicalSubject and digiKam:TagsList, because programs differ in which they read: Immich
and digiKam read TagsList first, darktable hierarchicalSubject. A new list also gets the keywords of
the others, or a program that prefers it would no longer show them; for the same reason a new sidecar starts as a copy
of the XMP inside the photo. Everything else in the file stays as it was.

Keywords written by fewtags are recorded in fewtags:Predicted. With that, a later run can remove what it no longer
predicts, does not re-add what a person removed (fewtags:Rejected), and `fewtags train` does not mistake either for
a person's label: a keyword written by fewtags is unknown, a removed one is absent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from xml.parsers.expat import ExpatError

from defusedxml import DefusedXmlException
from defusedxml.minidom import parseString

from fewtags.data.aliases import clean, fold
from fewtags.data.formats.options import TypedOptions
from fewtags.data.image_files import is_image
from fewtags.data.photo_keywords import BadKeywords, embedded_keywords, embedded_packet, sidecars
from fewtags.data.writers.beside import Beside, Update
from fewtags.data.xml import MalformedXml
from fewtags.data.xmp import DC, DIGIKAM, FEWTAGS, LIGHTROOM, RDF, read_packet

PATHS = ((LIGHTROOM, "hierarchicalSubject", "Bag", "|"), (DIGIKAM, "TagsList", "Seq", "/"))
Node = Any  # of minidom, whose nodes are loosely typed
XMLNS = "http://www.w3.org/2000/xmlns/"
PREFIXES = {DC: "dc", LIGHTROOM: "lr", DIGIKAM: "digiKam", FEWTAGS: "fewtags", RDF: "rdf"}
TEMPLATE = (
    '<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>\n<x:xmpmeta xmlns:x="adobe:ns:meta/" x:xmptk="fewtags">\n'
    f' <rdf:RDF xmlns:rdf="{RDF}">\n  <rdf:Description rdf:about="">\n  </rdf:Description>\n </rdf:RDF>\n</x:xmpmeta>\n'
    '<?xpacket end="w"?>\n'
).encode()
# Line breaks and tabs in attributes must stay character references; minidom writes them literally, and a reader would
# turn them into spaces. They pass through it as private-use characters.
REFERENCES = {"\uf8f0": "&#9;", "\uf8f1": "&#10;", "\uf8f2": "&#13;"}
REFERENCE = re.compile(r"&#(?:0*(9|10|13)|[xX]0*([9aAdD]));")
ENCODING = re.compile(rb'<\?xml[^>]*encoding=["\']([A-Za-z0-9._-]+)["\']')
DECLARATION = re.compile(r"^\s*<\?xml\b[^>]*\?>")


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
        self.options = options
        self.folders = () if dry_run else folders
        self.beside = Beside(folders, dry_run, say)
        self._shared_stems: dict[Path, set[str]] = {}

    def write(self, image: Path, tags: Mapping[str, float]) -> None:
        file = self._sidecar(image)

        def merged() -> Update | None:
            base, others = start_of(file, image)
            merge = merge_keywords(base, others, tags, self.options)
            if merge is None or (not file.is_file() and not merge.added):
                return None
            return Update(merge.packet, str(merge))

        self.beside.update(file, image, merged)

    def close(self) -> str:
        return self.beside.tally.sentence("sidecar", self.beside.dry_run)

    def _sidecar(self, image: Path) -> Path:
        """A photo's existing sidecar, or the name of a new one. `a.xmp` is not used if a.jpg and a.png share it."""
        shared = image.stem in self._stems_of_several(image.parent)
        existing = [file for file in sidecars(image) if not shared or file.name.startswith(image.name)]
        name = image.stem if self.options.naming == "stem" and not shared else image.name
        return existing[0] if existing else image.with_name(f"{name}.xmp")

    def _stems_of_several(self, folder: Path) -> set[str]:
        if folder not in self._shared_stems:
            seen: set[str] = set()
            several: set[str] = set()
            for file in folder.iterdir():
                if is_image(file.name):
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
    keywords = embedded_keywords(image)
    return embedded_packet(image) or TEMPLATE, keywords.flat


def merge_keywords(
    base: bytes, others: Iterable[str], tags: Mapping[str, float], options: XmpWriteOptions
) -> Merge | None:
    """`base` with the predicted tags; None if that changes nothing. Raises MalformedXml."""
    before = read_packet(base)
    written = {clean(tag): probability for tag, probability in tags.items() if clean(tag)}
    if options.marker and written:
        written[clean(options.marker)] = 1.0
    packet = Packet(base)
    people = {fold(keyword) for keyword in (*before.flat, *others)} | {fold(t) for t in before.tags("all")}
    ours = {fold(tag): tag for tag in before.predicted}
    predicted, rejected = {fold(tag) for tag in written}, {fold(tag) for tag in before.rejected}
    stale = {key: tag for key, tag in ours.items() if key not in predicted}
    added = [tag for tag in written if fold(tag) not in people | rejected]

    packet.change(DC, "subject", "Bag", [*others, *added], stale)
    for namespace, name, kind, separator in PATHS:
        new = [tag for tag in added if separator not in tag]
        if not packet.has(namespace, name):  # new: it must not hide the other lists' keywords
            paths = [separator.join(path) for path in before.paths if not any(separator in level for level in path)]
            leaves = {fold(level) for path in before.paths for level in path}
            flat = [tag for tag in (*before.flat, *others) if fold(tag) not in leaves and separator not in tag]
            new = [*paths, *(tag for tag in flat if fold(tag) not in stale), *new]
        packet.change(namespace, name, kind, new, stale)
    own = [*(tag for key, tag in ours.items() if key not in stale), *added]
    packet.replace(FEWTAGS, "Predicted", own)
    packet.replace(FEWTAGS, "Rejected", before.rejected)
    chances = {fold(tag): probability for tag, probability in written.items()}
    packet.replace(
        FEWTAGS, "Probability", [f"{chances.get(fold(tag), 0.0):.3f}" for tag in own] if options.confidence else []
    )
    if not packet.changed:
        return None
    result = packet.to_bytes()
    check_nothing_lost(result, [*before.flat, *others, *added], stale)
    return Merge(result, added, sorted(stale.values()))


def check_nothing_lost(packet: bytes, keywords: Collection[str], stale: Mapping[str, str]) -> None:
    """Verify the output by reading it back."""
    found = {fold(tag) for tag in read_packet(packet).flat}
    missing = [tag for tag in keywords if fold(tag) not in found and fold(tag) not in stale]
    if missing:
        raise MalformedXml(f"'{missing[0]}' would be lost by writing to it")


# --- XML ---


class Packet:
    """An XMP packet as a tree whose lists can be changed; prefixes, comments and foreign elements stay."""

    def __init__(self, data: bytes):
        text = decode(data)
        self.declared = bool(DECLARATION.match(text))
        self.protected = not any(character in text for character in REFERENCES)
        if self.protected:
            text = REFERENCE.sub(_reference_to_character, text)
        try:
            self.document = parseString(DECLARATION.sub("", text, count=1).strip("\0 \t\r\n"), forbid_dtd=True)
        except (ExpatError, DefusedXmlException, ValueError) as error:
            raise MalformedXml(" ".join(str(error).split())) from None
        roots = self.document.getElementsByTagNameNS(RDF, "RDF")
        if not roots:
            raise MalformedXml("it is XML but not XMP: it has no rdf:RDF")
        self.root: Node = roots[0]
        self.changed = False

    def has(self, namespace: str, name: str) -> bool:
        return bool(self._elements(namespace, name)) or any(
            description.hasAttributeNS(namespace, name) for description in self._descriptions()
        )

    def change(self, namespace: str, name: str, kind: str, new: Iterable[str], stale: Collection[str]) -> None:
        """Add items to a list, creating it if needed, and remove those whose folded text is in `stale`."""
        new = list(dict.fromkeys(new))
        if not new and not self.has(namespace, name):
            return
        items = self._list(namespace, name, kind)
        present = {fold(_text(item)) for item in _items(items)}
        for item in _items(items):
            if fold(_text(item)) in stale:
                items.removeChild(item)
                self.changed = True
        for text in new:
            if fold(text) not in present:
                items.appendChild(self._item(text))
                self.changed = True

    def replace(self, namespace: str, name: str, texts: list[str]) -> None:
        """Set the items of a list; an empty one is removed."""
        elements = self._elements(namespace, name)
        if [_text(item) for element in elements for item in _items(element)] == texts:
            return
        self.changed = True
        for element in elements:
            element.parentNode.removeChild(element)
        if texts:
            items = self._list(namespace, name, "Seq")
            for text in texts:
                items.appendChild(self._item(text))

    def to_bytes(self) -> bytes:
        text = "\n".join(node.toxml() for node in self.document.childNodes)
        if self.protected:
            for character, reference in REFERENCES.items():
                text = text.replace(character, reference)
        declaration = '<?xml version="1.0" encoding="UTF-8"?>\n' if self.declared else ""
        return f"{declaration}{text}\n".encode()

    def _descriptions(self) -> list[Node]:
        return [
            node
            for node in self.root.childNodes
            if node.nodeType == node.ELEMENT_NODE and (node.namespaceURI, node.localName) == (RDF, "Description")
        ]

    def _elements(self, namespace: str, name: str) -> list[Node]:
        return list(self.root.getElementsByTagNameNS(namespace, name))

    def _list(self, namespace: str, name: str, kind: str) -> Node:
        """The Bag or Seq of a property. A single text or an attribute is converted to a list."""
        elements = self._elements(namespace, name)
        texts = []
        for description in self._descriptions():
            if description.hasAttributeNS(namespace, name):
                texts.append(description.getAttributeNS(namespace, name))
                description.removeAttributeNS(namespace, name)
        element = elements[0] if elements else self._property(namespace, name)
        for node in element.childNodes:
            if (
                node.nodeType == node.ELEMENT_NODE
                and node.namespaceURI == RDF
                and node.localName in ("Bag", "Seq", "Alt")
            ):
                items = node
                break
        else:
            texts = [*texts, *(text for text in [_text(element).strip()] if text)]
            while element.firstChild is not None:
                element.removeChild(element.firstChild)
            items = element.appendChild(self._create(element, RDF, kind))
        for text in texts:
            items.appendChild(self._item(text))
        return items

    def _property(self, namespace: str, name: str) -> Node:
        descriptions = self._descriptions()
        if not descriptions:
            made = self._create(self.root, RDF, "Description")
            made.setAttributeNS(RDF, f"{self._prefix(self.root, RDF)}:about", "")
            descriptions = [self.root.appendChild(made)]
        return descriptions[0].appendChild(self._create(descriptions[0], namespace, name))

    def _item(self, text: str) -> Node:
        item = self._create(self.root, RDF, "li")
        item.appendChild(self.document.createTextNode(text))
        return item

    def _create(self, parent: Node, namespace: str, name: str) -> Node:
        return self.document.createElementNS(namespace, f"{self._prefix(parent, namespace)}:{name}")

    def _prefix(self, element: Node, namespace: str) -> str:
        """The prefix of a namespace in scope; declared if there is none."""
        taken: dict[str, str] = {}
        node = element
        while node is not None and node.nodeType == node.ELEMENT_NODE:
            for attribute in node.attributes.values():
                if attribute.prefix == "xmlns":
                    taken.setdefault(attribute.localName, attribute.value)
            node = node.parentNode
        for prefix, uri in taken.items():
            if uri == namespace:
                return prefix
        prefix = PREFIXES[namespace]
        while prefix in taken:
            prefix += "1"
        element.setAttributeNS(XMLNS, f"xmlns:{prefix}", namespace)
        return prefix


def decode(data: bytes) -> str:
    """XML text by its byte order mark, by the encoding it declares, else as UTF-8. Raises MalformedXml."""
    declared = ENCODING.match(data.lstrip())
    encoding = declared.group(1).decode() if declared else "utf-8"
    if data.startswith(b"\xef\xbb\xbf"):
        encoding = "utf-8-sig"
    elif data.startswith((b"\xff\xfe", b"\xfe\xff")):
        encoding = "utf-16"
    try:
        return data.decode(encoding)
    except (UnicodeDecodeError, LookupError) as error:
        raise MalformedXml(f"its text cannot be decoded ({error})") from None


def _reference_to_character(match: re.Match[str]) -> str:
    number = int(match.group(1)) if match.group(1) else int(match.group(2), 16)
    return {9: "\uf8f0", 10: "\uf8f1", 13: "\uf8f2"}[number]


def _items(element: Node) -> list[Node]:
    return list(element.getElementsByTagNameNS(RDF, "li"))


def _text(node: Node) -> str:
    if node.nodeType in (node.TEXT_NODE, node.CDATA_SECTION_NODE):
        return str(node.data)
    return "".join(_text(child) for child in node.childNodes)
