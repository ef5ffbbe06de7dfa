"""RAW photos: read by their preview, upright; sidecars as Lightroom and darktable name them; a pair is one photo."""

from __future__ import annotations

import csv
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from conftest import TINY, Cli
from fewtags.data import image_files
from fewtags.data.formats import read_annotations
from fewtags.data.image_files import find_images
from fewtags.data.images import BadImage, open_image, open_resized
from fewtags.data.xmp import read_packet
from made_raw import made_dng

pytest.importorskip("rawpy")
exiftool = pytest.mark.skipif(shutil.which("exiftool") is None, reason="exiftool is not installed")


def half_yellow() -> Image.Image:
    """As the sensor lies: the upper third is yellow, the rest blue."""
    picture = Image.new("RGB", (640, 480), (20, 60, 220))
    picture.paste((250, 240, 10), (0, 0, 640, 160))
    return picture


@pytest.mark.parametrize(("orientation", "size"), [(1, (640, 480)), (3, (640, 480)), (6, (480, 640)), (8, (480, 640))])
def test_the_preview_is_turned_as_the_camera_was_held(tmp_path, orientation, size):
    file = made_dng(tmp_path / "a.dng", half_yellow(), orientation=orientation)
    picture = open_image(file)
    assert picture.size == size
    small = np.asarray(open_resized(file, (9, 9))).astype(int)
    yellow = {1: small[0, 4], 3: small[-1, 4], 6: small[4, -1], 8: small[4, 0]}[orientation]
    assert yellow[2] < 100 < yellow[0]
    assert np.asarray(picture.resize((9, 9)))[4, 4, 2] > 150


def test_without_a_usable_preview_the_picture_is_developed(tmp_path):
    assert open_image(made_dng(tmp_path / "a.dng", None, mosaic=(96, 64))).size == (48, 32)
    assert open_image(made_dng(tmp_path / "b.dng", None, mosaic=(96, 64), orientation=6)).size == (32, 48)
    icon = half_yellow().resize((160, 120))
    assert open_image(made_dng(tmp_path / "c.dng", icon, mosaic=(96, 64))).size == (48, 32)


def test_a_damaged_raw_file_says_so(tmp_path):
    (tmp_path / "a.cr2").write_bytes(b"II*\0 no camera wrote this")
    with pytest.raises(BadImage, match="it cannot be decoded"):
        open_image(tmp_path / "a.cr2")


def test_without_the_extra_the_message_names_it(tmp_path, monkeypatch):
    made_dng(tmp_path / "a.dng", half_yellow())
    monkeypatch.setattr(image_files, "raw_is_installed", lambda: False)
    monkeypatch.setitem(__import__("sys").modules, "rawpy", None)
    with pytest.raises(BadImage, match=r"pip install 'fewtags\[raw\]'"):
        open_image(tmp_path / "a.dng")
    skipped = image_files.Skipped()
    assert list(image_files.walk_images(tmp_path, skipped)) == []
    assert skipped.sentence(tmp_path).endswith("1 RAW photo (to read them: pip install 'fewtags[raw]').")


def test_a_pair_is_one_photo_in_every_list(tmp_path):
    made_dng(tmp_path / "IMG_1.DNG", half_yellow())
    half_yellow().save(tmp_path / "IMG_1.JPG")
    made_dng(tmp_path / "IMG_2.DNG", half_yellow())
    assert [path.name for path in find_images([tmp_path])] == ["IMG_1.JPG", "IMG_2.DNG"]
    (tmp_path / "tags.csv").write_text("image,tags\nIMG_1.DNG,sea\nIMG_2.DNG,dog\n")
    assert read_annotations(tmp_path).images == ["IMG_1.JPG", "IMG_2.DNG"]


@pytest.fixture
def archive(patches, tmp_path) -> Path:
    """Photos with a tag each in a table; two are RAW files, one of them with its JPEG."""
    folder = tmp_path / "archive"
    folder.mkdir()
    for row in range(10):
        shutil.copy(patches.path(row), folder / f"{row}.png")
    for name in ("raw", "pair"):
        made_dng(folder / f"{name}.dng", half_yellow())
    half_yellow().save(folder / "pair.jpg")
    tags = [f"{row}.png,{'red' if row % 2 else 'blue'}" for row in range(10)]
    (folder / "tags.csv").write_text("\n".join(["image,tags", *tags, "raw.dng,red", "pair.dng,blue"]) + "\n")
    return folder


@pytest.fixture
def run(cli: Cli, archive: Path, tmp_path: Path) -> Path:
    assert cli("train", archive, *TINY, "--out", tmp_path / "run", "-q").code == 0
    return tmp_path / "run"


def test_raw_photos_are_checked_learned_and_predicted(cli: Cli, archive, run):
    answer = cli("check", archive)
    assert (answer.code, "12 images, 12 readable" in answer.out) == (0, True)
    answer = cli("predict", run, archive, "--threshold", "0", "-q")
    rows = list(csv.DictReader(answer.out.splitlines()))
    assert {Path(row["image"]).name for row in rows} >= {"raw.dng", "pair.jpg"}
    assert len(rows) == 12
    assert all(row["tags"] and not row["error"] for row in rows)


@pytest.mark.parametrize(
    ("naming", "names"), [("full", ["pair.dng.xmp", "raw.dng.xmp"]), ("stem", ["pair.xmp", "raw.xmp"])]
)
def test_new_sidecars_are_named_for_darktable_or_lightroom(cli: Cli, archive, run, naming, names):
    before = {file: file.read_bytes() for file in archive.iterdir()}
    photos = [archive / "raw.dng", archive / "pair.jpg"]
    command = ["predict", run, *photos, "--threshold", "0", "--write", "xmp", "-o", f"naming={naming}", "-q"]
    assert cli(*command).out == "2 sidecars written, 0 unchanged.\n"
    assert sorted(file.name for file in archive.glob("*.xmp")) == names
    assert cli(*command).out == "0 sidecars written, 2 unchanged.\n"
    cli("untag", archive)
    assert {file: file.read_bytes() for file in archive.iterdir()} == before


@exiftool
def test_keywords_of_both_programs_beside_a_pair_are_read_and_kept(cli: Cli, archive, run):
    """Lightroom writes pair.xmp, darktable pair.dng.xmp; a DNG has its keywords inside."""
    (archive / "tags.csv").unlink()
    for file, keyword in (("pair.xmp", "lightroom"), ("raw.dng.xmp", "beside"), ("raw.dng", "inside")):
        command = ["exiftool", "-q", "-overwrite_original", f"-XMP-dc:Subject={keyword}", str(archive / file)]
        subprocess.run(command, check=True)
    annotations = read_annotations(archive)
    found = {
        image: [annotations.categories[c] for c in np.flatnonzero(row == 1)]
        for image, row in zip(annotations.images, annotations.labels, strict=True)
    }
    assert (found["pair.jpg"], found["raw.dng"]) == (["lightroom"], ["beside", "inside"])
    assert "pair.dng" not in found
    cli("predict", run, archive / "pair.jpg", archive / "raw.dng", "--threshold", "0", "--write", "xmp", "-q")
    assert sorted(file.name for file in archive.glob("*.xmp")) == ["pair.xmp", "raw.dng.xmp"]
    assert set(read_packet((archive / "pair.xmp").read_bytes()).flat) == {"lightroom", "red", "blue"}
