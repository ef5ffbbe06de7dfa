"""Keyword trees as a user has them: read from photos, learned, predicted and written back as the same tree."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from conftest import TINY, Cli
from fewtags.discovery import open_run
from fewtags.engine.model_outputs import UnitFeatures
from fewtags.engine.own_images import OwnImages, OwnPhotos
from fewtags.labels import ABSENT, PRESENT, UNKNOWN
from fewtags.review.opening import open_review
from fewtags.review.session import Answer, ReviewSession
from fewtags.review.store import DecisionStore, Draft

exiftool = pytest.mark.skipif(shutil.which("exiftool") is None, reason="exiftool is not installed")
HOME = {"red": ("colour", "warm", "red"), "green": ("colour", "cold", "green"), "blue": ("colour", "cold", "blue")}
LISTS = ("XMP-dc:Subject", "XMP-lr:HierarchicalSubject", "XMP-digiKam:TagsList")


def digikam(tags: list[str]) -> list[str]:
    """As digiKam writes: the assigned tags with their path, and their names."""
    paths = [HOME[tag] for tag in tags]
    return [
        *(f"-XMP-digiKam:TagsList={'/'.join(path)}" for path in paths),
        *(f"-XMP-lr:HierarchicalSubject={'|'.join(path)}" for path in paths),
        *(f"-XMP-dc:Subject={path[-1]}" for path in paths),
    ]


def lightroom(tags: list[str]) -> list[str]:
    """With the levels above as entries of their own, and all names flat."""
    paths = dict.fromkeys(HOME[tag][:depth] for tag in tags for depth in (1, 2, 3))
    return [
        *(f"-XMP-lr:HierarchicalSubject={'|'.join(path)}" for path in paths),
        *(f"-XMP-dc:Subject={path[-1]}" for path in paths),
    ]


def photos_by(program, patches, folder: Path) -> Path:
    """Photos that a program has tagged, one of them with everything, and two that nobody has tagged."""
    folder.mkdir()
    for row in range(10):
        shutil.copy(patches.path(row), folder / f"{row:02d}.png")
    for row, tags in enumerate([list(HOME), *list(by_tags(patches).values())[1:8]]):
        if tags:
            command = ["exiftool", "-q", "-overwrite_original", *program(tags), str(folder / f"{row:02d}.png")]
            subprocess.run(command, check=True)
    return folder


def by_tags(patches) -> dict[str, list[str]]:
    names = patches.categories
    return {
        f"{row:02d}.png": [name for name, label in zip(names, labels, strict=True) if label == 1]
        for row, labels in enumerate(patches.labels)
    }


def lists(file: Path) -> dict[str, list[str]]:
    """The lists of keywords, byte for byte as exiftool prints them."""
    found = {}
    for name in LISTS:
        command = ["exiftool", "-b", "-sep", "\n", f"-{name}", str(file)]
        out = subprocess.run(command, check=True, capture_output=True).stdout.decode()
        found[name] = sorted(filter(None, out.split("\n")))
    return found


def train(cli: Cli, photos: Path, run: Path, *more: str) -> None:
    settings = [setting for setting in TINY if not setting.startswith("method=")]
    answer = cli("train", photos, *settings, "method=instant", "--out", run, "-q", *more)
    assert answer.code == 0, answer.err


def rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as stream:
        return list(csv.DictReader(stream))


@exiftool
@pytest.mark.parametrize("program", [digikam, lightroom])
def test_the_same_tree_comes_back(cli: Cli, patches, tmp_path, program):
    photos, run = photos_by(program, patches, tmp_path / "photos"), tmp_path / "run"
    assert "5 tags have a place in a tree, below 'colour'" in cli("check", photos).out
    person = lists(photos / "00.png")
    before = {file.name: file.read_bytes() for file in photos.iterdir()}
    train(cli, photos, run)
    assert cli("predict", run, photos, "--threshold", "0", "--write", "xmp", "-q").code == 0
    written = lists(photos / "09.png.xmp")
    for name in LISTS:
        if person[name]:
            assert written[name] == person[name]
    if not person["XMP-digiKam:TagsList"]:  # which Lightroom does not write, and Immich reads first
        assert written["XMP-digiKam:TagsList"] == [
            path.replace("|", "/") for path in person["XMP-lr:HierarchicalSubject"]
        ]
    assert not (photos / "00.png.xmp").exists()  # it has everything
    some = lists(photos / "01.png.xmp")
    assert some["XMP-lr:HierarchicalSubject"] == person["XMP-lr:HierarchicalSubject"]
    cli("untag", photos)
    assert {file.name: file.read_bytes() for file in photos.iterdir()} == before


@exiftool
def test_a_keyword_without_levels_is_put_where_the_tree_has_it(cli: Cli, patches, tmp_path):
    """Or a program that prefers the new list would show a second tree."""
    photos, run = photos_by(digikam, patches, tmp_path / "photos"), tmp_path / "run"
    train(cli, photos, run)
    edit = ["exiftool", "-q", "-overwrite_original", "-XMP-dc:Subject=blue", str(photos / "09.png")]
    subprocess.run(edit, check=True)
    assert cli("predict", run, photos / "09.png", "--write", "xmp", "--threshold", "0", "-q").code == 0
    paths = sorted("|".join(path) for path in HOME.values())
    assert lists(photos / "09.png.xmp")["XMP-lr:HierarchicalSubject"] == paths


def csv_tree(patches, folder: Path) -> Path:
    """The tags of `patches` as a person with a tree would write them in a table."""
    file = folder / "tags.csv"
    lines = [f"{name},{';'.join('|'.join(HOME[tag]) for tag in tags)}" for name, tags in by_tags(patches).items()]
    file.write_text("\n".join(["image,tags", *lines]) + "\n")
    return file


def test_no_child_is_more_probable_than_its_parents(cli: Cli, patches, tmp_path):
    run, out = tmp_path / "run", tmp_path / "out.csv"
    train(cli, patches.root, run, "--tags", str(csv_tree(patches, tmp_path)))
    assert json.loads((run / "model" / "labels.json").read_text())["tree"]["implied"]["red"] == ["colour", "warm"]
    assert cli("predict", run, patches.root, "--as-new", "--all-scores", "--out", out, "-q").code == 0
    found = rows(out)
    for row in found:
        tags = row["tags"].split(";")
        for tag, path in HOME.items():
            assert float(row[path[0]]) >= float(row[path[1]]) >= float(row[tag])
            if tag in tags:
                assert set(path) <= set(tags)
    assert any("colour" in row["tags"] for row in found)

    exported = tmp_path / "model.onnx"
    assert cli("export", run, "--out", exported).code == 0
    assert cli("predict", exported, patches.root, "--all-scores", "--out", tmp_path / "exported.csv", "-q").code == 0
    for one, other in zip(found, rows(tmp_path / "exported.csv"), strict=True):
        assert one["tags"] == other["tags"]


def test_discover_review_and_predict_follow_the_tree_and_agree(cli: Cli, patches, tmp_path):
    """Of the run's own photos, of which only some tags are known, also after decisions."""
    random, file, run = np.random.default_rng(0), csv_tree(patches, tmp_path), tmp_path / "run"
    head, *lines = file.read_text().splitlines()
    some = [line if random.random() < 0.4 else f"{line.split(',')[0]}," for line in lines]
    file.write_text("\n".join([head, *some]) + "\n")
    train(cli, patches.root, run, "--tags", str(file))
    session = open_review(run, quiet=True).session
    names = session.annotations.categories
    open_rows = np.flatnonzero((session.given == UNKNOWN).all(1))
    answers = [Answer(int(row), "red", PRESENT if place % 2 else ABSENT) for place, row in enumerate(open_rows[:6])]
    session.decide(answers, queue="missing")
    assert cli("discover", run, "--min-probability", "0", "--jsonl", tmp_path / "found.jsonl", "-q").code == 0
    found = [json.loads(line) for line in (tmp_path / "found.jsonl").read_text().splitlines()]
    said = {(row["image"], row["tag"]): row["probability"] for row in found if row["kind"] == "missing"}
    assert cli("predict", run, patches.root, "--all-scores", "--out", tmp_path / "own.csv", "-q").code == 0
    predicted = {Path(row["image"]).name: row for row in rows(tmp_path / "own.csv")}
    page = {name: session.ranker.chances(column).missing for column, name in enumerate(names)}
    raised = 0
    for row in open_rows[6:].tolist():
        image = session.annotations.images[row]
        tags = {tag.category: tag.probability for tag in session.tags(row)}
        for column, name in enumerate(names):
            values = [page[name][row], tags[name], said[image, name], float(predicted[Path(image).name][name])]
            assert values == pytest.approx([values[0]] * 4, abs=1e-4)
            raised += session.ranker.own_chances(column, session.ranker.lesson(column)).missing[row] < values[0] - 1e-4
        for tag, path in HOME.items():
            assert page[path[0]][row] >= page[path[1]][row] >= page[tag][row]
    assert raised > 0
    for row in open_rows[:6].tolist():  # of what was decided
        image, tags = session.annotations.images[row], {tag.category: tag.probability for tag in session.tags(row)}
        for name in ("colour", "warm", "red"):
            assert [tags[name], said[image, name]] == pytest.approx([page[name][row]] * 2, abs=1e-4)
        decided = float(session.labels[row, names.index("red")] == PRESENT)
        assert float(predicted[Path(image).name]["red"]) == decided
        assert float(predicted[Path(image).name]["warm"]) == pytest.approx(page["warm"][row], abs=1e-4)


@pytest.mark.parametrize("tag", ["red", "warm"])
def test_what_was_decided_absent_does_not_raise_what_it_implies(cli: Cli, patches, tmp_path, tag):
    """However much the photo looks like it: on the page, in `discover`, and in `predict` for the run's own photos. Nor
    does red where warm was decided absent."""
    random, file, run = np.random.default_rng(0), csv_tree(patches, tmp_path), tmp_path / "run"
    head, *lines = file.read_text().splitlines()
    some = [line if random.random() < 0.4 else f"{line.split(',')[0]}," for line in lines]
    file.write_text("\n".join([head, *some]) + "\n")
    train(cli, patches.root, run, "--tags", str(file))
    decided, opened = {}, open_run(run, quiet=True)
    row = int(np.flatnonzero((opened.annotations.labels == UNKNOWN).all(1))[0])
    image, names = opened.annotations.images[row], opened.annotations.categories
    colour, warm, red = map(names.index, ("colour", "warm", "red"))

    def said() -> list[float]:
        """Of colour, by everyone. What is decided does not teach here."""
        opened.judge.odds[row] = -3
        opened.judge.odds[row, [warm, red]] = 9
        own = OwnImages(opened.annotations, opened.annotations.labels, None)
        table = opened.discover(decided=decided, min_probability=0.0, limit=10**6).missing
        (place,) = np.flatnonzero((table.rows == row) & (table.columns == colour))
        mine = OwnPhotos.of(own, opened.judge, decided).probabilities(opened.annotations.path(row))
        session = ReviewSession(opened.annotations, UnitFeatures(opened.outputs), store, judge=opened.judge)
        ranker = session.ranker
        ranker.lesson = lambda column: None
        before = dict(ranker.before_decisions())[colour].missing[row]
        page = [float(ranker.chances(colour).missing[row]), ranker.chance(row, colour), float(before)]
        predicted = opened.saved.tree.raised(mine, names)[colour]
        return [*page, float(table.probabilities[place]), float(predicted)]

    store = DecisionStore(None)
    assert min(said()) > 0.9
    drafts = [Draft(image, name, 0, ABSENT) for name in (("red", "warm") if tag == "red" else ("warm",))]
    store.append(drafts, reviewer="", queue="missing", run="")
    decided = store.labels()
    assert max(said()) < 0.5


def test_at_least_the_parent_if_the_child_is_unsure(cli: Cli, patches, tmp_path):
    run, out = tmp_path / "run", tmp_path / "out.csv"
    train(cli, patches.root, run, "--tags", str(csv_tree(patches, tmp_path)))
    assert cli("predict", run, patches.root, "--as-new", "--all-scores", "--out", out, "-q").code == 0

    def gap(row: dict[str, str]) -> float:
        return float(row["cold"]) - max(float(row["green"]), float(row["blue"]))

    row = max(rows(out), key=gap)
    assert gap(row) > 0.02
    threshold = float(row["cold"]) - gap(row) / 2
    answer = cli("predict", run, row["image"], "--as-new", "--threshold", f"{threshold:.4f}", "-q")
    tags = next(csv.DictReader(answer.out.splitlines()))["tags"].split(";")
    assert {"colour", "cold"} <= set(tags)
    assert not {"green", "blue"} & set(tags)
    photo = tmp_path / "photo.png"
    shutil.copy(row["image"], photo)
    cli("predict", run, photo, "--threshold", f"{threshold:.4f}", "--write", "xmp", "-q")
    text = (tmp_path / "photo.png.xmp").read_text()
    assert "colour|cold</rdf:li>" in text
    assert "<rdf:li>colour/cold</rdf:li>" in text


def test_implies_of_an_alias_file_is_followed_by_predictions(cli: Cli, patches, some_tags, tmp_path):
    aliases = tmp_path / "aliases.yaml"
    aliases.write_text("implies:\n  red: [warm]\n  green: [cold]\n  blue: [cold]\n")
    run, out = tmp_path / "run", tmp_path / "out.csv"
    train(cli, patches.root, run, "--tags", str(some_tags), "--aliases", str(aliases))
    assert cli("predict", run, patches.root, "--all-scores", "--threshold", "0.6", "--out", out, "-q").code == 0
    for row in rows(out):
        assert float(row["warm"]) >= float(row["red"])
        assert float(row["cold"]) >= max(float(row["green"]), float(row["blue"]))
        assert "red" not in row["tags"].split(";") or "warm" in row["tags"].split(";")
