"""The presence of tags in images: evidence -> log-odds -> probabilities.

score = ridge score of the whole image + name weight * what the name says            `ridge`, `models.names`
o = bent(bias + slope * score + window slope * score of the best window)             `regression`
o of an unknown label is lower: it might have been known                             `observation`
answers move these, and with them P(present) of every other image                    `answers`
decisions say what a tag looks like                                                  `decisions`

model = Presence(num_categories, feature_dim)
fitted = fit_presence(model, ImageSums.of(features, labels), features, labels)       `fitting`
model.log_odds(images)                             # of other images
fitted.left_out()                                  # of its own, each label judged without itself
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fewtags.presence.answers import Answers, Correction, Shift
from fewtags.presence.decisions import DIRECTIONS, Lesson
from fewtags.presence.observation import BEND, Observation, bent
from fewtags.presence.ridge import unit_length


class Presence(nn.Module):
    """All state is in buffers; a saved model needs nothing else."""

    weights: Tensor
    mean: Tensor
    name_weight: Tensor
    name_mean: Tensor
    name_factor: Tensor
    slope: Tensor
    window_slope: Tensor
    bias: Tensor
    bend: Tensor
    habit: Tensor
    clarity: Tensor
    answer_offset: Tensor
    answer_slope: Tensor
    answer_tail: Tensor
    thresholds: Tensor
    lesson_weights: Tensor
    lesson_bias: Tensor
    directions: Tensor
    sample: Tensor
    num_images: Tensor

    def __init__(self, num_categories: int, feature_dim: int):
        super().__init__()
        each = torch.zeros(num_categories)
        self.register_buffer("weights", torch.zeros(num_categories, feature_dim))  # of unit-length features, less
        self.register_buffer("mean", torch.zeros(feature_dim))  # their mean
        self.register_buffer("name_weight", each.clone())  # of standardised name scores
        self.register_buffer("name_mean", each.clone())
        self.register_buffer("name_factor", each.clone())  # 1 / their standard deviation; 0 without a name
        self.register_buffer("slope", each + 1)
        self.register_buffer("window_slope", each.clone())
        self.register_buffer("bias", each.clone())
        self.register_buffer("bend", torch.tensor(BEND))  # models of version 0.1 have others
        self.register_buffer("habit", each.clone())  # see `observation`
        self.register_buffer("clarity", torch.zeros(()))
        self.register_buffer("answer_offset", each.clone())  # see `answers`
        self.register_buffer("answer_slope", torch.zeros(()))
        self.register_buffer("answer_tail", torch.zeros(()))
        self.register_buffer("thresholds", each + 0.5)
        self.register_buffer("lesson_weights", torch.zeros(num_categories, feature_dim))  # of unit-length features, see
        self.register_buffer("lesson_bias", each.clone())  # `decisions`; and what they are learned with:
        self.register_buffer("directions", torch.zeros(feature_dim, min(DIRECTIONS, feature_dim)))
        self.register_buffer("sample", torch.zeros(0, feature_dim, dtype=torch.half))  # images, of unit length
        self.register_buffer("num_images", torch.zeros(()))

    def standard_names(self, names: Tensor) -> Tensor:
        """[N, C] name scores with mean 0 and spread 1 over the images of the fit; 0 where a category has no name."""
        return (names - self.name_mean) * self.name_factor

    def scores(self, unit_features: Tensor, names: Tensor | None = None, categories: slice = slice(None)) -> Tensor:
        """[N, C'] of pooled features of unit length [N, D]; `names` [N, C] are their name scores, where the fit had
        them."""
        weights = self.weights[categories]
        scores = unit_features @ weights.T - weights @ self.mean
        if names is None:
            return scores
        return scores + self.name_weight[categories] * self.standard_names(names)[:, categories]

    def base_odds(
        self, scores: Tensor, best_window: Tensor | None = None, categories: slice | int = slice(None)
    ) -> Tensor:
        """Log-odds of presence by the labels alone, given scores of whole images and of their best windows."""
        eta = self.bias[categories] + self.slope[categories] * scores
        if best_window is not None:
            eta = eta + self.window_slope[categories] * best_window.to(eta)
        return bent(eta, self.bend)

    def odds_of(
        self,
        unit_features: Tensor,
        scores: Tensor,
        best_window: Tensor | None = None,
        categories: slice = slice(None),
    ) -> Tensor:
        """[N, C'] log-odds of presence by labels, answers and decisions, of images about which nobody was asked."""
        odds = self.answers.present(self.base_odds(scores, best_window, categories), categories)
        return odds + self.lessons(unit_features, categories)

    def log_odds(self, features: Tensor, names: Tensor | None = None) -> Tensor:
        """[N, C] likewise, from pooled features [N, D] and their name scores."""
        unit_features = unit_length(features)
        return self.odds_of(unit_features, self.scores(unit_features, names))

    forward = log_odds

    @property
    def answers(self) -> Answers:
        shift = Shift(self.answer_offset, self.answer_slope, self.answer_tail)
        return Answers(Observation(self.habit, self.clarity), shift)

    # --- what answers and decisions change ---

    def take_answers(self, odds: Tensor, category: Tensor, present: Tensor) -> Correction:
        """Learn from answers `present` [n] about unknown labels, of these base odds [n] and `category` [n]."""
        observation = Observation(self.habit.cpu(), self.clarity.cpu())
        before = observation.if_unknown(odds, category)
        correction = Correction.of(before, category, present, self.habit)
        for buffer, value in zip(self.answers.shift, correction.shift, strict=True):
            buffer.copy_(value)
        return correction

    def inputs(self, unit_features: Tensor) -> Tensor:
        """[N, K] what lessons are learned from."""
        return (unit_features - self.mean) @ self.directions

    def take_lesson(self, category: int, lesson: Lesson | None) -> None:
        """Add a lesson to the log-odds of a category; None takes it back."""
        self.lesson_weights[category] = 0.0 if lesson is None else self.directions @ lesson.weights.to(self.directions)
        self.lesson_bias[category] = 0.0 if lesson is None else lesson.bias - self.mean @ self.lesson_weights[category]

    def lessons(self, unit_features: Tensor, categories: slice = slice(None)) -> Tensor:
        """[N, C'] what decisions add to the log-odds."""
        return unit_features @ self.lesson_weights[categories].T + self.lesson_bias[categories]

    # pyrefly: ignore[bad-override]  # torch calls it by position
    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *more: Any) -> None:
        for name, value in self._buffers.items():  # a model that is older than a buffer does without it
            state.setdefault(prefix + name, value)
        state.pop(prefix + "uncertain", None)  # of models before it was found to be worth nothing
        self.sample = torch.empty_like(state[prefix + "sample"], device=self.sample.device)  # as many as were saved
        super()._load_from_state_dict(state, prefix, *more)
