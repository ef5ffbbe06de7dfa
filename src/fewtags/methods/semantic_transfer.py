"""Structured semantic transfer (Chen et al., AAAI 2022): SST, and its cross-image half CST, a row of the paper.

Both find positives among the unknown labels and train on them: CST where an image's feature for a category is similar
to those of known positives; SST also where the known positives of the same image make the category likely. They were
designed for known positives and negatives. With positives only, everything would become positive, so the first term
assumes that unknown labels are absent.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fewtags.contract import Batch, Outputs, Problem, Progress, StepResult
from fewtags.labels import PRESENT, UNKNOWN
from fewtags.methods.base import Objective
from fewtags.methods.cross_image import cross_image_loss, of_all_processes, sampled_cross_image_loss
from fewtags.methods.feature_queue import FeatureQueue
from fewtags.methods.losses import assume_negative_loss, asymmetric_loss
from fewtags.settings import Settings


def theta_schedule(epoch: int, start: int) -> float:
    """0.95 in the epoch in which transfer starts, decreasing by 0.025 per epoch to 0.75."""
    return max(0.75, 0.95 - 0.025 * (epoch - start))


def ramp(progress: Progress) -> float:
    """From 0 to 1 during the first epoch, 1 afterwards."""
    return progress.epoch_fraction if progress.epoch == 0 else 1.0


def transfer_loss(logits: Tensor, labels: Tensor, found: Tensor, others: Literal["skipped", "absent"]) -> Tensor:
    """Mean cross-entropy over known and found labels; the other unknown labels are skipped or count as absent."""
    used = (labels != UNKNOWN) | found if others == "skipped" else torch.ones_like(found)
    losses = assume_negative_loss(logits, labels.masked_fill(found, 1))
    return losses.masked_fill(~used, 0).sum() / used.sum().clamp(min=1)


class CrossImageTransfer(Objective["CrossImageTransfer.Config"]):
    """CST: a category is found if its feature is similar to the category's latest known positives."""

    needs_features = True

    class Config(Settings):
        queue_size: int = 100
        """Known positive features kept per category."""
        discover_from_epoch: int = 5
        """First epoch (0-based) that trains on found labels."""
        csl_weight: float = 0.05
        """Weight of the cross-image similarity loss."""
        csl: Literal["dense", "sampled"] = "dense"
        """Cross-image similarity over all pairs of a batch, or over the authors' sample of random and hardest pairs."""
        csl_gather: bool = False
        """Under several processes: pairs of images of all of them, which costs sending their features around."""
        transfer_others: Literal["skipped", "absent"] = "skipped"
        """Unknown labels that were not found, in the loss of the found ones: skipped, as with known negatives, or
        absent, as in the authors' version for known positives only. If skipped, nothing limits the found ones."""
        loss_scale: float = 1.0
        """Factor on the classification losses, not on those of features and pairs. It matters relative to Adam's
        coupled weight decay."""

    def __init__(self, config: Config, problem: Problem, feature_dim: int | None):
        super().__init__(config, problem, feature_dim)
        assert feature_dim is not None  # needs_features
        self.queue = FeatureQueue(problem.num_categories, config.queue_size, feature_dim)

    def observe(self, batch: Batch, outputs: Outputs, progress: Progress) -> None:
        assert outputs.features is not None
        self.queue.add(outputs.features, batch.labels == PRESENT)

    def loss(self, batch: Batch, outputs: Outputs, progress: Progress) -> StepResult:
        assert outputs.features is not None
        labels = batch.labels
        pairs_loss = cross_image_loss if self.config.csl == "dense" else sampled_cross_image_loss
        images = (outputs.features, labels == PRESENT)
        alike = pairs_loss(*(of_all_processes(*images) if self.config.csl_gather else images))
        losses = {
            "observed": self.config.loss_scale * assume_negative_loss(outputs.logits, labels).mean(),
            "cross_image": self.config.csl_weight * ramp(progress) * alike,
        }
        found = self.found_across(batch, outputs, progress)
        if progress.epoch >= self.config.discover_from_epoch:
            losses["transferred"] = self.transferred(outputs.logits, labels, found)
        return StepResult(losses, decisions={"found": found})

    def decide(self, batch: Batch, outputs: Outputs, progress: Progress) -> dict[str, Tensor]:
        return {"found": self.found_across(batch, outputs, progress)}

    def found_across(self, batch: Batch, outputs: Outputs, progress: Progress) -> Tensor:
        """From other images: similarity to the category's latest known positives."""
        assert outputs.features is not None
        return self.found(self.queue.mean_cosine(outputs.features.detach()), batch.labels, progress)

    def found(self, belief: Tensor, labels: Tensor, progress: Progress) -> Tensor:
        """Unknown labels with a belief of at least theta; none before transfer starts."""
        theta = theta_schedule(progress.epoch, self.config.discover_from_epoch)
        return (labels == UNKNOWN) & (belief >= theta) & (progress.epoch >= self.config.discover_from_epoch)

    def transferred(self, logits: Tensor, labels: Tensor, found: Tensor) -> Tensor:
        return self.config.loss_scale * transfer_loss(logits, labels, found, self.config.transfer_others)

    def category_stats(self, progress: Progress) -> dict[str, Tensor]:
        return {"queue_occupied": self.queue.occupied()}


class SemanticTransfer(CrossImageTransfer):
    """SST: CST, and a category is also found if it is likely to co-occur with the known positives of the image."""

    class Config(CrossImageTransfer.Config):
        cooccurrence_weight: float = 10.0
        """Weight of the loss of the co-occurrence classifier."""
        pair_width: int = 128
        """Width the features of a pair are reduced to; 512 in the paper."""
        pair_hidden: int = 128
        """Width of the hidden layer, and length of the vector of each of the C(C-1)/2 pairs; 1024 in the paper."""

    config: Config

    def __init__(self, config: Config, problem: Problem, feature_dim: int | None):
        super().__init__(config, problem, feature_dim)
        assert feature_dim is not None  # needs_features
        self.pairs = PairClassifier(problem.num_categories, feature_dim, config.pair_width, config.pair_hidden)

    def loss(self, batch: Batch, outputs: Outputs, progress: Progress) -> StepResult:
        across = super().loss(batch, outputs, progress)
        present = batch.labels == PRESENT
        scores = self.pairs(outputs.features)
        pair_losses = asymmetric_loss(scores, self.pairs.both(present), gamma_pos=1.0, gamma_neg=2.0, margin=0.05)
        mean = pair_losses.sum() / max(1, pair_losses.numel())  # a single category has no pairs
        losses = {"cooccurrence": self.config.cooccurrence_weight * ramp(progress) * mean}

        found = self.found_within(scores, batch, progress)
        if progress.epoch >= self.config.discover_from_epoch:
            losses["transferred_within"] = self.transferred(outputs.logits, batch.labels, found)
        decisions = {"found": across.decisions["found"] | found}
        return StepResult({**across.losses, **losses}, decisions=decisions)

    @torch.no_grad()
    def decide(self, batch: Batch, outputs: Outputs, progress: Progress) -> dict[str, Tensor]:
        within = self.found_within(self.pairs(outputs.features), batch, progress)
        return {"found": self.found_across(batch, outputs, progress) | within}

    def found_within(self, scores: Tensor, batch: Batch, progress: Progress) -> Tensor:
        """From the image's own known positives: mean probability of co-occurring with them."""
        return self.found(self.pairs.support(scores.detach(), batch.labels == PRESENT), batch.labels, progress)


class PairClassifier(nn.Module):
    """Features [B, C, D] -> the logit that categories i < j co-occur in an image, [B, C(C-1)/2].

        s_ij = k_ij . (V2 relu(V1 [q_i ; q_j] + b1) + b2) + beta_ij       q = reduced features

    with one vector k_ij per pair. V1 [q_i ; q_j] is the sum of a part for i and a part for j, so V1 is applied to
    categories instead of pairs, and k_ij V2 does not depend on the image. What is left per image and pair is a sum, a
    relu and a dot product (`relu_scores`).
    """

    first: Tensor
    second: Tensor

    def __init__(self, num_categories: int, feature_dim: int, width: int, hidden: int):
        super().__init__()
        self.reduce = nn.Linear(feature_dim, width)
        self.to_hidden = nn.Linear(2 * width, hidden)  # V1, b1
        self.mix = nn.Linear(hidden, hidden)  # V2, b2
        first, second = torch.triu_indices(num_categories, num_categories, offset=1)
        self.register_buffer("first", first, persistent=False)
        self.register_buffer("second", second, persistent=False)
        bound = hidden**-0.5
        self.vectors = nn.Parameter(torch.empty(len(first), hidden).uniform_(-bound, bound))  # k
        self.bias = nn.Parameter(torch.zeros(len(first)))  # beta

    def forward(self, features: Tensor) -> Tensor:
        reduced = self.reduce(features.transpose(0, 1))  # [C, B, width]
        weight_first, weight_second = self.to_hidden.weight.chunk(2, dim=1)
        part_first = F.linear(reduced, weight_first, self.to_hidden.bias)  # [C, B, hidden]
        part_second = F.linear(reduced, weight_second)
        scores = relu_scores(part_first, part_second, self.vectors @ self.mix.weight)
        return scores.T + (self.vectors @ self.mix.bias + self.bias)

    def both(self, present: Tensor) -> Tensor:
        """[B, C(C-1)/2] are both categories of a pair known to be present?"""
        return present[:, self.first] & present[:, self.second]

    def support(self, scores: Tensor, present: Tensor) -> Tensor:
        """[B, C] mean probability of co-occurring with the known positives of the image; 0 if there are none."""
        probability, present = scores.float().sigmoid(), present.float()
        total = torch.zeros_like(present)
        total.index_add_(1, self.first, probability * present[:, self.second])
        total.index_add_(1, self.second, probability * present[:, self.first])
        return total / present.sum(1, keepdim=True).clamp(min=1)


def relu_scores(first: Tensor, second: Tensor, vectors: Tensor) -> Tensor:
    """v_ij . relu(first_i + second_j) for i < j: [C, B, H], [C, B, H] and [C(C-1)/2, H] -> [C(C-1)/2, B]."""
    dtype = torch.promote_types(first.dtype, torch.float32)
    with torch.autocast(first.device.type, enabled=False):
        return _ReluScores.apply(first.to(dtype), second.to(dtype), vectors.to(dtype))


class _ReluScores(torch.autograd.Function):
    """One category i at a time, with all j > i: the hidden layer of all pairs is never stored; backward recomputes
    it."""

    @staticmethod
    def forward(ctx: Any, first: Tensor, second: Tensor, vectors: Tensor) -> Tensor:
        ctx.save_for_backward(first, second, vectors)
        scores = first.new_empty(len(vectors), first.shape[1])
        for i, pairs in _rows_of_pairs(len(first)):
            hidden = F.relu(first[i] + second[i + 1 :])  # [C - i - 1, B, H]
            scores[pairs] = torch.bmm(hidden, vectors[pairs].unsqueeze(2)).squeeze(2)
        return scores

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # pyrefly: ignore[bad-override]
        first, second, vectors = ctx.saved_tensors
        grad_first, grad_second, grad_vectors = (torch.zeros_like(t) for t in (first, second, vectors))
        for i, pairs in _rows_of_pairs(len(first)):
            hidden, grad = F.relu(first[i] + second[i + 1 :]), grads[0][pairs]
            grad_vectors[pairs] = torch.bmm(grad.unsqueeze(1), hidden).squeeze(1)
            slope = grad.unsqueeze(2) * vectors[pairs].unsqueeze(1) * (hidden > 0)
            grad_first[i] = slope.sum(0)
            grad_second[i + 1 :] += slope
        return grad_first, grad_second, grad_vectors


def _rows_of_pairs(num_categories: int) -> Iterator[tuple[int, slice]]:
    """(i, slice of its pairs with j > i) in the order of `triu_indices`."""
    start = 0
    for i in range(num_categories - 1):
        stop = start + num_categories - i - 1
        yield i, slice(start, stop)
        start = stop
