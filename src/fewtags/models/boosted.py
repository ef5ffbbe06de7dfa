"""BoostLU's head (Kim et al., "Bridging the Gap between Model Explanations in Partially Annotated Multi-label
Classification", CVPR 2023): the linear head, whose positive evidence at single places counts more.

A linear classifier of the averaged map is the average of its scores at every place, the class activation map. Trained
with missing labels, a network keeps high values of it where an object is, but fewer; so positive ones are multiplied by
alpha before they are averaged, in training and in prediction. With alpha = 1 this is `LinearHead`.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from pydantic import Field
from torch import Tensor

from fewtags.contract import Outputs
from fewtags.models.heads import LinearHead


class BoostedHead(LinearHead):
    class Config(LinearHead.Config):
        alpha: float = Field(5.0, gt=0)
        """Factor on positive scores of a place."""

    config: Config
    spec = replace(LinearHead.spec, looks_at_the_average=False)

    def forward(self, feature_map: Tensor) -> Outputs:
        activation = self.classifier(self.dropout(self.hidden(self._places(feature_map))))  # [B, h*w, C]
        boosted = torch.where(activation > 0, self.config.alpha * activation, activation)
        squares = self.classifier.weight.square().sum(1).mean()
        has_prior = self.standardise is not None and self.training
        return Outputs(boosted.mean(1), prior=self.penalty * squares if has_prior else None)

    def _places(self, feature_map: Tensor) -> Tensor:
        """[B, h*w, D], standardised so that their mean is the standardised average."""
        places = feature_map.flatten(2).transpose(1, 2)
        if self.standardise is None:
            return places
        places = places.float() / places.float().mean(1, keepdim=True).norm(dim=2, keepdim=True).clamp(min=1e-12)
        return (places - self.standardise.mean) * self.standardise.factor
