"""The types that data, models and methods exchange: batches, outputs, the problem, and training progress.

These types have no behaviour of their own, so every part of the package may use them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fewtags.labels import PRESENT
from fewtags.presence.estimates import Judged


@dataclass(frozen=True)
class WordVectors:
    """One vector per category, and where it came from."""

    vectors: Tensor  # [C, W]
    source: str  # for the log: "GloVe 50-d from the package ..., 18 of 20 names"
    learned: bool = False  # train the vectors too (they are initialised at random)


@dataclass(frozen=True)
class Problem:
    """What a method may know about the task before training. Never contains the complete labels."""

    categories: tuple[str, ...]
    labels: Tensor  # [N, C] int8, the observed labels of the training images; row n is the image with index n
    words: WordVectors | None = None  # built only for heads with `needs_words`
    seed: int = 0  # of everything random
    tunes_features: bool = False  # pretrained ones are trained further, and can memorise which labels are known
    english: Mapping[str, str] = field(default_factory=dict)  # category -> its English name, where it is another
    groups: Tensor | None = None  # [N] images of the same number are one unit: a burst, a sequence, a folder

    @property
    def num_images(self) -> int:
        return len(self.labels)

    @property
    def num_categories(self) -> int:
        return len(self.categories)

    @property
    def known_positives(self) -> Tensor:
        """[C] number of training images known to show each category."""
        return (self.labels == PRESENT).sum(0)

    def prior(self) -> Tensor:
        """[C] share of the training images known to show each category, never quite 0 or 1."""
        return (self.known_positives + 0.5) / (self.num_images + 1)


@dataclass(frozen=True)
class Batch:
    images: Tensor  # [B, 3, H, W], or maps [B, D, h, w] of the frozen stages, or [B, K] by `Head.settled`
    labels: Tensor  # [B, C] int8: 1 known present, 0 unknown, -1 known absent
    index: Tensor  # [B] row of each image in Problem.labels
    are_maps: bool = False  # `images` are maps

    def to(self, device: torch.device) -> Batch:
        images, labels, index = (t.to(device, non_blocking=True) for t in (self.images, self.labels, self.index))
        return Batch(images, labels, index, self.are_maps)


@dataclass(frozen=True)
class Outputs:
    logits: Tensor  # [B, C]
    features: Tensor | None = None  # [B, C, D] one feature per category (Eq. 3), before any further layer
    attention: Tensor | None = None  # [B, C, h, w] attention of each category; sums to 1 over locations
    prior: Tensor | None = None  # scalar, the head's own loss on its weights, whatever the objective is

    def detach(self) -> Outputs:
        def cut(t: Tensor | None) -> Tensor | None:
            return None if t is None else t.detach()

        return Outputs(self.logits.detach(), cut(self.features), cut(self.attention))


@dataclass(frozen=True)
class FitFacts:
    """What the log says about a closed form, in numbers; engine/start_wording.py makes the sentences."""

    num_images: int
    known_positives: tuple[int, ...]  # of each category
    known_share: float | None  # of the tags that apply, how many are known; None if no tag is known
    share_is_given: bool = False  # by the user; otherwise it is estimated
    num_named: int | None = None  # categories whose name the backbone's classifier knows; None without one
    name_matches: tuple[str, ...] = ()  # how each name was matched
    doubtful_names: tuple[int, ...] = ()  # categories, first the one whose name fits its known images least


@dataclass(frozen=True)
class Start:
    """What a head learned from its pass over the training images, before the first step."""

    sentence: str = ""  # for the log
    known_proportion: Tensor | None = None  # [C] share of the present labels that are known, if estimated
    judged: Judged | None = None  # the training labels, each judged without itself, if available
    judged_images: Tensor | None = None  # [M] which training images these are, ascending
    logits: Tensor | None = None  # [N, C] of the training images after it, NaN if unreadable; for `needs_start_logits`
    facts: FitFacts | None = None  # of a closed form, instead of a sentence


@dataclass(frozen=True)
class Progress:
    """Training progress. Epochs and steps are 0-based; messages show epoch + 1."""

    epoch: int
    num_epochs: int
    step: int  # within the epoch
    steps_per_epoch: int

    @classmethod
    def at_end(cls, num_epochs: int, steps_per_epoch: int = 1) -> Progress:
        """After the last step of the last epoch."""
        return cls(num_epochs - 1, num_epochs, steps_per_epoch, steps_per_epoch)

    @property
    def epoch_fraction(self) -> float:
        """b/B of the paper: 0 at the first step of an epoch, nearly 1 at the last."""
        return self.step / self.steps_per_epoch


@dataclass(frozen=True)
class StepResult:
    losses: dict[str, Tensor]  # scalars by name; their sum is minimised
    stats: dict[str, Tensor | float] = field(default_factory=dict)  # scalars that are only logged
    # Masks [B, C] of what the method decided about unknown labels ("found", "rejected"). The engine compares them with
    # the hidden truth, if there is one, for the log; the method itself never sees it.
    decisions: dict[str, Tensor] = field(default_factory=dict)

    @property
    def total(self) -> Tensor:
        return torch.stack([loss.float() for loss in self.losses.values()]).sum()
