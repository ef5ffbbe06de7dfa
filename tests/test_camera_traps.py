"""Camera traps: Camtrap DP in and out; MegaDetector's results as labels, as a filter for blanks, as crops; groups."""

from __future__ import annotations

import csv
import json
import os
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from conftest import TINY, Cli
from fewtags.data.annotations import Annotations
from fewtags.data.formats import read_annotations
from fewtags.data.splitting import stratified_split

DEPLOYMENTS = (
    "deploymentID,locationID,latitude,longitude,deploymentStart,deploymentEnd\n"
    "d1,l1,50.7,4.0,2020-03-01T00:00:00Z,2020-04-01T00:00:00Z\n"
)
OBSERVED = (
    "observationID,deploymentID,mediaID,eventID,eventStart,eventEnd,observationLevel,observationType,scientificName,"
    "count,classificationMethod,classifiedBy,classificationProbability"
)
TAXA = [
    {"scientificName": "Vulpes vulpes", "taxonRank": "species", "order": "Carnivora", "family": "Canidae"},
    {"scientificName": "Ardea", "taxonRank": "genus", "class": "Aves", "genus": "Ardea"},
]


def times(minute: int) -> str:
    return f"2020-03-24T11:{minute:02d}:00Z"


@pytest.fixture
def package(patches, tmp_path) -> Path:
    """Twelve images in six events of two, one of them on the web; observations of people, one of a machine."""
    folder = tmp_path / "package"
    (folder / "media").mkdir(parents=True)
    media = ["mediaID,deploymentID,captureMethod,timestamp,filePath,filePublic,fileName,fileMediatype"]
    for n in range(12):
        with Image.open(patches.path(n)) as picture:
            picture.save(folder / "media" / f"IMG_{n:02d}.jpg")
        path = f"media/IMG_{n:02d}.jpg" if n else "https://example.org/assets/1/file"
        media.append(f"m{n},d1,motionDetection,{times(n)},{path},true,IMG_{n:02d}.jpg,image/jpeg")
    rows = [OBSERVED]
    for event in range(6):
        start = f"{times(2 * event)},{times(2 * event + 1)}"
        first, kind = f"m{2 * event}", ("fox", "fox", "heron", "heron", "blank", "human")[event]
        name = {"fox": "Vulpes vulpes", "heron": "Ardea"}.get(kind, "")
        what = kind if kind in ("blank", "human") else "animal"
        rows.append(f"o{event},d1,{first},e{event},{start},media,{what},{name},1,human,Ann,")
    rows.append(f"e,d1,,e1,{times(2)},{times(3)},event,animal,Ardea,1,human,Ann,")
    rows.append(f"x,d1,m5,e2,{times(4)},{times(5)},media,animal,Vulpes vulpes,1,machine,MegaDetector,0.9")
    (folder / "media.csv").write_text("\n".join(media) + "\n")
    (folder / "observations.csv").write_text("\n".join(rows) + "\n")
    (folder / "deployments.csv").write_text(DEPLOYMENTS)
    resources = [{"name": name, "path": f"{name}.csv"} for name in ("deployments", "media", "observations")]
    (folder / "datapackage.json").write_text(json.dumps({"resources": resources, "taxonomic": TAXA}))
    return folder


def tags_of(annotations: Annotations, state: int = 1) -> dict[str, set[str]]:
    names = np.array(annotations.categories)
    rows = zip(annotations.images, annotations.labels, strict=True)
    return {Path(image).stem: set(names[row == state].tolist()) for image, row in rows}


def test_observations_are_partial_labels_and_events_are_groups(package):
    annotations = read_annotations(package)
    tags = tags_of(annotations)
    assert tags["IMG_00"] == {"animal", "Carnivora", "Canidae", "Vulpes vulpes"}  # found by its name, not on the web
    assert tags["IMG_04"] == {"animal", "Aves", "Ardea"}
    assert tags["IMG_10"] == {"human"}
    assert tags["IMG_01"] == tags["IMG_03"] == tags["IMG_05"] == set()
    blank = tags_of(annotations, -1)["IMG_08"]
    assert blank == set(annotations.categories)
    assert "IMG_09" in tags_of(annotations, -1)
    assert annotations.groups is not None
    assert annotations.groups.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert annotations.ids is not None
    assert annotations.ids[3] == "m3"
    notes = " ".join(annotations.notes)
    assert "6 groups of several images; validation is split by them." in notes
    assert "1 observation of machines skipped (machine=true reads them)" in notes
    assert "1 observation of events with several media files skipped" in notes
    assert tags_of(read_annotations(package, machine=True))["IMG_05"] >= {"Vulpes vulpes"}
    assert "Canidae" not in read_annotations(package, taxonomy=False).categories


def test_sequences_of_older_packages_are_groups(package):
    rows = list(csv.reader((package / "media.csv").read_text().splitlines()))
    lines = [",".join([*row, "sequenceID" if n == 0 else f"s{(n - 1) // 3}"]) for n, row in enumerate(rows)]
    (package / "media.csv").write_text("\n".join(lines) + "\n")
    groups = read_annotations(package).groups
    assert groups is not None
    assert groups.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]


def train(cli: Cli, source: Path, run: Path, *more: str) -> str:
    settings = [setting for setting in TINY if not setting.startswith("method=")]
    answer = cli("train", source, *settings, "method=instant", "--out", run, *more)
    assert answer.code == 0, answer.err
    return answer.out + answer.err


def test_from_a_package_to_observations_of_a_machine(cli: Cli, package, tmp_path):
    run, out = tmp_path / "run", tmp_path / "out"
    assert "6 groups of several images; validation is split by them." in cli("check", package).out
    train(cli, package, run, "-q")
    options = ["-o", f"package={package}", "-o", f"out={out}", "--threshold", "0", "-q"]
    before = (package / "observations.csv").read_text()
    answer = cli("predict", run, package / "media", "--write", "camtrapdp", *options)
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.endswith(f"36 observations written to {out}.\n")  # of two species and people, in 12 images
    assert (package / "observations.csv").read_text() == before
    rows = list(csv.DictReader((out / "observations.csv").open()))
    assert [row["observationID"] for row in rows[:8]] == ["o0", "o1", "o2", "o3", "o4", "o5", "e", "x"]
    new = rows[8:]
    assert len({row["observationID"] for row in rows}) == len(rows)
    assert {(row["observationType"], row["scientificName"]) for row in new} == {
        ("animal", "Vulpes vulpes"), ("animal", "Ardea"), ("human", ""),
    }  # fmt: skip
    for row in new:
        assert (row["classificationMethod"], row["classifiedBy"]) == ("machine", "fewtags")
        assert (row["observationLevel"], row["deploymentID"]) == ("media", "d1")
        assert row["eventStart"] == row["eventEnd"] == times(int(row["mediaID"][1:]))
        assert row["eventID"] == f"e{int(row['mediaID'][1:]) // 2}"
        assert 0 <= float(row["classificationProbability"]) <= 1
    for name in ("datapackage.json", "media.csv", "deployments.csv"):
        assert (out / name).read_bytes() == (package / name).read_bytes()
    again = read_annotations(package / "media", tags=out / "media.csv", format="camtrapdp")
    assert tags_of(again) == tags_of(read_annotations(package))  # what a machine wrote is not what a person said
    exists = cli("predict", run, package / "media", "--write", "camtrapdp", *options)
    assert (exists.code, "already exists" in exists.err) == (2, True)


# --- MegaDetector ---


@pytest.fixture
def detected(patches, tmp_path) -> Path:
    """Eight images: four with an animal on their left half, one unsure, one with a person, one blank, one failed."""
    folder = tmp_path / "trap"
    folder.mkdir()
    left = [0.0, 0.25, 0.5, 0.5]
    entries: list[dict] = []
    for n in range(8):
        Image.new("RGB", (200, 100), (10 * n, 200, 40)).save(folder / f"{n}.jpg")
        confidence = (0.9, 0.8, 0.9, 0.7, 0.1, 0.02, 0.02, 0.0)[n]
        entries.append({"file": f"{n}.jpg", "detections": [{"category": "1", "conf": confidence, "bbox": left}]})
    entries[0]["detections"][0]["classifications"] = [["0", 0.9], ["1", 0.05]]
    entries[1]["detections"][0]["classifications"] = [["1", 0.5]]
    entries[5]["detections"].append({"category": "2", "conf": 0.6, "bbox": [0.5, 0, 0.5, 1]})
    entries[6]["detections"] = []
    entries[7] = {"file": "7.jpg", "failure": "Failure image access", "detections": None}
    content = {
        "info": {"format_version": "1.4", "detector": "md_v5a.0.0.pt"},
        "detection_categories": {"1": "animal", "2": "person", "3": "vehicle"},
        "classification_categories": {"0": "fox", "1": "elk"},
        "images": entries,
    }
    (folder / "md.json").write_text(json.dumps(content))
    return folder


def test_detections_are_labels_of_three_states(detected):
    annotations = read_annotations(detected)
    assert tags_of(annotations) == {
        "0": {"animal", "fox"}, "1": {"animal"}, "2": {"animal"}, "3": {"animal"}, "4": set(), "5": {"person"},
        "6": set(), "7": set(),
    }  # fmt: skip
    absent = tags_of(annotations, -1)
    assert absent["4"] == {"person", "vehicle"}  # an animal is neither sure nor excluded
    assert absent["5"] == {"animal", "vehicle", "fox"}
    assert absent["6"] == {"animal", "person", "vehicle", "fox"}
    assert absent["7"] == set()
    assert annotations.tree.implied == {"fox": ("animal",)}
    assert [finding.kind for finding in annotations.findings] == ["unreadable image"]


@pytest.mark.parametrize("first", ["info", "detection_categories", "images"])
def test_results_are_recognised_whatever_comes_first(detected, first):
    """MegaDetector itself writes the images first, and more than a look at the beginning of the file."""
    content = json.loads((detected / "md.json").read_text())
    content["images"] += [{"file": f"other/{n}.jpg", "failure": "Failure image access"} for n in range(200)]
    content = {first: content.pop(first), **content}
    (detected / "md.json").write_text(json.dumps(content, indent=1))
    for source in (detected, detected / "md.json"):
        annotations = read_annotations(source)
        assert "MegaDetector's results" in annotations.notes[0]
        assert tags_of(annotations)["0"] == {"animal", "fox"}


def test_blank_images_are_left_out(cli: Cli, detected):
    (detected / "tags.csv").write_text(
        "image,tags\n" + "".join(f"{n}.jpg,{'fox' if n % 2 else 'elk'}\n" for n in range(8))
    )
    answer = cli("check", detected, "--tags", detected / "tags.csv", "-o", f"detections={detected / 'md.json'}")
    assert answer.code == 0
    assert "2 images without a detection in" in answer.out
    assert "1 image not in" in answer.out  # it failed, so nothing is known
    options = {"tags": detected / "tags.csv", "detections": detected / "md.json"}
    assert read_annotations(detected, **options).images == ["0.jpg", "1.jpg", "2.jpg", "3.jpg", "5.jpg", "7.jpg"]
    assert len(read_annotations(detected, **options, min_detection=0.75)) == 4


def test_training_on_crops(cli: Cli, detected, tmp_path):
    tags = detected / "tags.csv"
    tags.write_text("image,tags\n" + "".join(f"{n}.jpg,{'fox' if n % 2 else 'elk'}\n" for n in range(8)))
    crops = tmp_path / "crops"
    options = ["--tags", str(tags), "-o", f"detections={detected / 'md.json'}", "-o", f"crops={crops}"]
    out = train(cli, detected, tmp_path / "run", *options)
    assert f"Every image is its surest detection; the pictures are in {crops}." in out
    with Image.open(crops / "0.jpg") as picture:
        assert picture.size == (110, 70)  # half of 200 x 100 and a tenth of the longer side around it
    with Image.open(crops / "7.jpg") as picture:
        assert picture.size == (200, 100)  # not searched, so whole
    assert cli("predict", tmp_path / "run", crops, "-q").code == 0


def test_crops_are_each_image_s_own_and_follow_it(detected, tmp_path):
    """Also of images that differ in their ending only, or are elsewhere; a crop is made again if its image changed."""
    crops, outside = detected / "crops", tmp_path / "outside"
    outside.mkdir()
    Image.new("RGB", (200, 100), "blue").save(detected / "0.png")
    Image.new("RGB", (60, 100), "white").save(outside / "0.jpg")
    (detected / "tags.csv").write_text("image,tags\n0.jpg,fox\n0.png,elk\n../outside/0.jpg,elk\n")
    options = {"detections": str(detected / "md.json"), "crops": str(crops), "allow_outside": True}

    def sizes() -> dict[str, tuple[int, int]]:
        annotations = read_annotations(detected / "tags.csv", **options)
        return {name: Image.open(annotations.root / name).size for name in annotations.images}

    assert sizes() == {"0.jpg": (110, 70), "0.png.jpg": (200, 100), "outside/0.jpg": (60, 100)}
    assert all((crops / name).is_file() for name in sizes())
    Image.new("RGB", (400, 200), "green").save(detected / "0.jpg")
    os.utime(detected / "0.jpg", (time.time() + 5, time.time() + 5))
    assert sizes()["0.jpg"] == (220, 140)


@pytest.mark.parametrize("content", ["[]", "{}", '{"detection_categories": {"1": "a"}, "images": 3}', "{"])
def test_a_file_that_is_something_else_is_one_sentence(cli: Cli, detected, content):
    (detected / "md.json").write_text(content)
    (detected / "tags.csv").write_text("image,tags\n0.jpg,fox\n")
    answer = cli("check", detected, "--tags", detected / "tags.csv", "-o", f"detections={detected / 'md.json'}")
    assert (answer.code != 0, answer.err.count("\n")) == (True, 1)


def test_events_are_looked_up_not_searched_for(tmp_path):
    """Large packages have tens of thousands of events, most of them observed as a whole."""
    number = 20_000
    media = [f"m{n},d1,2020-03-01T00:00:00Z,{n}.jpg,s{n}" for n in range(number)]
    (tmp_path / "media.csv").write_text("\n".join(["mediaID,deploymentID,timestamp,filePath,sequenceID", *media]))
    seen = [f"o{n},d1,,s{n},animal,Vulpes vulpes" for n in range(number)]
    head = "observationID,deploymentID,mediaID,sequenceID,observationType,scientificName"
    (tmp_path / "observations.csv").write_text("\n".join([head, *seen]))
    Image.new("RGB", (8, 8)).save(tmp_path / "7.jpg")
    began = time.process_time()
    annotations = read_annotations(tmp_path)
    assert tags_of(annotations) == {"7": {"animal", "Vulpes vulpes"}}  # an event of one media file
    assert time.process_time() - began < 3  # processor seconds; twice that if every event is searched for


# --- groups ---


def test_a_group_is_never_on_both_sides():
    random = np.random.default_rng(0)
    groups = random.integers(0, 60, 300)
    labels = (random.random((300, 5)) < 0.2).astype(np.int8)
    held_out = stratified_split(labels, 0.2, groups=groups)
    assert not set(groups[held_out]) & set(groups[~held_out])
    assert 0.1 < held_out.mean() < 0.3
    assert (stratified_split(labels, 0.2) == stratified_split(labels, 0.2, groups=np.arange(300))).all()


@pytest.mark.parametrize("kind", ["column", "onehot", "folders"])
def test_groups_by_a_column_and_by_folders(cli: Cli, patches, tmp_path, kind):
    photos = tmp_path / "photos"
    lines, more = ["image,burst,tags"], ["-o", "group_column=burst"]
    if kind == "onehot":
        lines = ["image,burst,red,blue"]
    for n in range(20):
        name = f"{n // 4}/{n}.png" if kind == "folders" else f"{n}.png"
        (photos / name).parent.mkdir(parents=True, exist_ok=True)
        (photos / name).write_bytes(patches.path(n).read_bytes())
        tag = "red" if n // 4 % 2 else "blue"
        values = f"{int(tag == 'red')},{int(tag == 'blue')}" if kind == "onehot" else tag
        lines.append(f"{name},b{n // 4},{values}")
    if kind == "folders":
        more = ["-o", "groups=folders", "-o", "tag_column=tags"]
    (tmp_path / "tags.csv").write_text("\n".join(lines) + "\n")
    answer = cli("check", photos, "--tags", tmp_path / "tags.csv", *more)
    assert "5 groups of several images; validation is split by them." in answer.out
    train(cli, photos, tmp_path / "run", "--tags", str(tmp_path / "tags.csv"), *more, "data.val_share=0.4", "-q")
    with np.load(tmp_path / "run" / "labels.npz") as saved:
        numbers = np.array([int(Path(str(image)).stem) // 4 for image in saved["images"]])
        sides = saved["splits"]
    assert set(sides) == {"train", "val"}
    assert all(len(set(sides[numbers == group])) == 1 for group in range(5))
