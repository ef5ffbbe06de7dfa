"""RAW photos by the preview that cameras put into them (extra: raw)."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

from PIL import Image

NO_PREVIEW_BELOW = 320  # pixels of the longer side: a smaller one is an icon, and the mosaic is developed instead
TURNS = {0: 1, 3: 3, 5: 8, 6: 6}  # LibRaw's flip -> EXIF orientation
XMP_PACKET = re.compile(rb"<x:xmpmeta\b.*?</x:xmpmeta>", re.DOTALL)


def raw_preview(source: str | bytes) -> tuple[bytes, int]:
    """The largest preview as an image file, and the EXIF orientation it has if it does not say so itself.

    `source` is a path, or the bytes of a RAW file. Raises what rawpy raises, and ImportError without it.
    """
    import rawpy

    with rawpy.imread(io.BytesIO(source) if isinstance(source, bytes) else source) as raw:
        try:
            preview = raw.extract_thumb()
        except (rawpy.LibRawNoThumbnailError, rawpy.LibRawUnsupportedThumbnailError):
            return _developed(raw), 1
        content = preview.data if isinstance(preview.data, bytes) else _portable_pixels(preview.data)
        if _longer_side(content) < NO_PREVIEW_BELOW:
            return _developed(raw), 1
        return content, TURNS.get(raw.sizes.flip, 1)


def _developed(raw: Any) -> bytes:
    """The picture itself at half its size, which needs no interpolation between colours. LibRaw turns it upright."""
    return _portable_pixels(raw.postprocess(half_size=True, use_camera_wb=True))


def _longer_side(content: bytes) -> int:
    with Image.open(io.BytesIO(content), formats=("JPEG", "PPM")) as picture:
        return max(picture.size)


def _portable_pixels(pixels: Any) -> bytes:
    height, width = pixels.shape[:2]
    return b"P6 %d %d 255\n" % (width, height) + pixels.tobytes()


def raw_packet(path: Path) -> bytes:
    """The last XMP packet in a RAW file, b'' if there is none: programs that write keywords into one append it."""
    found = XMP_PACKET.findall(path.read_bytes())
    return found[-1] if found else b""
