"""`fewtags untag`: what fewtags wrote goes, what a person wrote or confirmed stays."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import canonicalize

import pytest

from conftest import Cli
from fewtags.data.formats import read_annotations
from fewtags.data.writers import open_writer
from fewtags.data.writers.beside import alone_in
from fewtags.data.xmp import read_packet
from fewtags.review.store import DecisionStore, Draft, decisions_file

exiftool = pytest.mark.skipif(shutil.which("exiftool") is None, reason="exiftool is not installed")
LISTS = ("-XMP-dc:Subject", "-XMP-lr:HierarchicalSubject", "-XMP-digiKam:TagsList")


@pytest.fixture
def photos(patches, tmp_path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for row in range(4):
        shutil.copy(patches.path(row), folder / f"{row}.png")
    return folder


def predict(cli: Cli, run: Path, photos: Path) -> None:
    assert cli("predict", run, photos, "--write", "xmp", "--threshold", "0", "-o", "marker=auto", "-q").code == 0


def edit(file: Path, *changes: str) -> None:
    subprocess.run(["exiftool", "-q", "-overwrite_original", *changes, str(file)], check=True)


def seen(file: Path) -> dict[str, Any]:
    """Everything exiftool reads in a file."""
    done = subprocess.run(
        ["exiftool", "-json", "-G1", "-struct", "-XMP:all", str(file)], check=True, capture_output=True
    )
    (content,) = json.loads(done.stdout)
    return {key: value for key, value in content.items() if key not in ("SourceFile", "XMP-x:XMPToolkit")}


def files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def test_sidecars_that_fewtags_made_are_deleted(cli: Cli, trained, photos):
    before = files(photos)
    predict(cli, trained, photos)
    assert len(files(photos)) == 8
    answer = cli("untag", photos)
    assert (answer.code, answer.err) == (0, "")
    assert answer.out == ("16 keywords of fewtags removed: 0 sidecars changed, 4 deleted that fewtags had made.\n")
    assert files(photos) == before
    assert cli("untag", photos).out.startswith("0 keywords of fewtags removed: 0 sidecars changed")


def test_a_dry_run_only_prints(cli: Cli, trained, photos):
    predict(cli, trained, photos)
    before = files(photos)
    answer = cli("untag", photos, "--dry-run")
    assert f"{photos / '0.png.xmp'}: delete; - " in answer.out
    assert "16 keywords of fewtags would be removed" in answer.out
    assert files(photos) == before


def test_files_that_belong_to_others_too_are_named_not_changed(cli: Cli, trained, photos, tmp_path):
    """As when they are written: links out of the folder, one file under two names, read-only files."""
    predict(cli, trained, photos)
    (photos / "0.png.xmp").rename(tmp_path / "elsewhere.xmp")
    (photos / "0.png.xmp").symlink_to("../elsewhere.xmp")
    (photos / "1.png.xmp").chmod(0o444)
    (tmp_path / "backup.xmp").hardlink_to(photos / "2.png.xmp")
    before = files(photos)
    answer = cli("untag", photos)
    assert "4 keywords of fewtags removed: 0 sidecars changed, 1 deleted" in answer.out
    assert "3 not changed because they cannot be read or written" in answer.out
    assert all(reason in answer.out for reason in ("leads out of the folder", "read-only", "hard links"))
    del before["3.png.xmp"]
    assert files(photos) == before


def test_not_while_another_process_writes(cli: Cli, trained, photos):
    predict(cli, trained, photos)
    before = files(photos)
    with alone_in([photos], "fewtags predict --write"):
        answer = cli("untag", photos)
        assert (answer.code, "in use by another process (fewtags predict --write" in answer.err) == (2, True)
        assert cli("untag", photos, "--dry-run").code == 0
    assert files(photos) == before
    assert cli("untag", photos / "missing" / "a.jpg").code == 2
    assert files(photos) == before


@exiftool
def test_what_exiftool_wrote_before_is_as_it_was(cli: Cli, trained, photos):
    for number, changes in enumerate(
        [
            ["-XMP-dc:Subject=red", "-XMP:Rating=4"],
            ["-XMP-dc:Subject=harbour", "-XMP-lr:HierarchicalSubject=place|harbour"],
            ["-XMP-digiKam:TagsList=place/harbour", "-XMP-digiKam:TagsList=sea"],
            ["-XMP:Rating=1"],
        ]
    ):
        edit(photos / f"{number}.png.xmp", *changes)
    before = {file.name: seen(file) for file in photos.glob("*.xmp")}
    trees = {file.name: canonicalize(file.read_text(), strip_text=True) for file in photos.glob("*.xmp")}
    predict(cli, trained, photos)
    assert all(seen(photos / name) != content for name, content in before.items())
    answer = cli("untag", photos)
    assert answer.out == "15 keywords of fewtags removed: 4 sidecars changed, 0 deleted that fewtags had made.\n"
    assert {file.name: seen(file) for file in photos.glob("*.xmp")} == before
    assert {file.name: canonicalize(file.read_text(), strip_text=True) for file in photos.glob("*.xmp")} == trees


@exiftool
def test_what_a_person_wrote_moved_or_deleted_since_stays(cli: Cli, trained, photos):
    predict(cli, trained, photos)
    edit(photos / "0.png.xmp", *(f"{name}+=sea" for name in LISTS))
    edit(photos / "1.png.xmp", "-XMP-lr:HierarchicalSubject-=red", "-XMP-lr:HierarchicalSubject+=colour|red")
    edit(photos / "2.png.xmp", *(f"{name}-=green" for name in LISTS))
    edit(photos / "3.png.xmp", "-XMP-microsoft:LastKeywordXMP=red", "-XMP:Rating=5")  # as digiKam copies keywords
    cli("untag", photos)
    assert seen(photos / "0.png.xmp") == {
        "XMP-dc:Subject": ["sea"], "XMP-lr:HierarchicalSubject": ["sea"], "XMP-digiKam:TagsList": ["sea"],
    }  # fmt: skip
    moved = seen(photos / "1.png.xmp")
    assert (moved["XMP-dc:Subject"], moved["XMP-lr:HierarchicalSubject"]) == (["red"], ["colour|red"])
    assert read_packet((photos / "2.png.xmp").read_bytes()).rejected == ["green"]
    assert read_annotations(photos).labels.tolist()[2] == [0, -1, 0, 0]  # colour, green, red, sea
    assert seen(photos / "3.png.xmp") == {"XMP-xmp:Rating": 5}
    predict(cli, trained, photos)
    assert "green" not in read_packet((photos / "2.png.xmp").read_bytes()).flat
    cli("untag", photos, "--forget")
    assert b"fewtags" not in (photos / "2.png.xmp").read_bytes()


@exiftool
def test_keywords_in_the_photo_stay_visible_in_a_sidecar_that_is_used(cli: Cli, trained, photos):
    """A program that prefers the sidecar must still find the photo's own keywords in it."""
    edit(photos / "0.png", "-XMP-dc:Subject=lake")
    predict(cli, trained, photos)
    edit(photos / "0.png.xmp", "-XMP:Rating=3")
    cli("untag", photos / "0.png")
    assert seen(photos / "0.png.xmp") == {
        "XMP-dc:Subject": ["lake"], "XMP-lr:HierarchicalSubject": ["lake"], "XMP-digiKam:TagsList": ["lake"],
        "XMP-xmp:Rating": 3,
    }  # fmt: skip
    assert (photos / "1.png.xmp").exists()  # only the given photo was asked for


def test_what_a_review_confirmed_stays(cli: Cli, trained, patches, tmp_path):
    run, photos = tmp_path / "run", tmp_path / "photos"
    shutil.copytree(trained, run)
    shutil.copytree(patches.root, photos)
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(config.replace(str(patches.root), str(photos)))
    predict(cli, run, photos)
    with DecisionStore(decisions_file(run)) as store:
        store.append([Draft(patches.images[0], "red", 0, 1)], reviewer="ann", queue="missing", run="run")
    answer = cli("untag", photos, "--reviewed", run)
    assert answer.code == 0
    assert [file.name for file in photos.glob("*.xmp")] == [f"{patches.images[0]}.xmp"]
    keywords = read_packet((photos / f"{patches.images[0]}.xmp").read_bytes())
    assert (keywords.flat, keywords.predicted) == (["red"], [])


def test_sidecars_of_version_0_1_0(cli: Cli, photos):
    """They have fewtags:Predicted and no record of single items."""
    writer = open_writer("xmp", {})
    writer.write(photos / "0.png", {"dog": 0.9, "sea": 0.8})
    sidecar = photos / "0.png.xmp"
    text = sidecar.read_text()
    start, end = text.index("<fewtags:Added"), text.index("</fewtags:Added>") + len("</fewtags:Added>")
    sidecar.write_text((text[:start] + text[end:]).replace("<rdf:Bag>", "<rdf:Bag><rdf:li>own</rdf:li>", 1))
    cli("untag", photos)
    keywords = read_packet(sidecar.read_bytes())
    assert (keywords.flat, keywords.predicted, keywords.paths) == (["own"], [], [])


def test_what_cannot_be_read_is_left_and_named(cli: Cli, photos):
    broken = photos / "0.png.xmp"
    broken.write_bytes(b"<urn:fewtags:xmp:1#")
    answer = cli("untag", photos)
    assert answer.code == 0
    assert f"1 not changed because they cannot be read or written ({broken}: " in answer.out
    assert broken.read_bytes() == b"<urn:fewtags:xmp:1#"
    missing = cli("untag", photos / "nothing")
    assert (missing.code, missing.err) == (2, f"fewtags: {photos / 'nothing'} does not exist.\n")
