"""Decisions written back: the same file but for what was decided, and read again it says just that."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fewtags.data.annotations import Annotations
from fewtags.data.formats import read_annotations
from fewtags.data.prepare import DataConfig
from fewtags.data.tag_tree import TagTree
from fewtags.data.write_back import (
    LabelSource,
    Rewritten,
    changes_between,
    check_rewritten,
    rewrite,
)
from fewtags.data.writers import open_writer
from fewtags.data.xmp import read_packet
from fewtags.errors import DataError
from fewtags.labels import ABSENT, PRESENT, UNKNOWN

NAMES = ("a.jpg", "b.jpg", "c.jpg", "sub/d.jpg")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    for name in NAMES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(folder / name)
    return folder


def applied(
    photos: Path, tags: Path | None, decisions: dict[tuple[str, str], int], place: Path, **options: object
) -> tuple[Rewritten, Annotations]:
    """What a label file becomes, checked by reading it again."""
    config = DataConfig(source=str(photos), tags=None if tags is None else str(tags), options=options)
    source = LabelSource.of(config)
    annotations = read_annotations(photos, tags=tags, **options)
    changes = changes_between(annotations, decisions)
    new = rewrite(source, annotations, changes)
    new.write(place, annotations)
    check_rewritten(new, place, annotations, changes)
    return new, new.read(place, annotations.root)


def label(annotations: Annotations, image: str, tag: str) -> int:
    return int(annotations.labels[annotations.images.index(image), annotations.categories.index(tag)])


# --- CSV ---

TABLE = (
    "photographer,image,tags,year\r\n"
    'Ann,a.jpg,"dog, sea",2019\r\n'
    "Bob,b.jpg,boat,2020\r\n"
    '"Cid ""C"" Doe",c.jpg,"dog, boat",2021\r\n'
)


def test_a_csv_keeps_its_columns_order_and_untouched_lines(photos, tmp_path):
    file = photos.parent / "tags.csv"
    file.write_bytes(TABLE.encode())
    decisions = {("a.jpg", "boat"): PRESENT, ("a.jpg", "sea"): ABSENT, ("c.jpg", "boat"): UNKNOWN}
    _, again = applied(photos, file, decisions, tmp_path / "new.csv")
    lines = (tmp_path / "new.csv").read_bytes().decode().split("\r\n")
    before = TABLE.split("\r\n")
    assert lines[0] == before[0]
    assert lines[1] == 'Ann,a.jpg,"dog, boat, -sea",2019'
    assert lines[2] == before[2]
    assert lines[3] == '"Cid ""C"" Doe",c.jpg,dog,2021'
    assert file.read_bytes() == TABLE.encode()
    assert label(again, "a.jpg", "sea") == ABSENT
    assert label(again, "c.jpg", "boat") == UNKNOWN


def test_absent_tags_go_to_their_column_where_there_is_one(photos, tmp_path):
    file = photos.parent / "tags.csv"
    file.write_text("image,tags,absent\na.jpg,dog;sea,\nb.jpg,boat,sea\n")
    applied(photos, file, {("a.jpg", "sea"): ABSENT, ("b.jpg", "sea"): PRESENT}, tmp_path / "new.csv")
    assert (tmp_path / "new.csv").read_text() == "image,tags,absent\na.jpg,dog,sea\nb.jpg,boat;sea,\n"


def test_one_row_for_each_tag_stays_so(photos, tmp_path):
    file = photos.parent / "tags.csv"
    file.write_text("image,tag,by\na.jpg,dog,Ann\na.jpg,sea,Ann\nb.jpg,boat,Bob\n")
    decisions = {("a.jpg", "boat"): PRESENT, ("b.jpg", "dog"): ABSENT}
    applied(photos, file, decisions, tmp_path / "new.csv")
    lines = (tmp_path / "new.csv").read_text().splitlines()
    assert lines == ["image,tag,by", "a.jpg,dog,Ann", "a.jpg,sea,Ann", "a.jpg,boat,", "b.jpg,boat,Bob", "b.jpg,'-dog,"]


def test_an_image_in_no_row_gets_one(photos, tmp_path):
    file = photos.parent / "tags.csv"
    file.write_text("image,tags\na.jpg,dog;sea\nb.jpg,boat")
    applied(photos, file, {("sub/d.jpg", "dog"): PRESENT, ("sub/d.jpg", "sea"): ABSENT}, tmp_path / "new.csv")
    assert (tmp_path / "new.csv").read_text().splitlines()[2:] == ["b.jpg,boat", "sub/d.jpg,dog", "sub/d.jpg,'-sea"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1"])
def test_the_encoding_stays(photos, tmp_path, encoding):
    file = photos.parent / "tags.csv"
    file.write_bytes("image;tags;note\na.jpg;dog,sea;Gärtner\nb.jpg;boat,sea;über\n".encode(encoding))
    applied(photos, file, {("a.jpg", "boat"): PRESENT}, tmp_path / "new.csv")
    text = (tmp_path / "new.csv").read_bytes().decode(encoding)
    assert text == "image;tags;note\na.jpg;dog,sea,boat;Gärtner\nb.jpg;boat,sea;über\n"


def test_a_tag_that_is_written_in_several_ways_is_removed_in_all(photos, tmp_path):
    file = photos.parent / "tags.csv"
    file.write_text("image,tags\na.jpg,Dog;sea\nb.jpg,dog;boat\nc.jpg,dog;sea\n")
    _, again = applied(photos, file, {("a.jpg", "dog"): ABSENT}, tmp_path / "new.csv")
    assert (tmp_path / "new.csv").read_text().splitlines()[1] == "a.jpg,sea;-dog"
    assert label(again, "a.jpg", "dog") == ABSENT


def test_lists_in_brackets_stay_lists(photos, tmp_path):
    file = photos.parent / "tags.csv"
    file.write_text("image,tags\na.jpg,\"['dog', 'sea']\"\nb.jpg,\"['boat', 'sea']\"\n")
    applied(photos, file, {("a.jpg", "boat"): PRESENT}, tmp_path / "new.csv")
    assert (tmp_path / "new.csv").read_text().splitlines()[1] == "a.jpg,\"['dog', 'sea', 'boat']\""


# --- one-hot ---


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ("a.jpg,1,0\nb.jpg,0,1\n", "a.jpg,1,-1\nb.jpg,1,1\n"),  # 0 is unknown: only -1 says no
        ("a.jpg,1,\nb.jpg,0,1\n", "a.jpg,1,0\nb.jpg,1,1\n"),  # a blank is unknown: 0 says no
        ("a.jpg,1,\nb.jpg,-1,1\n", "a.jpg,1,-1\nb.jpg,1,1\n"),
        ("a.jpg,1,\nb.jpg,,1\n", "a.jpg,1,0\nb.jpg,1,1\n"),
    ],
)
def test_a_one_hot_table_says_no_in_its_own_way(photos, tmp_path, rows, expected):
    file = photos.parent / "tags.csv"
    file.write_text(f"image,dog,sea\n{rows}c.jpg,1,1\n")
    applied(photos, file, {("a.jpg", "sea"): ABSENT, ("b.jpg", "dog"): PRESENT}, tmp_path / "new.csv")
    assert (tmp_path / "new.csv").read_text() == f"image,dog,sea\n{expected}c.jpg,1,1\n"


def test_a_matrix_without_header_stays_one(photos, tmp_path):
    file = photos.parent / "tags.txt"
    file.write_text("a.jpg 1 NA\nb.jpg 0 1\nc.jpg 1 1\n")
    decided = {("a.jpg", "sea"): ABSENT, ("b.jpg", "dog"): UNKNOWN}
    applied(photos, file, decided, tmp_path / "new.txt", categories=["dog", "sea"])
    assert (tmp_path / "new.txt").read_text().splitlines()[:2] == ["a.jpg 1 0", "b.jpg NA 1"]


def test_what_a_table_cannot_say_is_an_error_that_helps(photos, tmp_path):
    """With 1, 0, -1 and blanks nobody knows which of them is a no."""
    file = photos.parent / "tags.csv"
    file.write_text("image,dog,sea\na.jpg,1,\nb.jpg,0,-1\nc.jpg,1,1\n")
    with pytest.raises(DataError, match="--as jsonl"):
        applied(photos, file, {("a.jpg", "sea"): ABSENT}, tmp_path / "new.csv")


# --- JSON lines ---


def test_json_lines_keep_other_keys_and_untouched_lines(photos, tmp_path):
    file = photos.parent / "tags.jsonl"
    lines = [
        '{"image": "a.jpg",  "tags": ["dog", "sea"], "by": "Ann"}',
        '{"image": "b.jpg",  "tags": ["boat"], "absent": ["sea"]}',
        '{"image":"c.jpg","tags":["dog"],"complete":true}',
    ]
    file.write_text("\n".join(lines) + "\n")
    decisions = {
        ("a.jpg", "sea"): ABSENT, ("a.jpg", "boat"): PRESENT, ("c.jpg", "dog"): ABSENT, ("c.jpg", "sea"): UNKNOWN,
        ("sub/d.jpg", "sea"): PRESENT,
    }  # fmt: skip
    _, again = applied(photos, file, decisions, tmp_path / "new.jsonl")
    new = (tmp_path / "new.jsonl").read_text().splitlines()
    assert json.loads(new[0]) == {"image": "a.jpg", "tags": ["dog", "boat"], "by": "Ann", "absent": ["sea"]}
    assert new[1] == lines[1]
    assert json.loads(new[2]) == {"image": "c.jpg", "tags": [], "complete": True, "unknown": ["sea"]}
    assert json.loads(new[3]) == {"image": "sub/d.jpg", "present": ["sea"]}
    assert label(again, "c.jpg", "boat") == ABSENT


def test_a_json_list_stays_a_list(photos, tmp_path):
    file = photos.parent / "tags.json"
    file.write_text(json.dumps([{"image": "a.jpg", "tags": ["dog"]}, {"image": "b.jpg", "tags": "sea,boat"}]))
    applied(photos, file, {("b.jpg", "dog"): PRESENT, ("b.jpg", "sea"): UNKNOWN}, tmp_path / "new.json")
    records = json.loads((tmp_path / "new.json").read_text())
    assert records[1] == {"image": "b.jpg", "tags": "boat,dog"}


# --- same-name text files ---


def test_text_files_stay_text_files_beside_their_images(photos, tmp_path):
    (photos / "a.txt").write_text("dog, sea")
    (photos / "b.txt").write_text("boat\nsea\n")
    (photos / "sub/d.txt").write_text("dog")
    decisions = {
        ("a.jpg", "boat"): PRESENT, ("b.jpg", "sea"): UNKNOWN, ("b.jpg", "dog"): PRESENT, ("c.jpg", "dog"): PRESENT,
        ("a.jpg", "sea"): ABSENT,
    }  # fmt: skip
    new, again = applied(photos, None, decisions, tmp_path / "reviewed")
    assert (tmp_path / "reviewed/a.txt").read_text() == "dog, boat"
    assert (tmp_path / "reviewed/b.txt").read_text() == "boat\ndog\n"
    assert (tmp_path / "reviewed/c.txt").read_text() == "dog\n"
    assert (tmp_path / "reviewed/sub/d.txt").read_text() == "dog"
    assert (photos / "a.txt").read_text() == "dog, sea"
    assert sorted(again.images) == sorted(NAMES)
    assert [(change.image, change.tag) for change in new.unwritten] == [("a.jpg", "sea")]


def xmp(*keywords: str) -> bytes:
    items = "".join(f"<rdf:li>{keyword}</rdf:li>" for keyword in keywords)
    return (
        '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">'
        '<rdf:Description rdf:about="" xmlns:dc="http://purl.org/dc/elements/1.1/" xmlns:xmp="http://ns.adobe.com/xap/1.0/"'
        f' xmp:Rating="5"><dc:subject><rdf:Bag>{items}</rdf:Bag></dc:subject></rdf:Description></rdf:RDF></x:xmpmeta>'
    ).encode()


def test_xmp_files_stay_xmp_files_and_can_say_absent(photos, tmp_path):
    (photos / "a.jpg.xmp").write_bytes(xmp("dog", "sea"))
    (photos / "b.xmp").write_bytes(xmp("boat", "sea"))
    (photos / "sub/d.jpg.xmp").write_bytes(xmp("dog"))
    decisions = {
        ("a.jpg", "boat"): PRESENT, ("a.jpg", "sea"): ABSENT, ("b.jpg", "sea"): UNKNOWN, ("c.jpg", "dog"): PRESENT,
    }  # fmt: skip
    new, again = applied(photos, None, decisions, tmp_path / "reviewed")
    assert new.format == "keywords"
    assert not new.unwritten
    assert b'xmp:Rating="5"' in (tmp_path / "reviewed/a.jpg.xmp").read_bytes()
    assert (tmp_path / "reviewed/sub/d.jpg.xmp").read_bytes() == xmp("dog")
    assert (photos / "a.jpg.xmp").read_bytes() == xmp("dog", "sea")
    assert sorted(again.images) == sorted(NAMES)
    assert sorted(path.name for path in (tmp_path / "reviewed").glob("*.xmp")) == ["a.jpg.xmp", "b.xmp", "c.jpg.xmp"]


# --- everything else ---


def test_a_layout_without_a_writer_becomes_json_lines(tmp_path):
    for tag, name in (("dog", "a.jpg"), ("dog", "b.jpg"), ("sea", "c.jpg")):
        (tmp_path / "photos" / tag).mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.random.default_rng(ord(name[0])).integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(
            tmp_path / "photos" / tag / name
        )
    decisions = {("dog/a.jpg", "sea"): PRESENT, ("sea/c.jpg", "dog"): ABSENT}
    new, again = applied(tmp_path / "photos", None, decisions, tmp_path / "new.jsonl")
    assert new.format == "jsonl"
    assert label(again, "dog/a.jpg", "sea") == PRESENT
    assert label(again, "sea/c.jpg", "dog") == ABSENT
    assert again.path(0).is_file()


@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_decided_is_read_again(photos, tmp_path, seed):
    """Random labels, random decisions, several layouts: `check_rewritten` compares every label."""
    random = np.random.default_rng(seed)
    tags = ["dog", "sea", "big boat", "Hund"]
    rows = {name: [tag for tag in tags if random.random() < 0.5] or ["dog"] for name in NAMES[:3]}
    file = photos.parent / ("tags.csv" if seed % 3 else "tags.jsonl")
    if seed % 3 == 0:
        file.write_text("\n".join(json.dumps({"image": name, "tags": own}) for name, own in rows.items()))
    elif seed % 3 == 1:
        file.write_text("image,tags\n" + "".join(f"{name},{'|'.join(own)}\n" for name, own in rows.items()))
    else:
        lines = [f"{name}," + ",".join("1" if tag in own else "0" for tag in tags) for name, own in rows.items()]
        file.write_text("\n".join([f"image,{','.join(tags)}", *lines]))
    known = read_annotations(photos, tags=file)
    decisions = {
        (image, tag): int(random.integers(-1, 2))
        for image in known.images
        for tag in known.categories
        if random.random() < 0.5
    }
    applied(photos, file, decisions, tmp_path / f"new{file.suffix}")


# --- trees ---


def test_a_csv_with_levels_keeps_them(photos, tmp_path):
    file = photos.parent / "tags.csv"
    file.write_text("image,tags\na.jpg,animal|dog;sea\nb.jpg,animal|bird|owl;sea\nc.jpg,sea;animal|dog\n")
    decisions = {
        ("a.jpg", "dog"): ABSENT, ("b.jpg", "bird"): ABSENT, ("b.jpg", "dog"): PRESENT, ("c.jpg", "owl"): PRESENT,
    }  # fmt: skip
    _, again = applied(photos, file, decisions, tmp_path / "new.csv", keep_untagged=False)
    lines = (tmp_path / "new.csv").read_text().splitlines()
    assert lines[1] == "a.jpg,animal;sea;-animal|dog"
    assert lines[2].startswith("b.jpg,animal;sea;")
    assert set(lines[2].split(";")[2:]) == {"-animal|bird", "-animal|bird|owl", "animal|dog"}
    assert "animal|bird|owl" in lines[3]
    assert label(again, "a.jpg", "animal") == label(again, "c.jpg", "bird") == PRESENT
    assert label(again, "b.jpg", "owl") == ABSENT  # no bird, so no owl


def test_xmp_files_with_levels_keep_them(photos, tmp_path):
    writer = open_writer("xmp", {})
    writer.tree = TagTree({"dog": ("animal",)}, {"dog": ("animal", "dog")})
    for name in ("a.jpg", "b.jpg"):
        writer.write(photos / name, {"animal": 0.9, "dog": 0.9})
    for file in photos.glob("*.xmp"):  # as if a person had written them
        file.write_text(file.read_text().replace("fewtags:", "other:").replace("xmlns:fewtags", "xmlns:other"))
    new, again = applied(photos, None, {("a.jpg", "dog"): ABSENT, ("c.jpg", "dog"): PRESENT}, tmp_path / "new")
    keywords = read_packet(new.content["a.jpg.xmp"])
    assert set(keywords.paths) == {("animal",)}
    assert keywords.rejected == ["dog"]
    assert label(again, "c.jpg", "animal") == label(again, "b.jpg", "dog") == PRESENT
