"""XML of any origin: without entities that unfold to gigabytes or read files, and with one kind of error."""

from __future__ import annotations

from xml.etree.ElementTree import Element, ParseError

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import fromstring


class MalformedXml(Exception):
    """Says why, without the file's name. `line` is 0 where it is not known."""

    def __init__(self, reason: str, line: int = 0):
        super().__init__(reason)
        self.line = line


def parse_xml(data: bytes) -> Element:
    try:
        return fromstring(data, forbid_dtd=True)
    except ParseError as error:
        raise MalformedXml(str(error), error.position[0]) from None
    except DefusedXmlException:
        raise MalformedXml("it declares a DTD or entities, which are not read because they can do harm") from None
    except (LookupError, ValueError, RecursionError) as error:  # encodings: unknown, of several bytes, or wrong
        raise MalformedXml(" ".join(str(error).split()) or type(error).__name__) from None
