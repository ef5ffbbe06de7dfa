"""Name scores: zero-shot scores of the categories, from classes that a backbone already has names for.

An ImageNet classifier has an output for each of 1,000 (or 12,000, or 21,843) nouns, and WordNet says which of these are
kinds of dog. A category's name score is the logarithm of the share of its classes in the classifier's softmax. Where a
name is not found, or a backbone has no such classifier, only labels are used; `sentences` says how each name was
matched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fewtags.models import quick_timm
from fewtags.models.backbones import ClassHead
from fewtags.models.clip import TextTower
from fewtags.models.name_matching import (
    ClassIndex,
    Match,
    Overrides,
    check_tags,
    match_names,
    read_overrides,
    synonym_override,
    uses_labels_only,
)
from fewtags.models.words import split_words

ROWS_AT_ONCE = 4096  # a row of scores needs 21,843 logits with the largest classifiers

PROMPTS = (  # prompts for a text tower; their vectors are averaged
    "a photo of a {}.",
    "a photo of the {}.",
    "a picture with a {} in it.",
    "a close-up of a {}.",
    "a {} in the background.",
    "a photo of many {}.",
    "a blurred photo of a {}.",
)


class NameScorer(nn.Module):
    """Pooled features [N, D] -> name scores [N, C]. Everything is a buffer: a saved model does not need WordNet."""

    weight: Tensor
    bias: Tensor
    members: Tensor
    unit_length: Tensor

    def __init__(
        self,
        weight: Tensor,  # [K, D]
        bias: Tensor,  # [K]
        members: Tensor,  # [C, K] bool: the classes of each category
        sentences: Sequence[str] = (),  # one per category: how it was matched
        *,
        unit_length: bool = False,  # whether features are scaled to unit length first, as for CLIP
    ):
        super().__init__()
        self.register_buffer("weight", weight.detach().float().clone())
        self.register_buffer("bias", bias.detach().float().clone())
        self.register_buffer("members", members.bool())
        self.register_buffer("unit_length", torch.tensor(unit_length))
        self.sentences = list(sentences)

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Tensor], sentences: Sequence[str] = ()) -> NameScorer:
        scorer = cls(state["weight"], state["bias"], state["members"], sentences)
        scorer.load_state_dict(dict(state))
        return scorer

    @property
    def known(self) -> Tensor:
        """[C] bool: the categories that have classes. The scores of others are 0."""
        return self.members.any(1)

    def scores(self, pooled: Tensor) -> Tensor:
        """logsumexp of the category's class logits - logsumexp of all, [N, C]; at most 0."""
        if not torch.compiler.is_compiling() and len(pooled) > ROWS_AT_ONCE:  # an exported batch has any length
            return torch.cat([self.scores(rows) for rows in pooled.split(ROWS_AT_ONCE)])
        pooled = pooled.float()
        pooled = torch.where(self.unit_length, F.normalize(pooled, dim=1), pooled)
        with torch.autocast(pooled.device.type, enabled=False):  # half precision is too coarse for shares near 1
            # The difference of the two is the logarithm of the classes' share in the softmax.
            shares = F.linear(pooled, self.weight, self.bias).softmax(1) @ self.members.T.float()
        return torch.where(self.known, shares.clamp(min=torch.finfo(shares.dtype).tiny, max=1.0).log(), 0.0)

    forward = scores


def find_names(
    source: ClassHead | TextTower | None,
    categories: Sequence[str],
    overrides: Overrides | str | Path | None = None,
    english: Mapping[str, str] | None = None,
) -> NameScorer | None:
    """The name scores of a backbone (its `class_head`), or None if it has no named classes or knows none of the names.

    `overrides` is a user's file (or its content) that says what individual tags mean. What it does not say, the
    `english` names of tags in other languages do.
    """
    meanings = read_overrides(overrides) if isinstance(overrides, (str, Path)) else dict(overrides or {})
    check_tags(meanings, categories)
    translations = {tag: {"synonym": word} for tag, word in (english or {}).items() if tag in categories}
    meanings = {**translations, **meanings}
    if source is None or not categories:
        return None
    if isinstance(source, ClassHead):
        scorer = _by_classes(source, categories, meanings)
    else:
        scorer = _by_texts(source, categories, meanings)
    return scorer if scorer.known.any() else None


def _by_classes(head: ClassHead, categories: Sequence[str], overrides: Overrides) -> NameScorer:
    matches = match_names(categories, ClassIndex(head.synsets), overrides)
    members = _as_matrix(matches, len(head.synsets))
    return NameScorer(head.weight, head.bias, members, [match.sentence for match in matches])


def _by_texts(tower: TextTower, categories: Sequence[str], overrides: Overrides) -> NameScorer:
    """The classes are the categories and ImageNet's 1,000 nouns, as texts.

    The nouns stand for what else may be in a picture. Without them the share of a category would depend on which other
    categories there are, and a single one would always have a share of 1. Nouns at or below a category count for it.
    """
    index = ClassIndex(quick_timm.ImageNetInfo("imagenet-1k").label_names())
    matches = match_names(categories, index, overrides)
    asked = [not uses_labels_only(name, overrides) for name in categories]
    texts = [" ".join(split_words(synonym_override(name, overrides) or name)) or name for name in categories]
    own = tower.vectors([prompt.format(text) for text in texts for prompt in PROMPTS])
    own = F.normalize(own.unflatten(0, (len(texts), len(PROMPTS))).mean(1), dim=1)
    nouns = tower.vectors([PROMPTS[0].format(index.name(number)) for number in range(index.num_classes)])
    weight = tower.scale * torch.cat([own, nouns])
    members = torch.cat([torch.tensor(asked).diag(), _as_matrix(matches, index.num_classes)], dim=1)
    sentences = [
        _with_text(name, match) if ask else match.sentence
        for name, match, ask in zip(categories, matches, asked, strict=True)
    ]
    return NameScorer(weight, torch.zeros(len(weight)), members, sentences, unit_length=True)


def _with_text(name: str, match: Match) -> str:
    return f"{name}: its text and" + match.sentence.removeprefix(f"{name}:") if match.classes else f"{name}: its text"


def _as_matrix(matches: Sequence[Match], num_classes: int) -> Tensor:
    members = torch.zeros(len(matches), num_classes, dtype=torch.bool)
    for row, match in enumerate(matches):
        members[row, list(match.classes)] = True
    return members
