"""What a head makes of images before its trained part is computed once, and changes nothing."""

import numpy as np
import pytest
import torch

from conftest import TinyConfig
from fewtags.data.prepare import split_data
from fewtags.engine import settled, training
from fewtags.engine.checkpoint import load_checkpoint
from fewtags.engine.run_folder import RunFolder
from fewtags.models.closed_form import ClosedFormHead
from fewtags.models.saved import read_object


def train(patches, folder, *overrides):
    config = TinyConfig.make("method=refined", "model.train_from=head", "cache.enabled=true", *overrides)
    training.train(config, folder, data=split_data(patches, config.data, config.seed), quiet=True)
    probabilities = np.load(RunFolder(folder).predictions("test"))["probabilities"]
    return load_checkpoint(folder / "checkpoints/last.pt"), read_object(folder / "result.json"), probabilities


@pytest.fixture(scope="module")
def plain(patches, tmp_path_factory):
    """As it was before: everything again in every epoch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(settled, "settles", lambda model: False)
        return train(patches, tmp_path_factory.mktemp("plain") / "run")


def test_weights_and_predictions_are_those_of_computing_it_in_every_epoch(patches, plain, tmp_path, monkeypatch):
    passes = []
    original = ClosedFormHead.forward
    monkeypatch.setattr(ClosedFormHead, "forward", lambda head, maps: passes.append(1) or original(head, maps))
    state, result, probabilities = train(patches, tmp_path / "run")
    assert not passes
    for name, weight in plain[0]["model"].items():
        torch.testing.assert_close(state["model"][name], weight, rtol=1e-4, atol=1e-5, msg=name)
    np.testing.assert_allclose(probabilities, plain[2], rtol=1e-4, atol=1e-5)
    assert result["test"]["map"] == pytest.approx(plain[1]["test"]["map"], abs=1e-4)


def test_without_room_on_the_disk_it_is_computed_in_every_epoch(patches, plain, tmp_path, monkeypatch):
    monkeypatch.setattr(settled, "free_space", lambda folder: 0)
    _, _, probabilities = train(patches, tmp_path / "run")
    np.testing.assert_allclose(probabilities, plain[2], rtol=1e-4, atol=1e-5)


def test_a_disk_that_fills_up_meanwhile_is_no_end(tmp_path):
    rows = settled.SettledRows(1, 10, {})
    assert rows.write(torch.ones(2, 3), tmp_path)
    assert not any(tmp_path.iterdir())  # the file has no name, so nothing stays behind

    class Full:
        def write(self, content):
            raise OSError(28, "No space left on device")

        def close(self):
            pass

    rows.file = Full()
    assert not rows.write(torch.ones(2, 3), tmp_path)


def test_rows_come_back_in_any_order(tmp_path):
    content, kept = torch.randn(2, 6, 5), settled.SettledRows(2, 6, {})
    for part in content.flatten(0, 1).split(4):
        assert kept.write(part, tmp_path)
    index = torch.tensor([4, 0, 4])
    assert torch.equal(kept.rows(1, index), content[1, index])
