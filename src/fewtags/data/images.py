"""Opens one image file, whatever a photo collection holds, as upright 8-bit RGB; or says in one sentence why not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from fewtags.errors import DataError


class BadImage(DataError):
    """An image file that cannot be used. `kind` and `reason` are what `fewtags check` groups and prints."""

    def __init__(self, path: str | Path, kind: str, reason: str):
        super().__init__(f"{path}: {reason}")
        self.path, self.kind, self.reason = Path(path), kind, reason

    def __reduce__(self) -> tuple[type[BadImage], tuple[Path, str, str]]:
        return BadImage, (self.path, self.kind, self.reason)  # crosses the process border of a DataLoader's workers


def open_image(path: str | Path) -> Image.Image:
    """The picture as RGB, EXIF rotation applied, transparency over white. Raises BadImage."""
    image = _decode(path)
    try:
        return _to_rgb(image)
    except (OSError, ValueError) as error:
        raise BadImage(
            path, "unreadable image", f"its colours ({image.mode}) cannot be read as RGB: {error}."
        ) from error


def _decode(path: str | Path) -> Image.Image:
    """The picture decoded to its last row, in the file's own mode and rotation. Raises BadImage."""
    path = Path(path)
    if not path.exists():
        raise BadImage(path, "missing image", "the file does not exist.")
    if not path.is_file():
        raise BadImage(path, "not an image", "this is a folder, not an image file.")
    try:
        if path.stat().st_size == 0:
            raise BadImage(path, "empty file", "the file has zero bytes.")
        with Image.open(path) as image:
            image.load()
            return image
    except BadImage:
        raise
    except UnidentifiedImageError as error:
        raise BadImage(path, "not an image", "this is not an image file that Pillow knows.") from error
    except Image.DecompressionBombError as error:
        limit = 2 * (Image.MAX_IMAGE_PIXELS or 0) // 1_000_000
        reason = f"it unpacks to more than {limit} million pixels; make it smaller."
        raise BadImage(path, "oversized image", reason) from error
    # Pillow's decoders raise nearly anything on damaged bytes: OSError, SyntaxError, struct.error, IndexError, ...
    except Exception as error:
        if "truncated" in str(error).lower():
            raise BadImage(path, "truncated image", "the file ends before the picture does.") from error
        raise BadImage(path, "unreadable image", f"it cannot be decoded: {_one_line(error)}.") from error


def _to_rgb(image: Image.Image) -> Image.Image:
    """8-bit RGB, upright; transparent parts show white."""
    image = _upright(image)
    if image.mode == "RGB" and not image.has_transparency_data:
        return image
    if image.mode.startswith(("I", "F")):
        image = _eight_bit(image)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


def _upright(image: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # broken EXIF of any kind: the picture is fine, only its rotation is unknown
        return image


def _eight_bit(image: Image.Image) -> Image.Image:
    """Grey values beyond 8 bits, scaled: 16-bit ones from 0..65535, others from the smallest usual range that fits.

    Pillow's own conversion would clip them at 255, which turns most of a 16-bit picture white.
    """
    values = np.nan_to_num(np.asarray(image, dtype=np.float64))
    top = 65535.0
    if not image.mode.startswith("I;16"):
        highest = values.max(initial=0)
        ranges = (255.0, 65535.0) if image.mode == "I" else (1.0, 255.0, 65535.0)
        top = next((value for value in ranges if highest <= value), highest)
    return Image.fromarray((values / top * 255).clip(0, 255).round().astype(np.uint8))


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
