"""XML from untrusted sources: no entities (they can expand to gigabytes or read files), and one kind of error."""

from __future__ import annotations

from xml.etree.ElementTree import Element, ParseError

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import fromstring


class MalformedXml(Exception):
    """The reason, without the file name. `line` is 0 if unknown."""

    def __init__(self, reason: str, line: int = 0):
        super().__init__(reason)
        self.line = line


def parse_xml(data: bytes) -> Element:
    try:
        return fromstring(data, forbid_dtd=True)
    except ParseError as error:
        raise MalformedXml(str(error), error.position[0]) from None
    except DefusedXmlException:
        raise MalformedXml("it declares a DTD or entities, which are rejected as unsafe") from None
    except (LookupError, ValueError, RecursionError) as error:  # encodings: unknown, multi-byte, or wrong
        raise MalformedXml(" ".join(str(error).split()) or type(error).__name__) from None
