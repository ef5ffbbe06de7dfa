"""Sidecars are people's files in people's folders: links, copies, foreign programs and bad names do no harm."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from PIL import Image

from fewtags.data.writers import open_writer
from fewtags.data.xmp import read_packet

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links and permissions of POSIX")
BOTH = pytest.mark.parametrize(("kind", "suffix"), [("xmp", ".jpg.xmp"), ("sidecar", ".txt")])
OLD = {
    "xmp": b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">'
    b'<rdf:Description xmlns:dc="http://purl.org/dc/elements/1.1/" dc:subject="sea"/></rdf:RDF></x:xmpmeta>',
    "sidecar": b"sea\n",
}


def photo(file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8)).save(file)
    return file


def write(kind: str, *images: Path, folders: Sequence[Path] = ()) -> str:
    writer = open_writer(kind, {}, folders=folders)
    for image in images:
        writer.write(image, {"dog": 0.9})
    return writer.close()


@BOTH
def test_a_link_within_the_folder_is_written_through(tmp_path, kind, suffix):
    image = photo(tmp_path / "photos" / "a.jpg")
    target = tmp_path / "photos" / "kept" / "tags"
    target.parent.mkdir()
    target.write_bytes(OLD[kind])
    link = tmp_path / "photos" / f"a{suffix}"
    link.symlink_to("kept/tags")
    assert "1 " in write(kind, image, folders=[tmp_path / "photos"])[:2]
    assert link.is_symlink()
    assert b"dog" in target.read_bytes()


@BOTH
@pytest.mark.parametrize("given", [True, False])
def test_a_link_out_of_the_folder_is_refused(tmp_path, kind, suffix, given):
    image = photo(tmp_path / "photos" / "a.jpg")
    victim = tmp_path / "victim.txt"
    victim.write_bytes(OLD[kind])
    (tmp_path / "photos" / f"a{suffix}").symlink_to("../victim.txt")
    sentence = write(kind, image, folders=[tmp_path / "photos"] if given else ())
    assert "it is a link that leads out of the folder" in sentence
    assert victim.read_bytes() == OLD[kind]


@BOTH
def test_a_link_to_nothing_outside_makes_no_file_there(tmp_path, kind, suffix):
    image = photo(tmp_path / "photos" / "a.jpg")
    (tmp_path / "photos" / f"a{suffix}").symlink_to("../new.txt")
    assert "leads out of the folder" in write(kind, image)
    assert not (tmp_path / "new.txt").exists()


@BOTH
def test_hard_links_and_read_only_files_are_named_and_left(tmp_path, kind, suffix):
    images = [photo(tmp_path / f"{name}.jpg") for name in "abc"]
    for name in "ab":
        (tmp_path / f"{name}{suffix}").write_bytes(OLD[kind])
    os.link(tmp_path / f"a{suffix}", tmp_path / "backup")
    (tmp_path / f"b{suffix}").chmod(0o444)
    sentence = write(kind, *images)
    assert sentence.startswith("1 ")
    assert "it is one file under 2 names (hard links)" in sentence
    assert "it is read-only" in sentence
    assert [(tmp_path / f"{name}{suffix}").read_bytes() for name in "ab"] == [OLD[kind]] * 2
    assert (tmp_path / f"a{suffix}").samefile(tmp_path / "backup")


@BOTH
def test_what_another_program_writes_meanwhile_is_kept(tmp_path, kind, suffix, monkeypatch):
    """It writes after the file was read and before it is replaced: read again, so both keywords are there."""
    image, file = photo(tmp_path / "a.jpg"), tmp_path / f"a{suffix}"
    file.write_bytes(OLD[kind])
    write_bytes, theirs = Path.write_bytes, []

    def interrupted(self: Path, content: bytes) -> int:
        if not theirs:
            theirs.append("sky")
            write_bytes(file, OLD[kind].replace(b"sea", b"sky"))
        return write_bytes(self, content)

    monkeypatch.setattr(Path, "write_bytes", interrupted)
    writer = open_writer(kind, {"marker": "auto"})
    writer.write(image, {"boat": 0.9})
    assert theirs
    found = read_packet(file.read_bytes()).flat if kind == "xmp" else file.read_text().strip().split(", ")
    assert {"sky", "boat", "auto"} <= set(found)
