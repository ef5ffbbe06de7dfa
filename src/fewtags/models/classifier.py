"""Classifier = backbone + neck + head: images -> Outputs. This is what is exported; methods keep theirs elsewhere."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from fewtags.methods.base import Batch, Outputs
from fewtags.methods.instant import Basis, InstantStatistics
from fewtags.models.backbones import Backbone
from fewtags.models.heads import Head


class Neck(nn.Sequential):
    """What the paper puts behind the backbone: 2x2 average pooling, and a 1x1 convolution to fewer channels."""

    def __init__(self, in_channels: int, pool: int, width: int, principal: bool = False):
        layers: list[nn.Module] = [nn.AvgPool2d(pool)] if pool > 1 else []
        if width:
            layers += [nn.Conv2d(in_channels, width, 1, bias=False), nn.BatchNorm2d(width)]
        super().__init__(*layers)
        self.num_channels = width or in_channels
        self.needs_start = principal and 0 < width <= in_channels

    @torch.no_grad()
    def start(self, batches: Iterable[Batch]) -> str:
        """Let the convolution begin at the directions of most variance of the pooled maps, one look at all of them.

        The batch normalisation behind it makes all of them count alike, so this is whitening.
        """
        convolution = self[-2]
        assert isinstance(convolution, nn.Conv2d)
        statistics = InstantStatistics(0, convolution.in_channels)
        for batch in batches:
            pooled = batch.images.float().mean((2, 3)).cpu()
            statistics.add(pooled, torch.zeros(len(pooled), 0))
        basis = Basis.of(statistics.across_ranks())
        directions = basis.vectors[:, -self.num_channels :] / basis.scale[:, None]  # eigenvalues rise
        convolution.weight.copy_(directions.T[:, :, None, None])
        return f"Neck: {self.num_channels} directions of most variance over {int(statistics.count):,} images."


class Classifier(nn.Module):
    def __init__(self, backbone: Backbone, neck: Neck, head: Head):
        super().__init__()
        self.backbone = backbone
        self.neck = neck
        self.head = head
        self.takes_maps = False  # set where the frozen stages' maps are given instead of images

    def backbone_map(self, images: Tensor) -> Tensor:
        """[B, D, h, w], what the neck sees."""
        return self.backbone.forward_trainable(images) if self.takes_maps else self.backbone(images)

    def feature_map(self, images: Tensor) -> Tensor:
        """[B, D, h, w], what the head sees."""
        return self.neck(self.backbone_map(images))

    def forward(self, images: Tensor) -> Outputs:
        return self.head(self.feature_map(images))
