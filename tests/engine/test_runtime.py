"""The network by another runtime: the same features, and the fastest wins for a stated reason."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from fewtags.engine import runtime
from fewtags.engine.runtime import Runtime, choose_runtime, fastest
from fewtags.errors import MissingExtra, UserError
from fewtags.models.backbones import Backbone, create_backbone

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    torch.manual_seed(0)
    backbone = create_backbone("test_efficientnet", pretrained=False).eval()
    backbone.freeze_before("head")
    return backbone


def images(number: int, size: int = 32) -> Tensor:
    return torch.randint(0, 256, (number, 3, size, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", ["torch", "onnxruntime", "openvino"])
@pytest.mark.parametrize("number", [1, 5])
def test_every_runtime_gives_the_maps_of_torch(name, number, backbone):
    if name != "torch":
        pytest.importorskip(name)
    run = choose_runtime(backbone, name, 32, CPU).run
    torch.testing.assert_close(run(images(number)), backbone.forward_frozen(images(number)), rtol=1e-3, atol=1e-4)


def pretend(monkeypatch: pytest.MonkeyPatch, seconds: dict[str, float], wrong: tuple[str, ...] = ()) -> None:
    """Runtimes that take so long for a batch, on a clock of their own; those that are not named are not installed."""
    clock = SimpleNamespace(now=0.0)
    clock.perf_counter = lambda: clock.now
    monkeypatch.setattr(runtime, "time", clock)

    def build(name: str, backbone: Backbone, size: int) -> Runtime:
        if name not in seconds:
            raise MissingExtra(name, "extra")

        def run(images: Tensor) -> Tensor:
            clock.now += seconds[name]
            return torch.full((len(images), 4, 2, 2), 2.0 if name in wrong else 1.0)

        return Runtime(name, run)

    monkeypatch.setattr(runtime, "build", build)


def test_the_fastest_is_taken_and_says_why(backbone, monkeypatch):
    pretend(monkeypatch, {"torch": 0.03, "onnxruntime": 0.005, "openvino": 0.015})
    chosen = fastest(backbone, 32, 1e9)
    assert chosen.name == "onnxruntime"
    assert chosen.sentence.startswith("Features computed by onnxruntime, about ")
    assert "torch" in chosen.sentence
    assert "openvino" in chosen.sentence


def test_torch_stays_where_it_is_the_fastest_or_alone(backbone, monkeypatch):
    pretend(monkeypatch, {"torch": 0.001, "onnxruntime": 0.02})
    assert fastest(backbone, 32, 1e9).name == "torch"
    pretend(monkeypatch, {"torch": 0.001})
    chosen = fastest(backbone, 32, 1e9)
    assert chosen.name == "torch"
    assert "onnxruntime: not installed" in chosen.sentence


def test_what_gives_other_features_is_not_taken(backbone, monkeypatch):
    pretend(monkeypatch, {"torch": 0.01, "onnxruntime": 0.001}, wrong=("onnxruntime",))
    chosen = fastest(backbone, 32, 1e9)
    assert chosen.name == "torch"
    assert "onnxruntime: its features differ" in chosen.sentence


def test_few_images_are_not_worth_another_runtime(backbone, monkeypatch):
    """Its start would take longer than it saves."""
    pretend(monkeypatch, {"torch": 0.01, "onnxruntime": 0.001})
    assert fastest(backbone, 32, 100).name == "torch"
    assert fastest(backbone, 32, 100).sentence == ""


def test_a_network_that_a_runtime_cannot_take_is_left_to_torch(backbone, monkeypatch):
    original = runtime.build

    def build(name: str, *args) -> Runtime:
        if name != "torch":
            raise RuntimeError("operator not supported")
        return original(name, *args)

    monkeypatch.setattr(runtime, "build", build)
    chosen = fastest(backbone, 32, 1e9)
    assert chosen.name == "torch"
    assert "RuntimeError" in chosen.sentence


def test_choosing_leaves_torch_its_threads(backbone):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        fastest(backbone, 32, 1)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_half_precision_only_where_it_is_asked_for(backbone, monkeypatch):
    """A saved model gives a photo the same tags on every computer; bf16 would change a few."""
    pretend(monkeypatch, {"torch": 0.01, "torch-bf16": 0.001, "openvino-bf16": 0.0001})
    assert fastest(backbone, 32, 1e9).name == "torch"
    assert choose_runtime(backbone, "openvino-bf16", 32, CPU).name == "openvino-bf16"


def test_a_named_runtime_is_taken_whatever_the_precision_of_training(backbone, monkeypatch):
    """Another one would be cached by its own name, and never be found again."""
    pretend(monkeypatch, {"torch": 0.01, "onnxruntime": 0.01})
    assert choose_runtime(backbone, "onnxruntime", 32, CPU, torch.bfloat16).name == "onnxruntime"
    assert choose_runtime(backbone, "auto", 32, CPU, torch.bfloat16).name == "torch"


def test_a_gpu_is_not_run_by_a_runtime_of_the_cpu(backbone):
    with pytest.raises(UserError, match="runs on the CPU"):
        choose_runtime(backbone, "openvino", 32, torch.device("meta"))
