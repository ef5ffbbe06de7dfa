"""The head of `linear`: logistic regression on the average-pooled features of the plain images, fitted at the start.

Unknown labels count as absent. Every category is a separate regularised regression; all are solved jointly by L-BFGS.
The strength of the regularisation is chosen on a held-out fifth of the training images, by the rank of their known
labels: average precision depends on the few ranked first, so seeds differ by ten mAP with a tenth of the labels.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fewtags.contract import Batch, Outputs, Problem, Start, WordVectors
from fewtags.distributed import gather_rows
from fewtags.errors import DataError
from fewtags.labels import ABSENT, PRESENT
from fewtags.models.heads import Head, HeadSpec, Standardise
from fewtags.models.optimizers import without_compiler
from fewtags.settings import Settings

STRENGTHS = [float(10**exponent) for exponent in np.arange(-3, 1.1, 0.5)]  # times half the squared weights
HOLD_OUT = 5  # one image in this many is held out to choose the strength
PATIENCE = 2  # number of weaker strengths tried after the best one
MAX_ITERATIONS = 100


class LogisticHead(Head["LogisticHead.Config"]):
    class Config(Settings):
        strength: float | None = Field(None, gt=0)
        """Strength of the regularisation, times half the squared weights; default: chosen on a held-out fifth of the
        training images."""

    spec = HeadSpec(needs_start=True, looks_at_the_average=True)
    weight: Tensor
    bias: Tensor

    def __init__(self, config: Config, in_channels: int, num_categories: int, words: WordVectors | None = None):
        super().__init__(config, in_channels, num_categories)
        self.standardise = Standardise(in_channels)
        # Buffers, not parameters: the optimiser must not touch them.
        self.register_buffer("weight", torch.zeros(num_categories, in_channels))
        self.register_buffer("bias", torch.zeros(num_categories))
        self.seed = 0

    def initialise(self, problem: Problem) -> None:
        self.seed = problem.seed

    def start(self, batches: Iterable[Batch], num_images: int) -> Start:
        features, known = pooled_and_known(batches)
        self.standardise.cpu().start([features])
        features = self.standardise(features)
        strength = self.config.strength or choose_strength(features, known, self.seed)
        self.standardise.to(self.weight.device)
        for kept, fitted in zip((self.weight, self.bias), fit(features, known, strength), strict=True):
            kept.copy_(fitted)
        how = "given" if self.config.strength else "chosen on held-out known labels"
        return Start(f"Logistic regression on {len(features):,} images: regularisation {strength:g} ({how}).")

    def forward(self, feature_map: Tensor) -> Outputs:
        return Outputs(logits(self.standardise(feature_map.float().mean((2, 3))), self.weight, self.bias))


def pooled_and_known(batches: Iterable[Batch]) -> tuple[Tensor, Tensor]:
    """Pooled features [N, D] of all processes' images and which labels are known to be present [N, C], by row."""
    parts = [(batch.index.cpu(), batch.images.float().mean((2, 3)).cpu(), batch.labels.cpu()) for batch in batches]
    if not parts:
        raise DataError("None of the training images could be read.")
    index, features, labels = (gather_rows(torch.cat(column)) for column in zip(*parts, strict=True))
    order = index.argsort()
    return features[order], (labels[order] == PRESENT).float()


def choose_strength(features: Tensor, known: Tensor, seed: int) -> float:
    """The strength that ranks the held-out images best; tries STRENGTHS from the strongest until it gets worse."""
    held_out = torch.from_numpy(np.random.default_rng(seed).permutation(len(features)) % HOLD_OUT == 0)
    if not known[held_out].any():
        return STRENGTHS[len(STRENGTHS) // 2]  # there is nothing to choose with
    scores: dict[float, float] = {}
    start = None
    for strength in reversed(STRENGTHS):
        start = fit(features[~held_out], known[~held_out], strength, start)
        scores[strength] = -mean_log_rank(logits(features[held_out], *start), known[held_out])
        if max(scores.values()) > max(list(scores.values())[-PATIENCE:]):
            break
    return max(scores, key=lambda strength: scores[strength])


def mean_log_rank(scores: Tensor, labels: Tensor) -> float:
    """Of the known positives among all images not known to lack the category; the mean over categories of the mean."""
    known = labels == PRESENT
    order = scores.masked_fill(labels == ABSENT, -torch.inf).argsort(dim=0, descending=True)
    log_rank = torch.arange(1, len(scores) + 1, dtype=torch.float64).log()[:, None]
    number = known.sum(0)
    means = (log_rank * known.gather(0, order)).sum(0) / number
    return float(means[number > 0].mean())


@torch.enable_grad()
def fit(
    features: Tensor, known: Tensor, strength: float, start: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Weights [C, D] and biases [C] that minimise mean log loss + strength / 2 * |w|^2 in each category."""
    if start is None:
        prior = (known.sum(0) + 0.5) / (len(known) + 1)
        start = torch.zeros(known.shape[1], features.shape[1]), torch.logit(prior)
    weight, bias = (part.clone().requires_grad_() for part in start)
    solver = without_compiler(torch.optim.LBFGS)(
        [weight, bias], max_iter=MAX_ITERATIONS, tolerance_change=1e-7, history_size=20, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        solver.zero_grad()
        loss = F.binary_cross_entropy_with_logits(logits(features, weight, bias), known, reduction="none").mean(0)
        total = (loss + 0.5 * strength * weight.square().sum(1)).sum()
        total.backward()
        return total

    solver.step(closure)
    return weight.detach(), bias.detach()


def logits(features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return features @ weight.T + bias
