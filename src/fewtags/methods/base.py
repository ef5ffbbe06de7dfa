"""The whole contract between the engine and a method.

A method is a head (in `fewtags.models`) and an Objective. Before training, a head that says `needs_start` sees the
plain training images once (`Learner.start`). One training step is

    outputs = model(batch.images)                       Outputs: logits, and features where the head gives them
    objective.observe(batch, outputs, progress)         writes state; no gradient
    objective.loss(batch, outputs, progress)            reads state -> StepResult; its named losses are summed

What an Objective remembers is a buffer or a parameter, so that it is moved, saved and resumed with everything else;
what depends on time is a function of `progress`, so that nothing is forgotten on resume. Under several processes
state is reduced (`fewtags.distributed`) before it is written, so that it is alike on every rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from fewtags.settings import Settings

if TYPE_CHECKING:
    from fewtags.models.classifier import Classifier


@dataclass(frozen=True)
class WordVectors:
    """One vector per category, and where it came from."""

    vectors: Tensor  # [C, W]
    source: str  # in words, for the log: "GloVe 50-d from the package ..., 18 of 20 names"
    learned: bool = False  # train the vectors too (they started at random)


@dataclass(frozen=True)
class Problem:
    """What may be known about the task before training. The complete labels are never here."""

    categories: tuple[str, ...]
    labels: Tensor  # [N, C] int8, the observed labels of the training images; row n is the image with index n
    words: WordVectors | None = None  # built only for heads that say `needs_words`
    dataset: str = "dataset"

    @property
    def num_images(self) -> int:
        return len(self.labels)

    @property
    def num_categories(self) -> int:
        return len(self.categories)

    @property
    def known_positives(self) -> Tensor:
        """[C] number of training images known to show each category."""
        return (self.labels == 1).sum(0)

    def prior(self) -> Tensor:
        """[C] share of the training images known to show each category, never quite 0 or 1."""
        return (self.known_positives + 0.5) / (self.num_images + 1)


@dataclass(frozen=True)
class Batch:
    images: Tensor  # [B, 3, H, W], or the cached maps [B, D, h, w] of the frozen stages
    labels: Tensor  # [B, C] int8: 1 known present, 0 unknown, -1 known absent
    index: Tensor  # [B] row of each image in Problem.labels

    def to(self, device: torch.device) -> Batch:
        return Batch(*(t.to(device, non_blocking=True) for t in (self.images, self.labels, self.index)))


@dataclass(frozen=True)
class Outputs:
    logits: Tensor  # [B, C]
    features: Tensor | None = None  # [B, C, D] one feature per category (Eq. 3), before any further layer
    attention: Tensor | None = None  # [B, C, h, w] where each category was looked for; sums to 1 over locations
    prior: Tensor | None = None  # scalar, a loss of the head's own: what its weights cost, whatever the objective is

    def detach(self) -> Outputs:
        def cut(t: Tensor | None) -> Tensor | None:
            return None if t is None else t.detach()

        return Outputs(self.logits.detach(), cut(self.features), cut(self.attention))


@dataclass(frozen=True)
class Start:
    """What a head learned from its one look at the training images, before the first step."""

    sentence: str  # for the log
    known_proportion: Tensor | None = None  # [C] share of the present labels that are known, where it was estimated


@dataclass(frozen=True)
class Progress:
    """Where training is. Epochs and steps count from 0; people are shown epoch + 1."""

    epoch: int
    num_epochs: int
    step: int  # within the epoch
    steps_per_epoch: int

    @property
    def epoch_fraction(self) -> float:
        """b/B of the paper: 0 at the first step of an epoch, nearly 1 at the last."""
        return self.step / self.steps_per_epoch


@dataclass(frozen=True)
class StepResult:
    losses: dict[str, Tensor]  # scalars by name; their sum is minimised
    stats: dict[str, Tensor | float] = field(default_factory=dict)  # scalars that are only logged
    # Masks [B, C] of what the method decided about unknown labels ("found", "rejected"). The engine compares them with
    # the hidden truth, where there is one, for the log; the method itself never sees it.
    decisions: dict[str, Tensor] = field(default_factory=dict)

    @property
    def total(self) -> Tensor:
        return torch.stack([loss.float() for loss in self.losses.values()]).sum()


class Objective(nn.Module):
    """The training side of a method. Subclass it, give it a Config, write `loss`."""

    class Config(Settings):
        pass

    needs_features: ClassVar[bool] = False  # needs Outputs.features, so a decoupled or graph head
    trains: ClassVar[bool] = True  # False where the head's start is all there is: no epoch is trained

    def __init__(self, config: Settings, problem: Problem, feature_dim: int | None):
        super().__init__()
        self.config: Any = config
        self.problem_size = (problem.num_images, problem.num_categories)

    def start(self, start: Start) -> None:
        """Before the first epoch of a new run, with a head that `needs_start`; what is kept must be a buffer."""

    def start_epoch(self, progress: Progress) -> None:
        """Before the first step of an epoch (not called when resuming in the middle of one)."""

    def observe(self, batch: Batch, outputs: Outputs, progress: Progress) -> None:
        """Write state from this step's (detached) outputs; called without gradient before `loss`."""

    def loss(self, batch: Batch, outputs: Outputs, progress: Progress) -> StepResult:
        raise NotImplementedError

    def epoch_stats(self, progress: Progress) -> Mapping[str, float]:
        """Numbers about the method's state, logged once at the end of an epoch."""
        return {}

    def category_stats(self, progress: Progress) -> Mapping[str, Tensor]:
        """The same per category, [C] each: thresholds, mean similarities, queue fill ..."""
        return {}

    def parameter_groups(self) -> list[dict[str, Any]]:
        """The objective's own parameters for the optimiser, with "lr_scale" and "weight_decay" where they differ."""
        own = [p for p in self.parameters() if p.requires_grad]
        return [{"params": own}] if own else []


class Learner(nn.Module):
    """Model and objective as one module, so that wrapping, moving and saving need no special cases."""

    def __init__(self, model: Classifier, objective: Objective):
        super().__init__()
        self.model = model
        self.objective = objective

    @torch.no_grad()
    def start(self, batches: Iterable[Batch]) -> Start:
        """See every training image once, as feature maps [B, D, h, w] of the plain view."""
        found = self.model.head.start(batches)
        self.objective.start(found)
        return found

    def forward(self, batch: Batch, progress: Progress) -> StepResult:
        outputs: Outputs = self.model(batch.images)
        # Losses are computed in single precision whatever the backbone ran in.
        features = None if outputs.features is None else outputs.features.float()
        outputs = replace(outputs, logits=outputs.logits.float(), features=features)
        with torch.no_grad():
            self.objective.observe(batch, outputs.detach(), progress)
        result = self.objective.loss(batch, outputs, progress)
        return result if outputs.prior is None else replace(result, losses={**result.losses, "prior": outputs.prior})
