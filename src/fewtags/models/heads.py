"""Heads turn a feature map into one logit per category; HEADS lists them. The linear head lives here."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fewtags.errors import UserError, did_you_mean
from fewtags.methods.base import Batch, Outputs, Problem, Start
from fewtags.settings import Settings

HEADS = {
    "linear": "fewtags.models.heads:LinearHead",
    "decoupled": "fewtags.models.decoupling:DecoupledHead",
    "graph": "fewtags.models.graph:GraphHead",
    "closed_form": "fewtags.models.closed_form:ClosedFormHead",
}


class Head(nn.Module):
    """Feature map [B, D, h, w] -> Outputs."""

    class Config(Settings):
        pass

    needs_words = False  # wants Problem.words
    needs_start = False  # wants to see the training images once before the first epoch
    feature_dim: int | None = None  # width of Outputs.features, None where it gives none

    def __init__(self, config: Settings, in_channels: int, problem: Problem):
        super().__init__()
        self.config: Any = config

    def start(self, batches: Iterable[Batch]) -> Start:
        """Only where `needs_start`: every training image once, its plain view as a feature map in `Batch.images`."""
        raise NotImplementedError

    def forward(self, feature_map: Tensor) -> Outputs:
        raise NotImplementedError


def head_class(name: str) -> type[Head]:
    if name not in HEADS:
        raise UserError(f"There is no head '{name}'; {did_you_mean(name, HEADS)}")
    module, _, attribute = HEADS[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


BiasInit = Literal["prior", "zero"]


def initial_bias(how: BiasInit, problem: Problem) -> Tensor:
    """[C] first biases of a classifier: the log-odds of being a known positive, or 0.

    From 0 every category starts at probability one half, and most of training under few known positives is spent on
    pushing all of them down.
    """
    prior = problem.prior().float()
    return torch.logit(prior) if how == "prior" else torch.zeros_like(prior)


class LinearHead(Head):
    """Average over locations, a tanh layer (the paper's ResNet row has one) or none, one linear layer."""

    class Config(Settings):
        hidden: int = 0
        """Width of a tanh layer before the classifier; 0 for none. The paper's ResNet row has 1024."""
        dropout: float = 0.0
        """Share of pooled features dropped in training."""
        bias_init: BiasInit = "prior"
        """Start biases at the log-odds of a known positive ("prior") or at zero, as the research code does."""

    def __init__(self, config: Config, in_channels: int, problem: Problem):
        super().__init__(config, in_channels, problem)
        self.hidden = (
            nn.Sequential(nn.Linear(in_channels, config.hidden), nn.Tanh()) if config.hidden else nn.Identity()
        )
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(config.hidden or in_channels, problem.num_categories)
        with torch.no_grad():
            self.classifier.bias.copy_(initial_bias(config.bias_init, problem))

    def forward(self, feature_map: Tensor) -> Outputs:
        pooled = feature_map.mean((2, 3))  # [B, D]
        return Outputs(self.classifier(self.dropout(self.hidden(pooled))))
