"""The only file that imports torch.distributed. Every function is the identity in a single process.

A method's state is replicated: reduce with these functions before writing it, so it is the same on every rank.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fewtags.errors import RunFailed

LOOK_AT_LAUNCHER = 1.0  # seconds between checks that torchrun is still running


def start(device_type: str, timeout: float = 600.0) -> None:
    """Join the group that torchrun describes in the environment, if there is one.

    A process that waits for another for longer than `timeout` seconds gives up.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
        if device_type == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))  # the device "cuda" refers to from now on
        backend = "cpu:gloo,cuda:nccl" if device_type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
        if "TORCHELASTIC_RUN_ID" in os.environ:
            threading.Thread(target=_end_with_launcher, args=(os.getppid(),), daemon=True).start()


def _end_with_launcher(launcher: int) -> None:
    """A torchrun killed with -9 cannot end its processes; they would keep training and block a resume."""
    while os.getppid() == launcher:
        time.sleep(LOOK_AT_LAUNCHER)
    print("fewtags: torchrun is gone, so this process ends too; resume the run.", file=sys.stderr, flush=True)
    os._exit(RunFailed.exit_code)


@contextmanager
def reports_lost_process() -> Iterator[None]:
    """If another process was killed or did not respond in time: one sentence instead of a library's message."""
    try:
        yield
    except RuntimeError as error:  # from gloo and NCCL; the wording varies between versions
        words = ("gloo", "connection", "timed out", "nccl", "socket", "peer")
        if world_size() == 1 or not any(word in str(error).lower() for word in words):
            raise
        raise RunFailed(
            f"Process {rank()} of {world_size()} lost the connection to the others "
            f"({str(error).splitlines()[0][:120]}): one was killed, or did not respond within train.timeout. "
            "Resume the run."
        ) from error


def finish() -> None:
    """Leave the group, as the last thing this process does.

    `wrap` keeps threads of the group alive for as long as the process (torch 2.15). One that wakes up while Python
    shuts down aborts it ("terminate called without an active exception"), so Python does not shut down then.
    """
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
        atexit.register(_end_at_once)


def _end_at_once() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def rank() -> int:
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def is_main() -> bool:
    return rank() == 0


def wait_for_all() -> None:
    if world_size() > 1:
        dist.barrier()


def anywhere(condition: bool) -> bool:
    """Is it true on at least one rank? All ranks must call this, and all get the same answer."""
    return int(sum_across_ranks(torch.tensor(int(condition)))) > 0


def counts(*conditions: bool) -> list[int]:
    """On how many ranks each of these is true, in one exchange. All ranks must call this, and all get the same
    answer."""
    return [int(number) for number in sum_across_ranks(torch.tensor([int(one) for one in conditions]))]


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


def gather_objects(value: Any) -> list[Any]:
    """Every rank's value, in rank order, on every rank. For small values and rare use."""
    if world_size() == 1:
        return [value]
    everyone: list[Any] = [None] * world_size()
    dist.all_gather_object(everyone, value)
    return everyone


def wrap(module: nn.Module) -> nn.Module:
    """The module as called in training: gradients become the mean over all ranks."""
    if world_size() == 1 or not any(parameter.requires_grad for parameter in module.parameters()):
        return module
    from torch.nn.parallel import DistributedDataParallel

    # Method state is reduced before it is written, so buffers need not be broadcast from rank 0 on each forward pass.
    return DistributedDataParallel(module, broadcast_buffers=False, find_unused_parameters=True)


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        ctx.num_rows = len(rows)
        return gather_rows(rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        """The gradient of all ranks' losses with respect to this rank's rows."""
        total = sum_across_ranks(gradients[0].contiguous())
        numbers = gather_rows(torch.tensor([ctx.num_rows], device=total.device)).tolist()
        first = sum(numbers[: rank()])
        return total[first : first + ctx.num_rows]


def gather_rows_to_learn(rows: Tensor) -> Tensor:
    """`gather_rows` with gradients. Every rank must compute the same loss from it; the mean over ranks taken by `wrap`
    is then the gradient of that loss."""
    return rows if world_size() == 1 else _GatherRows.apply(rows)


def join_batch_norm(module: nn.Module, device_type: str) -> nn.Module:
    """On GPUs: batch norm with the mean and variance of all ranks' images, as in one process on the joint batch."""
    if world_size() == 1 or device_type != "cuda":
        return module
    from timm.layers import convert_sync_batchnorm

    return convert_sync_batchnorm(module)


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
