"""The closed form on the pooled features of any run: judges every label of the training images without itself.

A trained head has seen the known positives of its training images and believes in them; the closed form can be asked
what it would say about each if that one label were not known. It needs nothing but pooled features, so it serves runs
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

KEEP = 2**28  # numbers: so many images' features are held at once to choose the penalty and to fit the curves (1 GB)


@dataclass(frozen=True)
class LeftOut:
    """The closed form, and the probability of presence that its left-out scores stand for."""

    model: Discriminant
    num_images: int  # that it was fitted to
    bins: ScoreBins  # of the images it was fitted to, or of a sample of them
    curves: Curves  # with the known proportion that the closed form estimates

    @classmethod
    def of(
        cls, outputs: ModelOutputs, labels: np.ndarray, known_proportion: float | None = None, seed: int = 0
    ) -> LeftOut:
        """Fitted to the readable images of `outputs`, with their `labels` [N, C]."""
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
        """[M, C] probability of presence of some rows, whatever was said.

        `known` [M, C] is True for the labels that the closed form was fitted to as positives.
        """
        return self.curves.chance(left_out_scores(self.model, self.num_images, outputs.unit_features(rows), known))


def left_out_scores(model: Discriminant, num_images: int, features: Tensor, known: np.ndarray) -> np.ndarray:
    """[M, C] scores of images by their unit-length features [M, D], without the share of those that are `known`."""
    rotated, weights = model.basis.rotate(features), torch.from_numpy(known).float()
    return model.without_own(num_images).scores(rotated, weights).numpy()
