"""Layouts of other tools: Open Images, Label Studio, FiftyOne, booru sets, Hugging Face, DataFrames."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fewtags.data.annotations import Annotations
from fewtags.data.formats import read_annotations
from fewtags.errors import DataError, UserError


def make(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root


def tags_of(annotations: Annotations, state: int = 1) -> dict[str, set[str]]:
    return {
        image: {annotations.categories[c] for c in np.flatnonzero(row == state)}
        for image, row in zip(annotations.images, annotations.labels, strict=True)
    }


# --- Open Images ---

LABELS = "ImageID,Source,LabelName,Confidence\n"


def open_images(root: Path) -> Path:
    return make(
        root,
        {
            "oidv7-train-annotations-human-imagelabels.csv": LABELS
            + "0001,verified,/m/01,1\n0001,verified,/m/02,0\n0009,verified,/m/02,1\n0002,verified,/m/02,1\n",
            "oidv7-val-annotations-human-imagelabels.csv": LABELS + "0003,verification,/m/01,0\n",
            "oidv7-class-descriptions.csv": 'LabelName,DisplayName\n/m/01,Dog\n/m/02,"Cat, wild"\n',
            **{f"train/000{number}.jpg": "" for number in (1, 2, 4)},
            "validation/0003.jpg": "",
        },
    )


def test_open_images_verified_labels_are_present_or_absent_and_the_rest_unknown(tmp_path: Path) -> None:
    annotations = read_annotations(open_images(tmp_path))
    assert annotations.categories == ["Cat, wild", "Dog"]
    assert tags_of(annotations) == {
        "train/0001.jpg": {"Dog"},
        "train/0002.jpg": {"Cat, wild"},
        "validation/0003.jpg": set(),
        "train/0004.jpg": set(),
    }
    assert tags_of(annotations, -1)["train/0001.jpg"] == {"Cat, wild"}
    assert tags_of(annotations, -1)["validation/0003.jpg"] == {"Dog"}
    assert dict(zip(annotations.images, annotations.splits.tolist(), strict=True)) == {
        "train/0001.jpg": "train",
        "train/0002.jpg": "train",
        "validation/0003.jpg": "val",
        "train/0004.jpg": "train",
    }
    assert "1 label for images that are not here skipped." in annotations.notes
    assert any("1 image in" in note and "kept as unknown" in note for note in annotations.notes)
    assert annotations.ids is not None
    assert annotations.ids[0] == "0001"


def test_open_images_machine_labels_count_only_when_asked(tmp_path: Path) -> None:
    make(tmp_path, {"train-machine.csv": LABELS + "1,machine,dog,0.9\n1,machine,cat,0.4\n1,human,cow,1\n", "1.jpg": ""})
    assert read_annotations(tmp_path).categories == ["cow"]
    assert read_annotations(tmp_path, min_confidence=0.8).categories == ["cow", "dog"]
    assert "without class names" in read_annotations(tmp_path).notes[1]


def test_open_images_problems(tmp_path: Path) -> None:
    make(tmp_path, {"labels.csv": LABELS + "1,x,dog,1\n1,x,dog,0\n1,x\n1,x,cat,sure\n1,x,cat,nan\n", "1.jpg": ""})
    annotations = read_annotations(tmp_path)
    assert tags_of(annotations) == {"1.jpg": {"dog"}}
    assert [finding.kind for finding in annotations.findings] == ["malformed row", "malformed row", "conflicting label"]
    (tmp_path / "1.jpg").unlink()
    with pytest.raises(DataError, match=r"None of the images listed in .* is in"):
        read_annotations(tmp_path)


# --- Label Studio ---


def choices(*names: str, control: str = "tags") -> dict[str, Any]:
    return {"from_name": control, "to_name": "img", "type": "choices", "value": {"choices": list(names)}}


TASKS: list[dict[str, Any]] = [
    {"id": 7, "data": {"image": "/data/upload/3/0a1b2c3d-a.jpg"}, "annotations": [{"result": [choices("cat", "dog")]}]},
    {
        "id": 9,
        "data": {"image": "/data/local-files/?d=photos/b%20c.jpg"},
        "annotations": [
            {"was_cancelled": True, "result": [choices("wrong")]},
            {"result": [{"from_name": "tree", "type": "taxonomy", "value": {"taxonomy": [["animal", "dog"]]}}]},
        ],
        "predictions": [{"result": [choices("bird")], "score": 0.9}],
    },
    {
        "id": 11,
        "data": {"image": "s3://bucket/photos/d.jpg", "text": "x"},
        "annotations": [
            {
                "result": [
                    {"type": "rectanglelabels", "value": {"x": 1, "rectanglelabels": ["car"]}},
                    choices("day", control="time"),
                ]
            }
        ],
    },
    {"id": 13, "data": {"image": "e.jpg"}, "annotations": []},
]


def label_studio(root: Path, tasks: Any = TASKS) -> Path:
    photos = {f"photos/{name}.jpg": "" for name in ("a", "b c", "d", "e")}
    return make(root, photos | {"export.json": json.dumps(tasks)})


def test_label_studio_choices_taxonomies_regions_and_ids(tmp_path: Path) -> None:
    label_studio(tmp_path)
    annotations = read_annotations(tmp_path / "photos", tags=tmp_path / "export.json")
    assert tags_of(annotations) == {
        "a.jpg": {"cat", "dog", "animal"},  # the taxonomy of b c.jpg says that a dog is one
        "b c.jpg": {"animal", "dog"},
        "d.jpg": {"car", "day"},
        "e.jpg": set(),
    }
    assert annotations.ids == ["7", "9", "11", "13"]
    assert "1 without annotations" in annotations.notes[0]
    saved = tmp_path / "saved.jsonl"
    annotations.save(saved)
    assert Annotations.load(saved).ids == annotations.ids
    assert annotations.take(np.array([2])).ids == ["11"]


def test_label_studio_options(tmp_path: Path) -> None:
    label_studio(tmp_path)

    def read(**options: Any) -> dict[str, set[str]]:
        return tags_of(read_annotations(tmp_path / "photos", tags=tmp_path / "export.json", **options))

    assert read(hierarchy="leaf")["b c.jpg"] == {"dog"}
    assert read(predictions=True)["b c.jpg"] == {"animal", "dog", "bird"}
    assert read(control="time") == {"a.jpg": set(), "b c.jpg": set(), "d.jpg": {"day"}, "e.jpg": set()}


def test_complete_says_nothing_about_tasks_nobody_annotated(tmp_path: Path) -> None:
    label_studio(tmp_path)
    annotations = read_annotations(tmp_path / "photos", tags=tmp_path / "export.json", complete=True)
    assert (annotations.labels[:3] != 0).all()
    assert not annotations.labels[3].any()


def test_label_studio_json_min(tmp_path: Path) -> None:
    tasks = [
        {
            "image": "a.jpg",
            "id": 1,
            "tags": {"choices": ["cat", "dog"]},
            "annotator": 1,
            "annotation_id": 5,
            "note": "x",
        },
        {"image": "d.jpg", "id": 2, "tags": "cat", "annotator": 1, "annotation_id": 6},
        {
            "image": "e.jpg",
            "id": 3,
            "boxes": [{"x": 1, "rectanglelabels": ["cow"]}],
            "annotator": 1,
            "annotation_id": 7,
        },
    ]
    label_studio(tmp_path, tasks)
    annotations = read_annotations(tmp_path / "export.json")
    assert list(tags_of(annotations).values()) == [{"cat", "dog"}, {"cat"}, {"cow"}]


def test_foreign_json_is_one_sentence(tmp_path: Path) -> None:
    for content in ('{"a": 1}', "[1, 2]", "null", '"text"', "[" * 10_000, "{broken", "1" * 5_000):
        (tmp_path / "x.json").write_text(content)
        for name in ("labelstudio", "fiftyone", "coco", "vg", "jsonl"):
            with pytest.raises(UserError) as caught:
                read_annotations(tmp_path / "x.json", format=name)
            assert "\n" not in str(caught.value)
            assert "x.json" in str(caught.value)


# --- FiftyOne ---


def test_fiftyone_labels_by_class_number_name_object_and_list(tmp_path: Path) -> None:
    labels = {"a": 0, "b": [0, 1], "c": None, "d": {"label": "dog", "confidence": 0.5}, "e": 7}
    make(tmp_path, {f"data/{name}.jpg": "" for name in "abcde"})
    make(tmp_path, {"labels.json": json.dumps({"classes": ["cat", "dog"], "labels": labels})})
    annotations = read_annotations(tmp_path, keep_untagged=False)
    assert tags_of(annotations) == {
        "data/a.jpg": {"cat"},
        "data/b.jpg": {"cat", "dog"},
        "data/c.jpg": set(),
        "data/d.jpg": {"dog"},
    }
    assert [finding.kind for finding in annotations.findings] == ["malformed entry"]


def test_fiftyone_splits_by_folder(tmp_path: Path) -> None:
    content = json.dumps({"classes": None, "labels": {"1": "cat"}})
    make(tmp_path, {f"{split}/{name}": "" for split in ("train", "validation") for name in ("data/1.jpg",)})
    make(tmp_path, {f"{split}/labels.json": content for split in ("train", "validation")})
    annotations = read_annotations(tmp_path)
    assert dict(zip(annotations.images, annotations.splits.tolist(), strict=True)) == {
        "train/data/1.jpg": "train",
        "validation/data/1.jpg": "val",
    }


def samples(**fields: Any) -> str:
    return json.dumps(
        {"samples": [{"_id": {"$oid": "5f"}, "filepath": "data/1.jpg", "tags": ["validation"], **fields}]}
    )


def test_fiftyone_samples(tmp_path: Path) -> None:
    truth = {"_cls": "Classifications", "classifications": [{"label": "cat"}, {"label": "dog"}]}
    guess = {"_cls": "Classifications", "classifications": [{"label": "cow"}]}
    make(tmp_path, {"data/1.jpg": "", "samples.json": samples(ground_truth=truth, predictions=guess)})
    annotations = read_annotations(tmp_path)
    assert tags_of(annotations) == {"data/1.jpg": {"cat", "dog"}}
    assert (annotations.splits.tolist(), annotations.ids) == (["val"], ["5f"])
    assert read_annotations(tmp_path, field="predictions").categories == ["cow"]
    with pytest.raises(UserError, match="did you mean 'predictions'"):
        read_annotations(tmp_path, field="prediction")
    make(tmp_path, {"samples.json": samples(a=truth, b=guess)})
    with pytest.raises(UserError, match="labels in a, b; choose one with field="):
        read_annotations(tmp_path)


def test_fiftyone_open_images_fields_have_known_absences(tmp_path: Path) -> None:
    positive, negative = ({"classifications": [{"label": name}]} for name in ("cat", "dog"))
    make(tmp_path, {"data/1.jpg": "", "samples.json": samples(positive_labels=positive, negative_labels=negative)})
    assert read_annotations(tmp_path).labels.tolist() == [[1, -1]]


# --- booru ---


def test_booru_json_of_several_tools(tmp_path: Path) -> None:
    files = {
        "1.json": {"tag_string": "1girl long_hair artist_x", "tag_string_general": "1girl long_hair"},
        "2.jpg.json": {"tags": "1girl ^_^ long_hair"},
        ".3_meta.json": {"tags": {"1girl": 0.99, "long_hair": 0.8}},
        "4.json": {"tags": {"general": ["solo"], "species": ["cat"], "artist": ["x"]}},
        "5.json": {"tags_general": ["solo"], "tags_meta": ["highres"]},
    }
    make(tmp_path, {f"{number}.jpg": "" for number in range(1, 7)})
    make(tmp_path, {name: json.dumps(content) for name, content in files.items()})
    annotations = read_annotations(tmp_path)
    assert tags_of(annotations) == {
        "1.jpg": {"1girl", "long hair"},
        "2.jpg": {"1girl", "^_^", "long hair"},
        "3.jpg": {"1girl", "long hair"},
        "4.jpg": {"solo", "cat"},
        "5.jpg": {"solo"},
        "6.jpg": set(),
    }
    assert tags_of(read_annotations(tmp_path, kinds="artist,meta", underscores=True))["5.jpg"] == {"highres"}


def test_booru_text_with_the_table_of_counts(tmp_path: Path) -> None:
    table = "tag_id,name,category,count\n1,1girl,0,5000\n2,long_hair,0,4000\n3,rare,0,3\n"
    make(tmp_path, {"selected_tags.csv": table, "1.jpg": "", "2.jpg": "", "3.jpg": ""})
    make(
        tmp_path,
        {"1.txt": "1girl, long hair, my own", "2.txt": "1girl long_hair rare", "3.txt": "(1girl:1.2), (rare:0.9)"},
    )
    assert tags_of(read_annotations(tmp_path)) == {
        "1.jpg": {"1girl", "long hair"},
        "2.jpg": {"1girl", "long hair", "rare"},
        "3.jpg": {"1girl", "rare"},
    }
    assert read_annotations(tmp_path, min_count=10).categories == ["1girl", "long hair"]


# --- Hugging Face ---


def test_imagefolder_by_split_folders(tmp_path: Path) -> None:
    make(tmp_path, {"train/1.jpg": "", "train/sub/2.jpg": "", "test/1.jpg": ""})
    make(
        tmp_path,
        {
            "train/metadata.jsonl": '{"file_name": "1.jpg", "labels": ["cat"], "text": "x"}\n'
            '{"file_name": "sub/2.jpg", "labels": ["cat", "dog"], "text": "y"}\n',
            "test/metadata.jsonl": '{"file_name": "1.jpg", "labels": [], "text": "z"}\n',
        },
    )
    annotations = read_annotations(tmp_path)
    assert tags_of(annotations) == {"train/1.jpg": {"cat"}, "train/sub/2.jpg": {"cat", "dog"}, "test/1.jpg": set()}
    splits = dict(zip(annotations.images, annotations.splits.tolist(), strict=True))
    assert splits == {"train/1.jpg": "train", "train/sub/2.jpg": "train", "test/1.jpg": "test"}


def test_imagefolder_class_numbers_are_named_by_the_card(tmp_path: Path) -> None:
    card = (
        "---\ndataset_info:\n  features:\n  - name: image\n    dtype: image\n  - name: labels\n    sequence:\n"
        "      class_label:\n        names:\n          '0': cat\n          '1': dog\n---\n# Card\n"
    )
    lines = '{"file_name": "1.jpg", "labels": [0, 1]}\n{"file_name": "2.jpg", "labels": [5]}\n'
    make(tmp_path, {"README.md": card, "metadata.jsonl": lines, "1.jpg": "", "2.jpg": ""})
    annotations = read_annotations(tmp_path, keep_untagged=False)
    assert tags_of(annotations) == {"1.jpg": {"cat", "dog"}}
    assert annotations.findings[0].kind == "malformed line"


def test_imagefolder_csv_and_a_key_that_must_be_named(tmp_path: Path) -> None:
    make(tmp_path, {"metadata.csv": 'file_name,label\n1.jpg,"cat, dog"\n', "1.jpg": ""})
    assert read_annotations(tmp_path).categories == ["cat", "dog"]
    make(tmp_path, {"metadata.csv": "file_name,what,why\n1.jpg,cat,x\n"})
    with pytest.raises(UserError, match="Which of what, why"):
        read_annotations(tmp_path)
    assert read_annotations(tmp_path, tag_column="what").categories == ["cat"]


# --- DataFrames ---


class Frame(dict[str, list[Any]]):
    """The little that is asked of a DataFrame."""

    @property
    def columns(self) -> list[str]:
        return list(self)


@pytest.fixture(params=["stand-in", "pandas"])
def frame(request: pytest.FixtureRequest) -> Any:
    return Frame if request.param == "stand-in" else pytest.importorskip("pandas").DataFrame


def test_a_dataframe_of_lists_or_text(frame: Any) -> None:
    lists = frame(
        {
            "image": ["a.jpg", "b.jpg", "c.jpg"],
            "tags": [["cat", "Dog"], ("dog",), None],
            "split": ["train", "val", None],
        }
    )
    annotations = Annotations.from_dataframe(lists, root="photos")
    assert annotations.categories == ["cat", "dog"]
    assert annotations.labels.tolist() == [[1, 1], [0, 1], [0, 0]]
    assert annotations.splits.tolist() == ["train", "val", "train"]
    assert annotations.path(0) == Path("photos/a.jpg")
    text = frame({"path": ["a.jpg", "b.jpg"], "kw": ["cat; dog", "cow"], "absent": ["cow", float("nan")]})
    annotations = Annotations.from_dataframe(text, tags="kw", complete=True)
    assert annotations.labels.tolist() == [[1, -1, 1], [-1, 1, -1]]


def test_a_dataframe_with_one_column_per_tag(frame: Any) -> None:
    table = frame({"image": ["a.jpg", "b.jpg"], "cat": [1, 0], "dog": [float("nan"), 1.0], "cow": [True, False]})
    annotations = Annotations.from_dataframe(table, tags=["cat", "dog", "cow"], zero="absent")
    assert annotations.labels.tolist() == [[1, 0, 1], [-1, 1, -1]]
    with pytest.raises(UserError, match="say what a 0 means"):
        Annotations.from_dataframe(table, tags=["cat"])


def test_mistakes_with_dataframes(frame: Any) -> None:
    table = frame({"image": ["a.jpg"], "x": ["cat"], "y": ["dog"]})
    with pytest.raises(UserError, match="pass the tag column as tags="):
        Annotations.from_dataframe(table)
    with pytest.raises(UserError, match="no column 'z'"):
        Annotations.from_dataframe(table, tags="z")
    with pytest.raises(UserError, match="did you mean 'complete'"):
        Annotations.from_dataframe(table, tags="x", complet=True)
    with pytest.raises(UserError, match="should hold 1, 0, -1 or missing"):
        Annotations.from_dataframe(table, tags=["x"], zero="absent")
