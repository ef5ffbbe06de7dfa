"""`refined`, ours: the target of every unknown label is the probability that it is present.

It has the ideas of the paper (arXiv 2211.07846) without its mechanism: no queue, no thresholds, no semantic decoupling.
Where the paper compares a feature with recent known positives, here is the model's own logit z, which starts at the
closed form (the whitened similarity to the known positives' mean), calibrated per category. With p the share of present
labels that are known, an unknown label is present with probability

    q = (1 - p) s / (1 - p s),    s = sigmoid(z)

    discover    trains it as present, with weight q:            -q log s
    reject      trains it as absent, with weight 1 - q, not 1:  -(1 - q) log (1 - s)

The curve from similarity to s is specific to each category, and changes during training.

Together they are the cross-entropy to q, whose gradient s - q vanishes where a label is certainly hidden (s near 1) and
is that of assumed negatives where it certainly is not; it equals the gradient of the likelihood of "not known", 1 - p
s.

A backbone that is trained too can memorise which labels are known: s goes to 0 for all others, q follows it, and the
hidden labels are lost. So there z is averaged with what it was at the start, before anything was trained on the image.
However much is memorised, z then stops log 1/(1 - p)^2 below the start, where s equals q of the average.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fewtags.contract import Batch, Outputs, Problem, Progress, Start, StepResult
from fewtags.distributed import sum_across_ranks
from fewtags.labels import ABSENT, PRESENT, UNKNOWN
from fewtags.methods.base import Objective
from fewtags.presence.observation import soften
from fewtags.settings import Settings


class PosteriorLabels(Objective["PosteriorLabels.Config"]):
    class Config(Settings):
        discover: bool = True
        """Train unknown labels as present, weighted by that probability."""
        reject: bool = True
        """Train unknown labels as absent with one minus that probability as weight; otherwise with weight 1."""
        known_proportion: float | None = Field(None, gt=0, le=1)
        """Share of the present labels that are known; default: the head's estimate at its start."""

    known_proportion: Tensor
    totals: Tensor
    start_logits: Tensor

    def __init__(self, config: Config, problem: Problem, feature_dim: int | None):
        super().__init__(config, problem, feature_dim)
        self.calibrated = config.discover and config.reject
        # Before a start, or if the head has no estimate: half of the labels, a neutral value.
        self.register_buffer("known_proportion", torch.full((problem.num_categories,), config.known_proportion or 0.5))
        self.register_buffer("totals", torch.zeros(4, problem.num_categories))
        # [N, C] in half precision, NaN where there are none; no rows if the features stay.
        rows = problem.num_images if problem.tunes_features else 0
        self.register_buffer("start_logits", torch.full((rows, problem.num_categories), torch.nan, dtype=torch.half))

    # pyrefly: ignore[bad-override]  # torch calls it by position
    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *more: Any) -> None:
        """The checkpoint says how many start logits there are; those of version 0.1 have none."""
        saved = state.setdefault(prefix + "start_logits", self.start_logits)
        self.start_logits = torch.empty_like(saved, device=self.start_logits.device)
        super()._load_from_state_dict(state, prefix, *more)

    @property
    def needs_start_logits(self) -> bool:
        return len(self.start_logits) > 0

    def start(self, start: Start) -> None:
        if self.config.known_proportion is None and start.known_proportion is not None:
            self.known_proportion.copy_(start.known_proportion)
        if start.logits is not None:
            self.start_logits.copy_(start.logits)

    def start_epoch(self, progress: Progress) -> None:
        self.totals.zero_()

    def observe(self, batch: Batch, outputs: Outputs, progress: Progress) -> None:
        known, unknown = batch.labels == PRESENT, batch.labels == UNKNOWN
        probability = outputs.logits.sigmoid()
        sides = torch.stack([known * probability, known, unknown * probability, unknown]).sum(1)
        self.totals += sum_across_ranks(sides)

    def loss(self, batch: Batch, outputs: Outputs, progress: Progress) -> StepResult:
        logits, labels = outputs.logits, batch.labels
        present = self._present(batch, outputs)
        unknown = labels == UNKNOWN
        as_present, as_absent = F.softplus(-logits), F.softplus(logits)  # -log s, -log (1 - s)
        losses = {"known": as_present * (labels == PRESENT) + as_absent * (labels == ABSENT)}
        losses["assumed"] = as_absent * unknown * (1 - present if self.config.reject else 1)
        if self.config.discover:
            losses["discovered"] = as_present * unknown * present
        # Summed over categories: the gradient of one label does not depend on how many there are.
        means = {name: loss.sum(1).mean() for name, loss in losses.items()}
        decisions = self._decisions(present, unknown)
        return StepResult(means, {name: mask.sum() for name, mask in decisions.items()}, decisions)

    @torch.no_grad()
    def decide(self, batch: Batch, outputs: Outputs, progress: Progress) -> dict[str, Tensor]:
        return self._decisions(self._present(batch, outputs), batch.labels == UNKNOWN)

    def _present(self, batch: Batch, outputs: Outputs) -> Tensor:
        """q [B, C]; 1 or 0 for known labels."""
        logits = outputs.logits.detach()
        if self.needs_start_logits:
            at_start = self.start_logits[batch.index].to(logits)
            logits = torch.where(at_start.isnan(), logits, (logits + at_start) / 2)
        return soften(logits.sigmoid(), batch.labels, self.known_proportion)

    def _decisions(self, present: Tensor, unknown: Tensor) -> dict[str, Tensor]:
        """Labels trained more as present than as absent, by the name of the decision."""
        probable = unknown & (present >= 0.5)
        names = {"found": self.config.discover, "rejected": self.config.reject}
        return {name: probable for name, used in names.items() if used}

    def category_stats(self, progress: Progress) -> Mapping[str, Tensor]:
        """Mean probabilities of known positives and of unknown labels, and the known proportion."""
        known_sum, known, unknown_sum, unknown = self.totals
        return {
            "mean_of_known": known_sum / known.clamp(min=1),
            "mean_of_unknown": unknown_sum / unknown.clamp(min=1),
            "known_proportion": self.known_proportion,
        }

    def epoch_stats(self, progress: Progress) -> Mapping[str, float]:
        return {name: values.mean().item() for name, values in self.category_stats(progress).items()}
