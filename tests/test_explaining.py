"""`fewtags explain`: the image beside a heat map for each tag."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from conftest import Cli, TinyConfig
from fewtags.commands.explain import CAPTION, GAP, SIDE, chosen_columns
from fewtags.data.annotations import Annotations
from fewtags.data.prepare import split_data
from fewtags.engine.prediction import predict_files
from fewtags.engine.training import train
from fewtags.models.saved import load_model


@pytest.fixture(scope="module")
def finer(patches: Annotations, tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = TinyConfig.make("method=refined", "train.epochs=1", "model.output_stride=16")
    folder = tmp_path_factory.mktemp("finer") / "run"
    train(config, folder, data=split_data(patches, config.data), quiet=True)
    return folder


def test_a_panel_for_the_image_and_one_for_each_tag(cli: Cli, finer, patches, tmp_path):
    out = tmp_path / "where.png"
    answer = cli("explain", finer, patches.path(0), "--tag", "red", "--tag", "blue", "--out", out)
    assert answer.code == 0
    lines = answer.out.splitlines()
    assert [line.split()[0] for line in lines] == ["red", "blue", str(out)]
    with Image.open(out) as picture:
        assert picture.width == 3 * SIDE + 2 * GAP


def test_without_tags_the_predicted_ones_are_shown(cli: Cli, finer, patches, tmp_path):
    out = tmp_path / "where.png"
    saved = load_model(finer)
    (prediction,) = predict_files(saved, [patches.path(0)])
    answer = cli("explain", finer, patches.path(0), "--out", out)
    assert answer.code == 0
    named = [line.split()[0] for line in answer.out.splitlines()[:-1]]
    most_probable = saved.categories[int(prediction.probabilities.argmax())]
    assert named == (list(prediction.tags(saved.categories, saved.thresholds)) or [most_probable])
    with Image.open(out) as picture:
        assert picture.width == (1 + len(named)) * (SIDE + GAP) - GAP


def test_where_nothing_reaches_its_threshold_the_most_probable_tag_is_shown(finer, patches, monkeypatch):
    saved = replace(load_model(finer), thresholds=np.ones(3))
    assert chosen_columns(saved, np.array([0.1, 0.3, 0.2]), None) == [1]
    assert chosen_columns(replace(saved, thresholds=np.full(3, 0.15)), np.array([0.1, 0.3, 0.2]), None) == [1, 2]


def test_a_tag_that_the_model_does_not_have(cli: Cli, finer, patches):
    answer = cli("explain", finer, patches.path(0), "--tag", "bleu")
    assert answer.code == 2
    assert "did you mean 'blue'" in answer.err


def test_every_method_can_be_explained(cli: Cli, patches, tmp_path):
    """Also those whose head has no attention."""
    config = TinyConfig.make("method=instant", "model.output_stride=16")
    train(config, tmp_path / "run", data=split_data(patches, config.data), quiet=True)
    answer = cli(
        "explain", tmp_path / "run", patches.path(0), "--tag", "red", "--tag", "red", "--out", tmp_path / "a.png"
    )
    assert answer.code == 0
    with Image.open(tmp_path / "a.png") as picture:
        left = [picture.crop((n * (SIDE + GAP), CAPTION, n * (SIDE + GAP) + SIDE, CAPTION + SIDE)) for n in range(3)]
    assert left[1].tobytes() == left[2].tobytes() != left[0].tobytes()


def test_a_map_of_one_place_says_so(cli: Cli, trained, patches):
    """32 px through a backbone of stride 32: there is no where."""
    answer = cli("explain", trained, patches.path(0))
    assert answer.code == 2
    assert "a single location" in answer.err
    assert "model.output_stride=16" in answer.err
