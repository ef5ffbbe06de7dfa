"""Names, windows and the second fit come out alike however the images are split over batches and processes."""

import pytest
import torch
import torch.distributed as dist

from fewtags import distributed
from fewtags.contract import Batch
from fewtags.models.closed_form import ClosedFormHead
from fewtags.models.names import NameScorer
from made_processes import run_ranks

DIM, CATEGORIES, NUM = 12, 3, 240
SETTINGS = {"windows": True, "refine": True, "residual": True}


def made_world():
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(CATEGORIES, DIM, generator=generator)
    truth = torch.rand(NUM, CATEGORIES, generator=generator) < 0.3
    maps = torch.randn(NUM, DIM, 5, 5, generator=generator) + 1
    for image, category in truth.nonzero():
        row, column = torch.randint(0, 5, (2,), generator=generator)
        maps[image, :, row, column] += 5 * directions[category]
    shown = torch.rand(truth.shape, generator=generator) < 0.3
    weight = torch.cat([directions, torch.zeros(1, DIM)])
    names = NameScorer(weight, torch.zeros(CATEGORIES + 1), torch.eye(CATEGORIES, CATEGORIES + 1))
    return maps, (truth & shown).to(torch.int8), names


@torch.no_grad()
def started(rows, size) -> dict[str, torch.Tensor]:
    """The state after a start on the images in these `rows`, in batches of this `size`, and some predictions."""
    maps, labels, names = made_world()
    torch.manual_seed(0)
    head = ClosedFormHead(ClosedFormHead.Config(**SETTINGS), DIM, CATEGORIES).eval()
    head.names = names
    start = head.start([Batch(maps[some], labels[some], some) for some in rows.split(size)], NUM)
    return {
        "window_slope": head.presence.window_slope.clone(),
        "name_weight": head.presence.name_weight.clone(),
        "known_proportion": start.known_proportion,
        "logits": head(maps).logits,
    }


def one_rank(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    torch.set_num_threads(1)
    torch.save(started(torch.arange(rank, NUM, 2), 50), f"{folder}/{rank}.pt")
    distributed.finish()


@pytest.fixture(scope="module")
def at_once():
    found = started(torch.arange(NUM), NUM)
    assert found["window_slope"].any()  # there is something to compare
    assert found["name_weight"].any()
    return found


def test_in_any_order_and_size_of_batches(at_once):
    torch.testing.assert_close(started(torch.arange(NUM).flip(0), 7), at_once, rtol=1e-3, atol=1e-3)


def test_in_two_processes(at_once, tmp_path):
    run_ranks(one_rank, (str(tmp_path),))
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    torch.testing.assert_close(first, at_once, rtol=1e-3, atol=1e-3)
