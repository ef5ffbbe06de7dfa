"""The optimiser: fused, it is still Adam as published, and takes over the state of a version that did not fuse."""

from __future__ import annotations

import copy

import pytest
import torch

from conftest import TinyConfig
from fewtags.contract import Problem
from fewtags.engine.record import load_optimizer
from fewtags.engine.run import build_learner, build_optimizer

STEPS = 4


def small_optimizer(kind: str) -> torch.optim.Optimizer:
    large = ["train.lr=0.01", "train.weight_decay=0.1"]
    config = TinyConfig.make(f"train.optimizer={kind}", *large, "model.train_from=all")
    torch.manual_seed(0)
    learner = build_learner(config, Problem(("red", "green"), torch.zeros(4, 2, dtype=torch.int8)))
    return build_optimizer(learner, config)


def give_gradients(optimizer: torch.optim.Optimizer, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad = torch.randn(p.shape, generator=generator)


def adam(weights, gradients, lr, decay, decoupled, betas=(0.9, 0.999), eps=1e-8):
    """Kingma and Ba, Algorithm 1; AdamW (decoupled) takes the decay off the weights instead of into the gradient."""
    m, v = torch.zeros_like(weights), torch.zeros_like(weights)
    for t, g in enumerate(gradients, start=1):
        if decoupled:
            weights = weights - lr * decay * weights
        else:
            g = g + decay * weights
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g**2
        weights = weights - lr * (m / (1 - betas[0] ** t)) / ((v / (1 - betas[1] ** t)).sqrt() + eps)
    return weights


@pytest.mark.parametrize("kind", ["adam", "adamw"])
def test_steps_are_those_of_the_published_algorithm(kind):
    optimizer = small_optimizer(kind)
    before = [[p.detach().clone() for p in group["params"]] for group in optimizer.param_groups]
    gradients = []
    for step in range(STEPS):
        give_gradients(optimizer, step)
        gradients.append([[p.grad.clone() for p in group["params"]] for group in optimizer.param_groups])
        optimizer.step()
    for g, group in enumerate(optimizer.param_groups):
        assert group["fused"]
        for n, p in enumerate(group["params"]):
            history = [of_step[g][n] for of_step in gradients]
            expected = adam(before[g][n], history, group["lr"], group["weight_decay"], kind == "adamw")
            torch.testing.assert_close(p.detach(), expected, rtol=1e-5, atol=1e-6)


def test_moments_of_a_version_that_did_not_fuse_are_taken_over():
    plain, fused = small_optimizer("adam"), small_optimizer("adam")
    for group in plain.param_groups:
        group["fused"] = None
    give_gradients(plain, 0)
    plain.step()
    state = copy.deepcopy(plain.state_dict())
    for one, other in zip(plain.param_groups, fused.param_groups, strict=True):
        for p, q in zip(one["params"], other["params"], strict=True):
            q.data.copy_(p.data)
    load_optimizer(fused, state)
    assert all(group["fused"] for group in fused.param_groups)
    for optimizer in (plain, fused):
        give_gradients(optimizer, 1)
        optimizer.step()
    for one, other in zip(plain.param_groups, fused.param_groups, strict=True):
        torch.testing.assert_close(other["params"], one["params"])
