"""Nothing mixes tensors of two devices; what this runs would fail on a GPU if it did (tests/pretend_device.py)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_map

from conftest import TinyConfig
from fewtags.data.annotations import Annotations
from fewtags.data.prepare import split_data
from fewtags.data.scenes import BACKBONE
from fewtags.engine import model_outputs, prediction, record, training
from fewtags.engine.checkpoint import save_checkpoint
from fewtags.engine.model_outputs import model_outputs as outputs_of
from fewtags.methods import METHODS
from fewtags.models.saved import load_model
from fewtags.tagger import Tagger
from pretend_device import Away, pretend_device

# Every pair of a head and an objective once, in the paper's profile where there is one; and one with more state.
CASES = {
    (method.head, method.objective): (name, profile)
    for name, method in METHODS.items()
    for profile in ("default", *(key for key in method.profiles if key == "paper"))
}
CASES = [*CASES.values(), ("caldnr", "default")]
SMALL = {
    "model.backbone": "test_resnet",
    "model.train_from": "head",  # its maps are computed once
    "model.width": 0,
    "input.size": 32,
    "model.pool": 1,
    "train.epochs": 2,
    "train.batch_size": 6,
}


@contextmanager
def away() -> Iterator[None]:
    """Every run, prediction and look at images happens on the pretended device."""
    with pretend_device() as device, pytest.MonkeyPatch.context() as patch:
        for module in (training, prediction, model_outputs):
            patch.setattr(module, "choose_device", lambda name: device)
        yield


@pytest.fixture
def elsewhere():
    with away():
        yield


def small(name: str, profile: str) -> list[str]:
    settings = [f"method={name}", f"method.profile={profile}", *(f"{key}={value}" for key, value in SMALL.items())]
    fields = type(TinyConfig.make(*settings).method).model_fields
    return settings + (["method.discover_from_epoch=0"] if "discover_from_epoch" in fields else [])


@pytest.fixture(scope="module")
def few(patches: Annotations) -> Annotations:
    """12 images to train on and 4 to measure on: enough for every branch, as each operation takes its time here."""
    return patches.take(np.r_[0:12, 36:40])


@pytest.mark.parametrize(("name", "profile"), CASES)
def test_every_method_starts_trains_and_predicts_on_a_device_what_it_does_on_a_cpu(name, profile, few, tmp_path):
    config = TinyConfig.make(*small(name, profile))
    data = split_data(few, config.data, 0)
    training.train(config, tmp_path / "here", data=data, quiet=True)
    with away():
        training.train(config, tmp_path / "there", data=data, quiet=True)
    here, there = (np.load(tmp_path / run / "predictions-test.npz")["probabilities"] for run in ("here", "there"))
    np.testing.assert_allclose(there, here, atol=1e-3)


@pytest.mark.filterwarnings("ignore:.*copying from a non-meta parameter")  # the device is torch's "meta" by name only
@pytest.mark.parametrize("name", ["an", "refined"])
def test_a_backbone_is_trained_and_resumed_on_a_device(name, few: Annotations, tmp_path, elsewhere, monkeypatch):
    """`refined` then keeps the logits of its start. A checkpoint is read to the CPU, wherever it was written."""
    monkeypatch.setattr(record, "save_checkpoint", lambda content, file: save_checkpoint(taken_back(content), file))
    tuned = (f"model.weights={BACKBONE}", "model.train_from=layer4")
    for epochs in (1, 2):
        config = TinyConfig.make(*small(name, "default"), *tuned, f"train.epochs={epochs}")
        data = split_data(few, config.data, 0)
        result = training.train(config, tmp_path / "run", data=data, quiet=True, resume=epochs > 1)
        assert result.epochs == epochs
        assert result.last is not None


def taken_back(content: dict) -> dict:
    return tree_map(lambda value: value.cpu() if isinstance(value, Away) else value, content)


def test_a_model_that_looked_at_images_on_a_device_learns_labels_there(few: Annotations, tmp_path, elsewhere):
    """Its buffers must not have become inference tensors on the way, which cannot be written to."""
    config = TinyConfig.make(*small("instant", "default"))
    training.train(config, tmp_path / "run", data=split_data(few, config.data, 0), quiet=True)
    tagger = Tagger.load(tmp_path / "run")
    features = tagger.features(few)
    tagger.relabel(features[0], "red", 1)
    order, probabilities = tagger.rerank("red", features)
    assert sorted(order) == list(range(len(few)))
    assert np.isfinite(probabilities).all()

    saved = load_model(tmp_path / "run")
    outputs = outputs_of(saved, few, quiet=True)
    assert isinstance(saved.classifier.head.presence.weights, Away)
    saved.classifier.head.relabel(outputs.unit_features(np.array([1])), torch.tensor([0]), torch.tensor([-1]))


@pytest.mark.parametrize(
    ("operation", "mixes"),
    {
        "a sum": (lambda away, here: away + here, True),
        "a sum with a CPU scalar": (lambda away, here: away + here.sum(), False),
        "a scalar that is away with what is not": (lambda away, here: away.sum() + here, True),
        "a mask": (lambda away, here: torch.where(here > 0, away, 0.0), True),
        "joined": (lambda away, here: torch.cat([away, here]), True),
        "a CPU index into what is away": (lambda away, here: away[torch.tensor([1, 0])], False),
        "an index that is away into what is not": (lambda away, here: here[away.argsort()], True),
        "a copy": (lambda away, here: away.copy_(here), False),
        "taken back": (lambda away, here: away.cpu() + here, False),
        "NumPy": (lambda away, here: away.numpy(), True),
    }.values(),
)
def test_the_pretended_device_has_the_rules_of_a_gpu(operation, mixes):
    with pretend_device() as device:
        away, here = torch.tensor([1.0, 2.0]).to(device), torch.tensor([3.0, 4.0])
        if mixes:
            with pytest.raises(RuntimeError):
                operation(away, here)
        else:
            operation(away, here)
