"""`fewtags discover` as people call it."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from conftest import TINY, Cli
from fewtags.commands.discover import end_of_path
from fewtags.config import load_config
from fewtags.data.annotations import Annotations
from fewtags.data.formats import read_annotations
from fewtags.engine.record import load_run_config
from fewtags.engine.training import train
from fewtags.review.store import DecisionStore, Draft, decisions_file


def read_csv(file: Path) -> list[dict[str, str]]:
    with file.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def test_lists_missing_tags_with_evidence(cli: Cli, partly_tagged: Path, patches: Annotations, tmp_path: Path):
    out, lines = tmp_path / "found.csv", tmp_path / "found.jsonl"
    answer = cli("discover", partly_tagged, "--min-probability", "0.05", "--csv", out, "--jsonl", lines)
    assert answer.code == 0, answer.err
    assert "Missing tags" in answer.out
    assert "(estimate)" in answer.out
    assert "measured" not in answer.out
    rows = read_csv(out)
    missing = [row for row in rows if row["kind"] == "missing"]
    probabilities = [float(row["probability"]) for row in missing]
    assert probabilities == sorted(probabilities, reverse=True)
    assert {row["status"] for row in rows} == {"new"}
    assert all(Path(missing[0][f"similar_{n}"]).is_file() for n in (1, 2, 3))
    assert set(missing[0]) >= {"image", "tag", "probability", "threshold"}
    records = [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()]
    assert [record["image"] for record in records] == [row["image"] for row in rows]
    assert answer.out.strip().endswith(f"{out}\n{lines}")


def test_a_label_is_one_line_of_80_columns_with_its_image_whole(cli: Cli, partly_tagged: Path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    answer = cli("discover", partly_tagged, "--min-probability", "0.05")
    listed = [line.split() for line in answer.out.splitlines() if line.rstrip().endswith(".png")]
    assert len(listed) >= 20
    assert all(len(line) == 3 and 0 <= float(line[1]) <= 1 for line in listed)
    assert max(map(len, answer.out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("room", "shown"),
    [
        (60, "2016/Birthday of grandmother/IMG_1.jpg"),
        (37, "…/Birthday of grandmother/IMG_1.jpg"),
        (20, "…/IMG_1.jpg"),
        (5, "…/IMG_1.jpg"),
    ],
)
def test_a_long_path_loses_its_first_folders(room: int, shown: str):
    assert end_of_path("2016/Birthday of grandmother/IMG_1.jpg", room) == shown
    assert end_of_path("IMG_1.jpg", room) == "IMG_1.jpg"


def test_held_out_images_are_looked_at_too(cli: Cli, partly_tagged: Path, patches: Annotations, tmp_path: Path):
    cli("discover", partly_tagged, "--min-probability", "0", "--csv", tmp_path / "all.csv")
    listed = {row["image"] for row in read_csv(tmp_path / "all.csv")}
    config = load_run_config(partly_tagged)
    tags = read_annotations(config.data.source, tags=config.data.tags)
    assert listed >= {image for image, row in zip(tags.images, tags.labels, strict=True) if (row == 0).any()}
    assert len(tags) == len(patches)


def test_with_complete_labels_the_precision_is_measured_beside_the_estimate(
    cli: Cli, trained: Path, patches: Annotations, tmp_path: Path
):
    """`trained` knows every label, so nothing is missing; an experiment that hides some finds them."""
    config = load_config(
        None,
        [*TINY, "data.known=0.6"],
        data={"source": str(patches.root), "tags": str(patches.root / "tags.csv"), "options": {"complete": True}},
    )
    train(config, tmp_path / "run", quiet=True)
    answer = cli("discover", tmp_path / "run", "--min-probability", "0.01", "--csv", tmp_path / "found.csv")
    assert answer.code == 0, answer.err
    assert "measured" in answer.out
    rows = [row for row in read_csv(tmp_path / "found.csv") if row["kind"] == "missing"]
    truth = {
        (image, name)
        for image, row in zip(patches.images, patches.labels, strict=True)
        for name, label in zip(patches.categories, row, strict=True)
        if label == 1
    }
    assert all((row["right"] == "True") == ((row["image"], row["tag"]) in truth) for row in rows)
    share = np.mean([row["right"] == "True" for row in rows])
    assert f"measured {share:6.1%}" in answer.out


def test_what_was_decided_says_so(cli: Cli, partly_tagged: Path, tmp_path: Path):
    run = tmp_path / "run"
    shutil.copytree(partly_tagged, run)
    cli("discover", run, "--min-probability", "0", "--csv", tmp_path / "before.csv")
    first, second, *_ = (row for row in read_csv(tmp_path / "before.csv") if row["kind"] == "missing")
    with DecisionStore(decisions_file(run)) as store:
        drafts = [Draft(first["image"], first["tag"], 0, 1), Draft(second["image"], second["tag"], 0, -1)]
        store.append(drafts, reviewer="ann", queue="missing", run="run")
    cli("discover", run, "--min-probability", "0", "--csv", tmp_path / "after.csv")
    after = {(row["image"], row["tag"]): row for row in read_csv(tmp_path / "after.csv")}
    assert after[first["image"], first["tag"]]["status"] == "decided"
    assert after[first["image"], first["tag"]]["decision"] == "present"
    assert after[second["image"], second["tag"]]["decision"] == "absent"
    assert sum(row["status"] == "decided" for row in after.values()) == 2


def test_other_images_without_tags(cli: Cli, partly_tagged: Path, patches: Annotations, tmp_path: Path):
    folder = tmp_path / "more"
    folder.mkdir()
    for name in patches.images[:5]:
        shutil.copy(patches.root / name, folder / f"-{name}")
    answer = cli("discover", partly_tagged, folder, "--min-probability", "0", "--csv", tmp_path / "found.csv")
    assert answer.code == 0, answer.err
    rows = read_csv(tmp_path / "found.csv")
    assert len(rows) == 5 * len(patches.categories)
    assert all(str(patches.root) in row["similar_1"] for row in rows)


def test_a_spreadsheet_does_not_take_a_cell_for_a_formula(
    cli: Cli, partly_tagged: Path, patches: Annotations, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    Path("=photos").mkdir()
    shutil.copy(patches.root / patches.images[0], "=photos/a.png")
    cli("discover", partly_tagged, "=photos", "--min-probability", "0", "--csv", "found.csv")
    assert {row["image"] for row in read_csv(Path("found.csv"))} == {"'=photos/a.png"}


def test_one_tag_and_a_limit(cli: Cli, partly_tagged: Path, tmp_path: Path):
    answer = cli(
        "discover", partly_tagged, "--tag", "red", "--limit", "3", "--min-probability", "0", "--csv", tmp_path / "a.csv"
    )
    rows = [row for row in read_csv(tmp_path / "a.csv") if row["kind"] == "missing"]
    assert [row["tag"] for row in rows] == ["red"] * 3
    assert "--limit" in answer.out


def test_an_unknown_tag_is_an_error_that_helps(cli: Cli, partly_tagged: Path):
    answer = cli("discover", partly_tagged, "--tag", "rde")
    assert answer.code == 2
    assert "did you mean 'red'?" in answer.err


def test_a_second_look_does_not_read_the_images_again(cli: Cli, partly_tagged: Path, monkeypatch: pytest.MonkeyPatch):
    first = cli("discover", partly_tagged)
    monkeypatch.setattr("fewtags.engine.features.Wanted._compute", lambda *_: pytest.fail("computed again"))
    assert cli("discover", partly_tagged).out == first.out
