"""Leave-one-out predictions for any run: the closed form on its pooled features scores each label without itself.

A trained head has memorised the known positives of its training images; the closed form can say
what it would predict for each if that one label were unknown. It needs only pooled features, so it works for runs
of every method: to estimate how complete the labels are, and to find given tags that look wrong.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fewtags.engine.model_outputs import ModelOutputs
from fewtags.estimates import Curves, ScoreBins, fit_curves
from fewtags.labels import PRESENT
from fewtags.models.discriminant import Discriminant, DiscriminantSums

KEEP = 2**28  # values: the features held at once to choose the penalty and fit the curves (1 GB)


@dataclass(frozen=True)
class LeftOut:
    """The closed form, and the calibration from its leave-one-out scores to probabilities of presence."""

    model: Discriminant
    num_images: int  # it was fitted to
    bins: ScoreBins  # of the images it was fitted to, or of a sample of them
    curves: Curves  # with the known proportion that the closed form estimates

    @classmethod
    def of(
        cls, outputs: ModelOutputs, labels: np.ndarray, known_proportion: float | None = None, seed: int = 0
    ) -> LeftOut:
        """Fit to the readable images of `outputs`, with their `labels` [N, C]."""
        num_categories, dim = labels.shape[1], outputs.features.shape[1]
        rows = np.flatnonzero(outputs.readable)
        sums = DiscriminantSums(num_categories, dim)
        for some in outputs.chunks(rows):
            sums.add(outputs.unit_features(some), torch.from_numpy(labels[some]))
        if len(rows) * dim > KEEP:
            rows = np.sort(np.random.default_rng(seed).permutation(rows)[: KEEP // dim])
        model = Discriminant(num_categories, dim)
        model.fit(sums, outputs.unit_features(rows), torch.from_numpy(labels[rows]), known_proportion)
        parts = [
            left_out_scores(model, int(sums.count), outputs.unit_features(some), labels[some] == PRESENT)
            for some in outputs.chunks(rows)
        ]
        bins = ScoreBins.of(np.concatenate(parts), labels[rows])
        return cls(model, int(sums.count), bins, fit_curves(bins, float(model.known_proportion.mean())))

    def chances(self, outputs: ModelOutputs, rows: np.ndarray, known: np.ndarray) -> np.ndarray:
        """[M, C] probability of presence for some rows, whatever their labels.

        `known` [M, C] marks the labels that the closed form was fitted to as positives.
        """
        return self.curves.chance(left_out_scores(self.model, self.num_images, outputs.unit_features(rows), known))


def left_out_scores(model: Discriminant, num_images: int, features: Tensor, known: np.ndarray) -> np.ndarray:
    """[M, C] scores from unit-length features [M, D], each `known` label without its own contribution."""
    rotated, weights = model.basis.rotate(features), torch.from_numpy(known).float()
    return model.without_own(num_images).scores(rotated, weights).numpy()
