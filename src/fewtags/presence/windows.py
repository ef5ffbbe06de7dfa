"""Evidence of the best window of an image: what fills a part of it is diluted in the average over all of it.

Windows are scored like whole images, by the same weights and names; the regression finds how much the best one counts.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fewtags.presence.fitting import Fitted
from fewtags.presence.ridge import unit_length

ENTRIES = 2**25  # scores of windows kept for the regression (128 MB)


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


def best_left_out(fitted: Fitted, rows: Tensor, windows: Tensor, names: Tensor | None) -> Tensor:
    """[B, C] scores of the best of each image's windows [B, L, D], without the image's own contribution.

    `rows` [B] are the images' places in the fit, `names` [B, L, C] the windows' name scores.
    """
    images, model = fitted.images, fitted.model
    basis = images.ridge.basis
    rotated = ((windows.cpu() - basis.mean) / basis.scale) @ basis.vectors
    scores = images.ridge.left_out_elsewhere(images.rotated[rows], rotated, images.weights[rows])
    if names is not None:
        scores = scores + (model.name_weight * model.standard_names(names)).cpu()
    return scores.amax(1)
