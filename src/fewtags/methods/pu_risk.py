"""nnPU (Kiryo et al., "Positive-Unlabeled Learning with Non-Negative Risk Estimator", NeurIPS 2017), per category.

With pi the share of images that show a category, E_P the mean over its positives and E the mean over all images, the
risk of a classifier with loss l is

    R = pi E_P[l(z)]  +  E[l(-z)] - pi E_P[l(-z)]

where the difference is what the negatives contribute. Estimated from few positives it can become negative, which is
overfitting; then its gradient is reversed. Known positives are a random share p of all, so pi E_P[x] is the mean over
all images of [known] x / p: no batch is without an estimate.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fewtags.contract import Batch, Outputs, Problem, Progress, StepResult
from fewtags.labels import PRESENT
from fewtags.methods.base import Objective
from fewtags.methods.role import expected_positives
from fewtags.settings import Settings


class NonNegativeRisk(Objective["NonNegativeRisk.Config"]):
    class Config(Settings):
        expected_positives: float | None = Field(None, gt=0)
        """Mean number of tags that truly apply to an image, from which the share of known positives follows. None: an
        estimate from the known labels, which is too low if many are missing, so set it if you can."""
        surrogate: Literal["logistic", "sigmoid"] = "logistic"
        """l: cross-entropy, or the bounded sigmoid loss of the authors' experiments."""
        tolerance: float = Field(0.0, ge=0)
        """beta: how far below 0 the negatives' part may fall before its gradient is reversed."""
        step_back: float = Field(1.0, ge=0, le=1)
        """gamma: factor on the reversed gradient."""
        loss_scale: float = 1.0
        """Factor on the mean over categories. It matters relative to Adam's coupled weight decay and the head's
        prior."""

    known_proportion: Tensor

    def __init__(self, config: Config, problem: Problem, feature_dim: int | None):
        super().__init__(config, problem, feature_dim)
        truly = expected_positives(problem) if config.expected_positives is None else config.expected_positives
        known = float((problem.labels == PRESENT).sum()) / max(1, problem.num_images)
        self.register_buffer("known_proportion", torch.tensor(min(1.0, max(known, 1e-6) / truly)))

    def loss(self, batch: Batch, outputs: Outputs, progress: Progress) -> StepResult:
        positive, negative = self.risks(outputs.logits, batch.labels)
        overfitted = negative < -self.config.tolerance
        # Of the reversed part only the gradient matters; its value is left out of the loss.
        part = torch.where(overfitted, -self.config.step_back * (negative - negative.detach()), negative)
        risk = torch.where(overfitted, positive.detach() + part, positive + part)
        return StepResult({"risk": self.config.loss_scale * risk.mean()}, {"overfitted": overfitted.sum()})

    def risks(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """[C] of the positives and of the negatives; labels known to be absent are not positives of anything."""
        known = (labels == PRESENT) / self.known_proportion
        as_present, as_absent = self._surrogate(logits), self._surrogate(-logits)
        return (known * as_present).mean(0), (as_absent - known * as_absent).mean(0)

    def _surrogate(self, margin: Tensor) -> Tensor:
        return F.softplus(-margin) if self.config.surrogate == "logistic" else torch.sigmoid(-margin)
