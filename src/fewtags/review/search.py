"""Finding images of an archive: those that look like others, and those that a phrase describes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fewtags.errors import UserError
from fewtags.models.phrases import Found
from fewtags.presence.ridge import unit_length
from fewtags.presence.rows import FeatureRows, mean_and_spread


@dataclass(frozen=True)
class Hits:
    """Rows of the archive, the best first, with their similarity to the examples or the share of the phrase's classes,
    and a sentence about how they were found."""

    rows: np.ndarray
    similarity: np.ndarray
    sentence: str


class Search:
    def __init__(
        self,
        unit_features: FeatureRows,
        readable: np.ndarray,
        *,
        phrase: Callable[[str], Found] | None = None,
        features_of: Callable[[Sequence[bytes]], Tensor] | None = None,
    ):
        """`phrase` finds what a phrase says of the images; `features_of` gives the pooled features of pictures from
        elsewhere."""
        self.features, self.readable, self.phrase, self.features_of = unit_features, readable, phrase, features_of

    @cached_property
    def mean(self) -> Tensor:
        return mean_and_spread(self.features)[0]

    def like(self, rows: Sequence[int] = (), pictures: Sequence[bytes] = (), number: int = 200) -> Hits:
        """Images that look like all of these; the examples themselves are left out. What all images share does not
        count."""
        examples = self.features[torch.as_tensor(list(rows), dtype=torch.long)]
        if len(pictures):
            if self.features_of is None:
                raise UserError("Pictures from elsewhere cannot be searched for here.")
            examples = torch.cat([examples, unit_length(self.features_of(pictures))])
        if not len(examples):
            raise UserError("Nothing to search for: give a phrase, or an image.")
        wanted = unit_length(unit_length(examples - self.mean).mean(0))
        scores = self.features @ wanted - self.mean @ wanted
        found = self._best(scores, number, without=rows)
        near = unit_length(self.features[torch.from_numpy(found)] - self.mean) @ wanted
        what = "the picture" if len(examples) == 1 else f"the {len(examples)} pictures"
        return Hits(found, near.numpy(), f"Most like {what} first.")

    def text(self, phrase: str, number: int = 200) -> Hits:
        phrase = " ".join(phrase.split())
        if not phrase:
            raise UserError("Nothing to search for: give a phrase, or an image.")
        found = Found(None, "this run knows no words") if self.phrase is None else self.phrase(phrase)
        if found.scores is None:
            raise UserError(
                f"'{phrase}' cannot be searched for: {found.sentence}. Search by an example instead: an image that "
                "shows it, here or from elsewhere."
            )
        rows = self._best(found.scores, number)
        return Hits(rows, found.scores[torch.from_numpy(rows)].exp().numpy(), f"{found.sentence}.")

    def _best(self, scores: Tensor, number: int, without: Sequence[int] = ()) -> np.ndarray:
        scores = scores.clone()
        scores[torch.from_numpy(~self.readable)] = -torch.inf
        scores[torch.as_tensor(list(without), dtype=torch.long)] = -torch.inf
        best = scores.topk(min(number, int(torch.isfinite(scores).sum())))
        return best.indices.numpy()
