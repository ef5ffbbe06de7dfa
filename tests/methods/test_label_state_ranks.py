"""What LL-Cp and ROLE remember about single images is alike on two processes, and as in one with the whole batch."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fewtags import distributed
from fewtags.contract import Batch, Outputs, Problem, Progress
from fewtags.methods.base import Learner
from fewtags.methods.large_loss import LargeLossPermanent
from fewtags.methods.role import Role
from made_processes import run_ranks

BATCHES = torch.tensor([[5, 0, 7, 2], [1, 6, 3, 4]])  # rows of the images of two steps


class Model(nn.Linear):
    def forward(self, images):
        return Outputs(super().forward(images))


def build(objective, **settings):
    torch.manual_seed(0)
    labels = (torch.rand(8, 6) < 0.3).to(torch.int8)
    problem = Problem(tuple("abcdef"), labels)
    return Learner(Model(3, 6), objective(objective.Config(**settings), problem, None)), labels, torch.randn(8, 3)


def run(learner, wrapped, labels, images, part: slice) -> dict[str, torch.Tensor]:
    """Two steps on this process's part of each batch; plain gradient descent shows the gradient in the parameters."""
    for rows in BATCHES:
        mine = rows[part]
        wrapped(Batch(images[mine], labels[mine], mine), Progress(1, 2, 0, 1)).total.backward()
        with torch.no_grad():
            for parameter in learner.parameters():
                parameter -= 0.1 * parameter.grad
        learner.zero_grad()
    return learner.state_dict()


def one_rank(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    for objective, settings in ((LargeLossPermanent, {"delta_rel": 30.0}), (Role, {})):
        learner, labels, images = build(objective, **settings)
        wrapped = DistributedDataParallel(learner, broadcast_buffers=False)
        state = run(learner, wrapped, labels, images, slice(2 * rank, 2 * rank + 2))
        torch.save(state, f"{folder}/{objective.__name__}-{rank}.pt")
    distributed.finish()


@pytest.fixture(scope="module")
def states(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    run_ranks(one_rank, (str(folder),))
    return folder


@pytest.mark.parametrize("name", ["LargeLossPermanent", "Role"])
def test_state_is_alike_on_both_ranks(states, name):
    first, second = (torch.load(states / f"{name}-{rank}.pt") for rank in (0, 1))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_corrections_come_from_both_ranks(states):
    corrected = torch.load(states / "LargeLossPermanent-0.pt")["objective.corrected"]
    assert corrected.any(1).all()  # ceil(30 % of 12) - 1 labels in each half batch, and every image is in one


def test_the_label_table_moves_as_in_one_process(states):
    """But for the term of the expected number, which each process takes over its own images."""
    together, labels, images = build(Role)
    start = together.objective.label_table.detach().clone()
    alone = run(together, together, labels, images, slice(None))["objective.label_table"] - start
    spread = torch.load(states / "Role-0.pt")["objective.label_table"] - start
    assert spread.any(1).all()
    torch.testing.assert_close(spread, alone, rtol=0.1, atol=2e-4)
