"""One pass over many images: read, decoded and run through the network in threads, with results in order.

Shared by the feature store, `predict` and `evaluate`, so they are equally fast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from itertools import islice
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from fewtags.contract import Batch
from fewtags.data.dataset import Collate, Loaded, Sample
from fewtags.data.prefetch import default_workers, in_order
from fewtags.engine.runtime import Runtime, own_threads, use_one_core

Key = TypeVar("Key")
T = TypeVar("T")


class FeaturePass:
    """Images in, features out; `finish` turns a batch of maps into the desired output, in the same thread."""

    def __init__(
        self, runtime: Runtime, finish: Callable[[Tensor], Tensor] | None = None, *, workers: int | None = None
    ):
        self.runtime, self.finish = runtime, finish
        self.workers = default_workers() if workers is None else workers

    def over(self, keys: Iterable[Key], read: Callable[[Key], list[Sample]]) -> Iterator[list[Loaded]]:
        """For each batch of keys, in order: one Loaded per view that `read` returns, with features in place of images.

        `read` is called from several threads. At most one finished batch per thread is queued.
        """
        collate = Collate(None)

        def load(group: list[Key]) -> list[Loaded]:
            views = zip(*(read(key) for key in group), strict=True)
            return [collate(samples) for samples in views]

        def compute(group: list[Key]) -> list[Loaded]:
            return [self.features(loaded) for loaded in load(group)]

        groups = in_groups(keys, self.runtime.batch)
        if not self.runtime.in_threads:  # a GPU is fed by the caller's thread
            with closing(in_order(load, groups, workers=self.workers, ahead=self.workers)) as batches:
                for views in batches:
                    yield [self.features(loaded) for loaded in views]
            return
        work = in_order(compute, groups, workers=self.workers, ahead=self.workers, initializer=use_one_core)
        with own_threads(), closing(work) as results:
            yield from results

    def features(self, loaded: Loaded) -> Loaded:
        if loaded.batch is None:
            return loaded
        with torch.inference_mode():
            maps = self.runtime.run(loaded.batch.images)
            features = (maps if self.finish is None else self.finish(maps)).cpu()
        return Loaded(Batch(features, loaded.batch.labels, loaded.batch.index, are_maps=True), loaded.broken)


class Pass(Protocol):
    """Whoever computes features of images: this process, or a cluster."""

    @property
    def runtime(self) -> Runtime: ...

    def over(self, keys: Iterable[Key], read: Callable[[Key], list[Sample]]) -> Iterator[list[Loaded]]: ...


def average(maps: Tensor) -> Tensor:
    """As a 1 x 1 map."""
    return maps.float().mean((2, 3), keepdim=True)


def num_rows(loaded: Loaded) -> int:
    """Number of images, read or broken."""
    return len(loaded.broken) + (0 if loaded.batch is None else len(loaded.batch.index))


def in_groups(items: Iterable[T], size: int) -> Iterator[list[T]]:
    items = iter(items)
    while group := list(islice(items, size)):
        yield group
