"""What a run in the paper's setting takes: operations and memory, counted on tensors without data (the `meta` device).

    python benchmarks/paper_run.py [--speed 10]

No network is computed, so this takes seconds. Operations are those of convolutions and matrix products, in training and
in one evaluation per epoch. Memory is weights, gradients, Adam's state and what the backward pass keeps; the maps
of the frozen stages come and go beside it (two of 64x224x224 at most: 0.8 GB at batch 32), and a GPU needs its own.
What an objective adds (queues, L_csl, ROLE's table) is small beside it and not counted.
Hours are operations divided by `--speed` (10^12 a second that a card sustains in fp32): a scale, not a measurement.
"""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from dataclasses import dataclass
from unittest.mock import patch

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from fewtags.config import load_config
from fewtags.contract import WordVectors
from fewtags.models.build import build_classifier
from fewtags.models.classifier import Classifier

DATASETS = {"voc2007": (20, 5_011, 4_952), "coco2014": (80, 82_783, 40_504), "vg200": (200, 82_904, 10_000)}
METHODS = ("an", "caldnr", "ssgrl", "kggr")  # the four heads: CST has SSGRL's, the other baselines AN's
BATCH, EPOCHS = 32, 20


@dataclass(frozen=True)
class Cost:
    train_flops: float  # of one image, forward and backward
    eval_flops: float  # of one image, forward
    kept: float  # bytes that the backward pass of one image keeps
    weights: int
    trained: int  # of the weights

    def memory(self, batch: int) -> float:
        """Weights, gradient and Adam's two moments of those that are trained, and a batch."""
        return 4 * (self.weights + 3 * self.trained) + batch * self.kept


def cost(method: str, num_categories: int) -> Cost:
    config = load_config(overrides=[f"method={method}", "method.profile=paper", "model.pretrained=false"])
    words = WordVectors(torch.zeros(num_categories, 300), "none")
    model = build_classifier(
        config.model, config.input.size, config.head_name, config.head, num_categories, words, load_weights=False
    )
    model = model.to("meta").train()
    (few, kept_few), (more, kept_more) = (step(model, batch, config.input.size) for batch in (2, 4))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.eval()(images(2, config.input.size))
    parameters = list(model.parameters())
    return Cost(
        (more - few) / 2,
        counter.get_total_flops() / 2,
        (kept_more - kept_few) / 2,
        sum(p.numel() for p in parameters),
        sum(p.numel() for p in parameters if p.requires_grad),
    )


def step(model: Classifier, batch: int, size: int) -> tuple[float, float]:
    """Operations of one step, and bytes kept for its backward pass, each storage once."""
    kept: dict[int, int] = {}
    held = []  # so that no address is given twice

    def keep(tensor: Tensor) -> Tensor:
        held.append(tensor)
        kept[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
        return tensor

    with FlopCounterMode(display=False) as counter, saved_tensors_hooks(keep, lambda tensor: tensor):
        outputs = model(images(batch, size))
        loss = outputs.logits.sum() + (0 if outputs.features is None else outputs.features.sum())
        loss.backward()
    return counter.get_total_flops(), sum(kept.values())


def images(batch: int, size: int) -> Tensor:
    return torch.zeros(batch, 3, size, size, dtype=torch.uint8, device="meta")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speed", type=float, default=10.0, help="10^12 operations a second (10)")
    speed = parser.parse_args().speed * 1e12
    print("| dataset | method | GFLOP an image: train, evaluate | GB at batch 32, 8 | PFLOP a run | hours |")
    print("|---|---|---|---|---|---|")
    for dataset, (num_categories, num_train, num_test) in DATASETS.items():
        for method in METHODS:
            with patch.object(torch, "autocast", lambda *_, **__: nullcontext()):  # there is none for `meta`
                one = cost(method, num_categories)
            total = EPOCHS * (num_train * one.train_flops + num_test * one.eval_flops)
            print(
                f"| {dataset} | {method} | {one.train_flops / 1e9:.0f}, {one.eval_flops / 1e9:.0f} "
                f"| {one.memory(BATCH) / 1e9:.1f}, {one.memory(8) / 1e9:.1f} | {total / 1e15:.1f} "
                f"| {total / speed / 3600:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
