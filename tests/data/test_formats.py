"""Detection, JSON lines, sidecar files, folders per tag, list files."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fewtags.data.annotations import Annotations
from fewtags.data.formats import FORMATS, read_annotations
from fewtags.errors import DataError, UserError


def make(root: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


VOC = {
    "VOC2007/Annotations/1.xml": "<annotation><object><name>cat</name></object></annotation>",
    "VOC2007/ImageSets/Main/trainval.txt": "1\n",
    "VOC2007/JPEGImages/1.jpg": "",
}
COCO_JSON = (
    '{"images": [{"id": 7, "file_name": "1.jpg"}], "annotations": [{"image_id": 7, "category_id": 3}],'
    ' "categories": [{"id": 3, "name": "cat"}]}'
)
LABEL_STUDIO = (
    '[{"id": 4, "data": {"image": "/data/upload/1/0a1b2c3d-1.jpg"}, "annotations": [{"result":'
    ' [{"from_name": "tags", "to_name": "image", "type": "choices", "value": {"choices": ["cat"]}}]}]}]'
)
XMP = (
    '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">'
    '<rdf:Description rdf:about="" xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:subject><rdf:Bag>'
    "<rdf:li>cat</rdf:li></rdf:Bag></dc:subject></rdf:Description></rdf:RDF></x:xmpmeta>"
)


def photo() -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (8, 8)).save(stream, "JPEG")
    return stream.getvalue()


EXAMPLES: dict[str, dict[str, str | bytes]] = {
    "voc": VOC,
    "coco": {"annotations/instances_train2017.json": COCO_JSON, "train2017/1.jpg": ""},
    "vg": {"objects.json": '[{"image_id": 1, "objects": [{"names": ["cat"]}]}]', "VG_100K/1.jpg": ""},
    "openimages": {"train-labels.csv": "ImageID,Source,LabelName,Confidence\n1,human,cat,1\n", "1.jpg": ""},
    "camtrapdp": {
        "media.csv": "mediaID,deploymentID,timestamp,filePath,filePublic,fileMediatype\nm1,d1,,1.jpg,true,image/jpeg\n",
        "observations.csv": "observationID,deploymentID,mediaID,observationType,scientificName\no1,d1,m1,animal,cat\n",
        "1.jpg": "",
    },
    "megadetector": {
        "md.json": '{"info": {"format_version": "1.4"}, "detection_categories": {"1": "cat"}, "images": '
        '[{"file": "1.jpg", "detections": [{"category": "1", "conf": 0.9, "bbox": [0, 0, 1, 1]}]}]}',
        "1.jpg": "",
    },
    "csv": {"tags.csv": "image,tags\n1.jpg,cat\n", "1.jpg": ""},
    "onehot": {"tags.csv": "image,cat\n1.jpg,1\n", "1.jpg": ""},
    "jsonl": {"tags.jsonl": '{"image": "1.jpg", "tags": ["cat"]}\n', "1.jpg": ""},
    "imagefolder": {"metadata.jsonl": '{"file_name": "1.jpg", "labels": ["cat"]}\n', "1.jpg": ""},
    "labelstudio": {"export.json": LABEL_STUDIO, "1.jpg": ""},
    "fiftyone": {"labels.json": '{"classes": ["cow", "cat"], "labels": {"1": [1]}}', "data/1.jpg": ""},
    "booru": {"1.jpg": "", "1.json": '{"tag_string_general": "cat solo"}'},
    "sidecar": {"1.jpg": "", "1.txt": "cat"},
    "keywords": {"1.jpg": photo(), "1.jpg.xmp": XMP},
    "folders": {"cat/1.jpg": ""},
}


BUILT_IN = list(FORMATS)  # as imported: the example of another test registers one more


def test_every_format_has_an_example() -> None:
    assert [*EXAMPLES, "untagged"] == BUILT_IN  # tests/test_names_only.py has the last one


@pytest.mark.parametrize("name", EXAMPLES)
def test_layout_is_detected_and_read(name: str, tmp_path: Path) -> None:
    source = make(tmp_path / "photos", EXAMPLES[name])
    found = [format for format, row in FORMATS.items() if row.rank == FORMATS[name].rank and row.detects(source)]
    assert found == [name]
    more = {"test_images": 0} if name == "vg" else {}
    for read in (read_annotations(source, **more), read_annotations(source, format=name, **more)):
        assert read.path(0).name == "1.jpg"
        assert read.path(0).is_file()
        assert read.labels[0, read.categories.index("cat")] == 1
        assert read.splits.tolist() == ["train"]
        assert read.notes[0].startswith("Read ")
        assert read.findings == []


def test_names() -> None:
    assert all(format.name == name and format.sentence for name, format in FORMATS.items())


def test_two_layouts_in_one_folder_are_named(tmp_path: Path) -> None:
    make(tmp_path, EXAMPLES["sidecar"] | EXAMPLES["csv"])
    with pytest.raises(UserError, match=r"can be read as csv .* and sidecar .*; choose one with format="):
        read_annotations(tmp_path)
    assert read_annotations(tmp_path, format="sidecar").categories == ["cat"]


def test_two_label_files_are_named(tmp_path: Path) -> None:
    make(tmp_path, EXAMPLES["csv"] | {"more.csv": "image,tags\n1.jpg,dog\n"})
    with pytest.raises(UserError, match=r"2 label files \(more.csv, tags.csv\)"):
        read_annotations(tmp_path)
    assert read_annotations(tmp_path, tags=tmp_path / "more.csv").categories == ["dog"]


def test_no_layout_says_what_was_found(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="it is empty"):
        read_annotations(tmp_path)
    make(tmp_path, {"1.jpg": "", "2.jpg": ""})
    with pytest.raises(UserError, match=r"it contains 1\.jpg, 2\.jpg, but no tags"):
        read_annotations(tmp_path)
    with pytest.raises(UserError, match=r"a file ending in '\.jpg'"):
        read_annotations(tmp_path / "1.jpg")


def test_mistakes_in_the_call(tmp_path: Path) -> None:
    make(tmp_path, EXAMPLES["csv"])
    with pytest.raises(UserError, match="did you mean 'coco'"):
        read_annotations(tmp_path, format="cocoo")
    with pytest.raises(UserError, match="did you mean 'tag_column'"):
        read_annotations(tmp_path, tag_colum="tags")
    with pytest.raises(UserError, match=r"Format 'csv' has no option 'zero' \(format 'onehot' has it\)"):
        read_annotations(tmp_path, zero="absent")
    with pytest.raises(UserError, match="zero='maybe' is not usable: it should be 'unknown' or 'absent'"):
        read_annotations(tmp_path, format="onehot", zero="maybe")
    with pytest.raises(UserError, match="does not exist"):
        read_annotations(tmp_path / "nowhere")
    with pytest.raises(UserError, match="should be the image folder"):
        read_annotations(tmp_path / "1.jpg", tags=tmp_path / "tags.csv")


def test_reading_loads_no_torch() -> None:
    code = "import sys, fewtags.data.formats; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- JSON lines ---


def test_own_file_form_is_read_as_load_reads_it(tmp_path: Path) -> None:
    make(tmp_path / "photos", {f"{name}.jpg": "" for name in "abcd"})
    labels = np.array([[1, 0, -1], [0, 0, 0], [-1, -1, 0], [-1, 1, -1]], dtype=np.int8)
    splits = np.array(["train", "val", "test", "test"])
    saved = Annotations(tmp_path / "photos", [f"{n}.jpg" for n in "abcd"], ["z", "ä", "b"], labels, splits, name="mine")
    saved.save(tmp_path / "labels.jsonl")
    read, loaded = read_annotations(tmp_path / "labels.jsonl"), Annotations.load(tmp_path / "labels.jsonl")
    assert read.content_hash() == loaded.content_hash() == saved.content_hash()
    assert (read.name, read.root.resolve()) == ("mine", loaded.root.resolve())


def test_json_lines_keys(tmp_path: Path) -> None:
    lines = [
        '{"image": "a.jpg", "tags": ["cat"], "absent": ["dog"], "split": "val"}',
        '{"file_name": "b.jpg", "present": "cat, dog"}',
        '{"image": "c.jpg", "tags": ["dog"], "complete": true, "unknown": ["cow"]}',
        '{"image": "d.jpg"}',
    ]
    make(tmp_path, {f"{name}.jpg": "" for name in "abcd"} | {"tags.jsonl": "\n".join(lines)})
    annotations = read_annotations(tmp_path)
    assert annotations.categories == ["cat", "cow", "dog"]
    assert annotations.labels.tolist() == [[1, 0, -1], [1, 0, 1], [-1, 0, 1], [0, 0, 0]]
    assert annotations.splits.tolist() == ["val", "train", "train", "train"]
    assert "absent in the 1 image marked complete" in annotations.notes[0]


def test_json_lines_problems_are_all_listed(tmp_path: Path) -> None:
    lines = ['{"image": "a.jpg", "tags": ["cat"]}', "{broken", "[1]", '{"tags": []}', '{"image": "a.jpg", "tags": [1]}']
    make(tmp_path, {"a.jpg": "", "tags.jsonl": "\n".join([*lines, '{"image": "gone.jpg"}'])})
    annotations = read_annotations(tmp_path)
    assert annotations.images == ["a.jpg"]
    assert [finding.where.rsplit(":")[-1] for finding in annotations.findings] == ["2", "3", "4", "5", "6"]
    assert {finding.kind for finding in annotations.findings} == {"malformed line", "missing image"}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "has no usable image"),
        ("{broken\n", "has no usable image; the first problem is .*:1"),
        ('{"fewtags": 2, "categories": []}\n', "version 2"),
        ('{"fewtags": 1}\n', "no list of categories"),
        ('{"image": "gone.jpg", "tags": ["cat"]}\n', "None of the 1 image"),
    ],
)
def test_unusable_json_lines(tmp_path: Path, text: str, sentence: str) -> None:
    make(tmp_path, {"tags.jsonl": text})
    with pytest.raises(DataError, match=sentence):
        read_annotations(tmp_path)


# --- sidecar files and folders ---


def test_sidecar_files(tmp_path: Path) -> None:
    files = {"1.jpg": "", "1.txt": "long hair, 1girl\n", "sub/2.png": "", "sub/2.txt": "1girl\nsky\n", "3.webp": ""}
    annotations = read_annotations(
        make(tmp_path / "booru", files | {"4.jpg": "", "4.jpg.txt": "sky", "readme.txt": "hi"})
    )
    assert annotations.categories == ["1girl", "long hair", "sky"]
    assert dict(zip(annotations.images, annotations.labels.tolist(), strict=True)) == {
        "1.jpg": [1, 1, 0],
        "3.webp": [0, 0, 0],
        "4.jpg": [0, 0, 1],
        "sub/2.png": [1, 0, 1],
    }
    assert annotations.name == "booru"
    assert "1 without tags" in annotations.notes[0]


def test_one_image_in_two_tags_folders_has_both_tags(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {"cat/1.jpg": b"same", "dog/1.jpg": b"same", "dog/2.jpg": b"x", "cat/2.jpg": b"y"}
    annotations = read_annotations(make(tmp_path, files))
    assert dict(zip(annotations.images, annotations.labels.tolist(), strict=True)) == {
        "cat/1.jpg": [1, 1],
        "cat/2.jpg": [1, 0],
        "dog/2.jpg": [0, 1],
    }
    assert "1 copy of an image merged" in annotations.notes[0]


def test_split_folders_above_the_tags(tmp_path: Path) -> None:
    annotations = read_annotations(make(tmp_path, {"train/cat/1.jpg": "", "valid/cat/2.jpg": "", "test/dog/3.jpg": ""}))
    assert annotations.categories == ["cat", "dog"]
    assert dict(zip(annotations.images, annotations.splits.tolist(), strict=True)) == {
        "test/dog/3.jpg": "test",
        "train/cat/1.jpg": "train",
        "valid/cat/2.jpg": "val",
    }


# --- lists ---


def test_list_files_make_the_splits(tmp_path: Path) -> None:
    make(tmp_path, {"train.txt": "cat/1.jpg\n2\n", "test.txt": "3.jpg\n", "none.txt": "9\n", "tags.txt": "dog\ncat\n"})
    source = make(tmp_path / "photos", {"cat/1.jpg": "1", "dog/2.jpg": "2", "dog/3.jpg": "3", "dog/4.jpg": "4"})
    both = read_annotations(source, train_list=tmp_path / "train.txt", test_list=tmp_path / "test.txt")
    assert dict(zip(both.images, both.splits.tolist(), strict=True)) == {
        "cat/1.jpg": "train",
        "dog/2.jpg": "train",
        "dog/3.jpg": "test",
    }
    assert "1 image not in them skipped" in both.notes[-1]
    test_only = read_annotations(source, test_list=tmp_path / "test.txt", categories=tmp_path / "tags.txt")
    assert test_only.splits.tolist() == ["train", "train", "test", "train"]
    assert test_only.categories == ["dog", "cat"]
    with pytest.raises(DataError, match="None of the names in"):
        read_annotations(source, test_list=tmp_path / "none.txt")
    with pytest.raises(UserError, match="cannot be read"):
        read_annotations(source, test_list=tmp_path / "gone.txt")
