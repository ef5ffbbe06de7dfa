"""L_csl: pulls two images' features of a category together if both show it, and apart otherwise."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fewtags.distributed import gather_rows, gather_rows_to_learn


def of_all_processes(features: Tensor, positive: Tensor) -> tuple[Tensor, Tensor]:
    """Features [B, C, D] and known positives [B, C] of the whole batch; each process has a share of it."""
    return gather_rows_to_learn(features), gather_rows(positive.to(torch.uint8)).bool()


def cross_image_loss(features: Tensor, positive: Tensor) -> Tensor:
    """Mean over all pairs of images and all categories of 1 - cosine (both positive) or 1 + cosine (otherwise).

    With unit vectors u, the cosines of all pairs in a set sum to (|sum u|^2 - sum |u|^2) / 2, so the cost is linear
    in the batch size and no pairs are formed.
    """
    num_images, num_categories, _ = features.shape
    num_pairs = num_images * (num_images - 1) / 2
    if num_pairs == 0:
        return features.sum() * 0.0
    norm = features.norm(dim=-1)
    inverse = 1 / norm.clamp(min=1e-12)
    weights = torch.stack([inverse, inverse * positive])  # [2, B, C]: over all images, over the positive ones
    sums = torch.einsum("bcd,sbc->scd", features, weights)
    squares = torch.stack([norm > 0, (norm > 0) & positive]).sum(1)  # sum |u|^2
    all_pairs, positive_pairs = (sums.square().sum(-1) - squares) / 2  # [C] each
    return 1 + (all_pairs - 2 * positive_pairs).sum() / (num_pairs * num_categories)


def sampled_cross_image_loss(features: Tensor, positive: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """The authors' variant: P both-positive pairs, and of each other kind 2P random and the P hardest pairs.

    The other kinds have one positive or none; the hardest are the most similar and may repeat random ones.
    Without any positive pair, all pairs count. P is counted over the batch and all categories.
    """
    unit = F.normalize(features, dim=-1)
    image, other = torch.triu_indices(len(features), len(features), offset=1, device=features.device)
    cosine = torch.einsum("bcd,ecd->bec", unit, unit)[image, other]  # [pairs, C]
    shown = positive[image].int() + positive[other].int()
    attract = 1 - cosine[shown == 2]
    repel = [1 + cosine[shown == 1], 1 + cosine[shown == 0]]
    if len(attract):
        repel = [_random_and_hardest(losses, len(attract), generator) for losses in repel]
    chosen = torch.cat([attract, *repel])
    return chosen.sum() / max(1, len(chosen))


def _random_and_hardest(losses: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
    drawn = torch.randperm(len(losses), generator=generator, device=losses.device)[: 2 * count]
    hardest = losses.detach().topk(min(count, len(losses))).indices
    return torch.cat([losses[drawn], losses[hardest]])
