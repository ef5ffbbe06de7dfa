"""Heads turn a feature map into one logit per category; HEADS lists them. The linear head lives here."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fewtags import plugins
from fewtags.contract import Batch, Outputs, Problem, Start, WordVectors
from fewtags.distributed import sum_across_ranks
from fewtags.errors import DataError, UserError, did_you_mean
from fewtags.settings import Settings

if TYPE_CHECKING:
    from fewtags.models.names import NameScorer

HEADS: dict[str, str | type[Head]] = {  # "module:Class", imported on use, or the class
    "linear": "fewtags.models.heads:LinearHead",
    "boosted": "fewtags.models.boosted:BoostedHead",
    "decoupled": "fewtags.models.decoupling:DecoupledHead",
    "graph": "fewtags.models.graph:GraphHead",
    "closed_form": "fewtags.models.closed_form:ClosedFormHead",
    "logistic": "fewtags.models.logistic:LogisticHead",
}


C = TypeVar("C", bound=Settings)


@dataclass(frozen=True)
class HeadSpec:
    """What a head needs from a run, and what the run may rely on."""

    needs_words: bool = False  # Problem.words
    uses_names: bool = False  # the category names: it is given `names`, if its setting of that name allows it
    needs_start: bool = False  # a pass over the training images before the first epoch
    starts_plain: bool = True  # that pass is without augmentation; otherwise as in the first epoch
    assumes_random_labels: bool = False  # so it starts without labels decided in a review; `relabel` adds them later
    looks_at_the_average: bool = False  # it uses only the average of the map, so nothing else has to be cached
    settles: bool = False  # its first part is fixed after the start, and computed once instead of in every epoch
    calibrated: bool = False  # its start gives probabilities of presence, not of being known to be present


class Head(nn.Module, Generic[C]):
    """Feature map [B, D, h, w] -> Outputs."""

    Config: ClassVar[type[Settings]] = Settings
    spec = HeadSpec()  # of the class; one that depends on the settings is set in __init__
    feature_dim: int | None = None  # width of Outputs.features, None if it has none

    def __init_subclass__(cls, **more: Any) -> None:
        """Heads written for version 0.3 or older declare each part of the spec as an attribute of the class."""
        super().__init_subclass__(**more)
        single = {name: vars(cls)[name] for name in vars(cls).keys() & {part.name for part in fields(HeadSpec)}}
        cls.spec = replace(cls.spec, **single)

    def __init__(self, config: C, in_channels: int, num_categories: int, words: WordVectors | None = None):
        super().__init__()
        if self.spec.needs_words and words is None:
            raise UserError(
                f"{type(self).__name__} needs word vectors of the categories; build the problem with `words`."
            )
        self.config = config
        self.in_channels, self.num_categories = in_channels, num_categories
        self.names: NameScorer | None = None  # what the backbone knows of the names, set for a head that `uses_names`

    @property
    def needs_labels(self) -> bool:
        """Is there nothing to learn if no tag is known?"""
        return self.names is None

    @property
    def thresholds(self) -> Tensor | None:
        """[C] if its start chose them by leave-one-out and nothing is trained afterwards."""
        return None

    def name_scores(self, unit_features: Tensor) -> Tensor | None:
        """[N, C] what the names say about images with these features of length 1 [N, D]; None without names."""
        return None

    @property
    def finds_bursts(self) -> bool:
        """Are photos judged without their bursts, where the data has no groups?"""
        return bool(getattr(self.config, "bursts", False))

    def initialise(self, problem: Problem) -> None:
        """Called before a new or resumed run: sets what depends on the training labels, such as initial biases. A
        model that only predicts has it in its saved state."""

    def start(self, batches: Iterable[Batch], num_images: int) -> Start:
        """Called for a head that `needs_start`, with the training images as feature maps in `Batch.images`.

        Each iteration over `batches` is a pass over all of them.
        """
        raise NotImplementedError

    def relabel(
        self,
        features: Tensor,
        categories: Tensor | int,
        labels: Tensor | int,
        *,
        given: Tensor | None = None,
        odds: Tensor | None = None,
    ) -> None:
        """Called after the start for a head that `assumes_random_labels`, with the labels [n] decided in a review of
        images with these pooled features [n, D], for `categories` [n].

        `given` [n] are the labels before, unknown by default; `odds` [n] the log-odds of presence by the given labels,
        each judged without itself, NaN where there are none.
        """

    def forward(self, feature_map: Tensor) -> Outputs:
        raise NotImplementedError

    def settled(self, feature_map: Tensor) -> Tensor:
        """[B, K] float32: all that training needs to know about the images, for a head that `settles`."""
        raise NotImplementedError

    def from_settled(self, settled: Tensor) -> Outputs:
        """As forward, but without the attention."""
        raise NotImplementedError

    @classmethod
    def current_state(cls, state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
        """A model's saved tensors, of which those with `prefix` are the head's, under the names they have today."""
        return state


def register_head(name: str, head: type[Head]) -> None:
    """Register your own head by name, so that `head=` accepts it and saved models find it."""
    if name in all_heads():
        raise UserError(f"There is already a head '{name}'; choose another name.")
    HEADS[name] = head


def all_heads() -> dict[str, str | type[Head]]:
    """HEADS, including those of other installed packages."""
    for entry in plugins.named("fewtags.heads"):
        HEADS.setdefault(entry.name, entry.value)
    return HEADS


def head_class(name: str) -> type[Head]:
    if name not in HEADS and name not in all_heads():
        raise UserError(f"There is no head '{name}'; {did_you_mean(name, HEADS)}")
    head = HEADS[name]
    if not isinstance(head, str):
        return head
    module, _, attribute = head.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UserError(f"Head '{name}' ({head}) cannot be loaded: {error}.") from error


BiasInit = Literal["prior", "zero"]


def initial_bias(how: BiasInit, problem: Problem) -> Tensor:
    """[C] initial biases of a classifier: the log-odds of being a known positive, or 0.

    From 0 every category starts at probability one half, and with few known positives most of training is spent on
    pushing all of them down.
    """
    prior = problem.prior().float()
    return torch.logit(prior) if how == "prior" else torch.zeros_like(prior)


class Standardise(nn.Module):
    """Pooled features scaled to unit length, then standardised over the training images.

    Backbones differ by orders of magnitude in the scale of their channels; without this, one learning rate and one
    prior cannot suit them all. Mean and spread are those of the start, even if the backbone is trained.
    """

    mean: Tensor
    factor: Tensor  # 1 / spread; 0 for a constant feature

    def __init__(self, num_features: int):
        super().__init__()
        self.register_buffer("mean", torch.zeros(num_features))
        self.register_buffer("factor", torch.ones(num_features))

    def start(self, batches: Iterable[Tensor]) -> int:
        """Compute mean and spread of pooled features [B, D]; returns the number of images."""
        sums = torch.zeros(2 * len(self.mean) + 1, dtype=torch.float64)  # of x, of x^2, of images
        for pooled in batches:
            unit = F.normalize(pooled.float(), dim=1).double().cpu()
            sums += torch.cat([unit.sum(0), unit.square().sum(0), torch.tensor([float(len(unit))])])
        sums = sum_across_ranks(sums)
        count = int(sums[-1])
        if not count:
            raise DataError("None of the training images could be read.")
        mean, square = (sums[:-1] / count).chunk(2)
        self.mean.copy_(mean)
        variance = square - mean.square()
        self.factor.copy_(torch.where(variance > 1e-12, variance.clamp(min=1e-12).rsqrt(), 0.0))
        return count

    def forward(self, pooled: Tensor) -> Tensor:
        return (F.normalize(pooled.float(), dim=1) - self.mean) * self.factor


class LinearHead(Head["LinearHead.Config"]):
    """Average pooling, optional standardisation, an optional tanh layer (the paper's ResNet row has one), one linear
    layer."""

    class Config(Settings):
        standardise: bool = True
        """Scale pooled features to unit length and standardise them over the training images, in one pass before
        training. The paper's baselines do not."""
        prior: float = Field(1.0, ge=0)
        """Strength of a Gaussian prior on the classifier of standardised features: a priori, logits
        vary by 1 / sqrt(prior) between images. Without a prior, a few known labels are memorised."""
        hidden: int = 0
        """Width of a tanh layer before the classifier; 0 for none. The paper's ResNet row has 1024."""
        dropout: float = 0.0
        """Share of pooled features dropped in training."""
        bias_init: BiasInit = "prior"
        """Initialise biases at the log-odds of a known positive ("prior") or at zero, as in the research code."""

    # Crops have different features from whole images. With the crops' mean, no weight shifts all logits at once;
    # with the whole images' mean ROLE does just that to reach its expected number of positives, and ranks badly.
    spec = HeadSpec(needs_start=True, starts_plain=False, looks_at_the_average=True)

    def __init__(self, config: Config, in_channels: int, num_categories: int, words: WordVectors | None = None):
        super().__init__(config, in_channels, num_categories)
        self.standardise = Standardise(in_channels) if config.standardise else None
        self.spec = replace(self.spec, needs_start=config.standardise)
        self.hidden = (
            nn.Sequential(nn.Linear(in_channels, config.hidden), nn.Tanh()) if config.hidden else nn.Identity()
        )
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(config.hidden or in_channels, num_categories)
        self.penalty = 0.0
        if config.standardise:
            nn.init.zeros_(self.classifier.weight)  # random weights would have to be unlearned

    def initialise(self, problem: Problem) -> None:
        # D standardised features with weights of variance 1 / (D prior) give logits of variance 1 / prior. The loss is
        # a mean over images and categories, so its prior is too.
        self.penalty = self.config.prior * self.classifier.in_features / (2 * problem.num_images)
        with torch.no_grad():
            self.classifier.bias.copy_(initial_bias(self.config.bias_init, problem))

    def start(self, batches: Iterable[Batch], num_images: int) -> Start:
        assert self.standardise is not None
        count = self.standardise.start(batch.images.float().mean((2, 3)) for batch in batches)
        return Start(f"Features standardised over {count:,} images.")

    def forward(self, feature_map: Tensor) -> Outputs:
        pooled = feature_map.mean((2, 3))  # [B, D]
        if self.standardise is None:
            return Outputs(self.classifier(self.dropout(self.hidden(pooled))))
        logits = self.classifier(self.dropout(self.hidden(self.standardise(pooled))))
        squares = self.classifier.weight.square().sum(1).mean()
        return Outputs(logits, prior=self.penalty * squares if self.training else None)
