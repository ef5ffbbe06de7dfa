"""`fewtags cache`: what is kept, and its removal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conftest import Cli


@pytest.fixture
def folder(cli: Cli, patches, tags_file, tmp_path) -> Path:
    """Of a run on 48 images whose head needs averages only."""
    folder = tmp_path / "cache"
    settings = ("model.backbone=test_resnet", "model.pretrained=false", "input.size=32", f"cache.folder={folder}")
    data = ("train", patches.root, *settings, "--tags", tags_file, "-o", "complete=true", "-q")
    answer = cli(*data, "--out", tmp_path / "run", "--method", "linear")
    assert answer.code == 0, answer.err
    return folder


def test_it_says_what_is_there_and_how_large(cli: Cli, folder):
    answer = cli("cache", folder)
    assert answer.code == 0
    for text in (str(folder), "48", "averages", "32 px", "fewtags cache --empty"):
        assert text in answer.out.replace("\n", "")
    (shelf,) = json.loads(cli("cache", folder, "--json").out)["features"]
    assert (shelf["rows"], shelf["kind"], shelf["view"]) == (48, "pooled", "plain")
    assert shelf["bytes"] == sum(file.stat().st_size for file in folder.glob("*/*.bin"))


def test_it_is_emptied(cli: Cli, folder):
    assert "Removed 0.0 KB" in cli("cache", folder, "--empty", "--unused-for", "1").out
    assert list(folder.glob("*/*.bin"))
    assert "Removed" in cli("cache", folder, "--empty").out
    assert list(folder.iterdir()) == []
    assert "has no features yet" in cli("cache", folder).out.replace("\n", " ")


def test_it_removes_nothing_but_features(cli: Cli, folder, patches, tmp_path):
    (folder / "thesis.txt").write_text("mine")
    assert cli("cache", folder, "--empty").code == 0
    assert [file.name for file in folder.iterdir()] == ["thesis.txt"]
    answer = cli("cache", patches.root, "--empty")
    assert answer.code == 2
    assert "is not a folder of kept features" in answer.err
    assert patches.path(0).is_file()
    assert "does not exist" in cli("cache", tmp_path / "nowhere").err
