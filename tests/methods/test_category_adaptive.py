"""CALD, CANR and CATU against the paper's rules written out."""

from __future__ import annotations

import math
import os
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fewtags import distributed
from fewtags.config import load_config
from fewtags.contract import Batch, Outputs, Problem, Progress
from fewtags.methods import objective_class
from fewtags.methods.category_adaptive import CategoryAdaptive, reject_probability, shrinkage_of, theta_schedule
from made_processes import run_ranks

C, D = 4, 6


def objective(**settings: Any) -> CategoryAdaptive:
    problem = Problem(tuple("abcd"), torch.zeros(10, C, dtype=torch.int8))
    return CategoryAdaptive(CategoryAdaptive.Config(**settings), problem, D)


def random_step(seed: int, size: int = 8) -> tuple[Batch, Outputs]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(-1, 2, (size, C), generator=generator).to(torch.int8)
    features = torch.randn(size, C, D, generator=generator) + 0.5
    logits = torch.randn(size, C, generator=generator)
    return Batch(torch.zeros(size), labels, torch.arange(size)), Outputs(logits, features)


def at(epoch: int, step: int = 5, steps: int = 10) -> Progress:
    return Progress(epoch, 20, step, steps)


# --- theta and delta ---


def test_theta_follows_the_paper() -> None:
    theta = [theta_schedule(epoch) for epoch in range(20)]
    falling = [0.95 - 0.025 * n for n in range(15)]
    assert theta == pytest.approx([1.0] * 5 + falling)
    assert theta[19] == pytest.approx(0.6)
    assert theta_schedule(30) == 0.6


@pytest.mark.parametrize(
    ("similarity", "theta_pos", "theta_neg", "expected"),
    [
        (0.2, 0.8, 0.4, 0.0),
        (0.4, 0.8, 0.4, 0.0),
        (0.6, 0.8, 0.4, 0.5),
        (0.8, 0.8, 0.4, 1.0),
        (0.9, 0.8, 0.4, 1.0),
        (0.79, 0.8, 0.8, 0.0),  # where the two thresholds meet: a step
        (0.8, 0.8, 0.8, 1.0),
        (0.9, math.inf, math.inf, 0.0),
    ],
)
def test_the_chance_of_rejection(similarity: float, theta_pos: float, theta_neg: float, expected: float) -> None:
    chance = reject_probability(*map(torch.tensor, (similarity, theta_pos, theta_neg)))
    assert float(chance) == pytest.approx(expected, abs=1e-6)


# --- state ---


def test_running_means_and_thresholds_match_the_equations() -> None:
    """Two epochs written as lists of similarities: the epoch's mean with weight b/B, the last epoch's with the rest."""
    method = objective(queue_size=5, theta_start=0.1, theta_floor=0.1, discover_from_epoch=0)
    previous = torch.zeros(2, C)
    for epoch in range(2):
        method.start_epoch(at(epoch, 0))
        seen: list[list[list[Tensor]]] = [[[] for _ in range(C)] for _ in range(2)]
        for step in range(4):
            progress = at(epoch, step, 4)
            batch, outputs = random_step(10 * epoch + step)
            method.observe(batch, outputs, progress)
            similarity = method.queue.mean_cosine(outputs.features)
            for side, mask in enumerate((batch.labels == 1, batch.labels != 1)):
                for c in range(C):
                    seen[side][c] += list(similarity[mask[:, c], c])
            means = torch.stack([torch.stack([torch.stack(v).mean() for v in side]) for side in seen])
            s_pos, s_neg = step / 4 * means + (1 - step / 4) * previous
            theta_pos = s_pos.clamp(min=0.1)
            torch.testing.assert_close(method.thresholds(progress)[0], theta_pos)
            torch.testing.assert_close(method.thresholds(progress)[1], (theta_pos + s_neg) / 2)
        previous = means


def test_fixed_and_relative_thresholds() -> None:
    batch, outputs = random_step(0)
    for how in ("fixed", "relative"):
        method = objective(thresholds=how, queue_fill="occupied", theta_start=0.7)
        method.observe(batch, outputs, at(5))
        s_pos, s_neg = method.means.blend(0.5)
        theta_pos, theta_neg = method.thresholds(at(5))
        if how == "fixed":
            assert theta_pos.tolist() == pytest.approx([0.7] * C)
            assert theta_neg.tolist() == pytest.approx([0.4] * C)
        else:
            torch.testing.assert_close(theta_pos, s_neg + 0.7 * (s_pos - s_neg))
            torch.testing.assert_close(theta_neg, (theta_pos + s_neg) / 2)


def test_centred_similarity_subtracts_each_categorys_mean_feature() -> None:
    method, (batch, outputs) = objective(similarity="centred", queue_fill="occupied"), random_step(0)
    method.observe(batch, outputs, at(5))
    centred = outputs.features - outputs.features.mean(0)
    for c in range(C):
        positives = centred[batch.labels[:, c] == 1, c]
        expected = F.cosine_similarity(centred[:, None, c], positives[None], dim=-1).mean(1)
        torch.testing.assert_close(method.queue.mean_cosine(method._compared(outputs.features))[:, c], expected)


def test_the_mean_feature_forgets_old_steps() -> None:
    method = objective(similarity="centred", centre_decay=0.5)
    steps = [random_step(seed) for seed in range(3)]
    for batch, outputs in steps:
        method.observe(batch, outputs, at(5))
    first, second, third = (outputs.features.mean(0) for _, outputs in steps)
    torch.testing.assert_close(method.centre.mean, (first / 4 + second / 2 + third) / (1 / 4 + 1 / 2 + 1))


def test_whitened_similarity_is_the_cosine_of_mahalanobis() -> None:
    """x and y are compared by x A y / sqrt(x A x  y A y), A the inverse of the shrunk correlations, as in Fisher's;
    entries remembered before the transform was renewed count as if they had been added after it."""
    method = objective(similarity="whitened", queue_fill="occupied", shrinkage=0.7)
    batch, outputs = random_step(0, size=40)
    assert outputs.features is not None
    method.start_epoch(at(0, 0))
    method.observe(batch, outputs, at(0))
    method.start_epoch(at(1, 0))

    centred = (outputs.features - outputs.features.mean(0)).double()
    per_image = centred.mean(1)
    moment = per_image.T @ per_image
    spread = moment.diagonal().sqrt()
    standard = centred / spread
    precision = torch.linalg.inv(moment / torch.outer(spread, spread) + 0.7 * torch.eye(D))
    found = method.queue.mean_cosine(method._compared(outputs.features))
    for c in range(C):
        x, y = standard[:, c], standard[batch.labels[:, c] == 1, c]
        length = [(v @ precision * v).sum(1).sqrt() for v in (x, y)]
        expected = (x @ precision @ y.T / torch.outer(*length)).mean(1)
        torch.testing.assert_close(found[:, c].double(), expected, rtol=1e-4, atol=1e-5)


def test_shrinkage_grows_with_the_width_for_each_known_positive() -> None:
    labels = torch.zeros(10, C, dtype=torch.int8)
    labels[:3] = 1
    config = CategoryAdaptive.Config(similarity="whitened")
    assert shrinkage_of(config, Problem(tuple("abcd"), labels), 60) == pytest.approx(0.15 * 60 / 3)


@pytest.mark.parametrize(("known", "expected"), [(3, "centred"), (9, "whitened")])
def test_features_are_whitened_where_enough_positives_are_known(known: int, expected: str) -> None:
    labels = torch.zeros(10, C, dtype=torch.int8)
    labels[:known] = 1
    config = CategoryAdaptive.Config(similarity="auto")
    assert CategoryAdaptive(config, Problem(tuple("abcd"), labels), 60).similarity == expected


def test_nothing_is_decided_about_a_category_without_known_positives() -> None:
    method = objective(thresholds="relative", discover_from_epoch=0)
    batch, outputs = random_step(0)
    without = Batch(batch.images, torch.zeros_like(batch.labels), batch.index)
    method.observe(without, outputs, at(0))
    result = method.loss(without, outputs, at(0))
    assert not result.decisions["found"].any()
    assert not result.decisions["rejected"].any()


# --- decisions and losses ---


def test_losses_match_the_equations() -> None:
    method = objective(theta_start=0.2, theta_floor=0.2, queue_fill="occupied")
    batch, outputs = random_step(1, size=30)
    method.observe(batch, outputs, at(6))
    torch.manual_seed(3)
    result = method.loss(batch, outputs, at(6))

    similarity = method.queue.mean_cosine(outputs.features)
    theta_pos, theta_neg = method.thresholds(at(6))
    torch.manual_seed(3)
    chance = ((similarity - theta_neg) / (theta_pos - theta_neg)).clamp(0, 1)
    rejected = (batch.labels == 0) & (torch.rand(30, C) < chance)
    found = (batch.labels == 0) & (similarity >= theta_pos)
    known = batch.labels == 1
    observed = F.binary_cross_entropy_with_logits(outputs.logits, known.float(), reduction="none")
    discovered = F.binary_cross_entropy_with_logits(outputs.logits, (known | found).float())

    assert found.any()
    assert rejected.any()
    assert torch.equal(result.decisions["found"], found)
    assert torch.equal(result.decisions["rejected"], rejected)
    assert result.stats == {"found": found.sum(), "rejected": rejected.sum()}
    torch.testing.assert_close(result.losses["observed"], observed.mean())
    torch.testing.assert_close(result.losses["discovered"], discovered)
    torch.testing.assert_close(result.losses["kept"], observed[~rejected].mean())  # over the kept labels only


def test_canr_can_be_averaged_over_all_labels() -> None:
    batch, outputs = random_step(1, size=30)
    values = {}
    for over in ("kept", "all"):
        method = objective(theta_start=0.2, theta_floor=0.2, queue_fill="occupied", reject_mean=over)
        method.observe(batch, outputs, at(6))
        torch.manual_seed(3)
        result = method.loss(batch, outputs, at(6))
        values[over] = result.losses["kept"]
    kept_share = 1 - result.decisions["rejected"].float().mean()
    torch.testing.assert_close(values["all"], values["kept"] * kept_share)


@pytest.mark.parametrize("printed_sign", [False, True])
def test_what_looks_positive_is_rejected_with_chance_delta(printed_sign: bool) -> None:
    """Monte Carlo of Eq. 9 as the text means it; as printed it is the other way round."""
    method = objective(thresholds="fixed", theta_before=0.8, reject_gap=0.4, printed_sign=printed_sign)
    method.queue.add(torch.ones(100, C, D), torch.ones(100, C, dtype=torch.bool))
    cosine = torch.tensor([0.3, 0.5, 0.7, 0.9])  # delta 0, 1/4, 3/4, 1
    direction, across = torch.ones(D) / D**0.5, F.normalize(torch.tensor([1.0, -1, 0, 0, 0, 0]), dim=0)
    features = cosine[:, None] * direction + (1 - cosine**2).sqrt()[:, None] * across
    batch = Batch(torch.zeros(20000), torch.zeros(20000, C, dtype=torch.int8), torch.arange(20000))
    result = method.loss(batch, Outputs(torch.zeros(20000, C), features.expand(20000, C, D)), at(0))
    share = result.decisions["rejected"].float().mean(0)
    expected = torch.tensor([0.0, 0.25, 0.75, 1.0])
    torch.testing.assert_close(share, 1 - expected if printed_sign else expected, rtol=0, atol=0.02)


def test_known_labels_are_never_touched() -> None:
    method = objective(thresholds="fixed", theta_before=-1.0, theta_start=-1.0, theta_floor=-1.0, reject_gap=0.1)
    batch, outputs = random_step(2)
    method.observe(batch, outputs, at(6))
    decisions = method.loss(batch, outputs, at(6)).decisions
    for name in ("found", "rejected"):
        assert torch.equal(decisions[name], batch.labels == 0)


def test_parts_start_at_their_epochs_and_can_be_left_out() -> None:
    batch, outputs = random_step(0)

    def names(epoch: int, **settings: Any) -> set[str]:
        return set(objective(**settings).loss(batch, outputs, at(epoch)).losses)

    assert names(4) == {"observed", "kept", "cross_image"}
    assert names(5) == {"observed", "kept", "cross_image", "discovered"}
    assert names(4, reject_from_epoch=5) == {"observed", "cross_image"}
    assert names(9, reject=False, csl_weight=0) == {"observed", "discovered"}
    assert names(9, discover=False, csl_weight=0) == {"observed", "kept"}


def test_the_cross_image_loss_is_ramped_in_the_first_epoch() -> None:
    method, (batch, outputs) = objective(), random_step(0)
    full = method.loss(batch, outputs, at(1)).losses["cross_image"]
    for step in (0, 5, 9):
        ramped = method.loss(batch, outputs, at(0, step)).losses["cross_image"]
        torch.testing.assert_close(ramped, full * step / 10)


def test_loss_reads_and_only_observe_writes() -> None:
    method, (batch, outputs) = objective(similarity="centred", csl="sampled"), random_step(0)
    method.observe(batch, outputs, at(6))
    before = {name: value.clone() for name, value in method.state_dict().items()}
    method.loss(batch, outputs, at(6))
    assert all(torch.equal(value, before[name]) for name, value in method.state_dict().items())


def test_statistics_say_whether_it_works() -> None:
    method, (batch, outputs) = objective(queue_size=2, theta_start=0.01, theta_floor=0.01), random_step(0, size=20)
    method.observe(batch, outputs, at(5, 9))
    stats = method.epoch_stats(at(5, 9))
    assert stats["queue_fill"] == 1
    assert stats["s_pos_exceeds_theta"] == 1
    assert stats["theta_pos_p10"] <= stats["theta_pos_p50"] <= stats["theta_pos_p90"]
    assert {name: tuple(v.shape) for name, v in method.category_stats(at(5, 9)).items()} == dict.fromkeys(
        ("theta_pos", "theta_neg", "s_pos", "s_neg", "queue_fill"), (C,)
    )


# --- several processes ---


def _observe_shard(rank: int, port: int, folder: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2")
    torch.set_num_threads(1)
    distributed.start("cpu")
    method = objective(similarity="centred", queue_size=5)
    for step in range(3):
        batch, outputs = random_step(step)
        rows = slice(0, 3) if rank == 0 else slice(3, None)  # shards of different size
        shard = Batch(batch.images[rows], batch.labels[rows], batch.index[rows])
        method.observe(shard, Outputs(outputs.logits[rows], outputs.features[rows]), at(0, step))
    torch.save(method.state_dict(), Path(folder) / f"{rank}.pt")
    distributed.finish()


def test_state_is_the_same_on_every_rank_and_for_any_split(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    run_ranks(_observe_shard, (port, str(tmp_path)))
    alone = objective(similarity="centred", queue_size=5)
    for step in range(3):
        alone.observe(*random_step(step), at(0, step))
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    for name, value in alone.state_dict().items():
        assert torch.equal(first[name], second[name]), name
        torch.testing.assert_close(first[name], value, rtol=1e-5, atol=1e-6)


def test_the_factor_is_on_the_classification_losses_only() -> None:
    """As in the authors' script, which multiplies them before L_csl is added."""

    def losses(scale: float) -> dict[str, float]:
        method = objective(loss_scale=scale, theta_start=0.2, theta_floor=0.2)
        batch, outputs = random_step(1, size=30)
        method.observe(batch, outputs, at(6))
        torch.manual_seed(3)
        return {name: loss.item() for name, loss in method.loss(batch, outputs, at(6)).losses.items()}

    once, tenfold = losses(1.0), losses(10.0)
    assert set(once) == {"observed", "discovered", "kept", "cross_image"}
    for name, loss in once.items():
        assert tenfold[name] == pytest.approx(loss * (1 if name == "cross_image" else 10))


# --- the rows of METHODS ---


@pytest.mark.parametrize("profile", ["default", "paper"])
@pytest.mark.parametrize("name", ["cald-no-catu", "cald", "canr-no-catu", "canr", "caldnr"])
def test_the_papers_rows_are_its_mechanism_in_every_profile(name: str, profile: str) -> None:
    """A queue of features, and thresholds on similarities: `caldnr` in a table is the paper's method."""
    config = load_config(None, [f"method={name}", f"method.profile={profile}"])
    problem = Problem(tuple("abcd"), torch.zeros(10, C, dtype=torch.int8))
    made = objective_class(name)(config.method, problem, D)  # type: ignore[arg-type]
    assert config.head_name == "decoupled"
    assert isinstance(made, CategoryAdaptive)
    assert made.queue.features.shape == (C, 100, D)
    assert [len(theta) for theta in made.thresholds(at(5))] == [C, C]
    assert (made.config.discover, made.config.reject) == (
        name.startswith("cald"),
        name in ("caldnr", "canr", "canr-no-catu"),
    )


def test_the_published_factor_is_the_same_for_the_whole_family() -> None:
    """That of the authors' script for the cross-entropy, which all of these have."""
    for name in ("an", "ssgrl", "kggr", "cst", "cssl", "cald-no-catu", "cald", "canr-no-catu", "canr", "caldnr"):
        config = load_config(None, [f"method={name}", "method.profile=paper"])
        assert config.method.loss_scale == 10.0, name  # type: ignore[attr-defined]
