"""Opening image files: every kind of picture as upright RGB, every kind of damage as one sentence."""

from __future__ import annotations

import pickle
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fewtags.data.images import BadImage, open_image


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
