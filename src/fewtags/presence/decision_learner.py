"""Decisions about single labels, learned by a fitted model: for the review page, `relabel` and `train --reviewed`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from fewtags.presence.decisions import Kept, Lesson
from fewtags.presence.model import Presence


@dataclass(frozen=True)
class DecisionLearner:
    model: Presence
    sample_odds: Tensor  # [S, C] base log-odds of the images that lessons keep in place, `model.sample`

    @cached_property
    def kept(self) -> Kept:
        sample = self.model.sample.float()
        return Kept(self.model.inputs(sample).cpu(), float(self.model.num_images) / max(len(sample), 1))

    def lesson(
        self,
        category: int,
        unit_features: Tensor,
        odds: Tensor,
        unknown: Tensor,
        present: Tensor,
        start: Lesson | None = None,
    ) -> Lesson:
        """What decisions about a category teach, that it is `present` [n] or not in images of these features [n, D] and
        base log-odds [n], of which some were `unknown` [n] before.

        After the answers, which say what was to be expected. A lesson to `start` from saves time.
        """
        answers, inputs = self.model.answers, self.model.inputs(unit_features)
        before = answers.before(odds, unknown, category)
        sample = answers.if_unknown(self.sample_odds[:, category], category)
        return self.kept.learn(inputs.cpu(), present.cpu(), before.cpu(), sample.cpu(), start)
