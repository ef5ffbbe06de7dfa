"""Opening image files: every kind of picture as upright RGB, every kind of damage as one sentence."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import zlib
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from fewtags.data import images
from fewtags.data.images import BadImage, open_image, open_resized


def picture(size: tuple[int, int] = (64, 48)) -> Image.Image:
    noise = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(noise)


def cut(file: Path, share: float) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * share)])


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
def test_every_png_mode_opens_as_rgb(tmp_path, mode):
    file = tmp_path / "a.png"
    source = picture().convert("L").convert("I").convert("I;16") if mode == "I;16" else picture().convert(mode)
    source.save(file)
    opened = open_image(file)
    assert (opened.mode, opened.size) == ("RGB", (64, 48))


def test_rgb_pixels_are_untouched(tmp_path):
    picture().save(tmp_path / "a.png")
    assert (np.asarray(open_image(tmp_path / "a.png")) == np.asarray(picture())).all()


def test_cmyk_keeps_its_colours(tmp_path):
    Image.new("RGB", (32, 32), (200, 30, 60)).convert("CMYK").save(tmp_path / "a.jpg", quality=95)
    assert np.abs(np.asarray(open_image(tmp_path / "a.jpg"), float) - (200, 30, 60)).max() < 8


def test_sixteen_bit_grey_is_scaled_not_clipped(tmp_path):
    ramp = np.linspace(0, 65535, 256).astype(np.uint16)[None].repeat(4, 0)
    Image.fromarray(ramp).save(tmp_path / "a.png")
    opened = np.asarray(open_image(tmp_path / "a.png"))[0, :, 0]
    assert np.abs(opened.astype(int) - np.arange(256)).max() <= 1


@pytest.mark.parametrize(("top", "expected"), [(1.0, 255), (255.0, 255), (100.0, 100), (65535.0, 255), (1e6, 255)])
def test_float_pictures_are_scaled_by_their_range(tmp_path, top, expected):
    Image.fromarray(np.array([[0, top]], dtype=np.float32)).save(tmp_path / "a.tif")
    assert np.asarray(open_image(tmp_path / "a.tif"))[0, :, 0].tolist() == [0, expected]


def test_transparent_parts_show_white(tmp_path):
    clear = Image.new("RGBA", (4, 4), (255, 0, 0, 0))
    clear.putpixel((0, 0), (255, 0, 0, 255))
    clear.save(tmp_path / "alpha.png")
    clear.convert("P").save(tmp_path / "palette.gif", transparency=clear.convert("P").getpixel((1, 1)))
    assert open_image(tmp_path / "alpha.png").getpixel((0, 0)) == (255, 0, 0)
    assert open_image(tmp_path / "alpha.png").getpixel((1, 1)) == (255, 255, 255)
    assert open_image(tmp_path / "palette.gif").getpixel((1, 1)) == (255, 255, 255)


def test_exif_rotation_is_applied(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    picture().save(tmp_path / "a.jpg", exif=exif)
    assert open_image(tmp_path / "a.jpg").size == (48, 64)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_broken_exif_does_not_lose_the_picture(tmp_path):
    picture().save(tmp_path / "a.jpg", exif=b"Exif\x00\x00MM\x00\x2a\xff\xff\xff\xff\xff")
    assert open_image(tmp_path / "a.jpg").size == (64, 48)


@pytest.mark.parametrize("ending", ["jpg", "png", "gif", "bmp", "webp"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_half_a_file_is_a_bad_image(tmp_path, ending, share):
    file = tmp_path / f"a.{ending}"
    picture().save(file)
    cut(file, share)
    with pytest.raises(BadImage) as caught:
        open_image(file)
    assert str(caught.value).startswith(str(file))
    assert caught.value.exit_code == 3


def test_each_damage_has_its_kind(tmp_path, monkeypatch):
    (tmp_path / "empty.jpg").touch()
    (tmp_path / "text.jpg").write_text("hello")
    (tmp_path / "folder.jpg").mkdir()
    picture().save(tmp_path / "cut.jpg")
    cut(tmp_path / "cut.jpg", 0.5)
    picture((200, 200)).save(tmp_path / "bomb.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10_000)

    def kind(name: str) -> str:
        with pytest.raises(BadImage) as caught:
            open_image(tmp_path / name)
        return caught.value.kind

    assert kind("gone.jpg") == "missing image"
    assert kind("empty.jpg") == "empty file"
    assert kind("text.jpg") == kind("folder.jpg") == "not an image"
    assert kind("cut.jpg") == "truncated image"
    assert kind("bomb.png") == "oversized image"


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_damaged_bytes_never_raise_anything_else(tmp_path):
    """Bytes changed at random: the file opens or is a BadImage."""
    rng = np.random.default_rng(0)
    for ending in ("jpg", "png", "gif", "webp", "tif"):
        picture().save(tmp_path / f"a.{ending}")
        data = np.frombuffer((tmp_path / f"a.{ending}").read_bytes(), np.uint8)
        for _ in range(30):
            damaged = data.copy()
            damaged[rng.integers(0, min(len(data), 400), 5)] = rng.integers(0, 256, 5)
            (tmp_path / f"b.{ending}").write_bytes(damaged.tobytes())
            with suppress(BadImage):
                assert open_image(tmp_path / f"b.{ending}").mode == "RGB"


def test_a_bad_image_survives_pickling(tmp_path):
    error = pickle.loads(pickle.dumps(BadImage(tmp_path / "a.jpg", "missing image", "the file does not exist.")))
    assert (error.kind, str(error)) == ("missing image", f"{tmp_path / 'a.jpg'}: the file does not exist.")


# --- scaled decoding ---

QUICKLY: dict[str, Any] = {"compress_level": 1, "method": 0}  # of PNG and WebP: how small a file is tells nothing here


@cache
def photo(size: tuple[int, int]) -> Image.Image:
    """Shapes with edges and a little noise, as a camera sees them."""
    width, height = size
    y, x = np.mgrid[0:height, 0:width]
    waves = [128 + 90 * np.sin(x / width * (9 + 7 * c) + y / height * (5 + 3 * c)) for c in range(3)]
    pixels = np.stack(waves, 2) + 60 * (((x // 97 + y // 61) % 2)[:, :, None])
    noise = np.random.default_rng(0).integers(-6, 7, (height, width, 1))
    return Image.fromarray((pixels + noise).clip(0, 255).astype(np.uint8))


def plainly(path: Path, size: tuple[int, int]) -> np.ndarray:
    """Every pixel unpacked, turned upright, resized."""
    with Image.open(path) as file:
        image = ImageOps.exif_transpose(file).convert("RGB")
    return np.asarray(image.resize(size, Image.Resampling.BICUBIC), dtype=int)


@pytest.mark.parametrize("ending", ["jpg", "png", "webp"])
@pytest.mark.parametrize("stored", [(1600, 1200), (1201, 1607), (3001, 403), (911, 899)])
def test_a_large_picture_differs_by_less_than_a_grey_level(tmp_path, ending, stored):
    file = tmp_path / f"a.{ending}"
    photo(stored).save(file, quality=92, **QUICKLY)
    for size in ((100, 100), (150, 70)):
        difference = np.abs(np.asarray(open_resized(file, size), dtype=int) - plainly(file, size))
        assert difference.mean() < 0.8
        assert difference.max() <= 20


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_large_picture_is_upright_however_it_is_stored(tmp_path, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    for ending in ("jpg", "png"):
        photo((1003, 605)).save(tmp_path / f"a.{ending}", exif=exif, quality=92, **QUICKLY)
        for size in ((64, 64), (150, 40), (40, 120)):
            difference = np.asarray(open_resized(tmp_path / f"a.{ending}", size)) - plainly(
                tmp_path / f"a.{ending}", size
            )
            assert np.abs(difference).mean() < 0.6


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
def test_a_picture_below_four_times_the_size_is_read_pixel_by_pixel(tmp_path, mode):
    """Data sets of small images give the very numbers that they gave before there was any scaling."""
    noise = picture((255, 399))
    source = noise.convert("L").convert("I").convert("I;16") if mode == "I;16" else noise.convert(mode)
    source.save(tmp_path / "a.png")
    whole = open_image(tmp_path / "a.png").resize((64, 100), Image.Resampling.BICUBIC)
    assert np.array_equal(open_resized(tmp_path / "a.png", (64, 100)), whole)


@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_a_small_jpeg_is_read_pixel_by_pixel(tmp_path, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    photo((255, 399)).save(tmp_path / "a.jpg", exif=exif)
    assert np.array_equal(open_resized(tmp_path / "a.jpg", (100, 100)), plainly(tmp_path / "a.jpg", (100, 100)))


def test_a_jpeg_is_decoded_no_smaller_than_twice_the_size(tmp_path, monkeypatch):
    unpacked, original = [], images._to_rgb
    monkeypatch.setattr(images, "_to_rgb", lambda file, *rest: unpacked.append(file.size) or original(file, *rest))
    exif = Image.Exif()
    exif[0x0112] = 6
    photo((1600, 800)).save(tmp_path / "a.jpg", exif=exif)
    for size in ((90, 180), (100, 100), (101, 101), (200, 400), (201, 400), (50, 25)):
        open_resized(tmp_path / "a.jpg", size)
    assert unpacked == [(400, 200), (400, 200), (800, 400), (800, 400), (1600, 800), (200, 100)]


def test_half_a_large_jpeg_is_a_bad_image(tmp_path):
    photo((1600, 1200)).save(tmp_path / "a.jpg")
    cut(tmp_path / "a.jpg", 0.9)
    with pytest.raises(BadImage, match="ends before the picture does"):
        open_resized(tmp_path / "a.jpg", (100, 100))


def test_colours_are_converted_alike_in_strips(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    clear = Image.fromarray(rng.integers(0, 256, (57, 64, 4), dtype=np.uint8))
    bright = Image.fromarray(rng.uniform(0, 3e5, (57, 64)).astype(np.float32))
    clear.save(tmp_path / "clear.png")
    clear.convert("P").save(tmp_path / "palette.gif", transparency=7)
    bright.save(tmp_path / "bright.tif")
    for name in ("clear.png", "palette.gif", "bright.tif"):
        whole = np.asarray(open_image(tmp_path / name))
        monkeypatch.setattr(images, "STRIP_PIXELS", 640)
        assert np.array_equal(open_image(tmp_path / name), whole)
        monkeypatch.undo()


# --- hostile files ---


def grey_png(file: Path, side: int) -> None:
    """A black 16-bit PNG of a few hundred kilobytes, however large it is."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return len(content).to_bytes(4, "big") + kind + content + zlib.crc32(kind + content).to_bytes(4, "big")

    packer, row = zlib.compressobj(1), bytes(1 + 2 * side)
    packed = b"".join([*(packer.compress(row) for _ in range(side)), packer.flush()])
    header = side.to_bytes(4, "big") * 2 + bytes([16, 0, 0, 0, 0])
    file.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b""))


def test_a_small_file_that_unpacks_to_much_stays_within_its_own_pixels(tmp_path):
    """2 bytes a pixel, and not the 27 that converting all of it at once took."""
    grey_png(tmp_path / "a.png", 8000)
    code = (
        "import resource, sys; from fewtags.data.images import open_resized;"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024;"
        "before = peak(); open_resized(sys.argv[1], (224, 224)); print(peak() - before)"
    )
    used = int(subprocess.run([sys.executable, "-c", code, tmp_path / "a.png"], capture_output=True, check=True).stdout)
    assert used < 8000 * 8000 * 2 + 64e6


def test_postscript_in_disguise_starts_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a program was started"))
    (tmp_path / "a.jpg").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 64 64\n%%EndComments\nshowpage\n")
    with pytest.raises(BadImage) as caught:
        open_image(tmp_path / "a.jpg")
    assert caught.value.kind == "not an image"


def test_a_named_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.jpg")
    with pytest.raises(BadImage, match="a device or a pipe"):
        open_image(tmp_path / "a.jpg")


def test_large_pictures_are_unpacked_one_at_a_time(tmp_path, monkeypatch):
    """However many threads read: the memory of one. Small ones do not wait."""
    photo((400, 300)).save(tmp_path / "large.png")
    photo((40, 30)).save(tmp_path / "small.png")
    monkeypatch.setattr(images, "LARGE_PIXELS", 10_000)
    with images._large_picture:
        waiting = threading.Thread(target=open_image, args=(tmp_path / "large.png",))
        waiting.start()
        open_image(tmp_path / "small.png")
        waiting.join(0.2)
        assert waiting.is_alive()
    waiting.join(10)
    assert not waiting.is_alive()


MEASURE = """
import resource, sys
from fewtags.data.images import open_resized
from fewtags.data.prefetch import in_order

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

before = peak()
for image in in_order(lambda file: open_resized(file, (224, 224)), sys.argv[1:], workers=4, ahead=8):
    assert image.size == (224, 224)
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is in other units, or not known")
@pytest.mark.parametrize(("suffix", "megabytes"), [("jpg", 150), ("png", 500)])
def test_pictures_of_100_megapixels_take_bounded_memory(tmp_path, suffix, megabytes):
    """Four threads read three of them. One takes 400 MB when it is unpacked (Pillow has four bytes a pixel), which a
    JPEG is not; three at once would take 1.2 GB."""
    Image.linear_gradient("L").resize((10_000, 10_000)).convert("RGB").save(
        tmp_path / f"0.{suffix}", **({"compress_level": 1} if suffix == "png" else {})
    )
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, *[str(tmp_path / f"0.{suffix}")] * 3],
        capture_output=True,
        text=True,
        check=True,
    )
    assert float(done.stdout) < megabytes
