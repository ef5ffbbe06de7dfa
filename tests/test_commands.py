"""The commands as a person uses them: check, train, evaluate, predict, resume, methods, doctor."""

from __future__ import annotations

import csv
import importlib.metadata
import io
import json
import shutil

import numpy as np
import pytest
import yaml

import fewtags
from conftest import TINY, Cli
from fewtags.commands.info import describe_extra, extras_of
from fewtags.config import load_config
from fewtags.engine.checkpoint import load_checkpoint
from fewtags.engine.run_log import read_rows
from fewtags.methods import METHODS


def read_csv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


# --- train ---


def test_train_says_what_it_understood_and_where_it_went(cli: Cli, patches, tags_file, tmp_path):
    answer = cli("train", patches.root, "--tags", tags_file, *TINY, "--out", tmp_path / "run")
    assert answer.code == 0
    assert "images in 'image', tags in 'tags' separated by ';'" in answer.err
    assert "Training on 36 images with 3 categories" in answer.err
    assert "12 test images" in answer.err
    assert "of the test labels are unknown; no absence is known, so precision can only be estimated" in answer.err
    assert "Backbone test_resnet at 32 px from random weights, all of it trained." in answer.err
    assert answer.out.splitlines()[-1] == str(tmp_path / "run")
    assert answer.out.startswith("estimated: mAP ")  # with these labels it cannot be measured


def test_train_counts_what_check_would_find(cli: Cli, patches, tags_file, tmp_path):
    table = tmp_path / "tags.csv"
    table.write_text(tags_file.read_text() + "gone.png,red,train\n" + "00.png,rare,train\n")
    answer = cli("train", patches.root, "--tags", table, *TINY, "--out", tmp_path / "run")
    assert answer.code == 0
    said = next(line for line in answer.err.splitlines() if "See `fewtags check` for: " in line)
    assert "missing image (1)" in said
    assert "category with one positive (1)" in said
    assert "image without known tags (" in said


def test_quiet_leaves_only_the_result(cli: Cli, patches, tags_file, tmp_path):
    answer = cli("train", patches.root, "--tags", tags_file, *TINY, "--out", tmp_path / "run", "--quiet")
    assert answer.err == ""
    estimated, missing, assumption, folder = answer.out.splitlines()  # no second number with the name of the first
    assert estimated.startswith("estimated: mAP")
    assert "missing (" in missing
    assert "Not audited" in assumption
    assert folder == str(tmp_path / "run")


def test_runs_get_folders_of_their_own(cli: Cli, patches, tags_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert cli("train", patches.root, "--tags", tags_file, *TINY, "-q").code == 0
    folders = sorted((tmp_path / "runs").iterdir())
    assert len(folders) == 2
    assert all("-an" in folder.name for folder in folders)


def test_without_splits_some_images_are_set_aside(cli: Cli, patches, tags_file, tmp_path):
    table = tmp_path / "no-splits.csv"
    table.write_text("\n".join(line.rpartition(",")[0] for line in tags_file.read_text().splitlines()))
    answer = cli("train", patches.root, "--tags", table, *TINY, "--out", tmp_path / "run")
    assert " training images held out for validation." in answer.err
    assert "val mAP " in answer.err
    measured = cli("evaluate", tmp_path / "run", "--json")
    assert measured.code == 0
    assert json.loads(measured.out)["num_images"] == read_rows_of(tmp_path / "run", "val")


def read_rows_of(run, split: str) -> int:
    return json.loads((run / "data.json").read_text())[split]["images"]


def test_print_config_can_be_run(cli: Cli, tmp_path):
    answer = cli("train", "photos", "--method", "asl", "--known", "0.1", "train.lr=3e-4", "--print-config")
    assert answer.code == 0
    (tmp_path / "run.yaml").write_text(answer.out)
    assert yaml.safe_load(answer.out)["train"]["lr"] == 3e-4
    assert load_config(tmp_path / "run.yaml") == load_config(
        None, ["method=asl", "data.known=0.1", "train.lr=3e-4", "data.source=photos"]
    )
    assert cli("train", tmp_path / "run.yaml", "--print-config").out == answer.out


def test_a_path_is_taken_as_it_is(cli: Cli):
    answer = cli("train", "photos", "--tags", "tags #1: new.csv", "--weights", "1e5", "--print-config")
    config = yaml.safe_load(answer.out)
    assert config["data"]["tags"] == "tags #1: new.csv"
    assert config["model"]["weights"] == "1e5"


def test_a_config_file_and_overrides(cli: Cli, patches, tags_file, tmp_path):
    settings = {"data": {"source": str(patches.root), "tags": str(tags_file)}, "train": {"epochs": 7}}
    (tmp_path / "run.yml").write_text(yaml.safe_dump(settings))
    answer = cli("train", tmp_path / "run.yml", *TINY, "--out", tmp_path / "run", "-q")
    assert answer.code == 0
    assert yaml.safe_load((tmp_path / "run/config.yaml").read_text())["train"]["epochs"] == 1


def test_options_of_the_reader(cli: Cli, patches, tags_file, tmp_path):
    """As in `check` and `evaluate`."""
    say = ("-o", "complete=true", "--option", "split_column=split")
    answer = cli("train", patches.root, "--tags", tags_file, *say, *TINY, "--out", tmp_path / "run")
    assert answer.code == 0
    assert "0.0% of labels unknown" in answer.err
    stored = yaml.safe_load((tmp_path / "run/config.yaml").read_text())
    assert stored["data"]["options"] == {"complete": "true", "split_column": "split"}
    assert cli("evaluate", tmp_path / "run").code == 0
    assert "should be name=value" in cli("train", patches.root, "-o", "complete").err
    assert "remove the other arguments" in cli("train", "--resume", tmp_path / "run", "-o", "complete=true").err


def test_resume_goes_on_where_it_stopped(cli: Cli, trained, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("epochs: 1\n", "epochs: 2\n"))
    answer = cli("train", "--resume", run)
    assert answer.code == 0
    assert "Resuming at epoch 2 of 2, step 1." in answer.err
    assert load_checkpoint(run / "checkpoints/last.pt")["epoch"] == 2
    assert [row["epoch"] for row in read_rows(run / "metrics.jsonl") if row["kind"] == "eval"] == [1, 2]


def test_a_finished_run_can_be_trained_longer(cli: Cli, trained, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    answer = cli("train", "--resume", run, "--epochs", "2")
    assert answer.code == 0
    assert "Resuming at epoch 2 of 2, step 1." in answer.err
    before, after = (yaml.safe_load((folder / "config.yaml").read_text()) for folder in (trained, run))
    assert after == {**before, "train": {**before["train"], "epochs": 2}}
    assert json.loads((run / "result.json").read_text())["epochs"] == 2

    fewer = cli("train", "--resume", run, "--epochs", "1")
    assert fewer.code == 2
    assert "The run has 2 epochs" in fewer.err


def test_resuming_a_finished_run_changes_nothing(cli: Cli, trained, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    before = (run / "model/model.safetensors").read_bytes()
    answer = cli("train", "--resume", run)
    assert answer.code == 0
    assert "finished; there is nothing to resume" in answer.err
    assert "epoch 2" not in answer.err
    assert "mAP" in answer.out
    assert (run / "model/model.safetensors").read_bytes() == before


# --- evaluate ---


def test_evaluate_repeats_the_runs_own_numbers(cli: Cli, trained):
    answer = cli("evaluate", trained, "--json")
    assert (answer.code, answer.err) == (0, "")
    expected = json.loads((trained / "result.json").read_text())["test"]
    found = json.loads(answer.out)
    assert found["map"] == pytest.approx(expected["map"], abs=1e-6)
    assert found["num_images"] == 12
    assert list(found["ap"]) == ["blue", "green", "red"]


def test_evaluate_lists_every_category(cli: Cli, trained):
    answer = cli("evaluate", trained, "--per-category", "--threshold", "saved")
    assert "12 images, 3 categories" in answer.out
    assert "VOC-2012 mAP" in answer.out
    assert {line.split()[0] for line in answer.out.splitlines()[-3:]} == {"blue", "green", "red"}


def test_evaluate_on_other_data_warns_of_partial_labels(cli: Cli, trained, patches, tags_file):
    answer = cli("evaluate", trained, patches.root, "--tags", tags_file, "--split", "all")
    assert answer.code == 0
    assert "48 images" in answer.out
    assert "Warning" in answer.err
    complete = cli("evaluate", trained, patches.root, "--tags", tags_file, "-o", "complete=true", "--split", "test")
    assert complete.err == ""
    assert complete.out == cli("evaluate", trained).out


# --- predict ---


def test_predict_writes_csv(cli: Cli, trained, patches):
    answer = cli("predict", trained, patches.path(0), patches.path(1), "--threshold", "0", "--quiet")
    assert (answer.code, answer.err) == (0, "")
    rows = read_csv(answer.out)
    assert [row["image"] for row in rows] == [str(patches.path(0)), str(patches.path(1))]
    assert set(rows[0]["tags"].split(";")) == {"red", "green", "blue"}
    probabilities = [float(p) for p in rows[0]["probabilities"].split(";")]
    assert probabilities == sorted(probabilities, reverse=True)


def test_predict_writes_json_lines(cli: Cli, trained, patches, tmp_path):
    out = tmp_path / "new" / "tags.jsonl"
    assert cli("predict", trained, patches.root, "--out", out, "--top", "1", "--threshold", "0", "-q").out == ""
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(rows) == 48
    assert all(len(row["tags"]) == 1 for row in rows)
    assert "error" not in rows[0]


def test_predict_gives_every_score_if_asked(cli: Cli, trained, patches, tmp_path):
    cli("predict", trained, patches.path(0), "--all-scores", "--out", tmp_path / "a.csv", "-q")
    row = read_csv((tmp_path / "a.csv").read_text())[0]
    expected = fewtags.Tagger.load(trained).predict_proba([patches.path(0)])[0]
    np.testing.assert_allclose([float(row[name]) for name in ("blue", "green", "red")], expected, atol=1e-4)


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_one_bad_image_does_not_stop_predict(ending, cli: Cli, trained, patches, tmp_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    for name in ("a.png", "b.png", "c.png"):
        shutil.copy(patches.path(0), photos / name)
    (photos / "b.png").write_bytes((photos / "b.png").read_bytes()[:100])
    out = tmp_path / f"tags.{ending}"
    answer = cli("predict", trained, photos, "--out", out, "--batch-size", "1", "--all-scores", "-q")
    assert answer.code == 0
    assert answer.err == "fewtags: Unreadable images: 1; their rows say why.\n"
    text = out.read_text()
    rows = read_csv(text) if ending == "csv" else [json.loads(line) for line in text.splitlines()]
    assert [row["image"].rpartition("/")[2] for row in rows] == ["a.png", "b.png", "c.png"]
    assert "truncated" in rows[1]["error"] or "ends before" in rows[1]["error"]
    assert not rows[0].get("error")
    assert not rows[2].get("error")


def test_the_first_image_may_be_the_bad_one(cli: Cli, trained, patches, tmp_path):
    """The header of the CSV names every category although the first row has no scores."""
    (tmp_path / "0.png").write_bytes(b"no image")
    cli("predict", trained, tmp_path / "0.png", patches.path(0), "--all-scores", "--out", tmp_path / "a.csv", "-q")
    rows = read_csv((tmp_path / "a.csv").read_text())
    assert list(rows[0]) == ["image", "tags", "probabilities", "error", "blue", "green", "red"]
    assert float(rows[1]["red"]) >= 0
    assert not rows[0]["red"]


def test_tags_never_come_apart_in_a_spreadsheet(cli: Cli, trained, patches, tmp_path):
    """Names with the separator or quotes in them survive the way through CSV."""
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    about = run / "model/labels.json"
    about.write_text(about.read_text().replace('"blue"', '"blue, \\"light\\""'))
    row = read_csv(cli("predict", run, patches.path(0), "--threshold", "0", "-q").out)[0]
    assert 'blue, "light"' in row["tags"].split(";")


# --- check, methods, doctor ---


def test_check_counts_and_lets_training_start(cli: Cli, patches, tags_file):
    answer = cli("check", patches.root, "--tags", tags_file)
    assert answer.code == 0
    assert "48 images, 48 readable; 3 categories" in answer.out
    assert answer.out.splitlines()[-1].startswith("Training can start")


def test_check_counts_one_as_one(cli: Cli, patches, tmp_path):
    photo = tmp_path / "red.png"
    shutil.copy(patches.path(0), photo)
    (tmp_path / "tags.csv").write_text("image,tags\nred.png,red\n")
    answer = cli("check", tmp_path)
    assert "1 image, 1 readable; 1 category." in answer.out
    assert "Training can start; 1 finding above." in answer.out


def test_check_as_json(cli: Cli, patches, tags_file):
    found = json.loads(cli("check", patches.root, "--tags", tags_file, "--json").out)
    assert found["splits"] == {"train": 36, "test": 12}
    assert found["fatal"] is False


def test_methods_lists_and_explains(cli: Cli):
    table = cli("methods").out
    assert all(f"\n  {name}: {method.title} (" in f"\n{table}" for name, method in METHODS.items())
    groups = [line for line in table.splitlines() if line and not line.startswith(" ")][:-1]  # the last says what next
    assert groups == ["Ours", "Assumed negatives", "Rejecting and relabelling", "Estimating the unknown", "Graphs",
                      "The paper and its rows"]  # fmt: skip
    for name, method in METHODS.items():
        text = cli("methods", name).out
        assert method.title in text
        assert all(f"Profile {profile}" in text for profile in method.profiles)


def test_doctor_shows_versions_and_devices(cli: Cli):
    text = cli("doctor").out
    assert f"fewtags {fewtags.__version__}" in text
    assert all(word in text for word in ("torch ", "timm ", "CUDA", "cores", "tracking"))


def test_doctor_lists_every_extra(cli: Cli):
    """As pyproject.toml has them, also those that somebody adds tomorrow."""
    text = cli("doctor").out
    extras = set(importlib.metadata.metadata("fewtags").get_all("Provides-Extra")) - {"dev"}
    assert {"words", "tracking"} <= extras
    assert all(f"extra '{name}': " in text for name in extras)


def test_an_extra_is_described_by_its_packages():
    extras = extras_of(
        ["torch>=2.4", "pyarrow; extra == 'words'", 'no-such_thing>=1; extra == "words"', "x; extra == 'dev'"]
    )
    assert extras == {"words": ["pyarrow", "no-such_thing"]}
    assert describe_extra("a", ["torch"]) == f"extra 'a': torch {importlib.metadata.version('torch')}"
    assert describe_extra("a", ["no-such_thing"]) == "extra 'a': not installed (pip install 'fewtags[a]')"
    assert describe_extra("a", ["torch", "no-such_thing"]).endswith(
        "; without no-such_thing (pip install 'fewtags[a]')"
    )


def test_no_arguments_shows_the_help(cli: Cli):
    """Nothing was asked for wrongly, so it is an answer and not an error."""
    answer = cli()
    assert (answer.code, answer.err) == (0, "")
    assert answer.out == cli("--help").out


def test_version(cli: Cli):
    answer = cli("--version")
    assert (answer.code, answer.out, answer.err) == (0, f"fewtags {fewtags.__version__}\n", "")


# --- instant, what `train` does by default ---


def test_train_without_a_method_is_one_look_and_predicts(cli: Cli, patches, tags_file, tmp_path):
    settings = [setting for setting in TINY if not setting.startswith("method")]
    answer = cli("train", patches.root, "--tags", tags_file, *settings, "--out", tmp_path / "run")
    assert answer.code == 0
    assert answer.out.startswith("estimated: mAP ")
    assert "no training" in answer.err
    files = {file.name for file in (tmp_path / "run/model").iterdir()}
    assert files == {"config.json", "labels.json", "model.safetensors", "README.md"}
    assert cli("evaluate", tmp_path / "run", "--json").code == 0
    predicted = cli("predict", tmp_path / "run", patches.path(0))
    assert predicted.code == 0
    assert len(predicted.out.splitlines()) == 2


def test_instant_has_no_epochs(cli: Cli, patches, tags_file, tmp_path):
    answer = cli("train", patches.root, "--tags", tags_file, "--epochs", "3", "--out", tmp_path / "run")
    assert answer.code == 2
    assert "does not train" in answer.err
    assert "--method refined" in answer.err
