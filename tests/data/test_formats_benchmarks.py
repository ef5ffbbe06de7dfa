"""Pascal VOC, COCO and Visual Genome, on small files in the real format; VOC 2007 also on the real data."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fewtags.data.annotations import Annotations
from fewtags.data.formats import read_annotations, visual_genome
from fewtags.data.formats.voc import VOC_CATEGORIES, largest_shares
from fewtags.data.prepare import DataConfig, observe, prepare_data
from fewtags.errors import DataError, UserError

SHARED = Path(os.environ.get("FEWTAGS_SHARED", Path(__file__).parents[2].parent / "shared"))


def present(annotations: Annotations) -> dict[str, list[str]]:
    return {
        image: [annotations.categories[c] for c in np.flatnonzero(row == 1)]
        for image, row in zip(annotations.images, annotations.labels, strict=True)
    }


# --- Pascal VOC ---


def voc_xml(*objects: tuple[str, int]) -> str:
    things = "".join(
        f"<object><name>{name}</name><difficult>{difficult}</difficult><bndbox><xmin>1</xmin></bndbox></object>"
        for name, difficult in objects
    )
    return f"<annotation><folder>VOC</folder><size><width>3</width></size>{things}</annotation>"


def make_voc(folder: Path, lists: dict[str, list[str]], xml: dict[str, str]) -> Path:
    for part in ("Annotations", "ImageSets/Main", "JPEGImages"):
        (folder / part).mkdir(parents=True)
    for name, images in lists.items():
        (folder / "ImageSets/Main" / f"{name}.txt").write_text("\n".join(images) + "\n")
    for name, text in xml.items():
        (folder / "Annotations" / f"{name}.xml").write_text(text)
        (folder / "JPEGImages" / f"{name}.jpg").touch()
    return folder


XML = {
    "000001": voc_xml(("dog", 0), ("person", 0), ("person", 1)),
    "000002": voc_xml(("train", 0), ("car", 1)),
    "000003": voc_xml(("tvmonitor", 0)),
}


def test_voc_splits_and_complete_labels(tmp_path: Path) -> None:
    folder = make_voc(tmp_path / "VOCdevkit/VOC2007", {"trainval": ["000002", "000001"], "test": ["000003"]}, XML)
    for source in (folder, folder.parent, tmp_path):
        annotations = read_annotations(source)
        assert annotations.name == "voc2007"
        assert annotations.images == ["000002.jpg", "000001.jpg", "000003.jpg"]
        assert annotations.splits.tolist() == ["train", "train", "test"]
        assert annotations.categories == VOC_CATEGORIES == sorted(VOC_CATEGORIES)
        assert annotations.complete
        assert list(present(annotations).values()) == [["train"], ["dog", "person"], ["tvmonitor"]]


def test_only_difficult_is_absent_or_ignored(tmp_path: Path) -> None:
    folder = make_voc(tmp_path / "VOC2007", {"trainval": ["000001", "000002"]}, XML)
    car, person = VOC_CATEGORIES.index("car"), VOC_CATEGORIES.index("person")
    assert read_annotations(folder).labels[:, [person, car]].tolist() == [[1, -1], [-1, -1]]
    assert read_annotations(folder, difficult="ignore").labels[:, [person, car]].tolist() == [[1, -1], [-1, 0]]


def test_voc_boxes_say_how_large_things_are(tmp_path: Path) -> None:
    def thing(name: str, difficult: int, *box: int) -> str:
        sides = "".join(f"<{k}>{v}</{k}>" for k, v in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True))
        return f"<object><name>{name}</name><difficult>{difficult}</difficult><bndbox>{sides}</bndbox></object>"

    things = thing("car", 0, 0, 0, 50, 40) + thing("car", 0, 0, 0, 10, 10) + thing("dog", 1, 0, 0, 100, 100)
    xml = f"<annotation><size><width>100</width><height>100</height></size>{things}</annotation>"
    folder = make_voc(tmp_path / "VOC2007", {"trainval": ["000001"]}, {"000001": xml})
    annotations = read_annotations(folder)
    shares = largest_shares(annotations)
    assert shares is not None
    assert shares.shape == annotations.labels.shape
    assert shares[0, VOC_CATEGORIES.index("car")] == pytest.approx(0.2)
    assert shares.sum() == pytest.approx(0.2)
    data = prepare_data(DataConfig(source=str(folder), known="five", val_share=0))
    assert data.train.labels.tolist() == (annotations.labels == 1).astype(int).tolist()
    elsewhere = replace(annotations, root=tmp_path)
    assert largest_shares(elsewhere) is None


def test_voc_2012_tests_on_its_val_list(tmp_path: Path) -> None:
    lists = {"train": ["000001"], "val": ["000002"], "trainval": ["000001", "000002"], "test": ["000009"]}
    make_voc(tmp_path / "VOC2012", lists, XML)
    annotations = read_annotations(tmp_path)
    assert annotations.name == "voc2012"
    assert list(zip(annotations.images, annotations.splits, strict=True)) == [
        ("000001.jpg", "train"),
        ("000002.jpg", "test"),
    ]
    make_voc(tmp_path / "VOC2007", {"trainval": ["000001"]}, XML)
    with pytest.raises(UserError, match="VOC2007, VOC2012; choose one with year="):
        read_annotations(tmp_path)
    assert read_annotations(tmp_path, year=2007).name == "voc2007"
    with pytest.raises(UserError, match="contains no VOC2010"):
        read_annotations(tmp_path, year=2010)


def test_voc_problems(tmp_path: Path) -> None:
    xml = XML | {"bad": "<annotation>\n<object></annotation>", "odd": voc_xml(("unicorn", 0))}
    folder = make_voc(tmp_path / "VOC2007", {"trainval": ["000001", "bad", "odd", "gone", "noxml"]}, xml)
    (folder / "JPEGImages/noxml.jpg").touch()
    annotations = read_annotations(folder)
    assert annotations.images == ["000001.jpg", "odd.jpg"]
    assert [(f.kind, Path(f.where).name) for f in annotations.findings] == [
        ("malformed file", "bad.xml:2"),
        ("missing image", "gone.xml"),
        ("missing annotation", "noxml.xml"),
        ("unknown category", "odd.xml"),
    ]
    assert read_annotations(folder, categories=["unicorn", "dog"]).labels.tolist() == [[-1, 1], [1, -1]]


def test_voc_without_any_image(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no image that has both"):
        read_annotations(make_voc(tmp_path / "VOC2007", {"trainval": ["000001"]}, {}))


@pytest.mark.shared
@pytest.mark.skipif(not (SHARED / "data/VOCdevkit").is_dir(), reason="the measuring data is not beside the project")
def test_real_voc_2007() -> None:
    annotations = read_annotations(SHARED / "data/VOCdevkit")
    train, test = annotations.split("train"), annotations.split("test")
    assert (len(train), len(test), annotations.findings) == (5011, 4952, [])
    assert (train.known_positives.sum(), test.known_positives.sum()) == (7306, 7013)
    positives = dict(zip(train.categories, train.known_positives.tolist(), strict=True))
    assert (positives["person"], positives["chair"]) == (2008, 445)


# --- COCO ---


def make_coco(root: Path, file: str, images: dict[int, str], marks: list[tuple[int, int]], folder: str) -> Path:
    content = {
        "info": {"year": 2014},
        "licenses": [],
        "images": [{"id": key, "file_name": name, "width": 4, "height": 4} for key, name in images.items()],
        "annotations": [
            {"id": n, "image_id": image, "category_id": category, "iscrowd": n % 2, "bbox": [0, 0, 1, 1]}
            for n, (image, category) in enumerate(marks)
        ],
        "categories": [{"supercategory": "x", "id": key, "name": name} for key, name in CATEGORIES.items()],
    }
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / file).write_text(json.dumps(content))
    (root / folder).mkdir(parents=True, exist_ok=True)
    for name in images.values():
        (root / folder / name).touch()
    return root


CATEGORIES = {90: "toothbrush", 1: "person", 18: "dog"}  # not in the order of their ids


def coco2014(root: Path) -> Path:
    train = {9: "COCO_train2014_9.jpg", 5: "COCO_train2014_5.jpg", 7: "COCO_train2014_7.jpg"}
    make_coco(root, "annotations/instances_train2014.json", train, [(7, 90), (9, 1), (9, 1), (7, 18)], "train2014")
    return make_coco(root, "annotations/instances_val2014.json", {3: "COCO_val2014_3.jpg"}, [(3, 18)], "val2014")


def test_coco_labels_follow_ids_and_keep_images_without_a_box(tmp_path: Path) -> None:
    annotations = read_annotations(coco2014(tmp_path))
    assert annotations.categories == ["person", "dog", "toothbrush"]
    assert present(annotations) == {
        "train2014/COCO_train2014_9.jpg": ["person"],
        "train2014/COCO_train2014_5.jpg": [],
        "train2014/COCO_train2014_7.jpg": ["dog", "toothbrush"],
        "val2014/COCO_val2014_3.jpg": ["dog"],
    }
    assert annotations.splits.tolist() == ["train", "train", "train", "test"]
    assert annotations.complete
    assert annotations.name == "coco2014"
    assert all(annotations.path(row).is_file() for row in range(4))


def test_coco_crowds_count_as_present(tmp_path: Path) -> None:
    make_coco(tmp_path, "annotations/instances_train2017.json", {1: "1.jpg"}, [(1, 1), (1, 18)], "train2017")
    assert present(read_annotations(tmp_path)) == {"train2017/1.jpg": ["person", "dog"]}  # the second is a crowd


def test_coco_one_file_with_its_images_elsewhere(tmp_path: Path) -> None:
    make_coco(tmp_path, "labels.json", {1: "1.jpg"}, [(1, 1)], "photos")
    annotations = read_annotations(tmp_path / "photos", tags=tmp_path / "labels.json")
    assert (annotations.images, annotations.name, annotations.splits.tolist()) == (["1.jpg"], "labels", ["train"])
    alone = read_annotations(coco2014(tmp_path / "coco") / "annotations/instances_val2014.json")
    assert (alone.images, alone.splits.tolist()) == (["val2014/COCO_val2014_3.jpg"], ["test"])


def test_coco_chosen_categories_and_years(tmp_path: Path) -> None:
    coco2014(tmp_path)
    assert read_annotations(tmp_path, categories=["dog", "person"]).labels[:, 0].tolist() == [-1, -1, 1, 1]
    with pytest.raises(UserError, match="did you mean 'person'"):
        read_annotations(tmp_path, categories=["persn"])
    make_coco(tmp_path, "annotations/instances_val2017.json", {1: "1.jpg"}, [(1, 1)], "val2017")
    with pytest.raises(UserError, match="instances of 2014, 2017; choose one with year="):
        read_annotations(tmp_path)
    assert read_annotations(tmp_path, year=2017).name == "coco2017"
    with pytest.raises(UserError, match=r"has no instances_\*2015"):
        read_annotations(tmp_path, year=2015)


def test_coco_problems(tmp_path: Path) -> None:
    images = {1: "1.jpg", 2: "2.jpg"}
    make_coco(tmp_path, "annotations/instances_train2014.json", images, [(1, 1), (8, 1), (1, 4)], "train2014")
    make_coco(tmp_path, "annotations/instances_val2014.json", {3: "3.jpg"}, [(3, 18)], "val2014")
    (tmp_path / "train2014/2.jpg").unlink()
    (tmp_path / "val2014/3.jpg").unlink()
    annotations = read_annotations(tmp_path)
    assert present(annotations) == {"train2014/1.jpg": ["person"]}
    assert [f.kind for f in annotations.findings] == ["unknown image", "unknown category", *["missing image"] * 2]
    (tmp_path / "train2014/1.jpg").unlink()
    with pytest.raises(DataError, match="None of the 2 images"):
        read_annotations(tmp_path)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"images": [', "cannot be read as JSON"),
        ('{"images": []}', "no list 'annotations'"),
        ('{"images": [], "annotations": [], "categories": []}', "0 images and 0 categories"),
        ('{"images": [{"id": 1}], "annotations": [], "categories": []}', "lacks 'file_name'"),
        ('{"images": [{"id": "x", "file_name": 1}], "annotations": [], "categories": []}', "malformed"),
        ('{"info": ' + "[" * 100_000, "cannot be read as JSON"),
    ],
)
def test_unusable_coco(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(DataError, match=sentence):
        read_annotations(tmp_path / "x.json")


# --- Visual Genome ---


def make_visual_genome(root: Path, objects: dict[int, list[str]]) -> Path:
    content = [
        {
            "image_id": key,
            "objects": [
                {
                    "synsets": [],
                    "h": 1,
                    "object_id": n,
                    "merged_object_ids": [],
                    "names": [name],
                    "w": 1,
                    "y": 0,
                    "x": 0,
                }
                for n, name in enumerate(names)
            ],
            "image_url": f"https://example.org/VG_100K/{key}.jpg",
        }
        for key, names in objects.items()
    ]
    for folder in ("VG_100K", "VG_100K_2"):
        (root / folder).mkdir(parents=True)
    for key in objects:
        (root / ("VG_100K" if key % 2 else "VG_100K_2") / f"{key}.jpg").touch()
    (root / "objects.json").write_text(json.dumps(content))
    return root


def test_visual_genome_takes_the_most_frequent_names(tmp_path: Path) -> None:
    """Counted once per image, whatever the case; equal counts in alphabetical order."""
    objects = {5: ["tree", "Tree ", "tree", "tree"], 2: ["Man", "sky", "cup"], 3: ["sky", "man"], 4: ["ant"]}
    annotations = read_annotations(make_visual_genome(tmp_path, objects), num_categories=3, test_images=1)
    assert annotations.categories == ["man", "sky", "ant"]
    assert present(annotations) == {
        "VG_100K_2/2.jpg": ["man", "sky"],
        "VG_100K/3.jpg": ["man", "sky"],
        "VG_100K_2/4.jpg": ["ant"],
        "VG_100K/5.jpg": [],
    }
    assert annotations.complete
    assert annotations.name == "vg3"
    assert "counts as absent" in annotations.notes[0]


def make_labels_index(root: Path, numbers: dict[str, list[int]], train: list[str], test: list[str]) -> Path:
    """As the paper's authors published it; the images lie in both folders, as Visual Genome is delivered."""
    for place, image in enumerate(numbers):
        (root / f"VG_100K{'_2' * (place % 2)}").mkdir(parents=True, exist_ok=True)
        (root / f"VG_100K{'_2' * (place % 2)}" / image).touch()
    (root / "vg_category_200_labels_index.json").write_text(json.dumps(numbers))
    (root / "train_list_500.txt").write_text("\n".join(train) + "\n")
    (root / "test_list_500.txt").write_text("\n".join(test) + "\n")
    return root


def test_the_authors_visual_genome_has_its_rows_in_the_order_of_their_lists(tmp_path: Path) -> None:
    """Their draw of known labels goes row by row, so another order would be another draw."""
    numbers = {"9.jpg": [0, 2], "10.jpg": [1], "2.jpg": [2], "5.jpg": []}
    source = make_labels_index(tmp_path, numbers, ["10.jpg", "9.jpg", "5.jpg"], ["2.jpg"])
    annotations = read_annotations(source)
    train = annotations.split("train")
    assert [Path(image).name for image in train.images] == ["10.jpg", "9.jpg", "5.jpg"]
    assert (train.labels == 1).tolist() == [[False, True, False], [True, False, True], [False, False, False]]
    assert train.complete
    assert [Path(image).name for image in annotations.split("test").images] == ["2.jpg"]
    draw = np.random.RandomState(0).random_sample((3, 3)) >= 0.5
    known = observe(train, DataConfig(known=0.5))[0].labels == 1
    assert (known == (draw & (train.labels == 1))).all()


def test_the_authors_categories_are_cut_and_named_by_number(tmp_path: Path) -> None:
    source = make_labels_index(tmp_path, {"1.jpg": [0, 3], "2.jpg": [1]}, ["1.jpg"], ["2.jpg"])
    annotations = read_annotations(source, num_categories=2, categories=["sky", "tree", "man", "car"])
    assert annotations.categories == ["sky", "tree"]
    assert annotations.labels.tolist() == [[1, -1], [-1, 1]]
    assert read_annotations(source).categories == [f"category {number}" for number in range(4)]
    with pytest.raises(UserError, match="2 names for 4 numbered categories"):
        read_annotations(source, categories=["sky", "tree"])


def test_an_image_that_is_missing_says_that_the_draw_is_another(tmp_path: Path) -> None:
    source = make_labels_index(tmp_path, {"1.jpg": [0], "2.jpg": [1], "3.jpg": [1]}, ["1.jpg", "3.jpg"], ["2.jpg"])
    assert "keeps the same labels as its authors" in " ".join(read_annotations(source).notes)
    (tmp_path / "VG_100K" / "3.jpg").unlink()
    annotations = read_annotations(source)
    assert "1 of the listed images are missing" in " ".join(annotations.notes)
    assert annotations.findings[0].kind == "missing image"


def test_the_authors_lists_are_asked_for_where_they_are_not_there(tmp_path: Path) -> None:
    source = make_labels_index(tmp_path, {"1.jpg": [0], "2.jpg": [0]}, ["1.jpg"], ["2.jpg"])
    (tmp_path / "train_list_500.txt").rename(tmp_path / "mine.txt")
    with pytest.raises(UserError, match="train_list"):
        read_annotations(source)
    assert len(read_annotations(source, train_list=tmp_path / "mine.txt")) == 1


def test_visual_genome_split_is_seeded(tmp_path: Path) -> None:
    source = make_visual_genome(tmp_path, {key: ["sky"] for key in range(1, 41)})
    first = read_annotations(source, test_images=10)
    assert (first.splits == "test").sum() == 10
    assert first.splits.tolist() == read_annotations(source, test_images=10).splits.tolist()
    assert first.splits.tolist() != read_annotations(source, test_images=10, split_seed=1).splits.tolist()
    with pytest.raises(UserError, match="leaves no training image"):
        read_annotations(source)
    (tmp_path / "test_list.txt").write_text("3.jpg\n4.jpg\n")
    listed = read_annotations(source, test_list=tmp_path / "test_list.txt")
    assert np.flatnonzero(listed.splits == "test").tolist() == [2, 3]


def test_visual_genome_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_visual_genome(tmp_path, {key: [f"thing {key % 3}", "sky"] for key in range(1, 20)})
    whole = read_annotations(source, test_images=3)
    monkeypatch.setattr(visual_genome, "CHUNK", 37)
    assert read_annotations(source, test_images=3).content_hash() == whole.content_hash()


def test_visual_genome_problems(tmp_path: Path) -> None:
    source = make_visual_genome(tmp_path, {1: ["sky"], 2: ["man"], 3: ["man"]})
    (source / "VG_100K/3.jpg").unlink()
    text = (source / "objects.json").read_text()
    (source / "objects.json").write_text(text[:-1] + ', {"image_id": 4}]')
    annotations = read_annotations(source, test_images=1)
    assert sorted(annotations.images) == ["VG_100K/1.jpg", "VG_100K_2/2.jpg"]
    assert [finding.kind for finding in annotations.findings] == ["malformed entry", "missing image"]
    (source / "objects.json").write_text(text[:-20])
    with pytest.raises(DataError, match="cut off"):
        read_annotations(source)
    (source / "objects.json").write_text("{}")
    with pytest.raises(DataError, match="should be a JSON list"):
        read_annotations(source)
