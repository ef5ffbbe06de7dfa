"""A run that calls itself the paper's says where it is not, and can be repeated on a GPU."""

from __future__ import annotations

import os

import pytest
import torch

from conftest import TinyConfig
from fewtags.contract import WordVectors
from fewtags.data.annotations import Annotations
from fewtags.data.prepare import split_data
from fewtags.engine.record import not_the_papers_words
from fewtags.engine.run import repeatable
from fewtags.engine.training import train


def test_words_of_the_papers_width_pass_and_others_are_named():
    assert not_the_papers_words(WordVectors(torch.zeros(3, 300), "glove.npz")) == ""
    assert "of 50 dimensions" in not_the_papers_words(WordVectors(torch.zeros(3, 50), "package"))
    assert "learned from random" in not_the_papers_words(WordVectors(torch.zeros(3, 300), "random", learned=True))


@pytest.mark.parametrize(("profile", "warned"), [("paper", True), ("default", False)])
def test_a_paper_run_without_its_word_vectors_warns(profile, warned, patches: Annotations, tmp_path, capsys):
    small = ["method=ssgrl", f"method.profile={profile}", "words.source=random", "train.epochs=1", "model.pool=1"]
    config = TinyConfig.make(
        *small, "model.backbone=test_resnet", "model.train_from=all", "model.width=16", "input.size=32"
    )
    few = patches.take([0, 1, 2, 3, 36, 37])
    train(config, tmp_path / "run", data=split_data(few, config.data, 0))
    out = capsys.readouterr()
    assert ("WARNING: this is not the paper's setting" in out.out + out.err) == warned


def test_deterministic_holds_for_the_run_and_not_longer(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    with repeatable(False):
        assert not torch.are_deterministic_algorithms_enabled()
    with pytest.raises(KeyError), repeatable(True):
        assert torch.are_deterministic_algorithms_enabled()
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        raise KeyError
    assert not torch.are_deterministic_algorithms_enabled()
