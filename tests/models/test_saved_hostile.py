"""A model folder from elsewhere: whatever it says, one sentence, and no memory for what its weights do not have."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.overrides import TorchFunctionMode

from fewtags.errors import UserError
from fewtags.models.saved import load_model

GOLDEN = Path(__file__).parents[1] / "golden"
MOST = 200e6  # bytes; the model itself has less than a megabyte


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return shutil.copytree(GOLDEN / "format-2", tmp_path / "model")


def change(file: Path, changes: dict[str, Any]) -> None:
    about = json.loads(file.read_text())
    for place, value in changes.items():
        *groups, name = place.split(".")
        inside = about
        for group in groups:
            inside = inside[group]
        inside[name] = value
    file.write_text(json.dumps(about))


@pytest.fixture
def little_memory():
    """Tensors of more than MOST bytes are an error of the test, however they are made."""

    class Watch(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor) and result.device.type == "cpu":
                assert result.numel() * result.element_size() < MOST, f"{function} made {tuple(result.shape)}"
            return result

    with Watch():
        yield


@pytest.mark.parametrize(
    "changes",
    [
        {"word_vectors": [1_000_000_000, True]},
        {"word_vectors": [-1, True]},
        {"word_vectors": 7},
        {"word_vectors": ["x", True]},
        {"model.width": 200_000},
        {"model.width": 10**12},
        {"model.pool": 10**30},
        {"model.backbone": "vit_giant_patch14_224"},
        {"model.backbone": "../../x"},
        {"model.backbone": 3},
        {"input.size": 1_000_000_000},
        {"input.size": 1e9},
        {"input.resize": 1_000_000_000},
        {"input": []},
        {"head.name": "no such head"},
        {"head.width": 10**9},
        {"head": []},
        {"training": [1]},
        {"training": "x"},
        {"data": [1]},
        {"quality": 5},
        {"format": [2]},
        {"weights_sha256": None},
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_one_sentence(model, changes, little_memory):
    change(model / "config.json", changes)
    with pytest.raises(UserError) as refused:
        load_model(model)
    assert "\n" not in str(refused.value)
    assert str(model) in str(refused.value) or "timm backbone" in str(refused.value) or "head" in str(refused.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"thresholds": [float("nan")] * 3},
        {"thresholds": None},
        {"thresholds": ["x", 0, 0]},
        {"categories": [1, 2, 3]},
        {"categories": [f"tag {number}" for number in range(200_000)], "thresholds": [0.5] * 200_000},
    ],
    ids=lambda changes: str(changes)[:40],
)
def test_labels_that_make_no_sense_are_one_sentence(model, changes, little_memory):
    change(model / "labels.json", changes)
    with pytest.raises(UserError, match=r"labels\.json is damaged|does not match the model"):
        load_model(model)


def with_weights(model: Path, content: bytes) -> Path:
    (model / "model.safetensors").write_bytes(content)
    change(model / "config.json", {"weights_sha256": hashlib.sha256(content).hexdigest()})
    return model


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no safetensors",
        (2**60).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        (60).to_bytes(8, "little") + b'{"a":{"dtype":"F32","shape":[9999999],"data_offsets":[0,4]}}',
        (2).to_bytes(8, "little") + b"{}",
    ],
    ids=["empty", "text", "long header", "list", "short", "nothing"],
)
def test_bad_weights_under_a_right_checksum_are_one_sentence(model, content):
    with pytest.raises(UserError, match=r"model\.safetensors (is damaged|does not match)"):
        load_model(with_weights(model, content))


@pytest.mark.parametrize("how", ["another shape", "another type", "missing", "more"])
def test_weights_of_another_model_are_one_sentence(model, how, tmp_path):
    weights = load_file(model / "model.safetensors")
    name = max(weights, key=lambda name: weights[name].numel())
    if how == "another shape":
        weights[name] = weights[name].flatten()
    elif how == "another type":
        weights[name] = torch.zeros(3, dtype=torch.bool)
    elif how == "missing":
        del weights[name]
    else:
        weights["more"] = torch.zeros(3)
    save_file(weights, tmp_path / "other.safetensors")
    with pytest.raises(UserError, match=r"model\.safetensors does not match"):
        load_model(with_weights(model, (tmp_path / "other.safetensors").read_bytes()))


def test_a_record_without_a_method_has_none(model):
    change(model / "config.json", {"training": {"method": "an"}})
    assert load_model(model).method == "unknown"


def test_what_is_right_still_loads(model, little_memory):
    assert load_model(model).categories
