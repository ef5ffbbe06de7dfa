"""Data of an object store, by fsspec's file system in memory."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fewtags.config import load_config
from fewtags.data.formats import read_annotations
from fewtags.data.images import BadImage, open_image
from fewtags.data.remote import local_copy, remote_files, remote_url
from fewtags.errors import MissingExtra, UserError

fsspec = pytest.importorskip("fsspec")


@pytest.fixture
def store(patches, tags_file, tmp_path, monkeypatch):
    """memory://photos with the images of `patches` and their tags."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    memory = fsspec.filesystem("memory")
    for name in (*patches.images, tags_file.name):
        memory.pipe(f"/photos/{name}", (patches.root / name).read_bytes())
    yield memory
    memory.rm("/photos", recursive=True)


@pytest.mark.parametrize(
    ("path", "url"),
    [
        ("s3://bucket/a/b.jpg", "s3://bucket/a/b.jpg"),
        (Path("s3://bucket/a/b.jpg"), "s3://bucket/a/b.jpg"),
        ("file:///a/b", "file:///a/b"),
        (Path("file:///a/b"), "file:///a/b"),
        ("photos/a.jpg", None),
        ("/photos/a:b.jpg", None),
        ("C:/photos/a.jpg", None),
    ],
)
def test_what_is_an_address(path, url):
    assert remote_url(path) == url


def test_a_data_set_is_copied_once_and_what_changed_again(store, patches, monkeypatch):
    annotations = read_annotations("memory://photos", complete=True)
    assert sorted(annotations.images) == sorted(patches.images)
    assert annotations.path(0).read_bytes() == (patches.root / annotations.images[0]).read_bytes()
    copied = []
    get_file = type(store).get_file
    monkeypatch.setattr(
        type(store), "get_file", lambda self, name, *a, **k: copied.append(name) or get_file(self, name, *a, **k)
    )
    local_copy("memory://photos")
    assert copied == []
    store.pipe("/photos/00.png", (patches.root / "01.png").read_bytes())
    store.rm("/photos/02.png")
    place = local_copy("memory://photos")
    assert copied == ["/photos/00.png"]
    assert (place / "00.png").read_bytes() == (patches.root / "01.png").read_bytes()
    assert not (place / "02.png").exists()


def test_a_broken_off_copy_goes_on(store, patches, monkeypatch):
    get_file = type(store).get_file

    def fail(self, name, *args, **more):
        if name.endswith("05.png"):
            raise OSError("the line is cut")
        return get_file(self, name, *args, **more)

    monkeypatch.setattr(type(store), "get_file", fail)
    with pytest.raises(OSError, match="the line is cut"):
        local_copy("memory://photos")
    monkeypatch.undo()
    place = local_copy("memory://photos")
    assert {file.name for file in place.iterdir()} == {*patches.images, "tags.csv"}
    assert (place / "05.png").read_bytes() == (patches.root / "05.png").read_bytes()


def test_training_and_tagging_from_a_store(store, cli, trained, patches, tmp_path):
    """Images to be tagged are read as they come, and their rows have their addresses."""
    answer = cli("predict", trained, "memory://photos/00.png", "memory://photos", "-q", "--out", tmp_path / "tags.csv")
    assert answer.code == 0, answer.err
    rows = (tmp_path / "tags.csv").read_text().splitlines()[1:]
    assert len(rows) == 49
    assert rows[0].startswith("memory://photos/00.png,")
    local = cli("predict", trained, patches.root / "00.png", "-q").out.splitlines()[1]
    assert rows[0].partition(",")[2] == local.partition(",")[2]
    from conftest import TINY

    answer = cli("train", "memory://photos", *TINY, "-o", "complete=true", "--out", tmp_path / "run", "-q")
    assert answer.code == 0, answer.err
    assert cli("evaluate", tmp_path / "run").code == 0
    assert cli("train", "--resume", tmp_path / "run", "-q").code == 0


def test_a_missing_image_of_a_store_is_one_bad_image(store):
    with pytest.raises(BadImage, match="does not exist"):
        open_image(Path("memory://photos/none.png"))
    with pytest.raises(UserError, match="memory://nothing does not exist or is empty"):
        list(remote_files("memory://nothing"))
    with pytest.raises(UserError, match="nowhere://x cannot be reached"):
        local_copy("nowhere://x")


def test_addresses_stay_as_they_are_in_a_runs_settings(tmp_path):
    config = load_config(None, ["data.source=s3://bucket/photos", "data.tags=tags.csv"]).relative_to(tmp_path)
    assert config.data.source == "s3://bucket/photos"
    assert config.data.tags == str(tmp_path / "tags.csv")


def test_without_fsspec_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(MissingExtra, match=r"fewtags\[remote\]"):
        local_copy("s3://bucket/photos")
