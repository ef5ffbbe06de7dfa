"""Any bytes in any label file give Annotations or a UserError; and what is said about them can be printed and stored.

FEWTAGS_FUZZ=1000 tries so many inputs for each reader instead of a few.
"""

from __future__ import annotations

import io
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from test_formats import EXAMPLES

from fewtags.data.aliases import read_aliases
from fewtags.data.annotations import Annotations
from fewtags.data.formats import FORMATS, read_annotations
from fewtags.data.photo_keywords import BadKeywords, embedded_keywords
from fewtags.data.writers import open_writer
from fewtags.data.xml import MalformedXml
from fewtags.data.xmp import read_packet
from fewtags.errors import UserError

few = settings(  # the same inputs every time; FEWTAGS_FUZZ=1000 tries so many new ones
    derandomize="FEWTAGS_FUZZ" not in os.environ,
    max_examples=int(os.environ.get("FEWTAGS_FUZZ", "40")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
NASTY = [
    b"1e999", b"-1", b"9" * 5_000, b"\0", b"\\ud800", b"\xff\xfe", b"\xef\xbb\xbf", b"nan", b"null", b"{}", b"[]", b'"',
    b",", b";", b"\n", b"\r\n", b"'", b"../../x.jpg", b"/etc/x.jpg", b"C:\\x.jpg", b"1.jpg", b"true", b"[" * 2_000,
    b'encoding="gb2312"', b'encoding="x"', b"<!DOCTYPE a>", b"&b;", b"<", b">", b"\xe9", b"\xf0\x9f\x98\x80", b"=cmd|x",
    b'{"a": ', b"</rdf:li>", b"image", b"tags", b"split", b"|", b"\t", b"%", b"*a", b"&a ",
    b"!!python/object:os.system x",
]  # fmt: skip
LABEL_FILES = {
    name: [file for file in example if not file.endswith((".jpg", "trainval.txt"))]
    for name, example in EXAMPLES.items()
}


@st.composite
def damaged(draw: st.DrawFn, valid: bytes) -> bytes:
    """Valid content with pieces cut out, doubled, flipped or replaced by nasty ones; or any bytes at all."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=300))
    data = valid
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(data)))
        length = draw(st.integers(0, 12))
        piece = draw(st.one_of(st.just(b""), st.sampled_from(NASTY), st.binary(max_size=8), st.just(data[place:])))
        data = data[:place] + piece + data[place + length :]
    return data


def check(read: Callable[[], Annotations]) -> None:
    """Read, or refuse in one line; and what came out can be printed, hashed, saved and loaded."""
    try:
        annotations = read()
    except UserError as error:
        refused = error
        assert one_line(refused), refused
        return
    for text in (*annotations.notes, *map(str, annotations.findings), *annotations.categories, *annotations.images):
        text.encode()
    json.dumps(annotations.renamed_tags, ensure_ascii=False).encode()
    with tempfile.TemporaryDirectory() as folder:
        annotations.save(Path(folder) / "saved.jsonl")
        assert Annotations.load(Path(folder) / "saved.jsonl").content_hash() == annotations.content_hash()


def one_line(error: Exception) -> bool:
    """A message that a terminal shows as it is."""
    str(error).encode()
    return "\n" not in str(error).strip("\n")


def as_bytes(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content


@pytest.mark.parametrize("name", [name for name in FORMATS if LABEL_FILES.get(name)])
@few
@given(data=st.data())
def test_damaged_label_files(name: str, data: st.DataObject) -> None:
    example = {file: as_bytes(content) for file, content in EXAMPLES[name].items()}
    file = data.draw(st.sampled_from(LABEL_FILES[name]))
    example[file] = data.draw(damaged(example[file]))
    with tempfile.TemporaryDirectory() as folder:
        for path, content in example.items():
            (Path(folder) / path).parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / path).write_bytes(content)
        options = {"test_images": 0} if name == "vg" else {}
        check(lambda: read_annotations(folder, format=name, **options))
        check(lambda: read_annotations(folder))
        check(lambda: read_annotations(folder, tags=Path(folder) / file))


CELLS = st.one_of(
    st.sampled_from(
        ["1.jpg", "2.jpg", "image", "tags", "split", "absent", "1", "0", "-1", "", "nan", "cat", "cat;dog", "train"]
    ),
    st.text(max_size=6),
)


@few
@given(rows=st.lists(st.lists(CELLS, max_size=6), max_size=6), delimiter=st.sampled_from(",;\t|"))
def test_tables_of_any_cells_and_of_rows_of_any_length(rows: list[list[str]], delimiter: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "1.jpg").touch()
        text = "\n".join(delimiter.join(cells) for cells in rows)
        (Path(folder) / "tags.csv").write_bytes(text.encode("utf-8", "surrogatepass"))
        for name in ("csv", "onehot", "openimages", "auto"):
            check(lambda name=name: read_annotations(folder, format=name))  # type: ignore[misc]


LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5),
    st.sampled_from(["1.jpg", "cat", "/data/upload/1.jpg", "train"]),
)  # fmt: skip
KEYS = st.sampled_from(
    ["image", "tags", "labels", "data", "annotations", "result", "value", "choices", "taxonomy", "id", "classes",
     "samples", "filepath", "ground_truth", "classifications", "label", "images", "categories", "file_name", "name",
     "image_id",
     "category_id", "category_ids", "objects", "names", "fewtags", "root", "present", "absent", "unknown", "complete",
     "split", "predictions", "tag_string", "error", "general"]
)  # fmt: skip
JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=25
)


@pytest.mark.parametrize("name", ["coco", "vg", "jsonl", "labelstudio", "fiftyone", "booru", "imagefolder", "auto"])
@few
@given(content=JSON)
def test_foreign_json_of_any_shape(name: str, content: object) -> None:
    files = {"booru": "1.json", "imagefolder": "metadata.jsonl", "vg": "objects.json", "fiftyone": "labels.json"}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "1.jpg").touch()
        file = Path(folder) / files.get(name, "x.json")
        file.write_text(json.dumps(content))
        source = file if name in ("coco", "jsonl", "labelstudio", "auto") else Path(folder)
        check(lambda: read_annotations(source, format=name, **({"test_images": 0} if name == "vg" else {})))
        if name == "jsonl":
            file = file.rename(file.with_suffix(".jsonl"))
            check(lambda: read_annotations(file))


TASK = {
    "from_name": "tags",
    "to_name": "img",
    "type": "choices",
    "value": {"choices": ["cat"], "taxonomy": [["a", "b"]]},
}
VALID: dict[str, tuple[str, Any]] = {
    "coco": (
        "annotations/instances_train2017.json",
        {
            "images": [{"id": 7, "file_name": "1.jpg"}],
            "annotations": [{"image_id": 7, "category_id": 3}, {"image_id": 7, "category_ids": [3]}],
            "categories": [{"id": 3, "name": "cat"}, {"id": 4, "name": "dog"}],
        },
    ),
    "vg": ("objects.json", [{"image_id": 1, "objects": [{"names": ["cat"]}]}, {"id": 2, "objects": []}]),
    "jsonl": ("x.json", [{"image": "1.jpg", "tags": {"cat": 0.5}, "absent": ["dog"], "id": 3, "split": "val"}]),
    "labelstudio": (
        "x.json",
        [
            {"id": 4, "data": {"image": "1.jpg"}, "annotations": [{"was_cancelled": False, "result": [TASK]}],
             "predictions": [{"result": [TASK]}]},
            {"id": 5, "image": "1.jpg", "annotator": 1, "tags": {"choices": ["a"]},
             "boxes": [{"rectanglelabels": ["b"]}]},
        ],
    ),
    "fiftyone": (
        "samples.json",
        {"samples": [{"_id": {"$oid": "5f"}, "filepath": "1.jpg", "tags": ["val"],
                      "ground_truth": {"classifications": [{"label": "cat", "confidence": 0.5}]}}]},
    ),
    "booru": ("1.json", {"tags": {"general": ["cat"], "species": ["dog"]}, "tag_string_general": "a b"}),
    "imagefolder": ("metadata.jsonl", {"file_name": "1.jpg", "labels": ["cat"], "split": "train"}),
}  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn, content: Any) -> Any:
    """The same JSON with one to three of its nodes replaced, removed or doubled."""
    content = json.loads(json.dumps(content))
    for _ in range(draw(st.integers(1, 3))):
        nodes = list(nodes_of(content))
        if not nodes:
            return content
        holder, key = draw(st.sampled_from(nodes))
        change = draw(st.integers(0, 5))
        if change == 0:
            del holder[key]
        elif change == 1 and isinstance(holder, list):
            holder.append(deepcopy(holder[key]))
        else:
            holder[key] = deepcopy(draw(st.one_of(LEAVES, st.sampled_from(ODD), JSON)))
    return content


ODD: list[Any] = [
    float("inf"),
    float("nan"),
    -1,
    10**30,
    1.5,
    "\ud800",
    "\0",
    "",
    " ",
    [],
    {},
    [[]],
    "../x.jpg",
    "1.jpg\n",
    True,
]


def nodes_of(content: Any) -> Iterator[tuple[Any, Any]]:
    entries = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in list(entries):
        yield content, key
        yield from nodes_of(value)


@pytest.mark.parametrize("name", VALID)
@few
@given(data=st.data())
def test_json_with_other_values_in_it(name: str, data: st.DataObject) -> None:
    file, valid = VALID[name]
    content = data.draw(mutated(valid))
    with tempfile.TemporaryDirectory() as folder:
        for image in ("1.jpg", "train2017/1.jpg", "data/1.jpg"):
            (Path(folder) / image).parent.mkdir(exist_ok=True)
            (Path(folder) / image).touch()
        path = Path(folder) / file
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content))
        source = path if name in ("jsonl", "labelstudio") else Path(folder)
        options = {"test_images": 0} if name == "vg" else {"predictions": True} if name == "labelstudio" else {}
        check(lambda: read_annotations(source, format=name, **options))


def picture(kind: str) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (8, 8)).save(stream, kind, xmp=as_bytes(EXAMPLES["keywords"]["1.jpg.xmp"]))
    return stream.getvalue()


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
@few
@given(data=st.data())
def test_damaged_photos(kind: str, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "1.jpg"
        file.write_bytes(data.draw(damaged(picture(kind))))
        try:
            for tag in embedded_keywords(file).tags():
                tag.encode()
        except BadKeywords as error:
            refused = error
            assert one_line(refused)


@few
@given(data=st.data())
def test_damaged_sidecars_are_read_merged_or_left_alone(data: st.DataObject) -> None:
    content = data.draw(damaged(as_bytes(EXAMPLES["keywords"]["1.jpg.xmp"])))
    with tempfile.TemporaryDirectory() as folder:
        photo = Path(folder) / "1.jpg"
        photo.write_bytes(picture("JPEG"))
        sidecar = Path(folder) / "1.jpg.xmp"
        sidecar.write_bytes(content)
        try:
            before = read_packet(content)
        except MalformedXml as error:
            before, refused = None, error
            assert one_line(refused)
        writer = open_writer("xmp", {})
        writer.write(photo, {"dog": 0.9})
        assert "\n" not in writer.close()
        if before is None:
            assert sidecar.read_bytes() == content
        elif sidecar.read_bytes() != content:
            after = read_packet(sidecar.read_bytes())
            assert set(before.flat) <= set(after.flat)
            assert set(before.paths) <= set(after.paths)


@few
@given(data=st.data())
def test_damaged_files_of_aliases(data: st.DataObject) -> None:
    valid = b"merge:\n  dog: [dogs, hund]\nrename: {a: b}\nimplies:\n  puppy: [dog]\nexclude: [x]\n"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "aliases.yaml"
        file.write_bytes(data.draw(damaged(valid)))
        try:
            read_aliases(file)
        except UserError as error:
            refused = error
            assert one_line(refused), refused
