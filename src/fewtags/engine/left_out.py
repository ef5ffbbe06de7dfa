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
from fewtags.models.discriminant import Discriminant, DiscriminantSums, leave_one_out

KEEP = 2**28  # numbers: so many images' features are held at once to choose the penalty and to fit the curves (1 GB)


@dataclass(frozen=True)
class LeftOut:
    """The closed form, and the probability of presence that its left-out scores stand for."""

    model: Discriminant
    prototypes: Tensor  # [C, D] mean of each category's known positives, in the eigenbasis
    bins: ScoreBins  # of the images it was fitted to, or of a sample of them
    curves: Curves

    @classmethod
    def of(cls, outputs: ModelOutputs, labels: np.ndarray, seed: int = 0) -> LeftOut:
        """Fitted to the readable images of `outputs`, with their `labels` [N, C]."""
        num_categories, dim = labels.shape[1], outputs.features.shape[1]
        rows = np.flatnonzero(outputs.readable)
        sums = DiscriminantSums(num_categories, dim)
        for some in outputs.chunks(rows):
            sums.add(outputs.unit_features(some), torch.from_numpy(labels[some]))
        if len(rows) * dim > KEEP:
            rows = np.sort(np.random.default_rng(seed).permutation(rows)[: KEEP // dim])
        model = Discriminant(num_categories, dim)
        model.fit(sums, outputs.unit_features(rows), torch.from_numpy(labels[rows]))
        prototypes = model.basis.prototypes(sums.category_count, sums.category_total)
        parts = [
            left_out_scores(model, prototypes, outputs.unit_features(some), labels[some] == PRESENT)
            for some in outputs.chunks(rows)
        ]
        bins = ScoreBins.of(np.concatenate(parts), labels[rows])
        return cls(model, prototypes, bins, fit_curves(bins))

    def chances(self, outputs: ModelOutputs, rows: np.ndarray, known: np.ndarray) -> np.ndarray:
        """[M, C] probability of presence of some rows, whatever was said.

        `known` [M, C] is True for the labels that the closed form was fitted to as positives.
        """
        return self.curves.chance(left_out_scores(self.model, self.prototypes, outputs.unit_features(rows), known))


def left_out_scores(model: Discriminant, prototypes: Tensor, features: Tensor, known: np.ndarray) -> np.ndarray:
    """[M, C] scores of images by their unit-length features [M, D], without the share of those that are `known`."""
    rotated, weights = model.basis.rotate(features), torch.from_numpy(known).float()
    count = model.category_count.float()
    return leave_one_out(rotated, weights, prototypes, count, model.values, float(model.penalty)).numpy()
