"""The runs of a half-scale track, one after another on one core that computes bf16 itself, in 80 % of the time.

    python benchmarks/half_scale_runs.py configs/half-scale-track-b.yaml --out runs/track-b --only an/known-50

The folders are those of `fewtags bench`; each goes on where the other stopped. A step in batches of 8 takes 0.20 s
instead of 0.25 s, as torch's backward pass of a 1x1 convolution of such small maps takes three times as long as the
matrix product that it is. The graphs of SSGRL and CST compute in bf16, too, as the backbone does: in fp32 they took
two thirds of a step. Test images are evaluated 64 at a time. Numbers differ by rounding.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fewtags.engine import run as engine_run
from fewtags.engine.run_folder import RunFolder
from fewtags.experiments.bench import is_done
from fewtags.experiments.executors import execute
from fewtags.experiments.grid import read_grid
from fewtags.models.graph import GraphReadout, LabelGraph

by_torch = nn.Conv2d._conv_forward


def by_product(self: nn.Conv2d, maps: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if self.kernel_size != (1, 1) or self.groups != 1 or bias is not None or not weight.requires_grad:
        return by_torch(self, maps, weight, bias)
    down, right = self.stride
    rows = maps.permute(0, 2, 3, 1)[:, ::down, ::right]  # [B, h, w, C]
    products = F.linear(rows.reshape(-1, rows.shape[-1]), weight.flatten(1))
    return products.view(*rows.shape[:3], -1).permute(0, 3, 1, 2)


readout = GraphReadout.forward


def readout_in_bf16(self: GraphReadout, start: Tensor, graph: LabelGraph) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return readout(self, start, graph).float()


batches = engine_run.cached_batches


def evaluated_64_at_a_time(*arguments: Any, shuffle: bool, batch_size: int, **options: Any) -> Any:
    return batches(*arguments, shuffle=shuffle, batch_size=batch_size if shuffle else 64, **options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("grid", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", action="append", required=True, help="a part of the run's name; in this order")
    options = parser.parse_args()
    torch.set_num_threads(1)
    as_any: Any = nn.Conv2d
    as_any._conv_forward = by_product
    GraphReadout.forward = readout_in_bf16
    engine_run.cached_batches = evaluated_64_at_a_time
    runs = read_grid(options.grid)
    for part in options.only:
        for run in (each for each in runs if part in each.name):
            folder = options.out / run.name
            if not is_done(run, RunFolder(folder)):
                folder.mkdir(parents=True, exist_ok=True)
                execute(run, folder)


if __name__ == "__main__":
    main()
