"""What people get wrong ends in one sentence on standard error that says what was found and what to do, with the
right exit code (2 usage or settings, 3 data, 1 failure, 5 missing extra, 130 interrupted) and without traceback."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from conftest import TINY, Answer, Cli
from fewtags.engine.checkpoint import load_checkpoint, save_checkpoint
from made_processes import Command

USAGE, DATA, FAILED, EXTRA, INTERRUPTED = 2, 3, 1, 5, 130


def assert_refused(answer: Answer, code: int, *parts: str | tuple[str, ...]) -> None:
    """One sentence that holds every part, and the code; before it, at most the line with which a command begins.

    Of several wordings of a part, which are those of versions of typer, it holds one.
    """
    lines = answer.err.strip().splitlines()
    lines = lines[lines[0].startswith(("Reading the labels of ", "Searching the images of ", "Opening ")) :]
    assert len(lines) == 1, answer.err
    assert lines[0].startswith("fewtags: ")
    assert lines[0][-1] in ".?" or "--resume" in lines[0] or "pip install" in lines[0], lines[0]
    wordings = [(part,) if isinstance(part, str) else part for part in parts]
    assert [part for part in wordings if not any(one in lines[0] for one in part)] == [], lines[0]
    assert answer.code == code, lines[0]


def picture(size: int = 40) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(size).integers(0, 255, (size, size, 3), dtype=np.uint8)).save(file, "PNG")
    return file.getvalue()


def write(root: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


# --- arguments ---

ARGUMENTS = {
    "unknown command": (["trian"], ["trian"]),
    "unknown option": (["train", "--epoch", "3"], ["--epoch"]),
    "option without value": (["train", "--epochs"], ["--epochs"]),
    "not a number": (
        ["train", "photos", "--epochs", "many"],
        ["--epochs", ("valid integer", "valid int"), "fewtags train --help"],
    ),
    "missing argument": (["predict"], [("run", "RUN")]),
    "threshold above 1": (
        ["predict", "run", "a.jpg", "--threshold", "2"],
        ["--threshold", ("less than or equal to 1", "0<=x<=1")],
    ),
    "top 0": (["predict", "run", "a.jpg", "--top", "0"], ["--top", ("greater than or equal to 1", "x>=1")]),
    "unknown method": (["methods", "calnr"], ["no method 'calnr'", "did you mean 'caldnr'"]),
    "no data": (["train"], ["No data was given", "fewtags train photos/"]),
    "missing folder": (["check", "no-such-folder"], ["no-such-folder does not exist"]),
    "missing config": (["train", "no-such.yaml"], ["no-such.yaml does not exist"]),
    "reader option without value": (["check", ".", "-o", "zero"], ["--option zero", "name=value"]),
    "reader option not YAML": (["check", ".", "-o", "zero=[absent"], ["zero", "[absent"]),
    "unknown reader option": (["check", ".", "-o", "zeros=absent"], ["'zeros'", "did you mean 'zero'"]),
    "reader option of wrong value": (
        ["check", ".", "--format", "onehot", "-o", "zero=no"],
        ["zero=", "'unknown' or 'absent'"],
    ),
    "unknown format": (["check", ".", "--format", "cocoa"], ["no data format 'cocoa'", "did you mean 'coco'"]),
    "run folder missing": (["evaluate", "no-such-run"], ["no-such-run does not exist", "no run or trained model"]),
    "run folder missing, discover": (["discover", "no-such-run"], ["no-such-run does not exist"]),
    "run folder missing, review": (["review", "no-such-run"], ["no-such-run does not exist"]),
    "run folder missing, export": (["export", "no-such-run"], ["no-such-run does not exist"]),
    "run folder missing, compare": (["compare", "no-such-run", "other"], ["no-such-run does not exist"]),
    "resume nothing": (["train", "--resume", "no-such-run"], ["no-such-run does not exist"]),
    "resume and more": (["train", "--resume", "run", "--seed", "5"], ["--resume", "remove the other arguments"]),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments(name, cli: Cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments, parts = ARGUMENTS[name]
    assert_refused(cli(*arguments), USAGE, *parts)


def test_a_run_with_a_similar_name_is_proposed(cli: Cli, tmp_path):
    (tmp_path / "runs" / "first").mkdir(parents=True)
    for command in ("discover", "evaluate", "export"):
        answer = cli(command, tmp_path / "runs" / "frist")
        assert_refused(answer, USAGE, f"did you mean {tmp_path / 'runs' / 'first'}?")


# --- settings ---

OVERRIDES = {
    "no equals sign": (["photos", "train.lr"], ["'train.lr' is not a setting", "group.name=value"]),
    "unknown group": (["trian.lr=1"], ["'trian'", "did you mean 'train'"]),
    "unknown setting": (["train.epoch=3"], ["[train] has no setting 'epoch'", "did you mean 'epochs'"]),
    "unknown setting of the method": (["method=asl", "method.gama_neg=2"], ["'gama_neg'", "did you mean 'gamma_neg'"]),
    "unknown method": (["method=rolle"], ["no method 'rolle'", "did you mean 'role'"]),
    "unknown head": (["head=lineer"], ["no head 'lineer'", "did you mean 'linear'"]),
    "unknown profile": (["method=an", "method.profile=papr"], ["no profile 'papr'", "did you mean 'paper'"]),
    "text for a number": (["train.epochs=many"], ["train.epochs", "integer", "'many'"]),
    "a fraction for a count": (["train.batch_size=2.5"], ["train.batch_size", "integer", "2.5"]),
    "negative rate": (["train.lr=-1"], ["train.lr", "greater than 0", "-1"]),
    "word not on the list": (["train.optimizer=sgd"], ["train.optimizer", "'adam'", "'sgd'"]),
    "unknown device": (["train.device=gpu"], ["train.device", "cuda", "'gpu'"]),
    "seed not a number": (["seed=abc"], ["seed", "whole number", "'abc'"]),
    "seed below 0": (["seed=-1"], ["seed", "whole number", "-1"]),
    "group as value": (["train=fast"], ["'train' should be a group", "'fast'"]),
    "crop larger than the image": (["input.size=32", "input.crops=[64]"], ["[input]", "64", "37"]),
    "share of everything": (["data.val_share=1"], ["data.val_share", "less than 1"]),
}


@pytest.mark.parametrize("name", OVERRIDES)
def test_overrides(name, cli: Cli):
    settings, parts = OVERRIDES[name]
    assert_refused(cli("train", *settings, "--print-config"), USAGE, *parts)


CONFIGS = {
    "broken YAML": ("train: {lr: 1", ["config.yaml:", "not valid YAML"]),
    "a list": ("- train\n- data\n", ["config.yaml", "groups of settings", "not a list"]),
    "a number as group": ("1: {lr: 3}\n", ["group of settings '1'"]),
    "a number as name": ("train: {1: 3}\n", ["[train] has no setting '1'"]),
    "an empty group": ("train:\n", ["'train' should be a group", "None"]),
    "binary": (b"\xff\xfe\x00\x81", ["config.yaml", "cannot be read"]),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_config_files(name, cli: Cli, tmp_path):
    content, parts = CONFIGS[name]
    write(tmp_path, {"config.yaml": content})
    assert_refused(cli("train", tmp_path / "config.yaml", "--print-config"), USAGE, *parts)


# --- label files ---

COCO = {"images": [{"id": 1, "file_name": "a.png"}], "annotations": [], "categories": [{"id": 1, "name": "cat"}]}
LABEL_FILES: dict[str, tuple[str, str | bytes, int, list[str]]] = {
    "empty CSV": ("tags.csv", "", DATA, ["tags.csv is empty"]),
    "CSV with only a header": ("tags.csv", "image,tags\n", DATA, ["tags.csv", "but no rows"]),
    "CSV without images": ("tags.csv", "day,weather\n1,sun\n", USAGE, ["tags.csv", "image_column="]),
    "CSV without tags": ("tags.csv", "image\na.png\n", USAGE, ["tags.csv", "tags"]),
    "CSV with two columns that may be tags": (
        "tags.csv", "image,animal,place\na.png,cat,sea\n", USAGE, ["animal, place", "tag_column="],
    ),
    "CSV of other images": ("tags.csv", "image,tags\nx.png,cat\ny.png,dog\n", DATA, ["2 images", "x.png"]),
    "CSV with an open quotation mark": ("tags.csv", 'image,tags\na.png,"cat\nb.png,dog\n', DATA, ["quotation"]),
    "binary CSV": ("tags.csv", b"\x00\x01\x02\x00", USAGE, ["tags.csv", "binary"]),
    "splits of other names": ("tags.csv", "image,tags,split\na.png,cat,holdout\n", DATA, ["'holdout'", "tags.csv:2"]),
    "no tag at all": ("tags.csv", "image,tags\na.png,\nb.png,\n", DATA, ["tags.csv has no tag"]),
    "JSON lines that are not JSON": ("tags.jsonl", "image: a.png\n", DATA, ["tags.jsonl:1", "not JSON"]),
    "JSON lines without image": ("tags.jsonl", '{"tags": ["cat"]}\n', DATA, ["tags.jsonl:1", "has no image"]),
    "JSON lines with numbers as tags": ("tags.jsonl", '{"image": "a.png", "tags": 3}\n', DATA, ["list of tags"]),
    "a newer annotation file": ("tags.jsonl", '{"fewtags": 9, "categories": ["cat"]}\n', DATA, ["version 9"]),
    "COCO cut off": ("instances.json", json.dumps(COCO)[:60], DATA, ["instances.json", "JSON"]),
    "COCO without categories": ("instances.json", '{"images": [], "annotations": []}', DATA, ["'categories'"]),
    "COCO image without id": (
        "instances.json", json.dumps({**COCO, "images": [{"file_name": "a.png"}]}), DATA, ["lacks 'id'"],
    ),
    "COCO of other images": (
        "instances.json", json.dumps({**COCO, "images": [{"id": 1, "file_name": "x.png"}]}), DATA, ["x.png"],
    ),
    "some other file": ("tags.docx", "tags", USAGE, ["tags.docx", "not in a known layout", ".docx"]),
}  # fmt: skip


@pytest.mark.parametrize("name", LABEL_FILES)
def test_label_files(name, cli: Cli, tmp_path):
    file, content, code, parts = LABEL_FILES[name]
    write(tmp_path, {"a.png": picture(), "b.png": picture(), file: content})
    assert_refused(cli("check", tmp_path, "--tags", tmp_path / file), code, *parts)


def test_one_hot_without_header(cli: Cli, tmp_path):
    write(tmp_path, {"a.png": picture(), "tags.csv": "a.png,1,0\nb.png,0,1\n"})
    assert_refused(cli("check", tmp_path), USAGE, "tags.csv", "no header line", "its 2 tags", "-o categories=")


def test_images_without_tags_beside_them(cli: Cli, tmp_path):
    write(tmp_path, {"a.png": picture()})
    assert_refused(cli("train", tmp_path, *TINY), USAGE, "a.png", "no tags next to the images")


def test_an_empty_folder(cli: Cli, tmp_path):
    assert_refused(cli("train", tmp_path, *TINY), USAGE, "it is empty")


def test_a_file_where_the_image_folder_should_be(cli: Cli, tags_file):
    assert_refused(cli("train", tags_file, "--tags", tags_file, *TINY), USAGE, "should be the image folder")


def test_voc_without_a_usable_image(cli: Cli, tmp_path):
    voc = {"Annotations/1.xml": "<annotation><object>", "ImageSets/Main/trainval.txt": "1\n2\n"}
    write(tmp_path / "VOC2007", {**voc, "JPEGImages/1.jpg": picture()})
    assert_refused(cli("check", tmp_path), DATA, "VOC2007", "image file and an XML file")


def test_one_hot_values_that_mean_nothing_are_listed(cli: Cli, tmp_path):
    rows = ["1,yes", "0,1", "1,2", "0,1", "0,0", "1,1"]
    write(tmp_path, {f"{n}.png": picture(40 + n) for n in range(6)})
    table = ["image,cat,dog", *(f"{n}.png,{row}" for n, row in enumerate(rows))]
    write(tmp_path, {"tags.csv": "\n".join(table)})
    answer = cli("check", tmp_path)
    assert answer.code == 0
    assert "tags.csv:2: 'dog' holds 'yes'" in answer.out
    assert "tags.csv:4: 'dog' holds '2'" in answer.out


# --- images ---


def test_check_ends_with_3_when_no_image_can_be_read(cli: Cli, tmp_path):
    write(tmp_path, {"a.png": picture()[:60], "b.png": "no image", "c.png": ""})
    write(tmp_path, {"tags.csv": "image,tags\na.png,cat\nb.png,dog\nc.png,cat\n"})
    answer = cli("check", tmp_path)
    assert answer.code == DATA
    assert "Training would fail" in answer.out.splitlines()[-1]
    assert all(name in answer.out for name in ("a.png", "b.png", "c.png"))


def test_training_on_broken_images_alone(cli: Cli, tmp_path):
    write(tmp_path / "data", {f"{n}.png": picture()[:60] for n in range(8)})
    write(tmp_path / "data", {"tags.csv": "image,tags\n" + "".join(f"{n}.png,cat\n" for n in range(8))})
    answer = cli("train", tmp_path / "data", *TINY, "--out", tmp_path / "run", "--quiet")
    assert answer.code == DATA
    assert "None of the training images" in answer.err.splitlines()[-1]


def test_every_validation_image_is_broken(cli: Cli, tmp_path):
    rows = [f"{n}.png,{'cat' if n % 2 else 'dog'},{'val' if n > 7 else 'train'}" for n in range(10)]
    write(tmp_path / "data", {f"{n}.png": picture(40 + n)[: 60 if n > 7 else None] for n in range(10)})
    write(tmp_path / "data", {"tags.csv": "\n".join(["image,tags,split", *rows])})
    answer = cli("train", tmp_path / "data", *TINY, "--out", tmp_path / "run", "--quiet")
    assert answer.code == DATA
    assert "val" in answer.err.splitlines()[-1]


def test_predict_in_a_folder_without_images(cli: Cli, trained, tmp_path):
    write(tmp_path, {"notes.txt": "none here"})
    assert_refused(cli("predict", trained, tmp_path), USAGE, "No images were found", ".jpg")


def test_predict_a_missing_image(cli: Cli, trained, tmp_path):
    assert_refused(cli("predict", trained, tmp_path / "a.jpg"), USAGE, "a.jpg does not exist")


def test_predict_into_an_unknown_kind_of_file(cli: Cli, trained, patches, tmp_path):
    answer = cli("predict", trained, patches.path(0), "--out", tmp_path / "tags.xlsx")
    assert_refused(answer, USAGE, "tags.xlsx", ".csv or .jsonl")


def test_predict_on_an_unknown_device(cli: Cli, trained, patches):
    assert_refused(cli("predict", trained, patches.path(0), "--device", "gpu"), USAGE, "gpu", "cuda")


def test_predict_below_a_file(cli: Cli, trained, patches, tmp_path):
    write(tmp_path, {"file": "x"})
    answer = cli("predict", trained, patches.path(0), "--quiet", "--out", tmp_path / "file" / "tags.csv")
    assert_refused(answer, FAILED, str(tmp_path / "file"))


# --- what a run is asked to do ---

RUNS = {
    "known above 1": (["data.known=1.5"], USAGE, ["1.5", "at most 1"]),
    "known 0": (["data.known=0"], DATA, ["No tag is known", "'an'", "tag some images"]),
    "method and head do not fit": (["method=cst", "head=linear"], USAGE, ["'cst'", "'linear'", "head=decoupled"]),
    "no such backbone": (["model.backbone=resnet5O"], USAGE, ["resnet5O", "did you mean 'resnet50'"]),
    "no such stage": (["model.train_from=layr4"], USAGE, ["layr4", "did you mean 'layer4'"]),
    "no such weights": (["model.weights=none.safetensors"], USAGE, ["none.safetensors does not exist"]),
    "no CUDA here": (["train.device=cuda"], USAGE, ["cuda", "fewtags doctor"]),
    "caching nothing": (["cache.enabled=true"], USAGE, ["cache.enabled", "freezes none"]),
    "stride in what is no bottleneck": (
        ["model.backbone=test_efficientnet", "model.stride_in_1x1=true"],
        USAGE,
        ["stride_in_1x1", "bottlenecks"],
    ),
    "no such words": (["method=ssgrl", "words.source=none.txt"], USAGE, ["none.txt"]),
    "loss not finite": (["train.lr=1e30", "train.schedule=none", "train.epochs=9"], FAILED, ["not finite", "train.lr"]),
}


@pytest.mark.parametrize("name", RUNS)
def test_runs(name, cli: Cli, patches, tags_file, tmp_path):
    settings, code, parts = RUNS[name]
    if name == "no CUDA here" and torch.cuda.is_available():
        pytest.skip("there is CUDA here")
    given = [*TINY, "data.options.complete=true", *settings]
    answer = cli("train", patches.root, "--tags", tags_file, *given, "--out", tmp_path / "run", "--quiet")
    assert_refused(answer, code, *parts)


def test_hiding_labels_that_are_partial_already(cli: Cli, patches, tags_file, tmp_path):
    answer = cli("train", patches.root, "--tags", tags_file, *TINY, "--known", "0.5", "--out", tmp_path / "run")
    assert_refused(answer, USAGE, "data.known=0.5", "already unknown", "remove data.known")


def test_no_run_is_written_over(cli: Cli, trained, patches, tags_file):
    answer = cli("train", patches.root, "--tags", tags_file, *TINY, "--out", trained)
    assert_refused(answer, USAGE, str(trained), "already contains a finished run", "choose another folder")


def test_a_file_where_the_run_should_go(cli: Cli, patches, tags_file, tmp_path):
    write(tmp_path, {"run": "I am a file"})
    answer = cli("train", patches.root, "--tags", tags_file, *TINY, "--out", tmp_path / "run")
    assert_refused(answer, FAILED, str(tmp_path / "run"))


def test_a_missing_extra_names_the_pip_line(cli: Cli, patches, tags_file, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    answer = cli("train", patches.root, "--tags", tags_file, *TINY, "--tensorboard", "--out", tmp_path / "run")
    assert_refused(answer, EXTRA, "TensorBoard", "pip install 'fewtags[tensorboard]'")


# --- weights files ---

WEIGHTS = {
    "not weights": ("w.safetensors", b"no weights", ["w.safetensors", "not a readable weights file"]),
    "not a state dict": ("w.pth", [1, 2, 3], ["w.pth", "state dict"]),
    "another model": ("w.safetensors", {"conv.weight": torch.zeros(2)}, ["does not match the backbone", "lacks"]),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights(name, cli: Cli, patches, tags_file, tmp_path):
    file, content, parts = WEIGHTS[name]
    if isinstance(content, bytes):
        (tmp_path / file).write_bytes(content)
    elif file.endswith("safetensors"):
        save_file(content, tmp_path / file)
    else:
        torch.save(content, tmp_path / file)
    answer = cli(
        "train", patches.root, "--tags", tags_file, *TINY, "--weights", tmp_path / file, "--out", tmp_path / "r"
    )
    assert_refused(answer, USAGE, *parts)


class Attack:
    """Pickled, it writes a file when it is unpickled."""

    def __init__(self, file: Path):
        self.file = file

    def __reduce__(self):
        return os.mkdir, (str(self.file),)


def test_weights_with_code_in_them_are_not_run(cli: Cli, patches, tags_file, tmp_path):
    (tmp_path / "w.pth").write_bytes(pickle.dumps(Attack(tmp_path / "attacked"), protocol=2))
    answer = cli(
        "train", patches.root, "--tags", tags_file, *TINY, "--weights", tmp_path / "w.pth", "--out", tmp_path / "r"
    )
    assert_refused(answer, USAGE, "w.pth", "not a readable weights file")
    assert not (tmp_path / "attacked").exists()


# --- checkpoints ---


@pytest.fixture
def stopped(trained: Path, tmp_path: Path) -> Path:
    """A copy of a run as if it had been stopped before its end."""
    folder = tmp_path / "stopped"
    shutil.copytree(trained, folder)
    (folder / "result.json").unlink()
    return folder


def change_checkpoint(folder: Path, **changes: object) -> None:
    file = folder / "checkpoints/last.pt"
    save_checkpoint({**load_checkpoint(file), **changes}, file)


def test_no_checkpoint(cli: Cli, stopped):
    """Then it starts from the beginning."""
    (stopped / "checkpoints/last.pt").unlink()
    assert cli("train", "--resume", stopped, "-q").code == 0
    assert (stopped / "result.json").is_file()


def test_a_truncated_checkpoint(cli: Cli, stopped):
    file = stopped / "checkpoints/last.pt"
    file.write_bytes(file.read_bytes()[:5000])
    assert_refused(cli("train", "--resume", stopped), USAGE, "last.pt is damaged")


def test_a_checkpoint_of_something_else(cli: Cli, stopped):
    torch.save({"epoch": 3}, stopped / "checkpoints/last.pt")
    assert_refused(cli("train", "--resume", stopped), USAGE, "last.pt is not a checkpoint of format 1")


def test_a_checkpoint_that_lacks_parts(cli: Cli, stopped):
    torch.save({"format": 1, "epoch": 0}, stopped / "checkpoints/last.pt")
    assert_refused(cli("train", "--resume", stopped), USAGE, "last.pt", "lacks")


def test_a_checkpoint_with_code_in_it_is_not_run(cli: Cli, stopped, tmp_path):
    torch.save({"format": 1, "epoch": Attack(tmp_path / "attacked")}, stopped / "checkpoints/last.pt")
    assert_refused(cli("train", "--resume", stopped), USAGE, "last.pt is damaged or not a fewtags checkpoint")
    assert not (tmp_path / "attacked").exists()


def test_a_checkpoint_of_other_categories(cli: Cli, stopped):
    change_checkpoint(stopped, categories=["cat", "dog"])
    assert_refused(
        cli("train", "--resume", stopped), USAGE, "2 categories (cat, dog", "this dataset has 3 (blue, green"
    )


def test_a_checkpoint_of_other_settings(cli: Cli, stopped):
    config = stopped / "config.yaml"
    config.write_text(config.read_text().replace("width: 0", "width: 16"))
    assert_refused(cli("train", "--resume", stopped), USAGE, "last.pt", "config.yaml")


# --- saved models ---


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"format": 2}', b'{"format": 2, "head": 3}'])
def test_a_damaged_config_json(content, cli: Cli, stopped, patches):
    (stopped / "model/config.json").write_bytes(content)
    assert_refused(cli("predict", stopped, patches.path(0)), USAGE, "config.json is damaged")


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"categories": 3, "thresholds": []}', b'{"categories": ["a"], "thresholds": []}']
)
def test_a_damaged_labels_json(content, cli: Cli, stopped, patches):
    (stopped / "model/labels.json").write_bytes(content)
    assert_refused(cli("predict", stopped, patches.path(0)), USAGE, "json is damaged")


def test_a_newer_config_json(cli: Cli, stopped, patches):
    (stopped / "model/config.json").write_text('{"format": 7}')
    assert_refused(cli("predict", stopped, patches.path(0)), USAGE, "format 7", "reads 1 and 2")


def test_a_model_without_weights(cli: Cli, stopped, patches):
    (stopped / "model/model.safetensors").unlink()
    assert_refused(cli("predict", stopped, patches.path(0)), USAGE, "model.safetensors is missing")


def test_a_model_with_damaged_weights(cli: Cli, stopped, patches):
    file = stopped / "model/model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    assert_refused(cli("predict", stopped, patches.path(0)), USAGE, "model.safetensors is missing or damaged")


# --- evaluating ---

EVALUATIONS = {
    "unknown split": (["--split", "tset"], USAGE, ["tset", "did you mean 'test'"]),
    "no such split": (["--split", "val"], USAGE, ["no val split", "train, test"]),
    "threshold not a number": (["--threshold", "high"], USAGE, ["--threshold high", "'saved'"]),
    "threshold above 1": (["--threshold", "50"], USAGE, ["--threshold 50", "0 to 1"]),
    "tags of nothing": (["--tags", "tags.csv"], USAGE, ["--tags", "DATA"]),
}


@pytest.mark.parametrize("name", EVALUATIONS)
def test_evaluations(name, cli: Cli, trained):
    arguments, code, parts = EVALUATIONS[name]
    assert_refused(cli("evaluate", trained, *arguments), code, *parts)


def test_evaluating_on_other_categories(cli: Cli, trained, tmp_path):
    write(tmp_path, {"a.png": picture(), "tags.csv": "image,tags\na.png,cat\n"})
    assert_refused(cli("evaluate", trained, tmp_path), DATA, "none of the model's categories", "blue, green")


# --- in a process of its own ---


def test_no_traceback_from_the_installed_command(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "fewtags", "train", str(tmp_path), "train.epochs=0"], capture_output=True, text=True
    )
    assert_refused(
        Answer(done.returncode, done.stdout, done.stderr), USAGE, "train.epochs", "greater than or equal to 1"
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_saves_and_says_how_to_go_on(number, patches, tags_file, tmp_path):
    """A terminal sends it to everything that the command started, so what reads images ahead must not die of it."""
    run = tmp_path / "run"
    settings = [*TINY, "train.epochs=100000", "train.evaluate_every=100000", "train.workers=2"]
    settings += ["input.keep_in_memory=false"]
    command = Command(tmp_path / "said", "train", patches.root, "--tags", tags_file, *settings, "--out", run)
    while not (run / "checkpoints/last.pt").exists() and not command.ended:
        time.sleep(0.1)
    os.killpg(command.pid, number)
    assert command.wait() == INTERRUPTED
    assert "everything is saved" in command.err.splitlines()[-1]
    assert f"fewtags train --resume {run}" in command.err
    assert "Traceback" not in command.err


def test_ctrl_c_before_training(cli: Cli, patches, tags_file, monkeypatch):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fewtags.commands.check.read_annotations", interrupted)
    assert_refused(cli("check", patches.root), INTERRUPTED, "Interrupted")
