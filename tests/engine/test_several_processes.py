"""Two processes train like one: the same weights and method state on both, every image counted once."""

from __future__ import annotations

import os
import pickle
import socket
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from conftest import TinyConfig
from fewtags import distributed
from fewtags.config import RunConfig
from fewtags.data.annotations import Annotations
from fewtags.data.prepare import RunData, split_data
from fewtags.data.scenes import BACKBONE
from fewtags.engine import training
from fewtags.engine.run import Run
from made_processes import run_ranks

FROZEN = ("train.epochs=1", "train.batch_size=12", "model.train_from=head", "train.precision=fp32")
RUNS = {
    "an": TinyConfig.make("method=an", *FROZEN),
    "caldnr": TinyConfig.make("method=caldnr", "train.epochs=1"),  # 5 batches, uneven shares
    "closed form": TinyConfig.make("method=refined", "train.epochs=1"),
    "tuned": TinyConfig.make(
        "method=refined", "train.epochs=1", f"model.weights={BACKBONE}", "model.train_from=layer4"
    ),
    "instant": TinyConfig.make("method=instant"),
}


def data_of(config: RunConfig, patches: Annotations) -> RunData:
    return split_data(patches, config.data, config.seed)


def train_and_keep(config: RunConfig, data: RunData, folder: Path, file: Path) -> None:
    """Train, and write down what this process held at the end."""
    finish_run = training.finish_run

    def finish(run: Run) -> training.RunResult:
        result = finish_run(run)
        torch.save(
            {
                "model": run.learner.model.state_dict(),
                "objective": run.learner.objective.state_dict(),
                "probabilities": torch.from_numpy(run.latest["test"].predictions.probabilities),
                "totals": run.totals,
                "num_images": result.last.num_images if result.last else 0,
            },
            file,
        )
        return result

    training.finish_run = finish
    try:
        training.train(config, folder, data=data, quiet=True)
    finally:
        training.finish_run = finish_run


def one_of_two(rank: int, port: int, root: Path) -> None:
    torch.set_num_threads(1)
    os.environ.update(WORLD_SIZE="2", RANK=str(rank), LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1")
    os.environ["MASTER_PORT"] = str(port)
    for name, (config, data) in pickle.loads((root / "jobs.pickle").read_bytes()).items():
        train_and_keep(config, data, root / name, root / f"{name}-{rank}.pt")
    distributed.finish()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def with_broken_images(patches: Annotations, folder: Path) -> Annotations:
    """The images that rank 1 gets in the second step of the first epoch cannot be read; rank 0's can."""
    from fewtags.data.loaders import EpochBatches

    folder.mkdir()
    for name in patches.images:
        (folder / name).write_bytes((patches.root / name).read_bytes())
    sampler = EpochBatches(36, 12, shuffle=True, seed=0)
    sampler.start(0)
    second = list(sampler)[1]
    for _, row in second[1::2]:
        (folder / patches.images[row]).write_bytes(b"no image")
    return replace(patches, root=folder)


@pytest.fixture(scope="module")
def two(patches: Annotations, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which two processes left what each of them held."""
    root = tmp_path_factory.mktemp("two")
    jobs = {name: (config, data_of(config, patches)) for name, config in RUNS.items()}
    jobs["broken"] = (RUNS["an"], data_of(RUNS["an"], with_broken_images(patches, root / "images")))
    (root / "jobs.pickle").write_bytes(pickle.dumps(jobs))
    run_ranks(one_of_two, (free_port(), root))
    return root


def load(file: Path) -> dict:
    return torch.load(file, weights_only=True)


def assert_equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    assert not [name for name in first if not torch.equal(first[name], second[name])]


@pytest.mark.parametrize("name", ["an", "caldnr", "closed form", "tuned", "instant", "broken"])
def test_both_ranks_hold_the_same(name, two):
    """Weights, batch statistics and the method's queues, means and counts, to the last bit."""
    first, second = (load(two / f"{name}-{rank}.pt") for rank in (0, 1))
    assert_equal(first["model"], second["model"])
    assert_equal(first["objective"], second["objective"])
    assert first["totals"] == second["totals"]


def test_the_methods_state_saw_every_image(two, patches):
    """CALDNR's queues have seen each known positive of the training images exactly once, over both ranks."""
    state = load(two / "caldnr-0.pt")["objective"]
    seen = next(value for name, value in state.items() if name.endswith("queue.seen"))
    known = data_of(RUNS["caldnr"], patches).train.known_positives
    np.testing.assert_array_equal(seen.numpy(), known)


def test_a_tuned_backbone_has_the_start_of_every_image(two):
    logits = load(two / "tuned-0.pt")["objective"]["start_logits"]
    assert logits.shape == (36, 3)
    assert logits.isfinite().all()
    assert not len(load(two / "closed form-0.pt")["objective"]["start_logits"])  # from scratch, the start knows nothing


@pytest.mark.parametrize("name", ["an", "caldnr", "closed form", "tuned", "instant"])
def test_evaluation_counts_every_image_once(name, two):
    first, second = (load(two / f"{name}-{rank}.pt") for rank in (0, 1))
    assert first["num_images"] == second["num_images"] == 12
    assert not first["probabilities"].isnan().any()
    assert torch.equal(first["probabilities"], second["probabilities"])


def test_two_processes_learn_what_one_does(two, patches, tmp_path):
    """Frozen backbone, mean loss, even shares: the mean of the halves' gradients is the whole batch's."""
    config = RUNS["an"]
    train_and_keep(config, data_of(config, patches), tmp_path / "run", tmp_path / "one.pt")
    one, both = load(tmp_path / "one.pt"), load(two / "an-0.pt")
    for name, value in one["model"].items():
        torch.testing.assert_close(value, both["model"][name], rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(one["probabilities"], both["probabilities"], rtol=1e-3, atol=1e-4)
    assert one["totals"]["loss"] == pytest.approx(both["totals"]["loss"], rel=1e-4)


def test_two_processes_start_where_one_does(two, patches, tmp_path):
    """Sums over the images add up, so the closed form does not depend on who saw which image."""
    config = RUNS["instant"]
    train_and_keep(config, data_of(config, patches), tmp_path / "run", tmp_path / "one.pt")
    one, both = load(tmp_path / "one.pt"), load(two / "instant-0.pt")
    torch.testing.assert_close(one["probabilities"], both["probabilities"], rtol=1e-3, atol=1e-4)


def test_a_rank_without_readable_images_does_not_hang_the_others(two):
    """Both ranks leave the step out: two of three steps are taken."""
    assert load(two / "broken-0.pt")["totals"]["steps"] == 2
