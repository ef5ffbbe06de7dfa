"""Label files that made readers fail or wait once: each is read, or refused in one sentence, in time."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from fewtags.data.formats import read_annotations, visual_genome
from fewtags.errors import UserError

VOC_LISTS = "VOC2007/ImageSets/Main/trainval.txt"


def voc(root: Path, xml: bytes | None) -> Path:
    for folder in ("Annotations", "ImageSets/Main", "JPEGImages"):
        (root / "VOC2007" / folder).mkdir(parents=True)
    (root / VOC_LISTS).write_text("good\nbad\n")
    good = b"<annotation><object><name>cat</name></object></annotation>"
    for name, content in (("good", good), ("bad", xml)):
        (root / f"VOC2007/JPEGImages/{name}.jpg").touch()
        if content is None:
            (root / f"VOC2007/Annotations/{name}.xml").mkdir()
        else:
            (root / f"VOC2007/Annotations/{name}.xml").write_bytes(content)
    return root


@pytest.mark.parametrize(
    "xml",
    [
        b'<?xml version="1.0" encoding="gb2312"?><annotation/>',
        b'<?xml version="1.0" encoding="x"?><annotation/>',
        b'<!DOCTYPE a [<!ENTITY b "cat">]><annotation><object><name>&b;</name></object></annotation>',
        b'<!DOCTYPE a SYSTEM "file:///etc/passwd"><annotation/>',
        b"\xff\xfe",
        b"",
        None,  # a folder of that name
    ],
)
def test_xml_of_any_kind_costs_its_own_image_only(tmp_path: Path, xml: bytes | None) -> None:
    annotations = read_annotations(voc(tmp_path, xml))
    assert annotations.images == ["good.jpg"]
    (finding,) = annotations.findings
    assert finding.kind == "malformed file"
    assert "\n" not in str(finding)


@pytest.mark.parametrize("number", ["1e999", "NaN", "9" * 5_000, "1.5", "null", "true", '"x"', "[]", "-0.0"])
def test_ids_that_are_no_ids(tmp_path: Path, number: str) -> None:
    (tmp_path / "1.jpg").touch()
    (tmp_path / "coco.json").write_text(
        f'{{"images": [{{"id": {number}, "file_name": "1.jpg"}}], "categories": [{{"id": 1, "name": "cat"}}],'
        f' "annotations": [{{"image_id": {number}, "category_id": 1}}]}}'
    )
    (tmp_path / "objects.json").write_text(
        f'[{{"image_id": {number}, "objects": [{{"names": ["cat"]}}]}}, {{"image_id": 1, "objects": []}}]'
    )
    if number == "-0.0":  # a way to write 0
        assert read_annotations(tmp_path / "coco.json", format="coco").labels.tolist() == [[1]]
        return
    with pytest.raises(UserError, match=r"coco\.json"):
        read_annotations(tmp_path / "coco.json", format="coco")
    with pytest.raises(UserError):  # too long a number makes the file unreadable; others leave an image without names
        read_annotations(tmp_path / "objects.json", format="vg", test_images=0)


def test_rows_longer_than_the_header(tmp_path: Path) -> None:
    (tmp_path / "1.jpg").touch()
    (tmp_path / "tags.csv").write_text("a,b\ncat,x,1.jpg\ndog,y,1.jpg\n")
    for name in ("csv", "onehot", "auto"):
        with pytest.raises(UserError):
            read_annotations(tmp_path, format=name)


def test_nul_and_half_characters_in_names(tmp_path: Path) -> None:
    (tmp_path / "1.jpg").touch()
    lines = [
        {"image": "1.jpg", "tags": ["a\ud800", "b\0c"]},
        {"image": "x\0.jpg", "tags": []},
        {"image": "\ud800/y.jpg"},
    ]
    (tmp_path / "tags.jsonl").write_text("\n".join(map(json.dumps, lines)))
    annotations = read_annotations(tmp_path)
    assert annotations.categories == ["a", "b c"]
    assert [finding.kind for finding in annotations.findings] == ["missing image"] * 2
    "\n".join(map(str, annotations.findings)).encode()


def seconds(read: object) -> float:
    """Of the processor: other work on the machine hardly shows in it."""
    start = time.process_time()
    read()  # type: ignore[operator]
    return time.process_time() - start


def test_a_table_of_many_columns_takes_time_in_proportion(tmp_path: Path) -> None:
    """It took 25 s for 20,000 columns: a set of them all was made anew for each."""

    def table(columns: int, name: str = "") -> Path:
        folder = tmp_path / f"{columns}{name}"
        folder.mkdir()
        (folder / "1.jpg").touch()
        header = ",".join(f"c{n}" for n in range(columns))
        (folder / "tags.csv").write_text(f"image,{header}\n1.jpg,{','.join('10'[n % 2] for n in range(columns))}\n")
        return folder

    many, few = table(20_000), [table(2_000, name) for name in "abc"]
    once = min(seconds(lambda folder=folder: read_annotations(folder)) for folder in few)
    assert seconds(lambda: read_annotations(many)) < 50 * once  # in proportion it is 10, by the square 100
    assert len(read_annotations(many).categories) == 20_000


def test_a_long_entry_is_tried_a_few_times_not_once_a_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One entry of 40 MB took 26 s: it was parsed from its start for each of the pieces that it was read in."""
    monkeypatch.setattr(visual_genome, "CHUNK", 1_000)
    tries = []

    class Decoder(json.JSONDecoder):
        def raw_decode(self, text: str, position: int = 0) -> tuple[object, int]:  # type: ignore[override]
            tries.append(len(text))
            return super().raw_decode(text, position)

    monkeypatch.setattr(json, "JSONDecoder", Decoder)
    (tmp_path / "1.jpg").touch()
    names = [f"thing {number}" for number in range(20_000)]
    entry = {"image_id": 1, "objects": [{"names": names}]}
    (tmp_path / "objects.json").write_text(json.dumps([entry, entry]))
    annotations = read_annotations(tmp_path, test_images=0)
    assert len(annotations.categories) == 200
    assert len(tries) < 30  # of 700 pieces
