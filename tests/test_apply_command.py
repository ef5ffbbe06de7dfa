"""From decisions to new labels, another run, and what it was worth: `apply`, `train --reviewed`, `compare`."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import TINY, Cli
from fewtags.commands import apply
from fewtags.config import load_config
from fewtags.data.annotations import Annotations
from fewtags.data.formats import read_annotations
from fewtags.engine.record import load_labels, load_run_config, load_run_data
from fewtags.engine.training import train
from fewtags.errors import DataError
from fewtags.models.saved import load_model
from fewtags.review.store import DecisionStore, Draft, decisions_file


@pytest.fixture
def reviewed(partly_tagged: Path, patches: Annotations, some_tags: Path, tmp_path: Path) -> Path:
    """A copy of the run with decisions: every unknown label of its first ten training images, by the truth."""
    run, images, tags = tmp_path / "run", tmp_path / "photos", tmp_path / "tags.csv"
    shutil.copytree(partly_tagged, run)
    shutil.copytree(patches.root, images)
    shutil.copy(some_tags, tags)
    config = (
        (run / "config.yaml").read_text().replace(str(patches.root), str(images)).replace(str(some_tags), str(tags))
    )
    (run / "config.yaml").write_text(config)
    train = load_run_data(run).train
    drafts = []
    for image, row in list(zip(train.images, train.labels, strict=True))[:10]:
        for name, given in zip(train.categories, row, strict=True):
            truth = int(patches.labels[patches.images.index(image), patches.categories.index(name)])
            if given == 0:
                drafts.append(Draft(image, name, 0, truth))
    with DecisionStore(decisions_file(run)) as store:
        store.append(drafts, reviewer="ann", queue="missing", run="run")
    return run


def decisions(run: Path) -> dict[tuple[str, str], int]:
    with DecisionStore(decisions_file(run), read_only=True) as store:
        return store.labels()


# --- apply ---


def test_apply_shows_the_difference_and_writes_a_csv_of_the_same_shape(cli: Cli, reviewed: Path, tmp_path: Path):
    dry = cli("apply", reviewed, "--dry-run")
    assert dry.code == 0, dry.err
    assert "unknown -> present" in dry.out
    assert "unknown -> absent" in dry.out
    assert not (reviewed / "reviewed").exists()
    before = (tmp_path / "tags.csv").read_text()
    answer = cli("apply", reviewed, "--yes")
    assert answer.code == 0, answer.err
    new = reviewed / "reviewed" / "tags.csv"
    assert (tmp_path / "tags.csv").read_text() == before
    with new.open(newline="") as lines:
        assert next(csv.reader(lines)) == ["photographer", "image", "tags"]
    again = read_annotations(tmp_path / "photos", tags=new)
    for (image, tag), wanted in decisions(reviewed).items():
        assert again.labels[again.images.index(image), again.categories.index(tag)] == wanted
    assert f"fewtags train {tmp_path / 'photos'} --tags {new}" in answer.out


def test_apply_asks_first_and_never_writes_over_anything(cli: Cli, reviewed: Path, tmp_path: Path):
    answer = cli("apply", reviewed)
    assert answer.code == 2
    assert "--yes" in answer.err
    assert not (reviewed / "reviewed").exists()
    for place in (tmp_path / "tags.csv", tmp_path / "photos" / "00.png"):
        before = place.read_bytes()
        answer = cli("apply", reviewed, "--yes", "--out", place)
        assert answer.code == 2
        assert "already exists" in answer.err
        assert place.read_bytes() == before


def test_apply_refuses_when_the_labels_changed_and_says_how(cli: Cli, reviewed: Path, tmp_path: Path):
    tags = tmp_path / "tags.csv"
    lines = tags.read_text().splitlines()
    image = lines[1].split(",")[1]
    lines[1] = f"Ann,{image},purple"
    tags.write_text("\n".join(lines[:-1]) + "\n")
    answer = cli("apply", reviewed, "--yes")
    assert answer.code == 3
    assert "1 tag new (purple)" in answer.err
    assert f"of {image} was" in answer.err
    assert not (reviewed / "reviewed").exists()
    forced = cli("apply", reviewed, "--yes", "--force")
    assert forced.code == 0, forced.err
    assert (reviewed / "reviewed" / "tags.csv").is_file()


def test_apply_notices_a_file_that_changed_without_its_labels(cli: Cli, reviewed: Path, tmp_path: Path):
    tags = tmp_path / "tags.csv"
    tags.write_text(tags.read_text().replace("Ann", "Bob"))
    answer = cli("apply", reviewed, "--dry-run")
    assert answer.code == 3
    assert "gives the same labels" in answer.err


def test_apply_as_json_lines(cli: Cli, reviewed: Path, tmp_path: Path):
    answer = cli("apply", reviewed, "--yes", "--as", "jsonl", "--out", tmp_path / "new.jsonl")
    assert answer.code == 0, answer.err
    again = read_annotations(tmp_path / "new.jsonl")
    assert again.path(0).is_file()
    for (image, tag), wanted in decisions(reviewed).items():
        assert again.labels[again.images.index(image), again.categories.index(tag)] == wanted


@pytest.fixture
def reviewed_text_files(patches: Annotations, tmp_path: Path) -> Path:
    """A reviewed run on images with text files beside them; the first image is a link to one in another folder."""
    photos, run = tmp_path / "photos", tmp_path / "run"
    photos.mkdir()
    (tmp_path / "elsewhere").mkdir()
    for row in range(24):
        place = tmp_path / "elsewhere" if row == 0 else photos
        shutil.copy(patches.path(row), place / f"{row:02}.png")
        (photos / f"{row:02}.txt").write_text("red\n" if row % 2 else "blue\n")
    (photos / "00.png").symlink_to("../elsewhere/00.png")
    train(load_config(None, TINY, data={"source": str(photos)}), run, quiet=True)
    with DecisionStore(decisions_file(run)) as store:
        store.append([Draft("00.png", "red", 0, 1)], reviewer="ann", queue="missing", run="run")
    return run


def test_an_image_that_is_a_link_is_whole_in_the_new_folder(cli: Cli, reviewed_text_files: Path, tmp_path: Path):
    answer = cli("apply", reviewed_text_files, "--yes", "--out", tmp_path / "far" / "away" / "new")
    assert answer.code == 0, answer.err
    image = tmp_path / "far" / "away" / "new" / "00.png"
    assert not image.is_symlink()
    assert image.read_bytes() == (tmp_path / "elsewhere" / "00.png").read_bytes()
    assert (tmp_path / "far" / "away" / "new" / "00.txt").read_text() == "blue, red\n"


def test_a_persons_own_folder_and_leftovers_are_not_absorbed(cli: Cli, reviewed_text_files: Path, tmp_path: Path):
    mine, killed = tmp_path / "new.part", tmp_path / f"fewtags-{'0' * 16}.part"
    for folder in (mine, killed):
        folder.mkdir()
        (folder / "01.png").write_text("mine")
    os.utime(killed, (0, 0))
    answer = cli("apply", reviewed_text_files, "--yes", "--out", tmp_path / "new")
    assert answer.code == 0, answer.err
    assert [file.read_text() for file in mine.iterdir()] == ["mine"]
    assert not killed.exists()
    assert (tmp_path / "new" / "01.png").samefile(tmp_path / "photos" / "01.png")
    assert not list(tmp_path.glob("*fewtags-*"))


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs Linux")
def test_everything_is_on_disk_before_it_gets_its_name(cli: Cli, reviewed_text_files: Path, tmp_path, monkeypatch):
    synced: list[Path] = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(Path(os.readlink(f"/proc/self/fd/{handle}"))))
    answer = cli("apply", reviewed_text_files, "--yes", "--out", tmp_path / "new")
    assert answer.code == 0, answer.err
    texts = {file.name for file in synced if file.suffix == ".txt"}
    assert texts == {f"{row:02}.txt" for row in range(24)}
    assert synced[-1] == tmp_path
    assert synced[-2].name.startswith("fewtags-")


@pytest.mark.parametrize("edit", ["a row less", "another tag", "removed"])
def test_a_label_file_that_is_edited_meanwhile_is_said(cli: Cli, reviewed: Path, tmp_path: Path, monkeypatch, edit):
    """Between reading the labels and reading the lines that are kept."""
    tags = tmp_path / "tags.csv"
    reread = apply.rewrite

    def edited(*arguments):
        lines = tags.read_text().splitlines(keepends=True)
        if edit == "removed":
            tags.unlink()
        else:
            tags.write_text("".join(lines[:-3]) if edit == "a row less" else "".join(lines).replace("red", "rot"))
        return reread(*arguments)

    monkeypatch.setattr(apply, "rewrite", edited)
    answer = cli("apply", reviewed, "--yes")
    assert (answer.code, "was changed while it was read; run the command again" in answer.err) == (3, True), answer.err
    assert not (reviewed / "reviewed").exists()


@pytest.mark.parametrize("edit", ["another tag", "removed"])
def test_labels_that_are_edited_while_the_plan_is_read_are_not_lost(cli: Cli, reviewed: Path, tmp_path: Path, edit):
    """`apply` asks before it writes; what comes between would be missing from the new file."""
    tags, out = tmp_path / "tags.csv", tmp_path / "new.csv"
    planned = apply.plan(reviewed, out, write_as="same", force=False)
    tags.unlink() if edit == "removed" else tags.write_text(tags.read_text() + "Ann,47.png,red\n")
    with pytest.raises(DataError, match="edited since these changes were listed; run the command again"):
        planned.write()
    assert sorted(file.name for file in tmp_path.glob("*.csv*")) == ([] if edit == "removed" else ["tags.csv"])


def test_a_text_file_that_is_edited_while_the_plan_is_read_is_not_lost(reviewed_text_files: Path, tmp_path: Path):
    planned = apply.plan(reviewed_text_files, tmp_path / "new", write_as="same", force=False)
    edited = next((tmp_path / "photos").rglob("*.txt"))
    edited.write_text("red, blue\n")
    with pytest.raises(DataError, match="edited since these changes were listed"):
        planned.write()
    assert not (tmp_path / "new").exists()


READ_ONLY = """
import os, sys
from pathlib import Path
from fewtags.commands.apply import decisions_of, plan
from fewtags.review.opening import open_review
run, out = Path(sys.argv[1]), Path(sys.argv[2])
assert not os.access(run, os.W_OK)
plan(run, out, write_as="same", force=False).write()
print(len(open_review(run, read_only=True, quiet=True).session.store.labels()))
"""


def on_a_read_only_disk(folder: Path, *command: object) -> subprocess.CompletedProcess[str]:
    mount = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" || exit 77; exec "$@"'
    try:
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", mount, *map(str, (folder, *command))], capture_output=True, text=True
        )
    except FileNotFoundError:
        pytest.skip("needs Linux")
    if done.returncode == 77 or "unshare failed" in done.stderr:
        pytest.skip("may not mount")
    return done


def test_decisions_on_a_read_only_disk_are_applied_and_shown(reviewed: Path, tmp_path: Path):
    number = len(decisions(reviewed))
    for name in ("decisions.sqlite-wal", "decisions.sqlite-shm"):
        (reviewed / "review" / name).unlink(missing_ok=True)
    done = on_a_read_only_disk(reviewed, sys.executable, "-c", READ_ONLY, reviewed, tmp_path / "new.csv")
    assert (done.stdout, done.returncode) == (f"{number}\n", 0), done.stderr
    assert len((tmp_path / "new.csv").read_text().splitlines()) > 10


def test_the_decisions_themselves_as_a_table(cli: Cli, reviewed: Path, tmp_path: Path):
    file = tmp_path / "decisions.csv"
    answer = cli("apply", reviewed, "--decisions", file)
    assert answer.code == 0, answer.err
    with file.open(newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    states = {"present": 1, "unknown": 0, "absent": -1}
    assert {(row["image"], row["tag"]): states[row["new"]] for row in rows} == decisions(reviewed)
    assert {(row["old"], row["reviewer"], row["queue"]) for row in rows} == {("unknown", "ann", "missing")}
    assert cli("apply", reviewed, "--decisions", file).code == 2


INTO_PERCH = """
import csv, json, sys
from perch_hoplite.db import datatypes, sqlite_usearch_impl as usearch
db = usearch.SQLiteUSearchDB.create(sys.argv[2], usearch.get_default_usearch_config(4))
with open(sys.argv[1], newline="", encoding="utf-8") as lines:
    for row in csv.DictReader(lines):
        recording = db.insert_recording(row["filename"])
        kind = datatypes.LabelType[row["label_type"].upper()]
        db.insert_annotation(recording, [0.0, 1.0], row["label"], kind, row["provenance"])
db.commit()
def told(a):
    return [db.get_recording(a.recording_id).filename, a.label, a.label_type.name, a.provenance]
print(json.dumps([told(annotation) for annotation in db.get_all_annotations()]))
"""


@pytest.fixture
def reviewed_with_doubt(reviewed: Path) -> Path:
    """The reviewer is unsure about one of the labels now."""
    image, tag = next(iter(decisions(reviewed)))
    with DecisionStore(decisions_file(reviewed)) as store:
        store.append([Draft(image, tag, 1, 0)], reviewer="ann", queue="missing", run="run")
    return reviewed


def in_perchs_words(run: Path) -> dict[tuple[str, str], str]:
    words = {1: "positive", -1: "negative", 0: "uncertain"}
    return {key: words[label] for key, label in decisions(run).items()}


def test_the_decisions_in_the_words_of_perch(cli: Cli, reviewed_with_doubt: Path, tmp_path: Path):
    file = tmp_path / "decisions.csv"
    assert cli("apply", reviewed_with_doubt, "--decisions", file, "--states", "perch").code == 0
    with file.open(newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    assert list(rows[0]) == ["filename", "label", "label_type", "provenance"]
    assert {(row["filename"], row["label"]): row["label_type"] for row in rows} == in_perchs_words(reviewed_with_doubt)
    assert {row["label_type"] for row in rows} == {"positive", "negative", "uncertain"}
    assert all(row["provenance"].startswith("ann, fewtags review of ") for row in rows)
    assert cli("apply", reviewed_with_doubt, "--decisions", tmp_path / "x.csv", "--states", "birdnet").code == 2


@pytest.mark.slow
def test_perchs_own_database_takes_them(cli: Cli, reviewed_with_doubt: Path, tmp_path: Path, other_side):
    file = tmp_path / "decisions.csv"
    cli("apply", reviewed_with_doubt, "--decisions", file, "--states", "perch")
    found = json.loads(other_side("perch", INTO_PERCH, file, tmp_path / "db").splitlines()[-1])
    assert {(image, tag): kind.lower() for image, tag, kind, _ in found} == in_perchs_words(reviewed_with_doubt)
    assert all("queue missing" in provenance for *_, provenance in found)


def test_nothing_to_apply_without_a_review(cli: Cli, partly_tagged: Path):
    answer = cli("apply", partly_tagged)
    assert answer.code == 2
    assert f"fewtags review {partly_tagged}" in answer.err


def test_a_run_that_hides_labels_gives_what_it_was_shown(
    cli: Cli, patches: Annotations, tags_file: Path, tmp_path: Path
):
    run = tmp_path / "run"
    complete = ["-o", "complete=true"]
    cli("train", patches.root, "--tags", tags_file, *complete, *TINY, "--known", "0.5", "--out", run, "-q")
    shown = load_labels(run).split("train")
    row, column = np.argwhere(shown.labels == 0)[0]
    with DecisionStore(decisions_file(run)) as store:
        draft = Draft(shown.images[row], shown.categories[column], 0, 1)
        store.append([draft], reviewer="ann", queue="missing", run="run")
    answer = cli("apply", run, "--yes", "--out", tmp_path / "new.jsonl")
    assert answer.code == 0, answer.err
    again = read_annotations(tmp_path / "new.jsonl").split("train")
    expected = shown.labels.copy()
    expected[row, column] = 1
    np.testing.assert_array_equal(again.labels, expected)


# --- training again ---


def test_training_again_uses_the_decisions_and_says_where_labels_came_from(cli: Cli, reviewed: Path, tmp_path: Path):
    second = tmp_path / "second"
    answer = cli("train", "--reviewed", reviewed, "--out", second)
    assert answer.code == 0, answer.err
    assert "set by a review" in answer.err
    made = decisions(reviewed)
    data = json.loads((second / "data.json").read_text())
    assert data["labels_from"]["decisions"] == len(made)
    assert data["labels_from"]["reviewers"] == {"ann": len(made)}
    before, after = load_run_data(reviewed), load_run_data(second)
    assert after.train.images == before.train.images
    assert before.val is not None
    assert after.val is not None
    assert after.val.images == before.val.images
    for (image, tag), wanted in made.items():
        assert after.train.labels[after.train.images.index(image), after.train.categories.index(tag)] == wanted
    changed = np.argwhere(after.train.labels != before.train.labels)
    assert len(changed) == sum(wanted != 0 for wanted in made.values())
    assert load_run_config(second).method_name == "instant"


def test_decided_labels_do_not_spoil_the_calibration(cli: Cli, reviewed: Path, tmp_path: Path):
    """Which labels are decided is not random: what the given labels say stays, and answers correct it."""
    second = tmp_path / "second"
    cli("train", "--reviewed", reviewed, "--out", second, "-q")
    before, after = (load_model(run).classifier.head.presence for run in (reviewed, second))
    torch.testing.assert_close(after.habit, before.habit)
    torch.testing.assert_close(after.slope, before.slope)
    assert after.answer_offset.any()
    told = load_model(second).classifier.head.relabelled.labels
    assert (told[:, 2] == 1).sum() == sum(v == 1 for v in decisions(reviewed).values())


def test_a_second_review_adds_to_the_first(cli: Cli, reviewed: Path, tmp_path: Path):
    second, third = tmp_path / "second", tmp_path / "third"
    cli("train", "--reviewed", reviewed, "--out", second, "-q")
    (image, tag), first = next(iter(decisions(reviewed).items()))
    with DecisionStore(decisions_file(second)) as store:
        store.append([Draft(image, tag, first, -first)], reviewer="bob", queue="doubtful", run="second")
    answer = cli("train", "--reviewed", second, "--out", third, "-q")
    assert answer.code == 0, answer.err
    came_from = json.loads((third / "data.json").read_text())["labels_from"]
    assert came_from["reviewers"] == {"ann": len(decisions(reviewed)) - 1, "bob": 1}
    train = load_run_data(third).train
    assert train.labels[train.images.index(image), train.categories.index(tag)] == -first
    applied = cli("apply", second, "--dry-run")
    assert applied.code == 0, applied.err


def test_another_method_may_be_trained_on_the_decisions(cli: Cli, reviewed: Path, tmp_path: Path):
    answer = cli(
        "train", "--reviewed", reviewed, "method=an", "train.epochs=1", "train.workers=0", "--out", tmp_path / "an"
    )
    assert answer.code == 0, answer.err
    config = load_run_config(tmp_path / "an")
    assert (config.method_name, config.input.size) == ("an", 32)


def test_a_moved_run_finds_its_decisions(cli: Cli, reviewed: Path, tmp_path: Path):
    cli("train", "--reviewed", reviewed, "--out", tmp_path / "second", "-q")
    (tmp_path / "second").rename(tmp_path / "moved")
    assert (load_run_data(tmp_path / "moved").train.labels == -1).any()


# --- compare ---


def test_compare_measures_on_the_same_images(cli: Cli, reviewed: Path, tmp_path: Path):
    second = tmp_path / "second"
    cli("train", "--reviewed", reviewed, "--out", second, "-q")
    answer = cli("compare", reviewed, second, "--per-category")
    assert answer.code == 0, answer.err
    assert "estimated on the same" in answer.out
    assert "AP of each category" in answer.out
    compared = json.loads(cli("compare", reviewed, second, "--json").out)
    first, last = compared["runs"]
    assert last["decisions"] == len(decisions(reviewed))
    assert last["known_tags"] > first["known_tags"]
    assert first["name"] == "run"


def test_compare_says_what_a_review_changed_and_what_it_was_worth(cli: Cli, reviewed: Path, tmp_path: Path):
    second = tmp_path / "second"
    cli("train", "--reviewed", reviewed, "--out", second, "-q")
    review = json.loads(cli("compare", reviewed, second, "--json").out)["runs"][1]["review"]
    made, given = decisions(reviewed), load_labels(reviewed)
    before = {key: given.labels[given.images.index(key[0]), given.categories.index(key[1])] for key in made}
    assert sum(review["found"].values()) == sum(made[key] == 1 and before[key] == 0 for key in made) > 0
    assert sum(review["removed"].values()) == sum(made[key] == -1 and before[key] == 1 for key in made)
    assert review["refuted"] == sum(made[key] == -1 and before[key] == 0 for key in made)
    text = " ".join(cli("compare", reviewed, second).out.split())
    assert f"the review found {sum(review['found'].values())} missing tag" in text
    assert "What that was worth, in mAP since run: " in text


def test_the_report_shows_before_and_after(cli: Cli, reviewed: Path, tmp_path: Path):
    second, page = tmp_path / "second", tmp_path / "page.html"
    cli("train", "--reviewed", reviewed, "--out", second, "-q")
    answer = cli("report", reviewed, second, "--out", page)
    assert answer.code == 0, answer.err
    text = page.read_text(encoding="utf-8")
    assert "Before and after the review" in text
    assert "instant (reviewed)" in text
    _, last = json.loads(cli("compare", reviewed, second, "--json").out)["runs"]
    assert f"<td>{100 * last['map']:.1f}" in text


def test_compare_with_complete_labels_gives_what_was_measured(cli: Cli, trained: Path, tmp_path: Path):
    shutil.copytree(trained, tmp_path / "again")
    compared = json.loads(cli("compare", trained, tmp_path / "again", "--json").out)
    measured = json.loads((trained / "result.json").read_text())["test"]
    for run in compared["runs"]:
        assert run["map"] == pytest.approx(measured["map"])
        assert run["of1"] == pytest.approx(measured["of1"])


def test_compare_wants_runs_that_share_images(cli: Cli, trained: Path, partly_tagged: Path):
    assert cli("compare", trained).code == 2
    answer = cli("compare", trained, partly_tagged)
    assert answer.code == 2
    assert "not evaluated on the same split" in answer.err
