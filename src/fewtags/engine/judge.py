"""The presence of tags in the images of a run of any method: every label is judged without having been learned from.

A trained head has memorised the known positives of its training images. The closed form on the pooled features
(`presence`) can say what each label would seem to be if it were not known, so it is asked instead, by everything that
shows or counts the missing tags of a run: `discover`, `review`, `predict` for the run's own photos, and the estimates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from fewtags.engine.model_outputs import ROWS_AT_ONCE, ModelOutputs
from fewtags.errors import DataError
from fewtags.labels import PRESENT, UNKNOWN
from fewtags.models.heads import Head
from fewtags.presence.answers import Correction
from fewtags.presence.bursts import SAME_MOMENT, burst_leaders
from fewtags.presence.decision_learner import DecisionLearner
from fewtags.presence.decisions import Lesson
from fewtags.presence.estimates import Judged
from fewtags.presence.fitting import fit_presence
from fewtags.presence.model import Presence
from fewtags.presence.ridge import ImageSums

KEEP = 2**28  # values: the features held at once for the regression (1 GB)


@dataclass(frozen=True)
class Judge:
    model: Presence
    odds: np.ndarray  # [N, C] base log-odds of presence, whatever the label; 0 for unreadable images
    labels: np.ndarray  # [N, C] as given
    readable: np.ndarray  # [N]
    unit_features: Callable[[np.ndarray], Tensor]  # [M, D] of rows [M]
    name_scorer: Callable[[Tensor], Tensor | None] | None = None  # [M, C] name scores of unit-length features
    decided: np.ndarray | None = None  # [N, C] labels with the decisions that came with the data, if there were any

    @classmethod
    def of(
        cls,
        outputs: ModelOutputs,
        labels: np.ndarray,
        head: Head | None = None,
        known_proportion: float | None = None,
        groups: np.ndarray | None = None,
    ) -> Judge:
        """Fit to the readable images of `outputs`, with their `labels` [N, C]. A `head` that knows names has them to
        go by. Labels are judged without all images of the same of `groups` [N]."""
        names = name_scores(head, outputs)
        if groups is None and head is not None and head.finds_bursts:
            groups = burst_leaders(outputs.unit_features(np.arange(len(outputs))), least=SAME_MOMENT).numpy()
        scorer = None if head is None else head.names
        judge = cls.of_features(
            outputs.unit_features,
            outputs.readable,
            labels,
            names=names,
            named=None if scorer is None else scorer.known,
            known_proportion=known_proportion,
            groups=groups,
        )
        return replace(judge, name_scorer=None if head is None or scorer is None else head.name_scores)

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
        fitted = fit_presence(
            model,
            sums,
            _at_once(unit_features, kept, dim),
            torch.from_numpy(labels[kept]),
            names=None if names is None else names[kept],
            named=named,
            known_proportion=known_proportion,
            groups=None if groups is None else torch.from_numpy(groups[kept]),
            overwrite=True,
        )
        odds = np.zeros(labels.shape, dtype=np.float32)
        odds[kept] = fitted.left_out().numpy()
        for some in _chunks(np.setdiff1d(rows, kept)):  # in the sums with one label of many
            of_names = None if names is None else names[some]
            odds[some] = model.base_odds(model.scores(unit_features(some), of_names)).numpy()
        return cls(model, odds, labels, readable, unit_features)

    # --- its own images ---

    def hidden(self, rows: np.ndarray | None = None) -> np.ndarray:
        """[M, C] P(present | unknown), by labels and decisions."""
        rows = np.arange(len(self.odds)) if rows is None else rows
        odds = self.model.answers.if_unknown(torch.from_numpy(self.odds[rows]))
        return (odds + self.model.lessons(self.unit_features(rows))).sigmoid().numpy()

    def present(self, rows: np.ndarray | None = None) -> np.ndarray:
        """[M, C] P(present), as if nothing were known of the label."""
        rows = np.arange(len(self.odds)) if rows is None else rows
        odds = self.model.answers.present(torch.from_numpy(self.odds[rows]))
        return (odds + self.model.lessons(self.unit_features(rows))).sigmoid().numpy()

    def judged(self) -> Judged:
        """For estimates of all readable images."""
        rows = np.flatnonzero(self.readable)
        odds, labels = (torch.from_numpy(part[rows]) for part in (self.odds, self.labels))
        return Judged(odds, labels, self.model.answers.observation)

    # --- other images ---

    def elsewhere(self, unit_features: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """[M, C] P(present | unknown) and P(present) of images that it was not fitted to."""
        names = None if self.name_scorer is None else self.name_scorer(unit_features)
        odds, more = self.model.base_odds(self.model.scores(unit_features, names)), self.model.lessons(unit_features)
        answers = self.model.answers
        return (answers.if_unknown(odds) + more).sigmoid().numpy(), (answers.present(odds) + more).sigmoid().numpy()

    # --- decisions ---

    def decide(self, rows: ArrayLike, columns: ArrayLike, decided: ArrayLike) -> Correction:
        """Learn from all decisions that stand: how likely unknown labels are present, and what the tags look like.

        It depends on the decisions alone, not on their order or on earlier ones.
        """
        at, column, label = (np.asarray(each, dtype=np.int64) for each in (rows, columns, decided))
        correction = self.learn(at, column, label)
        for category in range(self.labels.shape[1]):
            mine = column == category
            self.model.take_lesson(category, self.lesson(category, at[mine], label[mine]))
        return correction

    def learn(self, rows: ArrayLike, columns: ArrayLike, decided: ArrayLike) -> Correction:
        """Learn from decisions about labels that were unknown: how likely the others are present."""
        said = [np.asarray(each, dtype=np.int64) for each in (rows, columns, decided)]
        at, column, label = self._with_earlier(said[0], said[1], said[2])
        asked = (self.labels[at, column] == UNKNOWN) & (label != UNKNOWN) & self.readable[at]
        odds = torch.from_numpy(self.odds[at[asked], column[asked]])
        present = torch.from_numpy(label[asked] == PRESENT)
        return self.model.take_answers(odds, torch.from_numpy(column[asked]), present)

    def lesson(self, column: int, rows: np.ndarray, decided: np.ndarray, start: Lesson | None = None) -> Lesson | None:
        """What decisions about a tag teach; None without any. A lesson to `start` from saves time."""
        rows, _, decided = self._with_earlier(rows, np.full(len(rows), column), decided, column)
        use = self.readable[rows] & (decided != UNKNOWN)
        order = np.argsort(rows[use], kind="stable")
        rows, decided = rows[use][order], decided[use][order]
        if not len(rows):
            return None
        odds, unknown = self.odds[rows, column], self.labels[rows, column] == UNKNOWN
        of_odds, were_unknown, present = (torch.from_numpy(each) for each in (odds, unknown, decided == PRESENT))
        return self.learner.lesson(column, self.unit_features(rows), of_odds, were_unknown, present, start)

    def _with_earlier(
        self, rows: np.ndarray, columns: np.ndarray, decided: np.ndarray, only: int | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Decisions, and those that came with the data where there is none about the same label."""
        at, column = self._earlier
        if only is not None:
            at, column = at[column == only], column[column == only]
        width = self.labels.shape[1]
        standing = ~np.isin(at * width + column, rows * width + columns)
        at, column = at[standing], column[standing]
        more = (self.labels if self.decided is None else self.decided)[at, column].astype(np.int64)
        return np.concatenate([rows, at]), np.concatenate([columns, column]), np.concatenate([decided, more])

    @cached_property
    def _earlier(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows and columns of the decisions that came with the data."""
        at, column = np.nonzero(self.decided != self.labels) if self.decided is not None else ([], [])
        return np.asarray(at, dtype=np.int64), np.asarray(column, dtype=np.int64)

    @cached_property
    def learner(self) -> DecisionLearner:
        sample = self.model.sample.float()
        names = None if self.name_scorer is None else self.name_scorer(sample)
        return DecisionLearner(self.model, self.model.base_odds(self.model.scores(sample, names)))


def _chunks(rows: np.ndarray) -> Iterator[np.ndarray]:
    return (rows[first : first + ROWS_AT_ONCE] for first in range(0, len(rows), ROWS_AT_ONCE))


def _at_once(unit_features: Callable[[np.ndarray], Tensor], rows: np.ndarray, dim: int) -> Tensor:
    """[M, D] read part by part: what is made on the way, in half precision and not of unit length, is not small."""
    features, first = torch.empty(len(rows), dim), 0
    for some in _chunks(rows):
        features[first : first + len(some)] = unit_features(some)
        first += len(some)
    return features


def name_scores(head: Head | None, outputs: ModelOutputs) -> Tensor | None:
    """[N, C] what the names of the categories say about the images, where the run's head knows them."""
    if head is None or head.names is None:
        return None
    scores = torch.zeros(len(outputs), head.num_categories)
    with torch.no_grad():
        for rows in outputs.chunks():
            found = head.name_scores(outputs.unit_features(rows))
            assert found is not None
            scores[rows] = found.cpu()
    return scores
