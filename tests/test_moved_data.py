"""A run is read again from another folder, and after its pictures were moved."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from conftest import TINY, Cli
from fewtags.config import load_config
from fewtags.data.annotations import Annotations
from fewtags.engine.record import load_run_config, load_run_data
from fewtags.engine.training import train
from fewtags.errors import UserError


@pytest.fixture
def project(patches, tags_file, tmp_path, monkeypatch, cli: Cli) -> Path:
    """A folder with pictures, tags, and a run that was started in it with relative paths."""
    project = tmp_path / "project"
    shutil.copytree(patches.root, project / "photos")
    (project / "photos/tags.csv").rename(project / "tags.csv")
    monkeypatch.chdir(project)
    given = ("photos", "--tags", "tags.csv", "-o", "complete=true", "--out", "runs/first", "-q")
    assert cli("train", *given, *TINY).code == 0
    return project


def test_evaluate_works_from_another_folder(cli: Cli, project, tmp_path, monkeypatch):
    here = cli("evaluate", "runs/first").out
    monkeypatch.chdir(tmp_path)
    there = cli("evaluate", "project/runs/first")
    assert (there.code, there.out, there.err) == (0, here, "")
    assert cli("train", "--resume", "project/runs/first", "-q").code == 0


def test_run_and_data_may_be_moved_together(cli: Cli, project, tmp_path, monkeypatch):
    here = cli("evaluate", "runs/first").out
    monkeypatch.chdir(tmp_path)
    project.rename(tmp_path / "renamed")
    assert cli("evaluate", "renamed/runs/first").out == here


def test_moved_pictures_are_said_and_can_be_named(cli: Cli, project):
    before = cli("evaluate", "runs/first").out
    (project / "photos").rename(project / "archive")
    gone = cli("evaluate", "runs/first")
    assert gone.code == 3
    assert f"{project / 'photos'} does not exist. " in gone.err
    assert "runs/first was trained on it; if it was moved, pass its new location with --data." in gone.err
    found = cli("evaluate", "runs/first", "--data", "archive")
    assert (found.code, found.out, found.err) == (0, before, "")
    assert cli("train", "--resume", "runs/first").code == 3
    assert cli("train", "--resume", "runs/first", "--data", "archive", "-q").code == 0


def test_tags_that_moved_along_are_found_or_named(cli: Cli, project):
    before = cli("evaluate", "runs/first").out
    (project / "photos").rename(project / "archive")
    (project / "tags.csv").rename(project / "archive/tags.csv")
    assert cli("evaluate", "runs/first", "--data", "archive").out == before
    (project / "archive/tags.csv").rename(project / "mine.csv")
    assert "tags.csv does not exist" in cli("evaluate", "runs/first", "--data", "archive").err
    assert cli("evaluate", "runs/first", "--data", "archive", "--tags", "mine.csv").out == before


def test_labels_that_changed_since_are_told(cli: Cli, project):
    text = (project / "tags.csv").read_text()
    (project / "tags.csv").write_text(text.replace(";blue,test", ",test"))
    assert (project / "tags.csv").read_text() != text
    answer = cli("evaluate", "runs/first")
    assert answer.code == 0
    assert "the test images or their labels have changed since runs/first was trained" in answer.err


def test_other_data_and_the_runs_own_are_not_mixed_up(cli: Cli, project):
    assert "pass only one" in cli("evaluate", "runs/first", "photos", "--data", "photos").err
    assert "--resume" in cli("train", "photos", "--data", "photos").err


def test_a_file_that_names_its_images(patches: Annotations, tmp_path):
    """Of such data a person moves the file, the images, or both."""
    shutil.copytree(patches.root, tmp_path / "photos")
    replace(patches, root=tmp_path / "photos").save(tmp_path / "patches.jsonl")
    train(load_config(None, [*TINY, f"data.source={tmp_path / 'patches.jsonl'}"]), tmp_path / "run", quiet=True)
    first = load_run_data(tmp_path / "run")
    (tmp_path / "photos").rename(tmp_path / "archive")
    with pytest.raises(UserError, match=r"None of the 48 images .* is in .*photos.*--data"):
        load_run_data(tmp_path / "run")
    moved = load_run_data(tmp_path / "run", tmp_path / "archive")
    assert moved.train.path(0) == tmp_path / "archive/00.png"
    assert moved.train.content_hash() == first.train.content_hash()


def test_an_older_run_is_read_from_the_current_folder(project, tmp_path, monkeypatch):
    """It does not say what its paths are relative to."""
    file = project / "runs/first/data.json"
    record = json.loads(file.read_text())
    del record["relative_to"]
    file.write_text(json.dumps(record))
    assert load_run_config(project / "runs/first").data.source == str(project / "photos")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=f"{tmp_path / 'photos'} does not exist"):
        load_run_data(project / "runs/first")


def test_every_path_of_the_settings_is_placed():
    given = load_config(None, [
        "data.source=photos", "data.tags=/abs/tags.csv", "data.options.train_list=train.txt",
        "data.options.categories=[a, b]", "data.options.complete=true", "model.weights=w.pt", "cache.folder=cache",
        "words.source=words.npz", "data.store=store",
    ])  # fmt: skip
    placed = given.relative_to(Path("/base"))
    assert (placed.data.source, placed.data.tags) == ("/base/photos", "/abs/tags.csv")
    assert placed.data.store == "/base/store"
    assert placed.data.options == {"train_list": "/base/train.txt", "categories": ["a", "b"], "complete": True}
    assert (placed.model.weights, placed.cache.folder) == ("/base/w.pt", "/base/cache")
    assert placed.words.source == "/base/words.npz"
    plain = load_config()
    assert plain.relative_to(Path("/base")) == plain
