"""Photographs of one moment: images that look nearly the same, found by their features."""

from __future__ import annotations

import torch
from torch import Tensor

NEARLY_THE_SAME = 0.9  # cosine of standardised features: about 0 for two unrelated images, 1 for two copies
ROUNDS = 3


def burst_leaders(unit_features: Tensor, similarity: float = NEARLY_THE_SAME, seed: int = 0) -> Tensor:
    """[N] for every image the first image of its burst; an image that is alone leads itself.

    Every image of a burst is as similar as that to its leader, so bursts do not grow into chains. Comparing all pairs
    of 100,000 images would take minutes: images are compared within cells around random images only, in several rounds
    with other cells, so a pair is missed only where every round parts it.
    """
    look = _Standardised(unit_features)
    leaders = torch.arange(len(unit_features))
    generator = torch.Generator().manual_seed(seed)
    for _ in range(ROUNDS):
        for cell in _cells(look, generator):
            _gather(look, cell, leaders, similarity)
    return leaders


class _Standardised:
    """Features as directions from the mean image, every dimension of equal spread; made for some rows at a time."""

    def __init__(self, features: Tensor):
        self.features = features
        spread, self.mean = torch.std_mean(features, dim=0, correction=0)
        self.scale = torch.where(spread > 1e-6, spread, torch.inf)

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, rows: Tensor) -> Tensor:
        return torch.nn.functional.normalize((self.features[rows] - self.mean) / self.scale, dim=1)


def _cells(look: _Standardised, generator: torch.Generator) -> list[Tensor]:
    """The rows nearest to each of about sqrt(N) random images, in ascending order."""
    number = max(int(len(look) ** 0.5), 1)
    centres = look[torch.randperm(len(look), generator=generator)[:number]]
    nearest = torch.cat([(look[rows] @ centres.T).argmax(1) for rows in torch.arange(len(look)).split(8192)])
    order = nearest.argsort(stable=True)
    return list(order.split(torch.bincount(nearest, minlength=number).tolist()))


def _gather(look: _Standardised, cell: Tensor, leaders: Tensor, similarity: float, most: int = 4096) -> None:
    """Let the images of a cell that are alone follow an earlier one that they look like."""
    for rows in cell.split(most):  # bounds the memory where most images fell into one cell
        directions = look[rows]
        alike = directions @ directions.T >= similarity
        follows_nobody = leaders[rows] == rows
        leads_somebody = torch.isin(rows, leaders[leaders != torch.arange(len(leaders))])
        for place in (alike.sum(1) > 1).nonzero()[:, 0].tolist():
            if not follows_nobody[place]:
                continue
            joining = alike[place] & follows_nobody & ~leads_somebody
            joining[: place + 1] = False
            leaders[rows[joining]] = rows[place]
            follows_nobody &= ~joining
            leads_somebody[place] |= bool(joining.any())
