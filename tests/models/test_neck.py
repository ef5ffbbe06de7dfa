"""The neck: pooling, and a convolution to fewer channels that may begin where the training images differ most."""

import pytest
import torch
import torch.nn.functional as F

from conftest import TinyConfig
from fewtags.data.prepare import split_data
from fewtags.engine.training import train
from fewtags.methods.base import Batch
from fewtags.models.build import load_model
from fewtags.models.classifier import Neck

NUM, DIM = 300, 10


@pytest.fixture(scope="module")
def maps():
    generator = torch.Generator().manual_seed(0)
    mixed = torch.randn(NUM, DIM, generator=generator) @ torch.randn(DIM, DIM, generator=generator)
    return (mixed + 9)[:, :, None, None].expand(-1, -1, 2, 2).contiguous()


def batches(maps, size=64):
    return [Batch(part, torch.zeros(len(part), 3), torch.arange(len(part))) for part in maps.split(size)]


def test_it_begins_at_the_directions_of_most_variance(maps):
    neck = Neck(DIM, 1, 4, principal=True)
    neck.start(batches(maps))
    unit = F.normalize(maps.mean((2, 3)), dim=1)
    spread = unit.std(0, correction=0)
    _, _, directions = torch.linalg.svd((unit - unit.mean(0)) / spread, full_matrices=False)
    expected = directions[:4].flip(0) / spread
    weight = neck[0].weight[:, :, 0, 0]
    signs = (weight * expected).sum(1, keepdim=True).sign()
    torch.testing.assert_close(weight * signs, expected, rtol=1e-2, atol=1e-2)


def test_behind_it_channels_count_alike_and_do_not_repeat_each_other(maps):
    neck = Neck(DIM, 1, 4, principal=True)
    unit = F.normalize(maps, dim=1)
    neck.start(batches(unit))
    whitened = neck.train()(unit).mean((2, 3))
    torch.testing.assert_close(whitened.T @ whitened / NUM, torch.eye(4), rtol=0, atol=0.02)


@pytest.mark.parametrize(("width", "principal", "wants"), [(4, True, True), (4, False, False), (0, True, False)])
def test_only_a_principal_neck_wants_to_see_the_images(width, principal, wants):
    assert Neck(DIM, 2, width, principal).needs_start == wants


def test_more_channels_than_there_are_begin_at_random():
    assert not Neck(DIM, 1, DIM + 1, principal=True).needs_start


def test_a_run_starts_neck_and_head_and_is_loaded_as_it_was_saved(patches, tmp_path, capsys):
    config = TinyConfig.make("method=an", "model.width=6", "model.width_start=principal", "train.epochs=1")
    data = split_data(patches, config.data, config.seed)
    train(config, tmp_path / "run", data=data)
    log = "".join(capsys.readouterr())
    assert log.index("Neck: 6 directions") < log.index("Features standardised")
    assert load_model(tmp_path / "run").config.model.width_start == "principal"
