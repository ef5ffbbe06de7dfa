"""Opens an image file of any kind found in photo collections as upright 8-bit RGB, or says in one sentence why not.

A camera photo is many times larger than the network's input, and decoding all of it takes longer than the network.
So `open_resized` decodes no more than the resize needs: a JPEG is decoded at 1/2, 1/4 or 1/8 of its size, and other
formats are averaged down during conversion. Both sides stay at least OVERSAMPLING times those of the result;
a picture that cannot be halved under this rule is read exactly as `open_image` reads it.
"""

from __future__ import annotations

import io
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, UnidentifiedImageError
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile

from fewtags.data.image_files import RAW, is_raw, unsupported_reason
from fewtags.data.raw_photos import raw_preview
from fewtags.data.remote import read_remote, remote_url
from fewtags.errors import DataError, UserError

# Formats we accept, whatever the file's name. Pillow knows more, but nobody keeps photos in the rest, and
# some start other programs (EPS runs Ghostscript). HEIF is available if pillow-heif is installed.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "PPM", "AVIF", "JPEG2000", "HEIF")
LARGEST_SIDE = 4096  # of what a model takes: a batch of eight is half a gigabyte before the first layer
DECODER = 2  # increased when an image file decodes to different pixels: caches are then recomputed
OVERSAMPLING = 2  # with 2, scaling changes the 224 px result by 0.2 grey levels on average
STRIP_PIXELS = 2**20  # converted per strip of this size, so only the file's own pixels are in memory
LARGE_PIXELS = 2**25  # larger pictures are decoded one at a time, however many threads read
ORIENTATION = 0x0112  # the EXIF tag, and the transpose that undoes each value
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
UPLOAD = "image"  # name of a picture without a file, in messages
LYING = (5, 6, 7, 8)  # width and height are swapped

_large_picture = threading.Lock()


class BadImage(DataError):
    """An image file that cannot be used. `kind` and `reason` are what `fewtags check` groups and prints."""

    def __init__(self, path: str | Path, kind: str, reason: str):
        super().__init__(f"{path}: {reason}")
        self.path, self.kind, self.reason = Path(path), kind, reason

    def __reduce__(self) -> tuple[type[BadImage], tuple[Path, str, str]]:
        return BadImage, (self.path, self.kind, self.reason)  # pickled by default, it could not be unpickled


class Stored(NamedTuple):
    """A picture as stored in its file, not yet upright."""

    image: Image.Image  # RGB, perhaps scaled down
    extent: tuple[float, float]  # how much of it is picture: the last column and row may be partly covered
    orientation: int
    scaled: bool


def open_image(source: str | Path | bytes) -> Image.Image:
    """The whole picture as RGB, EXIF rotation applied, transparency over white. Raises BadImage.

    `source` is a path, or the bytes of an image file.
    """
    stored = _unpack(source if isinstance(source, bytes) else Path(source), None)
    return _upright(stored.image, stored.orientation)


def open_resized(source: str | Path | bytes, size: tuple[int, int]) -> Image.Image:
    """The picture resized to `size` (width, height), upright, aspect ratio not kept. Raises BadImage.

    `source` is a path, or the bytes of an image file.
    """
    stored = _unpack(source if isinstance(source, bytes) else Path(source), size)
    if stored.scaled:
        box = (0.0, 0.0, *stored.extent)
        lying = stored.image.resize(_lying(size, stored.orientation), Image.Resampling.BICUBIC, box=box)
        return _upright(lying, stored.orientation)
    image = _upright(stored.image, stored.orientation)
    return image if image.size == size else image.resize(size, Image.Resampling.BICUBIC)


def stored_form(path: Path) -> tuple[str, tuple[int, int]]:
    """Mode and size of the picture in a file, before any conversion. Raises BadImage."""
    with _opened(path, path) as file:
        return file.mode, file.size


def num_pixels(content: bytes) -> int:
    """By the header of an image file, without unpacking it. Raises BadImage."""
    with _opened(Path(UPLOAD), content) as file:
        return file.width * file.height


def picture_in_memory(picture: Image.Image | np.ndarray, number: int = 0) -> Image.Image:
    """A PIL image, or an array [H, W, 3], [H, W, 4] or [H, W] of bytes, as `open_image` would return it.

    `number` identifies it in errors.
    """
    name = Path(f"image {number}")
    if isinstance(picture, np.ndarray):
        if picture.dtype != np.uint8 or picture.ndim not in (2, 3) or (picture.ndim == 3 and picture.shape[2] > 4):
            found = f"{picture.dtype} of shape {list(picture.shape)}"
            raise BadImage(name, "not an image", f"an array should be uint8 of shape [H, W, 3]; this is {found}.")
        picture = Image.fromarray(np.ascontiguousarray(picture.squeeze(2) if picture.shape[2:] == (1,) else picture))
    if 0 in picture.size:
        raise BadImage(name, "not an image", "it has no pixels.")
    return _upright(_to_rgb(picture, name, 1, 1), _orientation(picture))


# --- decoding ---


def _unpack(source: Path | bytes, size: tuple[int, int] | None) -> Stored:
    """The fully decoded picture of a file; scaled down if only `size` is needed."""
    path = Path(UPLOAD) if isinstance(source, bytes) else source
    with _opened(path, source) as file:
        full = file.size
        extent = _draft(file, size)
        with _in_turn(file, full):
            file.load()
            orientation = _orientation(file)
            across, down = (1, 1) if size is None else _spare(extent, _lying(size, orientation))
            image = _to_rgb(file, path, across, down)
    extent = (extent[0] / across, extent[1] / down)
    return Stored(image, extent, orientation, scaled=extent != full)


@contextmanager
def _opened(path: Path, source: Path | bytes) -> Iterator[ImageFile]:
    """The file with its header read; any later problem with it is raised as BadImage."""
    try:
        if isinstance(source, Path) and (url := remote_url(source)) is not None:
            source = read_remote(url)
        if isinstance(source, Path):
            _check_file(source)
        elif not source:
            raise BadImage(path, "empty file", "it is empty.")
        turn = 1
        if is_raw(path.name):
            source, turn = _preview(path, source)
        content = source if isinstance(source, Path) else io.BytesIO(source)
        with Image.open(content, formats=readable_formats()) as file:
            if turn != 1 and ORIENTATION not in file.getexif():
                file.getexif()[ORIENTATION] = turn
            yield file
    except (BadImage, UserError):
        raise
    except (FileNotFoundError, NotADirectoryError) as error:
        raise BadImage(path, "missing image", "the file does not exist.") from error
    except UnidentifiedImageError as error:
        raise BadImage(path, "not an image", "it is not in an image format that fewtags reads.") from error
    except Image.DecompressionBombError as error:
        limit = 2 * (Image.MAX_IMAGE_PIXELS or 0) // 1_000_000
        reason = f"it decodes to more than {limit} million pixels; make it smaller."
        raise BadImage(path, "oversized image", reason) from error
    # Pillow's decoders raise nearly anything on damaged bytes: OSError, SyntaxError, struct.error, IndexError, ...
    except Exception as error:
        if "truncated" in str(error).lower():
            raise BadImage(path, "truncated image", "the file ends before the picture does.") from error
        raise BadImage(path, "unreadable image", f"it cannot be decoded: {_one_line(error)}.") from error


def _preview(path: Path, source: Path | bytes) -> tuple[bytes, int]:
    try:
        return raw_preview(str(source) if isinstance(source, Path) else source)
    except ImportError:
        raise BadImage(path, "unsupported image", f"it {unsupported_reason(RAW)}.") from None


def _check_file(path: Path) -> None:
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):  # reading a named pipe would block forever
        what = "a folder" if stat.S_ISDIR(status.st_mode) else "a device or a pipe"
        raise BadImage(path, "not an image", f"this is {what}, not an image file.")
    if status.st_size == 0:
        raise BadImage(path, "empty file", "the file is empty.")


@cache
def readable_formats() -> tuple[str, ...]:
    """Those of FORMATS that this Pillow can read."""
    Image.init()
    with suppress(ImportError):
        import pillow_heif

        pillow_heif.register_heif_opener()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def _draft(file: ImageFile, size: tuple[int, int] | None) -> tuple[float, float]:
    """Have a JPEG decoded at a fraction of its size. Returns the width and height it will have."""
    if size is None or not isinstance(file, JpegImageFile):
        return file.size
    width, height = _lying(size, _orientation(file))
    drafted = file.draft(None, (OVERSAMPLING * width, OVERSAMPLING * height))
    return file.size if drafted is None else (drafted[1][2], drafted[1][3])


def _in_turn(file: ImageFile, full: tuple[int, int]) -> AbstractContextManager[object]:
    """Large pictures are decoded one at a time. A progressive JPEG always decodes to its full size."""
    width, height = full if "progressive" in file.info else file.size
    return _large_picture if width * height > LARGE_PIXELS else nullcontext()


def _spare(extent: tuple[float, float], size: tuple[int, int]) -> tuple[int, int]:
    """How many pixels, across and down, can be averaged into one."""
    across, down = (int(have / (OVERSAMPLING * want)) for have, want in zip(extent, size, strict=True))
    return max(across, 1), max(down, 1)


# --- upright ---


def _orientation(file: Image.Image) -> int:
    try:
        return file.getexif().get(ORIENTATION, 1)
    except Exception:  # broken EXIF of any kind: the picture is fine, only its rotation is unknown
        return 1


def _upright(image: Image.Image, orientation: int) -> Image.Image:
    turn = UPRIGHT.get(orientation)
    return image if turn is None else image.transpose(turn)


def _lying(size: tuple[int, int], orientation: int) -> tuple[int, int]:
    """The upright `size` as width and height in the file."""
    return (size[1], size[0]) if orientation in LYING else size


# --- colours ---


def _to_rgb(image: Image.Image, path: Path, across: int, down: int) -> Image.Image:
    """8-bit RGB, transparency over white; each block of `across` x `down` pixels averaged into one.

    Works in strips of whole blocks, which gives the same pixels with one copy less of a large picture in memory.
    """
    if image.mode == "RGB" and not image.has_transparency_data and across == down == 1:
        return image
    try:
        convert = _conversion(image)
        width, height = image.size
        rows = max(1, STRIP_PIXELS // (width * down)) * down
        whole = Image.new("RGB", (-(-width // across), -(-height // down)))
        for top in range(0, height, rows):
            strip = convert(image.crop((0, top, width, min(top + rows, height))))
            whole.paste(strip.reduce((across, down)) if across * down > 1 else strip, (0, top // down))
        return whole
    except (OSError, ValueError) as error:
        reason = f"its colours ({image.mode}) cannot be read as RGB: {error}."
        raise BadImage(path, "unreadable image", reason) from error


def _conversion(image: Image.Image) -> Callable[[Image.Image], Image.Image]:
    """The function that converts any part of this image to RGB."""
    if image.mode.startswith(("I", "F")):
        brightest = _brightest(image)
        return lambda part: _eight_bit(part, brightest).convert("RGB")
    if image.has_transparency_data:
        return _over_white
    return lambda part: part.convert("RGB")


def _over_white(part: Image.Image) -> Image.Image:
    part = part.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", part.size, "white"), part).convert("RGB")


def _eight_bit(part: Image.Image, brightest: float) -> Image.Image:
    """Scale grey values of more than 8 bits. Pillow's own conversion clips at 255, which turns most of them white."""
    return Image.fromarray((_values(part) / brightest * 255).clip(0, 255).round().astype(np.uint8))


def _brightest(image: Image.Image) -> float:
    """The value of white: 65535 for 16 bits, otherwise the top of the smallest usual range that holds all values."""
    if image.mode.startswith("I;16"):
        return 65535.0
    width, height = image.size
    rows = max(1, STRIP_PIXELS // width)
    strips = (image.crop((0, top, width, min(top + rows, height))) for top in range(0, height, rows))
    highest = max((float(_values(strip).max(initial=0)) for strip in strips), default=0.0)
    ranges = (255.0, 65535.0) if image.mode == "I" else (1.0, 255.0, 65535.0)
    return next((value for value in ranges if highest <= value), highest)


def _values(part: Image.Image) -> np.ndarray:
    return np.nan_to_num(np.asarray(part, dtype=np.float64))


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
