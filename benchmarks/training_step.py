"""What CALDNR costs over AN in a whole training step: forward, loss, backward and optimiser, same images, one process.

    .venv/bin/python benchmarks/training_step.py [--backbone resnet50] [--size 224] [--batch 16] [--rounds 5]

The steps of the two take turns, and the ratio of their medians of processor time is what counts. Random weights:
they do not change the time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import numpy as np
import torch

from fewtags.config import load_config
from fewtags.contract import Batch, Progress
from fewtags.engine.run import build_learner, build_optimizer
from fewtags.models.build import make_problem


def build(method: str, options: argparse.Namespace, labels: np.ndarray) -> tuple:
    settings = [f"method={method}", f"model.backbone={options.backbone}", "model.pretrained=false"]
    config = load_config(None, [*settings, f"model.train_from={options.train_from}", *options.set])
    problem = make_problem(config.head_name, config.words, [f"category {c}" for c in range(labels.shape[1])], labels)
    learner = build_learner(config, problem).to(memory_format=torch.channels_last).train()
    return learner, build_optimizer(learner, config)


def step(learner: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> float:
    started = time.process_time()
    result = learner(batch, Progress(epoch=10, num_epochs=20, step=1, steps_per_epoch=10))  # CALD and CANR are on
    optimizer.zero_grad()
    result.total.backward()
    optimizer.step()
    return time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="resnet50")
    parser.add_argument("--train-from", default="layer4")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--categories", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("set", nargs="*", help="settings as group.name=value, for both")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    labels = (rng.random((1000, options.categories)) < 0.05).astype(np.int8)
    images = torch.randint(0, 256, (options.batch, 3, options.size, options.size), dtype=torch.uint8)
    rows = torch.arange(options.batch)
    batch = Batch(images.contiguous(memory_format=torch.channels_last), torch.from_numpy(labels)[rows], rows)
    learners = {method: build(method, options, labels) for method in ("an", "caldnr")}
    for learner, optimizer in learners.values():
        step(learner, optimizer, batch)
    times: dict[str, list[float]] = {method: [] for method in learners}
    for _ in range(options.rounds):
        for method, (learner, optimizer) in learners.items():
            times[method].append(step(learner, optimizer, batch))
    medians = {method: statistics.median(values) for method, values in times.items()}
    print(json.dumps({**medians, "ratio": round(medians["caldnr"] / medians["an"], 3)}))


if __name__ == "__main__":
    main()
