"""`fewtags explain`: the image beside a heat map for each tag."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from conftest import Cli, TinyConfig
from fewtags.commands.explain import GAP, SIDE
from fewtags.data.annotations import Annotations
from fewtags.data.prepare import split_data
from fewtags.engine.training import train


@pytest.fixture(scope="module")
def attentive(patches: Annotations, tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = TinyConfig.make("method=caldnr", "train.epochs=1")
    folder = tmp_path_factory.mktemp("attentive") / "run"
    train(config, folder, data=split_data(patches, config.data), quiet=True)
    return folder


def test_a_panel_for_the_image_and_one_for_each_tag(cli: Cli, attentive, patches, tmp_path):
    out = tmp_path / "where.png"
    answer = cli("explain", attentive, patches.path(0), "--tag", "red", "--tag", "blue", "--out", out)
    assert answer.code == 0
    lines = answer.out.splitlines()
    assert [line.split()[0] for line in lines] == ["red", "blue", str(out)]
    with Image.open(out) as picture:
        assert picture.width == 3 * SIDE + 2 * GAP


def test_without_tags_the_predicted_ones_are_shown(cli: Cli, attentive, patches, tmp_path):
    out = tmp_path / "where.png"
    assert cli("explain", attentive, patches.path(0), "--out", out).code == 0
    with Image.open(out) as picture:
        assert picture.width >= 2 * SIDE


def test_a_tag_that_the_model_does_not_have(cli: Cli, attentive, patches):
    answer = cli("explain", attentive, patches.path(0), "--tag", "bleu")
    assert answer.code == 2
    assert "did you mean 'blue'" in answer.err


def test_a_head_without_attention_says_which_has_it(cli: Cli, trained, patches):
    answer = cli("explain", trained, patches.path(0))
    assert answer.code == 2
    assert "head=decoupled" in answer.err
