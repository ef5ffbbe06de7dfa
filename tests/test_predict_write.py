"""`fewtags predict --write`: tags back to where they live; and thresholds for a purpose."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from conftest import TINY, Cli
from fewtags.config import load_config
from fewtags.data.formats import read_annotations
from fewtags.data.writers.beside import alone_in
from fewtags.data.xmp import read_packet
from fewtags.engine.purpose import is_calibrated
from fewtags.engine.training import train
from fewtags.models.saved import load_model


@pytest.fixture
def photos(patches, tmp_path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for row in range(6):
        shutil.copy(patches.path(row), folder / f"{row}.png")
    return folder


def keywords(photos: Path, number: int) -> list[str]:
    return read_packet((photos / f"{number}.png.xmp").read_bytes()).flat


def test_sidecars_are_written_beside_the_photos(cli: Cli, trained, photos):
    answer = cli("predict", trained, photos, "--write", "xmp", "--threshold", "0", "-o", "marker=auto", "-q")
    assert answer.code == 0
    assert answer.out == "6 sidecars written, 0 unchanged.\n"
    assert set(keywords(photos, 0)) == {"red", "green", "blue", "auto"}
    again = cli("predict", trained, photos, "--write", "xmp", "--threshold", "0", "-o", "marker=auto", "-q")
    assert again.out == "0 sidecars written, 6 unchanged.\n"


def test_a_dry_run_prints_what_it_would_do(cli: Cli, trained, photos):
    answer = cli("predict", trained, photos, "--write", "xmp", "--threshold", "0", "--dry-run", "-q")
    assert f"{photos / '0.png.xmp'}: + " in answer.out
    assert answer.out.endswith("6 sidecars would be written, 0 unchanged.\n")
    assert not list(photos.glob("*.xmp"))


def test_rows_and_sidecars_at_once_and_going_on(cli: Cli, trained, photos, tmp_path):
    out = tmp_path / "tags.jsonl"
    command = ["predict", trained, photos, "--write", "sidecar", "--threshold", "0", "--out", out, "-q"]
    assert cli(*command).out == "6 text files written, 0 unchanged.\n"
    lines = out.read_text().splitlines()
    assert len(lines) == 6
    assert (photos / "3.txt").read_text().count(",") == 2
    out.write_text("\n".join(lines[:4]) + "\n")
    assert cli(*command).out == "0 text files written, 2 unchanged.\n"  # only what had no row
    read_back = read_annotations(photos, tags=out)
    assert read_back.known_positives.tolist() == [6, 6, 6]


def test_a_link_under_a_temporary_name_leads_nowhere(cli: Cli, trained, photos, tmp_path):
    """What an attack did: victim.txt was overwritten, and its permissions changed."""
    (tmp_path / "victim.txt").write_text("untouched")
    (tmp_path / "victim.txt").chmod(0o600)
    for place in ("0.png.xmp.part", "1.png.xmp", ".lock"):
        (photos / place).symlink_to("../victim.txt")
    answer = cli("predict", trained, photos, "--write", "xmp", "--threshold", "0", "-q")
    assert answer.out.startswith("5 sidecars written, 0 unchanged, 1 not changed because")
    assert (tmp_path / "victim.txt").read_text() == "untouched"
    assert (tmp_path / "victim.txt").stat().st_mode & 0o777 == 0o600


def test_only_one_process_writes_beside_photos(cli: Cli, trained, photos):
    command = ("predict", trained, photos, "--write", "xmp", "--threshold", "0", "-q")
    with alone_in([photos], "fewtags predict --write"):
        answer = cli(*command)
        assert (answer.code, "is in use by another process" in answer.err) == (2, True)
        assert cli(*command, "--dry-run").code == 0  # which writes nothing
        assert cli("predict", trained, photos, "-q").code == 0
    assert cli(*command).code == 0
    assert not (photos / ".fewtags").exists()
    (photos / ".fewtags").symlink_to(trained)
    answer = cli(*command)
    assert (answer.code, "it is or holds a link" in answer.err) == (2, True)


def test_predictions_for_label_studio(cli: Cli, trained, photos, tmp_path):
    file = tmp_path / "tasks.json"
    options = ["-o", f"file={file}", "-o", f"root={tmp_path}", "--threshold", "0", "-q"]
    assert cli("predict", trained, photos, "--write", "labelstudio", *options).code == 0
    tasks = json.loads(file.read_text())
    assert [task["data"]["image"] for task in tasks] == [f"/data/local-files/?d=photos/{n}.png" for n in range(6)]
    assert len(tasks[0]["predictions"][0]["result"][0]["value"]["choices"]) == 3


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--write", "xmpp"], "did you mean 'xmp'"),
        (["--write", "xmp", "-o", "namin=stem"], "did you mean 'naming'"),
        (["-o", "marker=auto"], "--write"),
        (["--dry-run"], "--write"),
        (["--write", "xmp", "--dry-run", "--out", "x.csv"], "remove --out"),
        (["--threshold", "0.5", "--recall", "0.9"], "leave out --threshold and --precision"),
    ],
)
def test_mistakes_are_one_sentence(cli: Cli, trained, photos, arguments, sentence):
    answer = cli("predict", trained, photos, *arguments)
    assert answer.code == 2
    assert sentence in answer.err
    assert answer.err.count("\n") == 1


def test_images_in_an_object_store_get_no_files_beside_them(cli: Cli, trained):
    answer = cli("predict", trained, "memory://photos", "--write", "xmp")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "memory://photos is remote" in answer.err


def test_csv_cells_that_a_spreadsheet_would_run_are_harmless_and_read_back(cli: Cli, patches, tmp_path):
    labels = ["=cmd()!A0" if n % 2 else "+1;@x" for n in range(8)]
    photos = tmp_path / "photos"
    photos.mkdir()
    for row in range(8):
        shutil.copy(patches.path(row), photos / f"=x{row}.png")
    tags = "\n".join(f"=x{row}.png;{labels[row].split(';')[0]}" for row in range(8))
    (tmp_path / "tags.csv").write_text(f"image;tags\n{tags}\n")
    run = tmp_path / "run"
    source = {"source": str(photos), "tags": str(tmp_path / "tags.csv")}
    train(load_config(None, TINY, data=source), run, quiet=True)
    out = tmp_path / "out.csv"
    for _ in range(2):  # the second time it finds every row
        assert cli("predict", run, photos, "--threshold", "0", "--out", out, "-q").code == 0
    rows = list(csv.reader(out.open()))
    assert len(rows) == 9
    assert all(row[1][0] == "'" for row in rows[1:])
    assert sorted(read_annotations(photos, tags=out).categories) == ["+1", "=cmd()!A0"]


@pytest.mark.skipif(shutil.which("exiftool") is None, reason="exiftool is not installed")
def test_from_keywords_by_exiftool_to_keywords_that_exiftool_reads(cli: Cli, patches, tmp_path):
    """Photos tagged by one tool -> check -> train -> predict --write xmp -> the same tool reads our sidecars."""
    from PIL import Image

    photos = tmp_path / "photos"
    photos.mkdir()
    for row in range(36):
        Image.open(patches.path(row)).save(photos / f"{row}.jpg")
        names = [name for name, label in zip(patches.categories, patches.labels[row], strict=True) if label == 1]
        if row < 24 and names:
            arguments = [f"-XMP-dc:Subject={name}" for name in names]
            subprocess.run(
                ["exiftool", "-q", "-overwrite_original", *arguments, str(photos / f"{row}.jpg")], check=True
            )
    before = {file: file.read_bytes() for file in photos.iterdir()}
    assert "keywords in and next to the photos" in cli("check", photos).out
    run = tmp_path / "run"
    assert cli("train", photos, *TINY, "--out", run, "-q").code == 0
    record = json.loads((run / "data.json").read_text())
    assert any("keywords in and next to" in note for note in record["notes"])
    assert cli("predict", run, photos, "--write", "xmp", "--threshold", "0", "-q").code == 0
    read = subprocess.run(["exiftool", "-json", "-Subject", *map(str, photos.glob("*.xmp"))], capture_output=True)
    assert all(set(found["Subject"]) == {"red", "green", "blue"} for found in json.loads(read.stdout))
    assert {file: file.read_bytes() for file in before} == before
    again = read_annotations(photos)
    assert again.content_hash() == read_annotations(photos, where="embedded").content_hash()


# --- thresholds for a purpose ---


@pytest.fixture(scope="module")
def with_validation(patches, tags_file, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    source = {"source": str(patches.root), "tags": str(tags_file), "options": {"complete": True}, "val_share": 0.4}
    train(load_config(None, TINY, data=source), folder, quiet=True)
    return folder


def test_thresholds_by_complete_validation_labels(cli: Cli, with_validation, photos):
    everything = cli("predict", with_validation, photos, "--recall", "1")
    assert "Thresholds for a recall of 1, chosen on the labels of 14 validation images." in everything.err
    surer = cli("predict", with_validation, photos, "--precision", "0.9", "-q")
    found = [
        sum(row["tags"].count(";") + bool(row["tags"]) for row in csv.DictReader(answer.out.splitlines()))
        for answer in (surer, everything)
    ]
    assert found[0] <= found[1]


def test_thresholds_are_saved_on_request(cli: Cli, with_validation, photos, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(with_validation, run)
    before = np.full(3, 0.123)
    replace(load_model(run), thresholds=before).save(run / "model")
    assert cli("predict", run, photos, "--recall", "1", "-q").code == 0
    np.testing.assert_array_equal(load_model(run).thresholds, before)
    saving = cli("predict", run, photos, "--recall", "1", "--save-thresholds", "-q")
    own = cli("predict", run, photos, "-q")
    assert saving.out == own.out
    assert not np.array_equal(load_model(run).thresholds, before)


def test_without_validation_images_or_without_a_run_it_is_refused(cli: Cli, trained, photos):
    answer = cli("predict", trained, photos, "--precision", "0.9")
    assert answer.code == 2
    assert "no predictions for validation images" in answer.err
    answer = cli("predict", trained / "model", photos, "--precision", "0.9")
    assert "is a model without its run" in answer.err


def test_partial_labels_need_calibrated_probabilities(cli: Cli, patches, tags_file, photos, tmp_path):
    source = {"source": str(patches.root), "tags": str(tags_file), "val_share": 0.4}
    train(load_config(None, TINY, data=source), tmp_path / "an", quiet=True)
    answer = cli("predict", tmp_path / "an", photos, "--precision", "0.9")
    assert answer.code == 2
    assert "are partial, and the probabilities of method 'an' are not calibrated" in answer.err
    instant = [setting for setting in TINY if not setting.startswith(("method", "train.epochs"))]
    train(load_config(None, ["method=instant", *instant], data=source), tmp_path / "instant", quiet=True)
    answer = cli("predict", tmp_path / "instant", photos, "--precision", "0.9")
    assert answer.code == 0
    assert "chosen on the calibrated probabilities of 13 validation images (expected, not measured)" in answer.err


def test_a_precision_is_of_all_tags_and_a_threshold_of_every_single_one(cli: Cli, patches, tags_file, photos, tmp_path):
    source = {"source": str(patches.root), "tags": str(tags_file), "val_share": 0.4}
    instant = [setting for setting in TINY if not setting.startswith(("method", "train.epochs"))]
    train(load_config(None, ["method=instant", *instant], data=source), tmp_path / "run", quiet=True)
    by_precision = cli("predict", tmp_path / "run", photos, "--precision", "0.6")
    assert "That is on average over what is predicted: single tags have probabilities down to 0." in by_precision.err
    both = cli("predict", tmp_path / "run", photos, "--precision", "0.6", "--threshold", "0.9", "--save-thresholds")
    assert "on average" not in both.err
    assert load_model(tmp_path / "run").thresholds.min() >= 0.9 - 1e-6
    assert both.out.count(";") <= by_precision.out.count(";")
    assert cli("predict", tmp_path / "run", photos, "--recall", "0.6", "--threshold", "0.9").code == 2


def test_which_methods_are_calibrated():
    calibrated = {
        name: is_calibrated(load_config(None, [f"method={name}"])) for name in ("instant", "refined", "an", "linear")
    }
    assert calibrated == {"instant": True, "refined": True, "an": False, "linear": False}
    assert not is_calibrated(load_config(None, ["method=refined", "method.reject=false"]))


# --- Label Studio: its export -> train -> predictions -> its schema ---

LABEL_CONFIG = (
    '<View><Image name="image" value="$image"/><Choices name="tags" toName="image" choice="multiple">'
    '<Choice value="red"/><Choice value="green"/><Choice value="blue"/></Choices></View>'
)


def test_from_a_label_studio_export_to_predictions_of_its_schema(cli: Cli, patches, tmp_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    tasks = []
    for row in range(24):
        shutil.copy(patches.path(row), photos / f"{row}.png")
        names = [name for name, label in zip(patches.categories, patches.labels[row], strict=True) if label == 1]
        choices = {"from_name": "tags", "to_name": "image", "type": "choices", "value": {"choices": names}}
        annotations = [{"id": 500 + row, "result": [{"id": "x", **choices}] if names else []}] if row < 16 else []
        image = f"/data/local-files/?d=photos/{row}.png"
        tasks.append({"id": 100 + row, "data": {"image": image}, "annotations": annotations})
    export = tmp_path / "project-1.json"
    export.write_text(json.dumps(tasks))
    run, out = tmp_path / "run", tmp_path / "predictions.json"
    assert cli("train", photos, *TINY, "--tags", export, "--out", run, "-q").code == 0
    options = ["-o", f"file={out}", "-o", f"tasks={export}", "--threshold", "0.3", "-q"]
    answer = cli("predict", run, photos, "--write", "labelstudio", *options)
    assert answer.out == f"24 predictions written to {out}.\n"
    written = json.loads(out.read_text())
    assert [task["id"] for task in written] == [100 + row for row in range(24)]
    assert [task["annotations"] for task in written] == [task["annotations"] for task in tasks]
    for task in written:
        (prediction,) = task["predictions"]
        assert 0 <= prediction["score"] <= 1
        for item in prediction["result"]:
            assert (item["from_name"], item["to_name"], item["type"]) == ("tags", "image", "choices")
            assert set(item["value"]["choices"]) <= {"red", "green", "blue"}
        validate_by_its_own_package(task)


def validate_by_its_own_package(task: dict) -> None:
    """Label Studio's SDK is no dependency; where it is installed, it has the last word."""
    try:
        from label_studio_sdk.label_interface import LabelInterface
    except ImportError:
        return
    for prediction in task["predictions"]:
        assert LabelInterface(LABEL_CONFIG).validate_prediction(prediction, return_errors=True) == []
