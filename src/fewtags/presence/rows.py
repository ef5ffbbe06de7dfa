"""Features of many images, used like a tensor [N, D] but not always in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from fewtags.presence.ridge import slices

AT_ONCE = 8192
TOP = 20  # classes kept of an image: they rank like all of them (results/new-tag)


class FeatureRows(Protocol):
    """A tensor is one, too."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any, /) -> Tensor: ...

    def split(self, size: int, /) -> Iterable[Tensor]: ...

    def __matmul__(self, weights: Tensor, /) -> Tensor: ...


def mean_and_spread(features: FeatureRows) -> tuple[Tensor, Tensor]:
    """[D] each, over all rows."""
    number, total, squares = max(len(features), 1), torch.zeros(()), torch.zeros(())
    for part in features.split(AT_ONCE):
        total = total + part.sum(0, dtype=torch.float64)
        squares = squares + part.square().sum(0, dtype=torch.float64)
    mean = total / number
    return mean.float(), (squares / number - mean.square()).clamp(min=0).sqrt().float()


# --- what the classifier of a backbone sees in images, as features beside the backbone's own ---
#
# Two pictures of dogs may share little else, but a classifier puts both among its hundred breeds. So the shares of its
# classes say what a few examples have in common, better than the features that they were computed from. Their square
# roots are used: the dot product of two images is then one where the shares are the same (Bhattacharyya's coefficient).


@dataclass(frozen=True)
class ClassShares:
    """[N, K] square roots of the shares of K classes, of which the largest are kept."""

    number: int  # K
    which: Tensor  # [N, TOP]
    roots: Tensor  # [N, TOP]

    @classmethod
    def of(cls, parts: Iterable[Tensor]) -> ClassShares:
        """From shares [n, K] of some images after the other."""
        number, which, roots = 0, [], []
        for shares in parts:
            number = shares.shape[1]
            top = shares.float().topk(min(TOP, number), dim=1)
            which.append(top.indices.to(torch.int32))
            roots.append((top.values / top.values.sum(1, keepdim=True).clamp(min=1e-9)).sqrt())
        return cls(number, torch.cat(which), torch.cat(roots))

    def __len__(self) -> int:
        return len(self.which)

    def __getitem__(self, rows: Any, /) -> ClassShares:
        return ClassShares(self.number, self.which[rows], self.roots[rows])

    def dense(self) -> Tensor:
        """[N, K]"""
        return torch.zeros(len(self), self.number).scatter_(1, self.which.long(), self.roots)

    def __matmul__(self, weights: Tensor, /) -> Tensor:
        products = self.roots.new_empty(len(self))
        for rows in slices(len(self), AT_ONCE):
            products[rows] = (weights[self.which[rows]] * self.roots[rows]).sum(1)
        return products


@dataclass(frozen=True)
class WithClasses:
    """[N, D + K] features, used like a tensor (`presence.rows`)."""

    features: FeatureRows  # [N, D]
    shares: ClassShares

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, rows: Any, /) -> Tensor:
        return torch.cat([self.features[rows], self.shares[rows].dense()], dim=1)

    def split(self, size: int, /) -> Iterator[Tensor]:
        return (self[rows] for rows in slices(len(self), size))

    def __matmul__(self, weights: Tensor, /) -> Tensor:
        own, of_classes = weights[: -self.shares.number], weights[-self.shares.number :]
        return self.features @ own + self.shares @ of_classes


def with_classes(features: FeatureRows, shares: ClassShares | None) -> FeatureRows:
    return features if shares is None else WithClasses(features, shares)
