"""The only file that imports torch.distributed. Every function is the identity in a single process.

A method's state is replicated: reduce with these functions before writing it, so it is the same on every rank.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import Tensor, nn


def start(device_type: str) -> None:
    """Join the group that torchrun describes in the environment, if there is one."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
        if device_type == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))  # the device "cuda" refers to from now on
        dist.init_process_group("cpu:gloo,cuda:nccl" if device_type == "cuda" else "gloo")


def finish() -> None:
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def rank() -> int:
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def is_main() -> bool:
    return rank() == 0


def wait_for_all() -> None:
    if world_size() > 1:
        dist.barrier()


def everywhere(condition: bool) -> bool:
    """Is it true on every rank? All ranks must call this, and all get the same answer."""
    return int(sum_across_ranks(torch.tensor(int(condition)))) == world_size()


def anywhere(condition: bool) -> bool:
    """Is it true on at least one rank? All ranks must call this, and all get the same answer."""
    return int(sum_across_ranks(torch.tensor(int(condition)))) > 0


def sum_across_ranks(value: Tensor) -> Tensor:
    """The sum of all ranks' tensors; the argument is not modified."""
    if world_size() == 1:
        return value
    total = value.clone()
    dist.all_reduce(total)
    return total


@torch.no_grad()
def average_batch_statistics(module: nn.Module) -> None:
    """Replaces each rank's batch-norm statistics by the mean over ranks."""
    if world_size() > 1:
        for name, statistic in module.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                statistic.copy_(sum_across_ranks(statistic) / world_size())


def gather_rows(rows: Tensor) -> Tensor:
    """All ranks' rows in rank order, on every rank. The number of rows may differ between ranks."""
    if world_size() == 1:
        return rows
    counts = [torch.zeros(1, dtype=torch.long, device=rows.device) for _ in range(world_size())]
    dist.all_gather(counts, torch.tensor([len(rows)], device=rows.device))
    longest = int(max(counts))
    padded = rows.new_zeros((longest, *rows.shape[1:]))
    padded[: len(rows)] = rows
    everyone = [torch.empty_like(padded) for _ in range(world_size())]
    dist.all_gather(everyone, padded)
    return torch.cat([part[: int(count)] for part, count in zip(everyone, counts, strict=True)])
