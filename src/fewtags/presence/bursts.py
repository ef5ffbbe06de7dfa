"""Bursts: images that look nearly the same, found by their features."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fewtags.presence.rows import AT_ONCE, FeatureRows, mean_and_spread

NEARLY_THE_SAME = 0.9  # cosine of standardised features: about 0 for two unrelated images, 1 for two copies
SAME_MOMENT = 0.8  # enough to be judged together: a copy with another crop and brightness (results/bursts)
NEARER = 4  # and this many times closer than a typical nearest neighbour: to a weak backbone all images look alike
SINGLE = 0.1  # of the images are single ones, at least: the nearest neighbour of another is its copy
_PROJECTIONS = 96  # candidates are found with this many numbers per image, then compared in full
_ROUNDS = 3
_MOST_IN_A_CELL = 4096


def burst_leaders(
    unit_features: FeatureRows, similarity: float | None = None, seed: int = 0, least: float = NEARLY_THE_SAME
) -> Tensor:
    """[N] for every image the first image of its burst; a single image is its own leader.

    `similarity` defaults to what `least` and NEARER give. Every image of a burst is that similar to its
    leader, so bursts do not grow into chains. Comparing all pairs of 100,000 images would take minutes: images are
    compared only within cells around random images, in several rounds with different cells, so a pair is missed only if
    every round separates it.
    """
    generator = torch.Generator().manual_seed(seed)
    look = _Standardised(unit_features)
    short = look.projected(generator)
    if similarity is None:
        similarity = max(least, 1 - (1 - _usual_similarity(look, generator)) / NEARER)
    leaders, leads = torch.arange(len(unit_features)), torch.zeros(len(unit_features), dtype=torch.bool)
    for _ in range(_ROUNDS):
        for cell in _cells(short, generator):
            _gather(look, short, cell, leaders, leads, similarity)
    return leaders


class _Standardised:
    """Features as directions from the mean image, standardised per dimension; computed for some rows at a time."""

    def __init__(self, features: FeatureRows):
        self.features = features
        self.mean, spread = mean_and_spread(features)
        self.scale = torch.where(spread > 1e-6, spread, torch.inf)

    def __getitem__(self, rows: Tensor) -> Tensor:
        return F.normalize((self.features[rows] - self.mean) / self.scale, dim=1)

    def projected(self, generator: torch.Generator) -> Tensor:
        """[N, _PROJECTIONS] of unit length; cosines of nearly identical images are accurate to about 0.01."""
        random = torch.randn(len(self.mean), _PROJECTIONS, generator=generator)
        blocks = torch.arange(len(self.features)).split(AT_ONCE)
        return F.normalize(torch.cat([self[rows] @ random for rows in blocks]), dim=1)


def _usual_similarity(look: _Standardised, generator: torch.Generator) -> float:
    """Typical similarity of a single image to its nearest neighbour, from a sample, among at most 10,000 images."""
    rows = torch.randperm(len(look.features), generator=generator)[:10_000]
    if len(rows) < 2:
        return 0.0
    directions = look[rows]
    similarity = directions[:300] @ directions.T
    similarity.fill_diagonal_(-1)
    return float(similarity.max(1).values.quantile(SINGLE))


def _cells(short: Tensor, generator: torch.Generator) -> list[Tensor]:
    """The rows nearest to each of about sqrt(N) random images, in ascending order."""
    number = max(int(len(short) ** 0.5), 1)
    centres = short[torch.randperm(len(short), generator=generator)[:number]]
    nearest = torch.cat([(rows @ centres.T).argmax(1) for rows in short.split(AT_ONCE)])
    order = nearest.argsort(stable=True)
    return list(order.split(torch.bincount(nearest, minlength=number).tolist()))


def _gather(
    look: _Standardised, short: Tensor, cell: Tensor, leaders: Tensor, leads: Tensor, similarity: float
) -> None:
    """Assign the single images of a cell to an earlier similar one, which then `leads` [N]."""
    for rows in cell.split(_MOST_IN_A_CELL):  # bounds the memory if most images are in one cell
        candidates = short[rows] @ short[rows].T >= similarity - 0.03
        places = (candidates.sum(1) > 1).nonzero()[:, 0]
        if not len(places):
            continue
        rows, candidates = rows[places], candidates[places][:, places]
        directions = look[rows]
        follows = leaders[rows] != rows
        for place in range(len(rows)):
            if follows[place]:
                continue
            joining = candidates[place] & ~follows & ~leads[rows]
            joining[: place + 1] = False
            joining[joining.clone()] = directions[joining] @ directions[place] >= similarity
            leaders[rows[joining]] = rows[place]
            follows |= joining
            leads[rows[place]] |= joining.any()
