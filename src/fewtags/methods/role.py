"""ROLE (Cole et al., CVPR 2021): the unknown labels are parameters, estimated jointly with the classifier.

The loss has two halves: the classifier is fitted to the estimated labels, and the estimated labels to
the classifier. The known labels and the expected number of positives per image keep both from drifting.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fewtags.contract import Batch, Outputs, Problem, Progress, StepResult
from fewtags.labels import ABSENT, PRESENT, UNKNOWN
from fewtags.methods.base import Objective
from fewtags.settings import Settings

EPSILON = 1e-5  # added to probabilities before the log


class Role(Objective["Role.Config"]):
    class Config(Settings):
        expected_positives: float | None = None
        """Mean number of tags that truly apply to an image (published: VOC 2007 1.5, COCO 2.9, NUS-WIDE 1.9, CUB 31.4,
        VG-200 10.7). None: an estimate from the known labels, which is too low if many are missing, so set it if you
        can."""
        table_start: Literal["undecided", "absent"] = "undecided"
        """Unknown labels start at random between 0.4 and 0.6, as in the ROLE authors' code, or at 0.005 like known
        absences, as in the paper's baseline, which treats unknown as absent."""
        table_lr_scale: float = 10.0
        """Learning rate of the estimated labels, relative to the head's."""
        table_weight_decay: float = 0.0
        """Weight decay, which pulls estimated labels to one half. The paper's baseline did so by accident (5e-4)."""
        loss_scale: float = 1.0
        """Factor on the loss. It matters relative to Adam's coupled weight decay and the head's prior."""

    def __init__(self, config: Config, problem: Problem, feature_dim: int | None):
        super().__init__(config, problem, feature_dim)
        # A dense parameter: each rank's gradient is zero except for its own images, so averaging gradients keeps it in
        # sync.
        self.label_table = nn.Parameter(initial_label_table(problem.labels, config.table_start))  # [N, C] logits
        chosen = config.expected_positives
        self.expected_positives = expected_positives(problem) if chosen is None else chosen

    def loss(self, batch: Batch, outputs: Outputs, progress: Progress) -> StepResult:
        estimated = self.label_table[batch.index]
        halves = {"classifier": (outputs.logits, estimated), "label_table": (estimated, outputs.logits)}
        losses = {
            name: self.config.loss_scale * 0.5 * role_half(student, teacher, batch.labels, self.expected_positives)
            for name, (student, teacher) in halves.items()
        }
        return StepResult(losses, decisions=self.decide(batch, outputs, progress))

    def decide(self, batch: Batch, outputs: Outputs, progress: Progress) -> dict[str, Tensor]:
        return {"found": (batch.labels == UNKNOWN) & (self.label_table[batch.index] > 0)}

    def epoch_stats(self, progress: Progress) -> dict[str, float]:
        return {"estimated_positives": float(self.label_table.detach().sigmoid().sum(1).mean())}

    def parameter_groups(self) -> list[dict[str, Any]]:
        return [
            {
                "params": [self.label_table],
                "lr_scale": self.config.table_lr_scale,
                "weight_decay": self.config.table_weight_decay,
            }
        ]


def role_half(student: Tensor, teacher: Tensor, labels: Tensor, expected_positives: float) -> Tensor:
    """One half of the loss, from logits [B, C]: fit `student` to the known labels, to `teacher`, to the expected count.

    ROLE has known positives only; labels known to be absent get the mirrored term.
    """
    present, absent = student.sigmoid(), (-student).sigmoid()
    log_present, log_absent = (present + EPSILON).log(), (absent + EPSILON).log()
    target = teacher.detach().sigmoid()
    known = (labels == PRESENT) * log_present + (labels == ABSENT) * log_absent
    estimated = target * log_present + (1 - target) * log_absent
    surplus = present.sum(1).mean() - expected_positives
    return -(known + estimated).mean() + (surplus / labels.shape[1]) ** 2


def initial_label_table(labels: Tensor, unknown: Literal["undecided", "absent"] = "undecided") -> Tensor:
    """Logits of 0.995 and 0.005 for known labels; for unknown ones random between the logits of 0.4 and 0.6, or
    that of 0.005 too."""
    certain, unsure = math.log(0.995 / 0.005), math.log(0.6 / 0.4)
    if unknown == "absent":
        return torch.where(labels == PRESENT, certain, torch.full(labels.shape, -certain))
    at_random = (2 * torch.rand(labels.shape) - 1) * unsure
    return torch.where(labels == UNKNOWN, at_random, certain * labels.float())


def expected_positives(problem: Problem) -> float:
    """An estimate from the known labels, used if none was given.

    It is the mean number of known positives over the images that have any, so at least 1. It is correct if those images
    are completely labelled and too low otherwise: the number of missing positives cannot be inferred from the known
    ones alone.
    """
    counts = (problem.labels == PRESENT).sum(1).float()
    return float(counts[counts > 0].mean()) if (counts > 0).any() else 1.0
