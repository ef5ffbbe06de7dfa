"""What a phrase says about the images of an archive, by the classes or the text tower of its backbone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from fewtags.models import quick_timm
from fewtags.models.backbones import ClassHead
from fewtags.models.clip import TextTower
from fewtags.models.name_matching import ClassIndex, match_names
from fewtags.models.names import find_names
from fewtags.presence.rows import ClassShares, FeatureRows

SUBSETS = ("imagenet-1k", "imagenet-12k", "imagenet-21k-goog", "imagenet-21k", "imagenet-21k-miil", "imagenet-22k")
_KEEP = 2**28  # shares of classes kept: half a gigabyte
_ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class Found:
    """Scores of the images, and how the phrase was understood."""

    scores: Tensor | None  # [N]; None if nothing is known of it
    sentence: str


@dataclass
class Phrases:
    """`source` and `sharpness` are asked when the first phrase is."""

    source: Callable[[], ClassHead | TextTower | None]
    sharpness: Callable[[], float]  # the length at which features of unit length are classified
    unit_features: FeatureRows  # [N, D]

    def find(self, phrase: str) -> Found:
        source = self._source
        if source is None:
            return Found(None, "the backbone of this run has no named classes")
        if isinstance(source, TextTower):
            scorer = find_names(source, [phrase])
            assert scorer is not None  # every text has a vector
            parts = self.unit_features.split(_ROWS_AT_ONCE)
            return Found(torch.cat([scorer.scores(part)[:, 0] for part in parts]), scorer.sentences[0])
        (match,) = match_names([phrase], self._index)
        if not match.classes:
            return Found(None, f"nothing is known of '{phrase}'")
        classes = torch.tensor(match.classes)
        shares = self._shares[:, classes] if self._shares is not None else self._classified(source, classes)
        return Found(shares.float().sum(1).clamp(min=1e-8, max=1.0).log(), match.sentence)

    def shares(self) -> ClassShares | None:
        """What the classifier sees in every image; None without one, or where images and classes are too many to
        classify while somebody waits."""
        if not isinstance(self._source, ClassHead) or self._shares is None:
            return None
        return ClassShares.of(self._shares.split(_ROWS_AT_ONCE))

    @cached_property
    def _source(self) -> ClassHead | TextTower | None:
        return self.source()

    @cached_property
    def _index(self) -> ClassIndex:
        assert isinstance(self._source, ClassHead)
        return ClassIndex(self._source.synsets)

    @cached_property
    def _shares(self) -> Tensor | None:
        """[N, K] of every class, so that the next phrase is found at once; None where they are too many."""
        assert isinstance(self._source, ClassHead)
        if len(self.unit_features) * len(self._source.bias) > _KEEP:
            return None
        return self._classified(self._source, slice(None)).half()

    def _classified(self, head: ClassHead, classes: Tensor | slice) -> Tensor:
        """[N, K'] shares of some classes."""
        sharp = self.sharpness()
        parts = self.unit_features.split(_ROWS_AT_ONCE)
        return torch.cat([F.linear(sharp * part, head.weight, head.bias).softmax(1)[:, classes] for part in parts])


def classes_of(weight: Tensor, bias: Tensor) -> ClassHead | None:
    """A saved classifier of ImageNet's classes: which ones they are follows from their number."""
    for subset in SUBSETS:
        synsets = tuple(quick_timm.ImageNetInfo(subset).label_names())
        if len(synsets) == len(bias):
            return ClassHead(weight, bias, synsets)
    return None
