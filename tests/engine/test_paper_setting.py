"""A run that calls itself the paper's says where it is not, and can be repeated on a GPU."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch

from conftest import TinyConfig
from fewtags.contract import WordVectors
from fewtags.data.annotations import Annotations
from fewtags.data.prepare import split_data
from fewtags.engine.record import other_words
from fewtags.engine.run import repeatable
from fewtags.engine.training import train
from fewtags.methods import METHODS, find_method
from fewtags.models.heads import head_class


def test_words_of_the_papers_width_pass_and_others_are_named():
    paper = find_method("caldnr").profile("paper")
    assert paper.word_dim == 300
    assert other_words(WordVectors(torch.zeros(3, 300), "glove.npz"), paper) == ""
    assert "of 50 dimensions" in other_words(WordVectors(torch.zeros(3, 50), "package"), paper)
    assert "learned from random" in other_words(WordVectors(torch.zeros(3, 300), "random", learned=True), paper)
    assert other_words(WordVectors(torch.zeros(3, 50), "package"), replace(paper, word_dim=None)) == ""


def test_every_paper_profile_whose_head_uses_words_says_which():
    published = [(row, row.profiles["paper"]) for row in METHODS.values() if "paper" in row.profiles]
    for row, profile in published:
        assert (profile.word_dim == 300) == head_class(row.head).spec.needs_words, row.name


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
