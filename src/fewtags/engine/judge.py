"""The presence of tags in the images of a run of any method: every label is judged without having been learned from.

A trained head has memorised the known positives of its training images. The closed form on the pooled features
(`presence`) can say what each label would seem to be if it were not known, so it is asked instead, by everything that
shows or counts the missing tags of a run: `discover`, `review`, `predict` for the run's own photos, and the estimates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from fewtags.engine.model_outputs import ROWS_AT_ONCE, ModelOutputs
from fewtags.errors import DataError
from fewtags.labels import PRESENT, UNKNOWN
from fewtags.models.closed_form import ClosedFormHead
from fewtags.models.heads import Head
from fewtags.presence.answers import Correction
from fewtags.presence.bursts import SAME_MOMENT, burst_leaders
from fewtags.presence.estimates import Judged
from fewtags.presence.model import Presence
from fewtags.presence.ridge import ImageSums

KEEP = 2**28  # values: the features held at once for the regression (1 GB)


@dataclass(frozen=True)
class Judge:
    model: Presence
    odds: np.ndarray  # [N, C] base log-odds of presence, whatever the label; 0 for unreadable images
    labels: np.ndarray  # [N, C] as given
    readable: np.ndarray  # [N]
    names: Tensor | None = None  # [N, C] name scores,
    name_scorer: Callable[[Tensor], Tensor | None] | None = None  # and those of other unit-length features

    @classmethod
    def of(
        cls,
        outputs: ModelOutputs,
        labels: np.ndarray,
        head: Head | None = None,
        known_proportion: float | None = None,
        groups: np.ndarray | None = None,
    ) -> Judge:
        """Fit to the readable images of `outputs`, with their `labels` [N, C]. A closed-form `head` has names to go
        by. Labels are judged without all images of the same of `groups` [N]."""
        names = name_scores(head, outputs)
        if groups is None and isinstance(head, ClosedFormHead) and head.config.bursts:
            groups = burst_leaders(outputs.unit_features(np.arange(len(outputs))), least=SAME_MOMENT).numpy()
        scorer = head if isinstance(head, ClosedFormHead) and head.names is not None else None
        judge = cls.of_features(
            outputs.unit_features,
            outputs.readable,
            labels,
            names=names,
            named=None if scorer is None or scorer.names is None else scorer.names.known,
            known_proportion=known_proportion,
            groups=groups,
        )
        return replace(judge, name_scorer=None if scorer is None else scorer.name_scores)

    @classmethod
    def of_features(
        cls,
        unit_features: Callable[[np.ndarray], Tensor],
        readable: np.ndarray,
        labels: np.ndarray,
        *,
        names: Tensor | None = None,
        named: Tensor | None = None,
        known_proportion: float | None = None,
        groups: np.ndarray | None = None,
    ) -> Judge:
        """By the unit-length features [M, D] of rows [M], and the images' name scores [N, C]."""
        rows = np.flatnonzero(readable)
        sums = None
        for some in _chunks(rows):
            features = unit_features(some)
            sums = ImageSums(labels.shape[1], features.shape[1]) if sums is None else sums
            sums.add(features, torch.from_numpy(labels[some]))
        if sums is None:
            raise DataError("None of the images could be read.")
        dim, kept = sums.total.shape[0], rows
        if len(rows) * dim > KEEP:
            kept = np.sort(np.random.default_rng(0).permutation(rows)[: KEEP // dim])
        model = Presence(labels.shape[1], dim)
        fitted = model.fit(
            sums,
            unit_features(kept),
            torch.from_numpy(labels[kept]),
            names=None if names is None else names[kept],
            named=named,
            known_proportion=known_proportion,
            groups=None if groups is None else torch.from_numpy(groups[kept]),
        )
        odds = np.zeros(labels.shape, dtype=np.float32)
        odds[kept] = fitted.left_out().numpy()
        for some in _chunks(np.setdiff1d(rows, kept)):  # in the sums with one label of many
            of_names = None if names is None else names[some]
            odds[some] = model.base_odds(model.scores(unit_features(some), of_names)).numpy()
        return cls(model, odds, labels, readable, names)

    def hidden(self, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
        """[M, C] P(present | unknown)."""
        return self.model.answers.if_unknown(torch.from_numpy(self.odds[rows])).sigmoid().numpy()

    def present(self, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
        """[M, C] P(present), as if nothing were known of the label."""
        return self.model.answers.present(torch.from_numpy(self.odds[rows])).sigmoid().numpy()

    def learn(self, rows: ArrayLike, columns: ArrayLike, decided: ArrayLike) -> Correction:
        """Learn from decisions about labels that were unknown: how likely the others are present."""
        at, column, label = (np.asarray(each, dtype=np.int64) for each in (rows, columns, decided))
        asked = (self.labels[at, column] == UNKNOWN) & (label != UNKNOWN) & self.readable[at]
        odds = torch.from_numpy(self.odds[at[asked], column[asked]])
        present = torch.from_numpy(label[asked] == PRESENT)
        return self.model.take_answers(odds, torch.from_numpy(column[asked]), present)

    def judged(self) -> Judged:
        """For estimates of all readable images."""
        rows = np.flatnonzero(self.readable)
        odds, labels = (torch.from_numpy(part[rows]) for part in (self.odds, self.labels))
        return Judged(odds, labels, self.model.observation, float(self.model.uncertain))


def _chunks(rows: np.ndarray) -> Iterator[np.ndarray]:
    return (rows[first : first + ROWS_AT_ONCE] for first in range(0, len(rows), ROWS_AT_ONCE))


def name_scores(head: Head | None, outputs: ModelOutputs) -> Tensor | None:
    """[N, C] what the names of the categories say about the images, where the run's head goes by names."""
    if not isinstance(head, ClosedFormHead) or head.names is None:
        return None
    scores = torch.zeros(len(outputs), head.num_categories)
    with torch.no_grad():
        for rows in outputs.chunks():
            found = head.name_scores(outputs.unit_features(rows).to(head.feature_norm))
            assert found is not None
            scores[rows] = found.cpu()
    return scores
