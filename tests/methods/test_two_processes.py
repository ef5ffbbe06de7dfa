"""The gradients of two processes are those of one on the joint batch, also of a loss over pairs of their images."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from fewtags import distributed
from fewtags.methods.cross_image import cross_image_loss, of_all_processes
from made_processes import run_ranks


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 1), nn.Tanh(), nn.Conv2d(4, 4, 1))


def images() -> torch.Tensor:
    return torch.randn(5, 3, 4, 4, generator=torch.Generator().manual_seed(1)) * 3 + 1


def positive() -> torch.Tensor:
    return torch.rand(5, 4, generator=torch.Generator().manual_seed(2)) < 0.5


def learn(model: nn.Module, wrapped: nn.Module, share: slice, gather: bool) -> dict[str, torch.Tensor]:
    """One step of a loss that is a mean over the joint batch of five images, and L_csl over all of its pairs."""
    out = wrapped(images()[share])
    features, known = out.mean(3), positive()[share]
    loss = cross_image_loss(*(of_all_processes(features, known) if gather else (features, known)))
    loss = loss + out.square().sum() / 5 * distributed.world_size()
    loss.backward()
    gradients = {f"gradient of {name}": p.grad for name, p in model.named_parameters()}
    return {**model.state_dict(), **gradients}


def one_rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    model = network()
    share = slice(0, 2) if rank == 0 else slice(2, 5)
    found = learn(model, distributed.wrap(model), share, gather=True)
    torch.save(found, f"{folder}/{rank}.pt")
    distributed.finish()


def test_two_processes_learn_as_one(tmp_path: Path):
    run_ranks(one_rank, (str(tmp_path),))
    model = network()
    expected = learn(model, model, slice(None), gather=False)
    for rank in (0, 1):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5, msg=f"{name} of rank {rank}")
