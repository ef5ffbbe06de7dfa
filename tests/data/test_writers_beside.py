"""Sidecars are people's files in people's folders: links, copies, foreign programs and bad names do no harm."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from PIL import Image

from fewtags.data.formats import read_annotations
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


# --- one bad photo among others ---


@BOTH
def test_names_that_are_too_long_and_folders_in_the_way_are_counted(tmp_path, kind, suffix):
    good = [photo(tmp_path / f"{name}.jpg") for name in "ac"]
    long = photo(tmp_path / ("ä" * 124 + ".jpg"))  # 252 bytes
    photo(tmp_path / "b.jpg")
    (tmp_path / f"b{suffix}").mkdir()
    sentence = write(kind, good[0], long, tmp_path / "b.jpg", good[1])
    assert all((tmp_path / f"{name}{suffix}").is_file() for name in "ac")
    assert f"{tmp_path / f'b{suffix}'}: it is a folder" in sentence
    if kind == "xmp":
        assert sentence.startswith("2 sidecars written, 0 unchanged, 2 not changed because")
        assert "its tags cannot be written: File name too long" in sentence
    else:
        assert sentence.startswith("3 text files written")


def test_a_photo_with_a_long_name_can_be_read_with_its_keywords(tmp_path):
    photo(tmp_path / ("ä" * 124 + ".jpg"))
    photo(tmp_path / "a.jpg")
    write("sidecar", tmp_path / "a.jpg")
    assert len(read_annotations(tmp_path, format="sidecar")) == 2
    write("xmp", tmp_path / "a.jpg")
    assert len(read_annotations(tmp_path, format="keywords", predicted=True)) == 2


@pytest.mark.parametrize("depth", [1_100, 50_000])
def test_xmp_that_is_nested_too_deeply_is_counted(tmp_path, depth):
    images = [photo(tmp_path / f"{name}.jpg") for name in "ab"]
    inside = OLD["xmp"].replace(
        b"/></rdf:RDF>", b">" + b"<a>" * depth + b"</a>" * depth + b"</rdf:Description></rdf:RDF>"
    )
    (tmp_path / "a.jpg.xmp").write_bytes(inside)
    sentence = write("xmp", *images)
    assert sentence.startswith("1 sidecar written, 0 unchanged, 1 not changed because")
    assert (tmp_path / "a.jpg.xmp").read_bytes() == inside


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_full_disk_stops_it(tmp_path, number, monkeypatch):
    """Every other photo would fail too."""

    def full(self: Path, content: bytes) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match=os.strerror(number)):
        write("xmp", photo(tmp_path / "a.jpg"))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"\xef\xbb\xbfsea, sky\r\n", b"\xef\xbb\xbfsea, sky, dog\r\n"),
        (b"sea\r\nsky\r\n", b"sea\r\nsky\r\ndog\r\n"),
        (b"sea\rsky\r", b"sea\rsky\rdog\r"),
        (b"sea, sky", b"sea, sky, dog"),
        (b"sea\nsky", b"sea\nsky\ndog"),
        ("Bär\r\n".encode("latin-1"), "Bär, dog\r\n".encode("latin-1")),
        (b"\xff\xfe" + "sea\r\nBär\r\n".encode("utf-16-le"), b"\xff\xfe" + "sea\r\nBär\r\ndog\r\n".encode("utf-16-le")),
        (b"\xfe\xff" + "sea".encode("utf-16-be"), b"\xfe\xff" + "sea, dog".encode("utf-16-be")),
        (b"", b"dog\n"),
    ],
)
def test_text_files_keep_mark_encoding_and_line_ends(tmp_path, before, after):
    image = photo(tmp_path / "a.jpg")
    (tmp_path / "a.txt").write_bytes(before)
    assert write("sidecar", image) == "1 text file written, 0 unchanged."
    assert (tmp_path / "a.txt").read_bytes() == after
    assert write("sidecar", image) == "0 text files written, 1 unchanged."


def test_a_tag_that_the_encoding_does_not_have_is_said(tmp_path):
    image = photo(tmp_path / "a.jpg")
    (tmp_path / "a.txt").write_bytes("Bär\n".encode("latin-1"))
    writer = open_writer("sidecar", {})
    writer.write(image, {"日本": 0.9})
    assert "its encoding (latin-1) has no '日'; save it as UTF-8" in writer.close()
    assert (tmp_path / "a.txt").read_bytes() == "Bär\n".encode("latin-1")
