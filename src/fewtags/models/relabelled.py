"""Labels of single images that a closed-form model learned after its fit; each can be changed or taken back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fewtags.labels import PRESENT, UNKNOWN
from fewtags.presence.decision_learner import DecisionLearner
from fewtags.presence.model import Presence
from fewtags.presence.observation import BEND
from fewtags.presence.ridge import unit_length

SAME_IMAGE = 0.02  # unit-length features closer than this are of the same image


class Relabelled(nn.Module):
    features: Tensor
    labels: Tensor
    odds: Tensor

    def __init__(self, feature_dim: int):
        super().__init__()
        self.register_buffer("features", torch.zeros(0, feature_dim))  # of the images, of unit length
        # [n, 4] place of the image there, category, label, label before
        self.register_buffer("labels", torch.zeros(0, 4, dtype=torch.int32))
        self.register_buffer("odds", torch.zeros(0))  # [n] before, judged without itself; NaN: new image
        self.learner: DecisionLearner | None = None  # of the model it teaches

    def remember(
        self, features: Tensor, categories: Tensor, labels: Tensor, given: Tensor | None, odds: Tensor | None
    ) -> set[int]:
        """Labels of images with these features; UNKNOWN takes back. Returns the categories that ever had any."""
        said = {}
        for (place, category, label, before), odd in zip(self.labels.tolist(), self.odds.tolist(), strict=True):
            said[place, category] = label, before, odd
        given = torch.full_like(labels, UNKNOWN) if given is None else given
        odds = torch.full(labels.shape, torch.nan) if odds is None else odds
        lists = (each.tolist() for each in (categories, labels, given, odds))
        for feature, category, label, before, odd in zip(features, *lists, strict=True):
            said[self._place(unit_length(feature).to(self.features)), category] = label, before, odd
        standing = {key: value for key, value in said.items() if value[0] != UNKNOWN}
        rows = [(*key, *value[:2]) for key, value in standing.items()]
        self.labels = torch.tensor(rows, dtype=torch.int32).view(-1, 4).to(self.labels.device)
        self.odds = torch.tensor([value[2] for value in standing.values()]).to(self.odds.device)
        return {category for _, category in said}

    def _place(self, unit_feature: Tensor) -> int:
        """Of an image among those that have labels; a new one comes last."""
        if len(self.features):
            distance, nearest = (self.features - unit_feature).square().sum(1).min(0)
            if float(distance) < SAME_IMAGE**2:
                return int(nearest)
        self.features = torch.cat([self.features, unit_feature[None]])
        return len(self.features) - 1

    def teach(self, model: Presence, base_odds: Callable[[Tensor], Tensor], categories: set[int]) -> None:
        """All of it: how likely unknown labels are present, and what each of the `categories` looks like. `base_odds`
        gives log-odds [N, C] by the labels alone."""
        place, column, label, given = self.labels.long().unbind(1)
        features, present, unknown = self.features[place], label == PRESENT, given == UNKNOWN
        now = base_odds(features).gather(1, column[:, None])[:, 0]
        odds = torch.where(self.odds.isnan(), now, self.odds)
        if is_of_this_version(model):
            model.take_answers(odds[unknown].cpu(), column[unknown].cpu(), present[unknown].cpu())
        if self.learner is None or self.learner.sample_odds.device != features.device:
            self.learner = DecisionLearner(model, base_odds(model.sample.float()))
        for category in sorted(categories):
            mine = column == category
            lesson = None
            if mine.any():
                lesson = self.learner.lesson(category, features[mine], odds[mine], unknown[mine], present[mine])
            model.take_lesson(category, lesson)

    # pyrefly: ignore[bad-override]  # torch calls it by position
    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *more: Any) -> None:
        for name, value in self._buffers.items():  # models from before it
            state.setdefault(prefix + name, value)
            saved: Tensor = state[prefix + name]
            setattr(self, name, torch.empty_like(saved, device=self.features.device))  # as many as were saved
        super()._load_from_state_dict(state, prefix, *more)


def is_of_this_version(model: Presence) -> bool:
    """Models of version 0.1 were calibrated for a coin, with other bends: answers do not correct them."""
    return abs(float(model.bend) - BEND) < 1e-6


def with_relabelled(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Of models whose head kept it itself, the last of which, of version 0.3, had no labels before."""
    parts = ("features", "labels", "odds")
    old = {name: state[f"{prefix}told_{name}"] for name in parts if f"{prefix}told_{name}" in state}
    if "labels" not in old:
        return state
    old["labels"] = F.pad(old["labels"], (0, 4 - old["labels"].shape[1]), value=UNKNOWN)
    old.setdefault("odds", torch.full((len(old["labels"]),), torch.nan))
    rest = {key: value for key, value in state.items() if not key.startswith(prefix + "told_")}
    return rest | {f"{prefix}relabelled.{name}": value for name, value in old.items()}
