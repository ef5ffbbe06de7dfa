"""The keywords of a photo: embedded as XMP, IPTC or Windows keywords, and in .xmp sidecars next to it."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from PIL import Image, IptcImagePlugin

from fewtags.data.aliases import clean
from fewtags.data.image_files import is_raw, raw_of
from fewtags.data.images import readable_formats
from fewtags.data.raw_photos import raw_packet
from fewtags.data.xml import MalformedXml
from fewtags.data.xmp import Keywords, read_packet

XP_KEYWORDS = 0x9C9E  # EXIF tag of Windows Explorer: UTF-16, semicolon-separated
IPTC_KEYWORDS, IPTC_CHARSET = (2, 25), (1, 90)
LARGEST_PACKET = 32 << 20  # bytes; XMP with embedded previews reaches some megabytes
PNG_XMP, PNG_IPTC = b"XML:com.adobe.xmp", b"Raw profile type iptc"


class BadKeywords(Exception):
    """Why a photo's keywords cannot be read, without its name."""


def sidecars(image: Path) -> list[Path]:
    """`a.jpg.xmp` (digiKam, darktable) and `a.xmp` (Lightroom, Bridge), if they exist; also `a.cr2.xmp` next to a.cr2,
    which is the same photo. Lightroom's belongs to the RAW, so that is first."""
    raw = raw_of(image)
    full = [image.name] if raw is None else [raw.name, image.name]
    names = [name + suffix for suffix in (".xmp", ".XMP") for name in (*full, image.stem)]
    return [file for file in map(image.with_name, dict.fromkeys(names)) if os.path.isfile(file)]  # False if too long


def read_sidecar(file: Path) -> Keywords:
    try:
        return read_packet(file.read_bytes())
    except MalformedXml as error:
        raise BadKeywords(f"the XMP sidecar cannot be read: {error}") from None
    except OSError as error:
        raise BadKeywords(f"the XMP sidecar cannot be read: {error.strerror}") from None


def embedded_packet(path: Path) -> bytes:
    """The XMP packet inside a photo, b'' if there is none. Raises BadKeywords."""
    return _embedded(path)[0]


def embedded_keywords(path: Path) -> Keywords:
    """The keywords in the photo itself. Pixels are not decoded. Raises BadKeywords."""
    packet, iptc, windows = _embedded(path)
    keywords = Keywords([*iptc, *windows])
    if packet:
        try:
            keywords.add(read_packet(packet))
        except MalformedXml as error:
            raise BadKeywords(f"its XMP cannot be read: {error}") from None
    return keywords


def _embedded(path: Path) -> tuple[bytes, list[str], list[str]]:
    """XMP packet, IPTC keywords, Windows keywords."""
    try:
        with path.open("rb") as stream:
            if stream.read(8) == b"\x89PNG\r\n\x1a\n":
                chunks = dict(_png_texts(stream.read()))
                iptc = _iptc_records(_hex_profile(chunks.get(PNG_IPTC, b"")))
                return chunks.get(PNG_XMP, b""), list(_iptc_words(iptc)), []
        if is_raw(path.name):
            return raw_packet(path)[:LARGEST_PACKET], [], []
        with Image.open(path, formats=readable_formats()) as image:
            packet = image.info.get("xmp") or b""
            records = IptcImagePlugin.getiptcinfo(image) or {}
            windows = image.getexif().get(XP_KEYWORDS, b"")
    except OSError as error:  # also raised by Pillow if a file is not a picture
        raise BadKeywords(f"its keywords cannot be read: {error.strerror or 'it is not a picture'}") from None
    except Exception as error:  # Pillow may raise almost anything on damaged bytes
        raise BadKeywords(f"its keywords cannot be read: {' '.join(str(error).split())}") from None
    packet = packet if isinstance(packet, bytes) else str(packet).encode()
    return packet[:LARGEST_PACKET], list(_iptc_words(records)), list(_windows_words(windows))


def _iptc_words(records: dict[tuple[int, int], bytes | list[bytes]]) -> Iterator[str]:
    found = records.get(IPTC_KEYWORDS, [])
    utf8 = records.get(IPTC_CHARSET) == b"\x1b%G"
    for word in found if isinstance(found, list) else [found]:
        yield clean(_decoded(word, utf8))


def _decoded(word: bytes, utf8: bool) -> str:
    """Without a declared character set, programs wrote UTF-8 or Latin-1."""
    try:
        return word.decode("utf-8")
    except UnicodeDecodeError:
        return word.decode("utf-8", "replace") if utf8 else word.decode("latin-1")


def _windows_words(value: object) -> Iterator[str]:
    if isinstance(value, tuple):  # some writers store bytes as numbers
        value = bytes(number & 0xFF for number in value if isinstance(number, int))
    if isinstance(value, bytes):
        text = value.decode("utf-16-le", "replace").rstrip("\0")
        yield from (clean(word) for word in text.split(";") if clean(word))


# --- PNG: Pillow reads text chunks after the pixels only by decoding the pixels ---


def _png_texts(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """(keyword, text) of the text chunks. Compressed ones are decompressed up to LARGEST_PACKET."""
    position = 0
    while position + 8 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, position)
        body = data[position + 8 : position + 8 + length]
        position += 12 + length
        if kind in (b"tEXt", b"zTXt", b"iTXt"):
            keyword, _, rest = body.partition(b"\0")
            yield keyword, _png_text(kind, rest)


def _png_text(kind: bytes, rest: bytes) -> bytes:
    if kind == b"tEXt":
        return rest
    compressed = kind == b"zTXt" or rest[:1] == b"\1"
    text = rest[1:] if kind == b"zTXt" else rest[2:].split(b"\0", 2)[-1]
    if not compressed:
        return text
    try:
        return zlib.decompressobj().decompress(text, LARGEST_PACKET)
    except zlib.error:
        return b""


def _hex_profile(text: bytes) -> bytes:
    """`\\niptc\\n 42\\n1c0219...` as ImageMagick and exiftool write it."""
    try:
        return bytes.fromhex(b"".join(text.split()[2:]).decode("ascii"))
    except ValueError:
        return b""


def _iptc_records(data: bytes) -> dict[tuple[int, int], bytes | list[bytes]]:
    """The charset and keywords of IPTC data, located by their markers in the surrounding bytes."""
    words, charset = [], b""
    position = data.find(b"\x1c")
    while 0 <= position <= len(data) - 5:
        record, number, length = struct.unpack_from(">BBH", data, position + 1)
        value = data[position + 5 : position + 5 + length]
        if (record, number) == IPTC_KEYWORDS:
            words.append(value)
        elif (record, number) == IPTC_CHARSET:
            charset = value
        position = data.find(b"\x1c", position + 5 + length)
    return {IPTC_KEYWORDS: words, IPTC_CHARSET: charset}
