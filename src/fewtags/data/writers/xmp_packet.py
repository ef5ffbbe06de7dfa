"""An XMP packet as a tree whose lists of keywords can be changed; everything else in it stays as it was."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from xml.parsers.expat import ExpatError

from defusedxml import DefusedXmlException
from defusedxml.minidom import parseString

from fewtags.data.aliases import fold
from fewtags.data.xml import MalformedXml
from fewtags.data.xmp import DC, DIGIKAM, FEWTAGS, LIGHTROOM, MEDIA_PRO, MICROSOFT, MICROSOFT_BY_EXIFTOOL, RDF

Node = Any  # of minidom, whose nodes are loosely typed
XMLNS = "http://www.w3.org/2000/xmlns/"
PREFIXES = {DC: "dc", LIGHTROOM: "lr", DIGIKAM: "digiKam", FEWTAGS: "fewtags", RDF: "rdf"}  # of what fewtags writes
# Line breaks and tabs in attributes must stay character references; minidom writes them literally, and a reader would
# turn them into spaces. They pass through it as private-use characters.
REFERENCES = {"\uf8f0": "&#9;", "\uf8f1": "&#10;", "\uf8f2": "&#13;"}
REFERENCE = re.compile(r"&#(?:0*(9|10|13)|[xX]0*([9aAdD]));")
ENCODING = re.compile(rb'<\?xml[^>]*encoding=["\']([A-Za-z0-9._-]+)["\']')
DECLARATION = re.compile(r"^\s*<\?xml\b[^>]*\?>")


@dataclass(frozen=True)
class KeywordList:
    """A property of a packet that lists keywords."""

    namespace: str
    name: str
    kind: str  # Bag or Seq
    separator: str = ""  # between the levels of a keyword; none in a flat list

    def text(self, path: Sequence[str]) -> str | None:
        """The item for a keyword in its place; None if this list cannot express it."""
        if not self.separator:
            return path[-1]
        return None if any(self.separator in level for level in path) else self.separator.join(path)

    def keyword(self, text: str) -> str:
        """The keyword of an item, folded: the last level of its path."""
        text = text.removeprefix(self.label)
        return fold(text.rsplit(self.separator, 1)[-1] if self.separator else text)

    @property
    def label(self) -> str:
        """As in fewtags:Added."""
        return f"{PREFIXES.get(self.namespace, self.namespace)}:{self.name}="


FLAT = KeywordList(DC, "subject", "Bag")
TREES = (KeywordList(LIGHTROOM, "hierarchicalSubject", "Bag", "|"), KeywordList(DIGIKAM, "TagsList", "Seq", "/"))
OTHER_TREES = (
    KeywordList(MICROSOFT, "LastKeywordXMP", "Bag", "/"),
    KeywordList(MICROSOFT_BY_EXIFTOOL, "LastKeywordXMP", "Bag", "/"),
    KeywordList(MEDIA_PRO, "CatalogSets", "Bag", "|"),
)  # digiKam copies keywords to them; fewtags does not write there


def keyword_of(item: str) -> str:
    """The folded keyword of an item of fewtags:Added; '' for one that is not about a keyword."""
    return next((place.keyword(item) for place in (*TREES, FLAT) if item.startswith(place.label)), "")


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

    def has(self, place: KeywordList) -> bool:
        return bool(self._elements(place.namespace, place.name)) or any(
            description.hasAttributeNS(place.namespace, place.name) for description in self._descriptions()
        )

    def texts(self, place: KeywordList) -> list[str]:
        """The items of a list, whether it is a list, a single text or an attribute."""
        return list(self._texts(place.namespace, place.name))

    def change(self, place: KeywordList, new: Iterable[str], stale: Collection[str] = ()) -> list[str]:
        """Add items to a list, creating it if needed, and remove those whose folded text is in `stale`. Returns what
        was not there before."""
        present = {fold(text) for text in self.texts(place)}
        added = [text for text in dict.fromkeys(new) if fold(text) not in present]
        if not added and present.isdisjoint(stale):
            return []
        self.changed = True
        items = self._list(place.namespace, place.name, place.kind)
        for item in _items(items):
            if fold(_text(item)) in stale:
                items.removeChild(item)
        for text in added:
            items.appendChild(self._item(text))
        return added

    def remove(self, place: KeywordList) -> None:
        """The whole property, in every form it may have."""
        for element in self._elements(place.namespace, place.name):
            element.parentNode.removeChild(element)
            self.changed = True
        for description in self._descriptions():
            if description.hasAttributeNS(place.namespace, place.name):
                description.removeAttributeNS(place.namespace, place.name)
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

    def undeclare(self, namespace: str) -> None:
        """Remove the declarations of a namespace that is no longer used, and with them descriptions that are empty:
        exiftool makes one per namespace."""
        if any(element.namespaceURI == namespace for element in self.root.getElementsByTagName("*")):
            return
        for description in self._descriptions():
            names = [a.name for a in description.attributes.values() if (a.prefix, a.value) == ("xmlns", namespace)]
            for name in names:
                description.removeAttribute(name)
            said = [a for a in description.attributes.values() if a.prefix != "xmlns" and a.localName != "about"]
            elements = [node for node in description.childNodes if node.nodeType == node.ELEMENT_NODE]
            if names and not said and not elements and len(self._descriptions()) > 1:
                self.root.removeChild(description)

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

    def _texts(self, namespace: str, name: str) -> Iterator[str]:
        for description in self._descriptions():
            if description.hasAttributeNS(namespace, name):
                yield description.getAttributeNS(namespace, name)
        for element in self._elements(namespace, name):
            items = _items(element)
            yield from map(_text, items)
            if not items and _text(element).strip():
                yield _text(element).strip()

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
            items = element.appendChild(self._create(kind))
        for text in texts:
            items.appendChild(self._item(text))
        return items

    def _property(self, namespace: str, name: str) -> Node:
        descriptions = self._descriptions()
        if not descriptions:
            made = self._create("Description")
            made.setAttributeNS(RDF, f"{made.prefix}:about", "")
            descriptions = [self.root.appendChild(made)]
        # A new namespace is declared where it is used and not further up, so that it goes when the property goes.
        prefix = self._prefix_in_scope(descriptions[0], namespace)
        if prefix is not None:
            return descriptions[0].appendChild(self.document.createElementNS(namespace, f"{prefix}:{name}"))
        prefix = PREFIXES[namespace]
        element = descriptions[0].appendChild(self.document.createElementNS(namespace, f"{prefix}:{name}"))
        element.setAttributeNS(XMLNS, f"xmlns:{prefix}", namespace)
        return element

    def _item(self, text: str) -> Node:
        item = self._create("li")
        item.appendChild(self.document.createTextNode(text))
        return item

    def _create(self, name: str) -> Node:
        """An element of RDF; its namespace may be the default one, which attributes cannot use."""
        prefix = self._prefix_in_scope(self.root, RDF)
        if prefix is None:
            prefix = PREFIXES[RDF]
            self.root.setAttributeNS(XMLNS, f"xmlns:{prefix}", RDF)
        return self.document.createElementNS(RDF, f"{prefix}:{name}")

    def _prefix_in_scope(self, node: Node, namespace: str) -> str | None:
        hidden: set[str] = set()  # by a declaration of the same prefix further in
        while node is not None and node.nodeType == node.ELEMENT_NODE:
            for attribute in node.attributes.values():
                if attribute.prefix == "xmlns" and attribute.localName not in hidden:
                    if attribute.value == namespace:
                        return str(attribute.localName)
                    hidden.add(attribute.localName)
            node = node.parentNode
        return None


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
