"""What runs should take on a GPU, by arithmetic: counted operations and bytes over what the card is said to do.

    .venv/bin/python benchmarks/gpu_arithmetic.py

NOT MEASURED: there is no GPU here. Operations are counted by torch on a device that computes nothing; bytes are what
every layer of the network reads and writes, as nothing is fused. A layer takes the longer of the two times; their sum
is the shortest possible time. It is shown as such, and multiplied by SLACK as what to expect.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fewtags.models.backbones import create_backbone

BATCH = 32
SLACK = 3.0  # convolutional networks usually reach a third of what a card could do, or more


@dataclass(frozen=True)
class Card:
    """As its maker says."""

    name: str = "RTX 3060 (12 GB)"
    operations: float = 25e12  # per second, bf16 with sums in fp32, without sparsity
    bytes: float = 360e9  # per second, of its memory


@dataclass(frozen=True)
class Cost:
    """Of one image through a part of a network."""

    operations: float = 0.0
    bytes: float = 0.0
    seconds: float = 0.0  # the shortest possible

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.operations + other.operations, self.bytes + other.bytes, self.seconds + other.seconds)

    def __rmul__(self, factor: float) -> Cost:
        return Cost(factor * self.operations, factor * self.bytes, factor * self.seconds)


def main() -> None:
    card = Card()
    lite0, resnet = costs("tf_efficientnet_lite0", 224, card), costs("resnet101", 448, card)
    everything = total(lite0)
    # Backwards, a layer computes two products of the same size (for its weights and for its input) instead of one.
    paper = total(resnet) + 2 * resnet["layer4"]
    rows = [
        ("`instant`: 20,000 photos at 224 px, lite0", 20_000, everything),
        ("`predict`: 1,000,000 photos at 224 px, lite0", 1_000_000, everything),
        ("one epoch of the paper on VOC 2007: 5,011 at 448 px, ResNet-101, layer4 trained", 5_011, paper),
        ("one epoch of the paper on COCO 2014: 82,081 at 448 px", 82_081, paper),
        ("its evaluation on COCO 2014: 40,137 at 448 px", 40_137, total(resnet)),
    ]
    print(f"{card.name}, bf16, batches of {BATCH}. Not measured.\n")
    print("| | GFLOP an image | MB an image | at best | expected | images/s expected |\n|---|---:|---:|---:|---:|---:|")
    for name, number, cost in rows:
        at_best = number * cost.seconds
        print(
            f"| {name} | {cost.operations / 1e9:.1f} | {cost.bytes / 1e6:.0f} | {shown(at_best)} | "
            f"{shown(SLACK * at_best)} | {number / SLACK / at_best:,.0f} |"
        )


def costs(name: str, size: int, card: Card) -> dict[str, Cost]:
    """Of every stage."""
    backbone = create_backbone(name, pretrained=False, input_size=size).eval().to("meta")
    maps, found = torch.zeros(BATCH, 3, size, size, device="meta"), {}
    by_torch = 0.0
    for stage_name, stage in backbone.stages.items():
        layers: list[Cost] = []
        hooks = [layer.register_forward_hook(counting(layers, card)) for layer in leaves(stage)]
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            maps = stage(maps)
        by_torch += counter.get_total_flops() / BATCH
        for hook in hooks:
            hook.remove()
        found[stage_name] = sum(layers, Cost())
    ours = total(found).operations
    assert 0.9 * ours < by_torch <= ours, "torch, which counts products only, should find nearly all of it"
    return found


def counting(layers: list[Cost], card: Card) -> Callable[..., None]:
    """A hook that adds the cost of a layer, of one image."""

    def hook(layer: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        weights = sum(parameter.numel() for parameter in layer.parameters()) / BATCH
        moved = 2 * (sum(part.numel() for part in inputs) + output.numel()) / BATCH + 2 * weights
        operations = operations_of(layer, output) / BATCH
        layers.append(Cost(operations, moved, max(operations / card.operations, moved / card.bytes)))

    return hook


def operations_of(layer: nn.Module, output: torch.Tensor) -> float:
    """A multiplication and an addition are two."""
    if isinstance(layer, nn.Conv2d):
        inner = layer.in_channels // layer.groups * layer.kernel_size[0] * layer.kernel_size[1]
        return 2.0 * output.numel() * inner
    return 2.0 * output.numel() * layer.in_features if isinstance(layer, nn.Linear) else float(output.numel())


def leaves(module: nn.Module) -> list[nn.Module]:
    return [layer for layer in module.modules() if not any(True for _ in layer.children())]


def total(stages: dict[str, Cost]) -> Cost:
    return sum(stages.values(), Cost())


def shown(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


if __name__ == "__main__":
    main()
