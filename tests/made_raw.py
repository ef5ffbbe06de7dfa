"""Made RAW files: a DNG with a mosaic, and with a JPEG preview like those of cameras."""

from __future__ import annotations

import io
import struct
from pathlib import Path

from PIL import Image

BYTE, ASCII, SHORT, LONG, RATIONAL, SRATIONAL = 1, 2, 3, 4, 5, 10
SIZES = {BYTE: 1, ASCII: 1, SHORT: 2, LONG: 4, RATIONAL: 8, SRATIONAL: 8}
CODES = {BYTE: "B", ASCII: "B", SHORT: "H", LONG: "I", RATIONAL: "II", SRATIONAL: "ii"}


def made_dng(
    file: Path, preview: Image.Image | None, *, orientation: int = 1, mosaic: tuple[int, int] = (96, 64)
) -> Path:
    """`orientation` as the camera was held; the preview lies as the sensor does and does not say how it was held."""
    width, height = mosaic
    pixels = b"".join(
        struct.pack("<H", 8000 if (row + column) % 2 else 30000) for row in range(height) for column in range(width)
    )
    jpeg = b""
    if preview is not None:
        stream = io.BytesIO()
        preview.save(stream, "JPEG", quality=95)
        jpeg = stream.getvalue()
    blocks = [pixels, jpeg]
    start = 8
    places = []
    for block in blocks:
        places.append(start)
        start += len(block) + len(block) % 2
    main = [
        (254, LONG, [0]),
        (256, LONG, [width]),
        (257, LONG, [height]),
        (258, SHORT, [16]),
        (259, SHORT, [1]),
        (262, SHORT, [32803]),
        (271, ASCII, list(b"Made\0")),
        (272, ASCII, list(b"Made One\0")),
        (273, LONG, [places[0]]),
        (274, SHORT, [orientation]),
        (277, SHORT, [1]),
        (278, LONG, [height]),
        (279, LONG, [len(pixels)]),
        (284, SHORT, [1]),
        (33421, SHORT, [2, 2]),
        (33422, BYTE, [0, 1, 1, 2]),
        (50706, BYTE, [1, 4, 0, 0]),
        (50707, BYTE, [1, 1, 0, 0]),
        (50708, ASCII, list(b"Made One\0")),
        (50714, SHORT, [0]),
        (50717, SHORT, [65535]),
        (50721, SRATIONAL, [1, 1, 0, 1, 0, 1, 0, 1, 1, 1, 0, 1, 0, 1, 0, 1, 1, 1]),
        (50728, RATIONAL, [1, 1, 1, 1, 1, 1]),
        (50778, SHORT, [21]),
    ]
    second = []
    if preview is not None:
        second = [
            (254, LONG, [1]),
            (256, LONG, [preview.width]),
            (257, LONG, [preview.height]),
            (258, SHORT, [8, 8, 8]),
            (259, SHORT, [7]),
            (262, SHORT, [6]),
            (273, LONG, [places[1]]),
            (277, SHORT, [3]),
            (278, LONG, [preview.height]),
            (279, LONG, [len(jpeg)]),
            (284, SHORT, [1]),
        ]
        main.append((330, LONG, [0]))
    main.sort()
    ifd = start
    after = ifd + ifd_size(main)
    if second:
        main = [(tag, kind, [after] if tag == 330 else values) for tag, kind, values in main]
    content = b"II*\0" + struct.pack("<I", ifd)
    for block in blocks:
        content += block + b"\0" * (len(block) % 2)
    content += ifd_bytes(main, ifd)
    if second:
        content += ifd_bytes(second, after)
    file.write_bytes(content)
    return file


def ifd_size(entries: list) -> int:
    extra = sum(
        len(packed(kind, values)) + len(packed(kind, values)) % 2
        for _, kind, values in entries
        if len(packed(kind, values)) > 4
    )
    return 2 + 12 * len(entries) + 4 + extra


def packed(kind: int, values: list[int]) -> bytes:
    code = CODES[kind]
    return struct.pack("<" + code[0] * len(values), *values)


def ifd_bytes(entries: list, place: int) -> bytes:
    head, extra = struct.pack("<H", len(entries)), b""
    free = place + 2 + 12 * len(entries) + 4
    for tag, kind, values in entries:
        data = packed(kind, values)
        count = len(data) // SIZES[kind]
        if len(data) <= 4:
            field = data.ljust(4, b"\0")
        else:
            field = struct.pack("<I", free + len(extra))
            extra += data + b"\0" * (len(data) % 2)
        head += struct.pack("<HHI", tag, kind, count) + field
    return head + struct.pack("<I", 0) + extra
