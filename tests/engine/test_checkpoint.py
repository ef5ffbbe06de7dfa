"""Checkpoints: whole or refused by name."""

import random

import numpy as np
import pytest
import torch

from fewtags.config import resolve
from fewtags.engine.checkpoint import load_checkpoint, save_checkpoint
from fewtags.engine.evaluation import _assemble
from fewtags.engine.record import changed_settings
from fewtags.errors import RunFailed, UserError


def test_a_flipped_bit_is_noticed_wherever_it_is(tmp_path):
    """All but the few bits that mean nothing, such as the padding between the parts of the archive."""
    file = tmp_path / "last.pt"
    save_checkpoint({"model": {"weight": torch.randn(50, 40), "bias": torch.randn(40)}}, file)
    whole = file.read_bytes()
    expected = load_checkpoint(file)
    rng, refused, accepted = random.Random(0), 0, 0
    for _ in range(120):
        place = rng.randrange(len(whole))
        file.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << rng.randrange(8))]) + whole[place + 1 :])
        try:
            content = load_checkpoint(file)
        except UserError:
            refused += 1
        else:
            assert all(torch.equal(content["model"][name], expected["model"][name]) for name in expected["model"])
            accepted += 1
    assert refused > 3 * accepted


@pytest.mark.parametrize("length", [0, 10, 500])
def test_a_cut_off_checkpoint_is_refused(length, tmp_path):
    file = tmp_path / "last.pt"
    save_checkpoint({"model": {"weight": torch.randn(50, 40)}}, file)
    file.write_bytes(file.read_bytes()[:length])
    with pytest.raises(UserError, match=r"last\.pt is damaged"):
        load_checkpoint(file)


def test_settings_that_change_the_result_may_not_change_before_resuming():
    before = {"train": {"lr": 0.1, "device": "cpu"}, "cache": {"enabled": True}, "seed": 0}
    now = resolve({"train": {"lr": 0.2, "device": "cuda"}, "cache": {"enabled": False}, "seed": 0}).nested()
    assert changed_settings(before, now) == ["train.lr 0.1 -> 0.2"]
    assert changed_settings(before, resolve(before).nested()) == []


def test_a_model_that_gives_no_numbers_is_an_error_and_no_unreadable_image():
    logits = torch.zeros(4, 2)
    logits[1, 0] = torch.nan
    with pytest.raises(RunFailed, match=r"NaN.* for 1 of 4 images"):
        _assemble(logits, torch.arange(4), {}, (4, 2))
    assert np.isfinite(_assemble(torch.zeros(4, 2), torch.arange(4), {}, (4, 2)).probabilities).all()
