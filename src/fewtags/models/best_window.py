"""The best window of an image: what fills a part of it is diluted in the average over all of it.

    score = (1 - share) * score of the whole image + share * (factor * highest score of a window + offset)

Windows are scored by the closed form's own weights and names. `factor` and `offset` give these scores the mean and
spread of the whole images' scores, category by category; the share is chosen by left-out labels (`leave_one_out`).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fewtags import distributed
from fewtags.contract import Batch
from fewtags.models.discriminant import Discriminant, unit_length
from fewtags.models.leave_one_out import Images

ENTRIES = 2**27  # scores of windows kept to choose the share and to calibrate (512 MB)


class BestWindow(nn.Module):
    """How much the best window counts, and how its scores are made comparable. Nothing, before the start."""

    share: Tensor
    factor: Tensor
    offset: Tensor

    def __init__(self, num_categories: int):
        super().__init__()
        self.register_buffer("share", torch.zeros(()))
        self.register_buffer("factor", torch.ones(num_categories))
        self.register_buffer("offset", torch.zeros(num_categories))

    def set(self, share: float, factor: Tensor, offset: Tensor) -> None:
        self.share.fill_(share)
        self.factor.copy_(factor)
        self.offset.copy_(offset)

    def forward(self, whole: Tensor, windows: Tensor) -> Tensor:
        """[B, C] scores, from those of whole images [B, C] and of their windows [B, L, C]."""
        return torch.lerp(whole, self.factor * windows.amax(1) + self.offset, self.share)


def unit_windows(feature_map: Tensor, side: int) -> tuple[Tensor, tuple[int, int]]:
    """[B, L, D] averages over windows at every location, of unit length, and the shape h', w' of their grid."""
    height, width = feature_map.shape[2:]
    each = torch.eye(height * width).to(feature_map).view(-1, 1, height, width)
    shares = F.avg_pool2d(each, (min(side, height), min(side, width)), stride=1)  # [h*w, 1, h', w']
    # As a product this is seven times faster than pooling the channels-first map.
    windows = shares.flatten(1).T @ feature_map.flatten(2).transpose(1, 2)
    return unit_length(windows), (shares.shape[2], shares.shape[3])


def overlapping_by_half(grid: tuple[int, int], side: int) -> Tensor:
    """Indices of windows of this `side` that overlap by about half, of those at every location of a `grid`.

    Those between them find hardly more (0.1 mAP on VOC 2007) and cost three times as much.
    """
    step = (side + 1) // 2
    rows, columns = (sorted({*range(0, length, step), length - 1}) for length in grid)
    return torch.tensor([row * grid[1] + column for row in rows for column in columns])


class LeftOutWindows:
    """Scores of the best window of the images of a fit, each without the image's own contribution."""

    def __init__(self, model: Discriminant, images: Images, weights: Tensor, index: Tensor):
        """`images` and how much they count as positives, `weights` [N, C]; `index` [N] of their batches, ascending."""
        self.images, self.weights, self.index, self.model = images, weights, index, model
        self.left_out = model.without_own(images.total)
        self.gain = 1 / (self.left_out.values + self.left_out.penalty)
        basis = model.basis
        self.mean, self.vectors, self.scale = (each.cpu() for each in (basis.mean, basis.vectors, basis.scale))
        self.directions = self._unrotate(self.left_out.directions)
        most = max(ENTRIES // weights.shape[1], 1)
        generator = torch.Generator().manual_seed(0)
        self.used = torch.zeros(len(index), dtype=torch.bool)
        self.used[torch.randperm(len(index), generator=generator)[:most]] = True

    def scores(self, batches: Iterable[tuple[Batch, Tensor, Tensor | None]]) -> tuple[Tensor, Tensor]:
        """Which of the images, [M], and the scores of their best windows, [M, C], of all processes.

        `batches` come with their unit-length windows [B, L, D] and, if there are names, the windows' name scores.
        """
        rows, best = [], []
        for batch, windows, names in batches:
            place = torch.searchsorted(self.index, batch.index.cpu()).clamp(max=len(self.index) - 1)
            used = (self.index[place] == batch.index.cpu()) & self.used[place]
            of_windows = None if names is None else names[used.to(names.device)]
            rows.append(place[used])
            best.append(self._best(place[used], windows[used.to(windows.device)], of_windows))
        everyone, scores = distributed.gather_rows(torch.cat(rows)), distributed.gather_rows(torch.cat(best))
        order = everyone.argsort()
        return everyone[order], scores[order]

    def _best(self, rows: Tensor, windows: Tensor, names: Tensor | None) -> Tensor:
        """[B, C] of the images in these rows, by their windows [B, L, D] and the windows' name scores [B, L, C]."""
        rotated, windows = self.images.rotated[rows], windows.cpu()
        mine = self._unrotate(rotated * self.gain)  # A x, as weights of unit-length features
        score = windows @ self.directions.T - self.directions @ self.mean
        shared = torch.einsum("bld,bd->bl", windows, mine) - (mine @ self.mean)[:, None]
        whole, own = rotated @ self.left_out.directions.T, rotated.square() @ self.gain
        scores = self.left_out.windows(whole, own, score, shared, self.weights[rows])
        if names is not None:
            scores = scores + (self.model.name_weight * self.model.standard_names(names)).cpu()
        return scores.amax(1)

    def _unrotate(self, directions: Tensor) -> Tensor:
        return directions @ self.vectors.T / self.scale
