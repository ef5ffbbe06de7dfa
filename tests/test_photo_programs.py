"""docs/how-to/photo-programs.md: the files are as the page says, by exiftool."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fewtags.data.formats import read_annotations
from fewtags.data.writers import open_writer

pytestmark = pytest.mark.skipif(shutil.which("exiftool") is None, reason="exiftool is not installed")
PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "photo-programs.md"
# As each program writes the keyword dog below animal: the file, and its lists.
PROGRAMS = {
    "digiKam": ("a.jpg.xmp", {
        "XMP-digiKam:TagsList": "animal/dog", "XMP-lr:HierarchicalSubject": "animal|dog", "XMP-dc:Subject": "dog",
        "XMP-microsoft:LastKeywordXMP": "animal/dog", "XMP-mediapro:CatalogSets": "animal|dog",
    }),
    "Lightroom": ("a.xmp", {"XMP-lr:HierarchicalSubject": "animal|dog", "XMP-dc:Subject": "dog"}),
    "darktable": ("a.jpg.xmp", {"XMP-lr:HierarchicalSubject": "animal|dog", "XMP-dc:Subject": "dog"}),
    "Immich": ("a.jpg.xmp", {"XMP-digiKam:TagsList": "animal/dog"}),
}  # fmt: skip


def exiftool(*arguments: object) -> str:
    return subprocess.run(["exiftool", *map(str, arguments)], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for name in ("a.jpg", "b.jpg"):
        Image.new("RGB", (64, 48), (200, 40, 40)).save(tmp_path / name)
    return tmp_path


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_a_program_writes_is_read_as_a_tree_and_comes_back(photos, program):
    file, lists = PROGRAMS[program]
    exiftool("-q", *(f"-{name}={value}" for name, value in lists.items()), photos / file)
    annotations = read_annotations(photos)
    assert annotations.categories == ["animal", "dog"]
    assert annotations.labels[0].tolist() == [1, 1]
    assert annotations.tree.implied == {"dog": ("animal",)}
    writer = open_writer("xmp", {"naming": "stem" if file == "a.xmp" else "full"})
    writer.tree = annotations.tree
    for photo in ("a.jpg", "b.jpg"):
        writer.write(photos / photo, {"animal": 0.9, "dog": 0.8})
    new = photos / file.replace("a.", "b.")
    assert [name.name for name in sorted(photos.glob("*.xmp"))] == [file, new.name]
    for name, value in lists.items():
        if name not in ("XMP-microsoft:LastKeywordXMP", "XMP-mediapro:CatalogSets"):  # copies by digiKam alone
            assert value in exiftool("-b", "-sep", "\n", f"-{name}", new).split("\n")
            assert exiftool("-b", f"-{name}", photos / file) == value  # the person's file is as it was


def test_every_list_of_the_page_is_one_that_is_read(photos):
    page = PAGE.read_text(encoding="utf-8")
    for name in (
        "digiKam:TagsList",
        "lr:hierarchicalSubject",
        "dc:subject",
        "MicrosoftPhoto:LastKeywordXMP",
        "mediapro:CatalogSets",
    ):
        assert f"`{name}`" in page
    for name in ("XMP-digiKam:TagsList", "XMP-lr:HierarchicalSubject", "XMP-dc:Subject", "XMP-microsoft:LastKeywordXMP",
                 "XMP-mediapro:CatalogSets"):  # fmt: skip
        exiftool("-q", f"-{name}=sea", photos / "a.jpg.xmp")
        assert read_annotations(photos).categories == ["sea"]
        (photos / "a.jpg.xmp").unlink()


def test_copying_keywords_into_photos_as_the_page_says(photos):
    writer = open_writer("xmp", {})
    writer.write(photos / "a.jpg", {"dog": 0.9})
    (command,) = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("exiftool ")]
    before = np.asarray(Image.open(photos / "a.jpg"))
    exiftool("-q", "-overwrite_original", *command.replace("photos/", str(photos)).split()[1:])
    assert exiftool("-b", "-XMP-lr:HierarchicalSubject", photos / "a.jpg") == "dog"
    assert exiftool("-b", "-XMP-dc:Subject", photos / "a.jpg") == "dog"
    assert (np.asarray(Image.open(photos / "a.jpg")) == before).all()
