"""The images of a run with unknown labels, and who judges them.

`discover`, `review`, `predict` and the estimates ask the same judge, so they say the same of a label.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fewtags.config import RunConfig
from fewtags.data.annotations import Annotations
from fewtags.data.decisions import decided
from fewtags.data.prepare import RunData
from fewtags.engine.judge import Judge
from fewtags.engine.kept_judge import KeptJudge
from fewtags.engine.model_outputs import ModelOutputs, model_outputs
from fewtags.labels import PRESENT, UNKNOWN
from fewtags.models.saved import SavedModel
from fewtags.presence.answers import Correction

Decisions = Mapping[tuple[str, str], int]  # (image, category) -> 1 present, 0 unsure, -1 absent


@dataclass(frozen=True)
class OwnImages:
    """The training images, and all others that are partly labelled."""

    annotations: Annotations  # their labels include the decisions of an earlier review that the run was trained with
    given: np.ndarray  # [N, C] labels without these
    truth: np.ndarray | None  # [N, C] the complete labels, if the run is an experiment that hides some

    @classmethod
    def of(cls, data: RunData) -> OwnImages:
        given = data.train.labels if data.given is None else data.given
        others = [part for part in (data.val, data.test) if part is not None and not part.complete]
        if not others:
            return cls(data.train, given, data.truth)
        parts = [data.train, *others]
        groups = [part.groups for part in parts if part.groups is not None]
        together = replace(
            data.train,
            images=[image for part in parts for image in part.images],
            labels=np.concatenate([part.labels for part in parts]),
            splits=np.concatenate([part.splits for part in parts]),
            ids=None,
            groups=np.concatenate(groups) if len(groups) == len(parts) else None,
        )
        return cls(together, np.concatenate([given, *(part.labels for part in others)]), None)

    def judge(
        self,
        saved: Callable[[], SavedModel],
        config: RunConfig,
        *,
        run: Path | None = None,
        device: str = "auto",
        quiet: bool = False,
    ) -> tuple[ModelOutputs, Judge]:
        """With the folder of the `run` as it was judged before, if nothing has changed since; then the `saved` model is
        not asked for."""
        kept = None if run is None else KeptJudge.of(run, self.annotations, self.given, config, device, quiet)
        opened = None if kept is None else kept.load(saved)
        if opened is None:
            opened = self._fit(saved(), config, device, quiet)
            if kept is not None:
                opened = kept.save(*opened, saved)
        outputs, judge = opened
        if self.given is not self.annotations.labels and (self.given != self.annotations.labels).any():
            judge = replace(judge, decided=self.annotations.labels)
        judge.decide([], [], [])
        return outputs, judge

    def _fit(self, saved: SavedModel, config: RunConfig, device: str, quiet: bool) -> tuple[ModelOutputs, Judge]:
        outputs = model_outputs(saved, self.annotations, config=config, device=device, quiet=quiet)
        share, groups = getattr(config.head, "known_proportion", None), self.annotations.groups
        return outputs, Judge.of(outputs, self.given, saved.classifier.head, known_proportion=share, groups=groups)

    def take(self, judge: Judge, decisions: Decisions) -> Correction:
        """Let the judge learn from decisions; those about other images or categories are ignored."""
        known = self.located(decisions)
        at, column, label = zip(*known, strict=True) if known else ((), (), ())
        return judge.decide(at, column, label)

    def located(self, decisions: Decisions) -> list[tuple[int, int, int]]:
        """Row, column and label of the decisions about these images and categories."""
        rows = {image: row for row, image in enumerate(self.annotations.images)}
        columns = {name: column for column, name in enumerate(self.annotations.categories)}
        return [(rows[i], columns[t], label) for (i, t), label in decisions.items() if i in rows and t in columns]


@dataclass(frozen=True)
class OwnPhotos:
    """What is said of a run's own photos, whose labels the model has learned from."""

    judge: Judge
    labels: np.ndarray  # [N, C] as given and decided, with what follows from that
    rows: dict[str, int]  # by resolved path

    @classmethod
    def of(cls, own: OwnImages, judge: Judge, decisions: Decisions) -> OwnPhotos:
        own.take(judge, decisions)
        annotations = own.annotations
        sure = {label: value for label, value in decisions.items() if value != UNKNOWN}
        paths = {str(annotations.path(row).resolve()): row for row in range(len(annotations))}
        return cls(judge, decided(annotations, sure).labels, paths)

    def probabilities(self, path: Path) -> np.ndarray | None:
        """[C]: known labels as they are, unknown ones judged without having been learned from; None if the photo is
        not one of the run's."""
        row = self.rows.get(str(path.resolve()))
        if row is None or not self.judge.readable[row]:
            return None
        hidden = self.judge.hidden(np.array([row]))[0]
        return np.where(self.labels[row] == UNKNOWN, hidden, self.labels[row] == PRESENT).astype(np.float32)
