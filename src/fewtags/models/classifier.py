"""Classifier = backbone + neck + head: images -> Outputs. This is what is exported; methods keep their state
elsewhere."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fewtags.contract import Outputs
from fewtags.models.backbones import Backbone
from fewtags.models.heads import Head


class Neck(nn.Sequential):
    """The layers after the paper's backbone: 2x2 average pooling, and a 1x1 convolution to fewer channels."""

    def __init__(self, in_channels: int, pool: int, width: int):
        layers: list[nn.Module] = [nn.AvgPool2d(pool)] if pool > 1 else []
        if width:
            layers += [nn.Conv2d(in_channels, width, 1, bias=False), nn.BatchNorm2d(width)]
        super().__init__(*layers)
        self.num_channels = width or in_channels


class Classifier(nn.Module):
    def __init__(self, backbone: Backbone, neck: Neck, head: Head):
        super().__init__()
        self.backbone = backbone
        self.neck = neck
        self.head = head

    @property
    def looks_at_the_average(self) -> bool:
        """Are the averages of the backbone's maps all that it needs?"""
        return self.head.spec.looks_at_the_average and not len(self.neck)

    def feature_map(self, images: Tensor, are_maps: bool = False) -> Tensor:
        """[B, D, h, w], the input of the head; from images, or from what the frozen stages made of them."""
        return self.neck(self.backbone.forward_trainable(images) if are_maps else self.backbone(images))

    def forward(self, images: Tensor, are_maps: bool = False) -> Outputs:
        """The backbone runs in the configured precision, the head in single precision: rounded logits tie, which costs
        up to one point of mAP."""
        if images.ndim == 2:
            return self.head.from_settled(images)
        feature_map = self.feature_map(images, are_maps)
        with torch.autocast(feature_map.device.type, enabled=False):
            return self.head(feature_map.float())
