"""Tags written back: merged into sidecars that other programs read, nothing lost, and whole files whenever it stops."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from fewtags.data.formats import read_annotations
from fewtags.data.writers import WRITERS, open_writer
from fewtags.data.xmp import read_packet
from fewtags.errors import UserError
from made_processes import processes

exiftool = pytest.mark.skipif(shutil.which("exiftool") is None, reason="exiftool is not installed")


def photo(file: Path, **options: Any) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (16, 12), (200, 40, 40)).save(file, **options)
    return file


def write(
    kind: str, predictions: dict[Path, dict[str, float]], dry_run: bool = False, **options: Any
) -> tuple[str, list[str]]:
    said: list[str] = []
    writer = open_writer(kind, options, dry_run=dry_run, say=said.append)
    for image, tags in predictions.items():
        writer.write(image, tags)
    return writer.close(), said


def exif(file: Path, *fields: str) -> dict[str, Any]:
    """What exiftool reads, as lists."""
    done = subprocess.run(["exiftool", "-json", "-struct", *fields, str(file)], check=True, capture_output=True)
    (content,) = json.loads(done.stdout)
    return {key: value if isinstance(value, list) else [value] for key, value in content.items() if key != "SourceFile"}


# --- XMP ---


@exiftool
def test_what_exiftool_wrote_and_what_we_add_are_both_read_by_exiftool(tmp_path: Path) -> None:
    image = photo(tmp_path / "a.jpg")
    written = [
        "-XMP-dc:Subject=Zürich",
        "-XMP-lr:HierarchicalSubject=place|Zürich",
        "-XMP:Rating=4",
        "-IPTC:Keywords=lake",
    ]
    subprocess.run(["exiftool", "-q", "-overwrite_original", *written, str(image)], check=True)
    before = image.read_bytes()
    sentence, _ = write("xmp", {image: {"boat": 0.93, "zürich": 0.8}}, confidence=True)
    assert sentence == "1 sidecar written, 0 unchanged."
    assert image.read_bytes() == before
    found = exif(
        tmp_path / "a.jpg.xmp", "-Subject", "-HierarchicalSubject", "-TagsList", "-Rating", "-Predicted", "-Probability"
    )
    assert found == {
        "Subject": ["Zürich", "lake", "boat"],
        "HierarchicalSubject": ["place|Zürich", "boat"],
        "TagsList": ["place/Zürich", "lake", "boat"],
        "Rating": [4],
        "Predicted": ["boat"],
        "Probability": [0.93],
    }
    warnings = subprocess.run(
        ["exiftool", "-validate", "-warning", "-a", str(tmp_path / "a.jpg.xmp")], capture_output=True
    )
    assert b"Warning" not in warnings.stdout.replace(b"Validate", b"")


@exiftool
def test_what_we_wrote_exiftool_edits_and_we_respect(tmp_path: Path) -> None:
    """A person removes one keyword and adds one: the removed one is absent, not written again, and theirs stays."""
    image = photo(tmp_path / "a.jpg")
    write("xmp", {image: {"dog": 0.9, "cat": 0.6}})
    sidecar = tmp_path / "a.jpg.xmp"
    edit = [
        "-XMP-dc:Subject-=cat",
        "-XMP-lr:HierarchicalSubject-=cat",
        "-XMP-digiKam:TagsList-=cat",
        "-XMP-dc:Subject+=sea",
    ]
    subprocess.run(["exiftool", "-q", "-overwrite_original", *edit, str(sidecar)], check=True)
    write("xmp", {image: {"dog": 0.9, "cat": 0.7}})
    assert exif(sidecar, "-Subject")["Subject"] == ["dog", "sea"]
    write("xmp", {image: {"cat": 0.7}})  # the dog is no longer predicted
    assert exif(sidecar, "-Subject")["Subject"] == ["sea"]
    annotations = read_annotations(tmp_path)
    assert annotations.categories == ["cat", "sea"]
    assert annotations.labels.tolist() == [[-1, 1]]


@exiftool
def test_photos_with_keywords_are_read_written_and_read_again(tmp_path: Path) -> None:
    for number in range(4):
        photo(tmp_path / f"{number}.jpg")
    files = [str(tmp_path / f"{number}.jpg") for number in range(2)]
    subprocess.run(["exiftool", "-q", "-overwrite_original", "-XMP-dc:Subject=dog", *files], check=True)
    first = read_annotations(tmp_path)
    assert first.known_positives.tolist() == [2]
    write("xmp", {tmp_path / f"{number}.jpg": {"dog": 0.9} for number in range(4)})
    assert [exif(tmp_path / f"{n}.jpg.xmp", "-Subject")["Subject"] for n in (2, 3)] == [["dog"]] * 2
    assert not (tmp_path / "0.jpg.xmp").exists()  # it has the keyword already
    again = read_annotations(tmp_path)
    assert again.content_hash() == first.content_hash()  # what a machine wrote is not what a person said
    assert read_annotations(tmp_path, predicted=True).known_positives.tolist() == [4]


FOREIGN = """<?xml version='1.0' encoding='utf-8'?>
<!-- kept by hand -->
<x:xmpmeta xmlns:x="adobe:ns:meta/" x:xmptk="XMP Core 4.4.0-Exiv2">
 <r:RDF xmlns:r="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
  <r:Description r:about="uuid:1" xmlns:darktable="http://darktable.sf.net/" darktable:history_end="3"
    xmlns:odd="urn:odd" odd:note="two&#10;lines&#x9;and &quot;quotes&quot; &amp; more" dc:subject="sea"
    xmlns:dc="http://purl.org/dc/elements/1.1/">
   <darktable:history><r:Seq><r:li darktable:num="0" darktable:params="gz02eJx"/></r:Seq></darktable:history>
   <odd:data><![CDATA[ <raw> & kept ]]></odd:data>
   <!-- inside -->
  </r:Description>
 </r:RDF>
</x:xmpmeta>
"""


def test_unknown_xml_is_kept(tmp_path: Path) -> None:
    image = photo(tmp_path / "a.jpg")
    sidecar = tmp_path / "a.xmp"
    sidecar.write_text(FOREIGN)
    write("xmp", {image: {"dog": 0.9}})
    assert not (tmp_path / "a.jpg.xmp").exists()  # the sidecar that is there is used
    text = sidecar.read_text()
    for kept in (
        "<!-- kept by hand -->", "<!-- inside -->", 'odd:note="two&#10;lines&#9;and &quot;quotes&quot; &amp; more"',
        '<r:li darktable:num="0" darktable:params="gz02eJx"/>', "<![CDATA[ <raw> & kept ]]>", 'r:about="uuid:1"',
    ):  # fmt: skip
        assert kept in text
    keywords = read_packet(sidecar.read_bytes())
    assert (keywords.flat, keywords.predicted) == (["sea", "dog"], ["dog"])
    ElementTree.fromstring(sidecar.read_bytes())  # an ordinary parser reads it too


def test_writing_the_same_again_changes_nothing(tmp_path: Path) -> None:
    image = photo(tmp_path / "a.jpg")
    for options in ({}, {"confidence": True, "marker": "auto"}):
        write("xmp", {image: {"dog": 0.9, "cat": 0.6}}, **options)
        before = (tmp_path / "a.jpg.xmp").read_bytes()
        assert write("xmp", {image: {"cat": 0.6, "dog": 0.9}}, **options)[0] == "0 sidecars written, 1 unchanged."
        assert (tmp_path / "a.jpg.xmp").read_bytes() == before


def test_a_marker_keyword_shows_which_photos_were_tagged(tmp_path: Path) -> None:
    images = [photo(tmp_path / f"{name}.jpg") for name in "ab"]
    write("xmp", {images[0]: {"dog": 0.9}, images[1]: {}}, marker="auto-tagged")
    assert read_packet((tmp_path / "a.jpg.xmp").read_bytes()).flat == ["dog", "auto-tagged"]
    assert not (tmp_path / "b.jpg.xmp").exists()
    write("xmp", {images[0]: {}})
    assert read_packet((tmp_path / "a.jpg.xmp").read_bytes()).flat == []


def test_names_of_new_sidecars(tmp_path: Path) -> None:
    image = photo(tmp_path / "a.jpg")
    write("xmp", {image: {"dog": 0.9}}, naming="stem")
    assert (tmp_path / "a.xmp").is_file()
    twins = [photo(tmp_path / "b.jpg"), photo(tmp_path / "b.png")]
    write("xmp", {twins[0]: {"dog": 0.9}, twins[1]: {"cat": 0.9}}, naming="stem")
    assert read_packet((tmp_path / "b.jpg.xmp").read_bytes()).flat == ["dog"]
    assert read_packet((tmp_path / "b.png.xmp").read_bytes()).flat == ["cat"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"<html/>",
        b"<broken",
        b'<?xml version="1.0" encoding="x"?><a/>',
        b"\xff\xfe\x00",
        b'<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>',
    ],
)
def test_a_sidecar_that_cannot_be_read_is_left_as_it_is_and_named(tmp_path: Path, content: bytes) -> None:
    image = photo(tmp_path / "a.jpg")
    sidecar = tmp_path / "a.jpg.xmp"
    sidecar.write_bytes(content)
    sentence, _ = write("xmp", {image: {"dog": 0.9}})
    assert sidecar.read_bytes() == content
    assert str(sidecar) in sentence
    assert "not changed because" in sentence
    assert "\n" not in sentence


def test_tags_with_marks_of_xml_and_of_hierarchies(tmp_path: Path) -> None:
    image = photo(tmp_path / "a.jpg")
    tags = {'<b> & "c"': 0.9, "AC/DC": 0.8, "a|b": 0.7, "=cmd|x": 0.6, "日本": 0.5}
    write("xmp", {image: tags})
    keywords = read_packet((tmp_path / "a.jpg.xmp").read_bytes())
    assert keywords.flat == list(tags)
    assert ("AC", "DC") not in keywords.paths
    assert ("日本",) in keywords.paths


def test_a_dry_run_says_what_it_would_do_and_does_nothing(tmp_path: Path) -> None:
    image = photo(tmp_path / "a.jpg")
    for kind, options in (("xmp", {}), ("sidecar", {}), ("labelstudio", {"file": tmp_path / "x.json"})):
        sentence, said = write(kind, {image: {"dog": 0.9}}, dry_run=True, **options)
        assert "would be written" in sentence
        assert "dog" in said[0]
    assert [file.name for file in tmp_path.iterdir()] == ["a.jpg"]


def write_until_killed(kind: str, folder: Path, told: Connection) -> None:
    writer = open_writer(kind, {})
    told.send("ready")
    for turn in range(10_000):
        for number in range(3):
            writer.write(folder / f"{number}.jpg", {f"tag {turn % 7} {n}": 0.9 for n in range(200)})


@pytest.mark.parametrize("kind", ["xmp", "sidecar"])
def test_killing_it_leaves_whole_files(tmp_path: Path, kind: str) -> None:
    for number in range(3):
        photo(tmp_path / f"{number}.jpg")
    rng = np.random.default_rng(0)
    for _ in range(4):
        heard, told = processes().Pipe(duplex=False)
        process = processes().Process(target=write_until_killed, args=(kind, tmp_path, told), daemon=True)
        process.start()
        assert heard.recv() == "ready"
        time.sleep(rng.uniform(0.05, 0.4))
        process.kill()
        process.join()
        for file in [*tmp_path.glob("*.xmp"), *tmp_path.glob("*.txt")]:
            if kind == "xmp":
                assert len(read_packet(file.read_bytes()).flat) == 200
            else:
                assert file.read_text().endswith("199\n")


# --- text files ---


def test_text_files_keep_what_they_have(tmp_path: Path) -> None:
    images = [photo(tmp_path / f"{name}.jpg") for name in "abcd"]
    (tmp_path / "a.txt").write_text("long hair, Smile\n")
    (tmp_path / "b.jpg.txt").write_text("sea\nsky\n")
    sentence, _ = write("sidecar", {image: {"smile": 0.9, "dog": 0.7} for image in images[:3]} | {images[3]: {}})
    assert (tmp_path / "a.txt").read_text() == "long hair, Smile, dog\n"
    assert (tmp_path / "b.jpg.txt").read_text() == "sea\nsky\nsmile\ndog\n"
    assert (tmp_path / "c.txt").read_text() == "smile, dog\n"
    assert not (tmp_path / "d.txt").exists()
    assert sentence == "3 text files written, 1 unchanged."
    assert write("sidecar", {images[0]: {"dog": 0.7}})[0] == "0 text files written, 1 unchanged."
    write("sidecar", {images[0]: {"dog": 0.7}}, existing="replace", marker="auto")
    assert (tmp_path / "a.txt").read_text() == "dog, auto\n"
    (tmp_path / "c.txt").write_bytes(b"\0\1")
    assert "binary data" in write("sidecar", {images[2]: {"dog": 0.7}})[0]


# --- Label Studio ---


def check_schema(task: dict[str, Any]) -> None:
    """What Label Studio's importer asks of a pre-annotated task."""
    assert isinstance(task["data"], dict)
    for prediction in task["predictions"]:
        assert isinstance(prediction["model_version"], str)
        assert 0 <= prediction["score"] <= 1
        for item in prediction["result"]:
            assert set(item) == {"id", "from_name", "to_name", "type", "value"}
            assert all(isinstance(item[key], str) for key in ("id", "from_name", "to_name"))
            assert item["type"] == "choices"
            assert all(isinstance(choice, str) for choice in item["value"]["choices"])


def test_label_studio_tasks_are_new_or_those_of_an_export(tmp_path: Path) -> None:
    images = [photo(tmp_path / "photos" / f"{name}.jpg") for name in ("a", "b c", "x")]
    out = tmp_path / "tasks.json"
    write("labelstudio", {images[1]: {"dog": 0.9, "cat": 0.7}, images[2]: {}}, file=out, root=tmp_path)
    tasks = json.loads(out.read_text())
    for task in tasks:
        check_schema(task)
    assert tasks[0]["data"] == {"image": "/data/local-files/?d=photos/b%20c.jpg"}
    assert tasks[0]["predictions"][0]["result"][0]["value"] == {"choices": ["dog", "cat"]}
    assert tasks[0]["predictions"][0]["score"] == 0.8
    assert tasks[1]["predictions"][0]["result"] == []

    export = [
        {
            "id": 7,
            "data": {"image": "/data/upload/3/0a1b2c3d-a.jpg"},
            "annotations": [{"id": 1, "result": []}],
            "meta": {},
        },
        {
            "id": 9,
            "data": {"image": "/data/local-files/?d=photos/b%20c.jpg"},
            "predictions": [{"model_version": "other", "score": 0, "result": []}],
        },
    ]
    (tmp_path / "export.json").write_text(json.dumps(export))
    predictions = {image: {"dog": 0.9} for image in images}
    for _ in range(2):  # a second time replaces our own predictions and no others
        sentence, _ = write("labelstudio", predictions, file=out, tasks=tmp_path / "export.json")
        (tmp_path / "export.json").write_text(out.read_text())
    assert sentence == f"2 predictions written to {out}; 1 image in none of its tasks."
    tasks = json.loads(out.read_text())
    assert [(task["id"], len(task["predictions"])) for task in tasks] == [(7, 1), (9, 2)]
    assert tasks[0]["annotations"] == export[0]["annotations"]
    read = read_annotations(tmp_path / "photos", tags=out, predictions=True, keep_untagged=False)
    assert read.ids == ["7", "9"]
    assert read.labels.tolist() == [[1], [1]]


def test_images_that_label_studio_could_not_reach_are_refused(tmp_path: Path) -> None:
    image = photo(tmp_path / "photos" / "a.jpg")
    with pytest.raises(UserError, match="set -o root= to the folder that Label Studio serves"):
        write("labelstudio", {image: {"dog": 0.9}}, file=tmp_path / "elsewhere" / "tasks.json")


def test_mistakes(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="did you mean 'xmp'"):
        open_writer("xmpp", {})
    with pytest.raises(UserError, match="did you mean 'naming'"):
        open_writer("xmp", {"namin": "stem"})
    with pytest.raises(UserError, match="it should be 'full' or 'stem'"):
        open_writer("xmp", {"naming": "short"})
    assert all(kind.name == name and kind.sentence for name, kind in WRITERS.items())
