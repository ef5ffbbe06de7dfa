"""A pass over images on the workers of a Ray cluster.

Results come in the order of the images, regardless of which worker computed them: a lost worker's shard is computed
again by another one and used once. Shards are whole batches, so the results of a run are the same as on one
machine, bit for bit if runtime, kind of processor and number of threads are (docs/scale.md).
"""

from __future__ import annotations

import copy
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from fewtags.data.dataset import Loaded, Sample
from fewtags.engine.cluster import Cluster, active_cluster
from fewtags.engine.feature_pass import FeaturePass, in_groups
from fewtags.engine.runtime import Runtime, choose_runtime
from fewtags.models.backbones import Backbone
from fewtags.models.quick_timm import timm  # noqa: F401 - before a worker unpacks a backbone, which brings the compiler

SHARD = 256  # images per task: seconds of work on a CPU, 0.6 MB of averages or 32 MB of maps to send back

Key = TypeVar("Key")


@dataclass(frozen=True)
class Recipe:
    """Everything a worker needs to compute features like the others."""

    name: str  # tells a worker that it already has it
    backbone: Backbone
    finish: Callable[[Tensor], Tensor] | None
    runtime: str
    batch: int
    size: int
    device: str
    precision: torch.dtype | None
    threads: int


class RayPass:
    """Like FeaturePass, on the cluster."""

    def __init__(self, cluster: Cluster, recipe: Recipe, runtime: Runtime):
        self.cluster, self.recipe, self.runtime = cluster, recipe, runtime

    def over(self, keys: Iterable[Key], read: Callable[[Key], list[Sample]]) -> Iterator[list[Loaded]]:
        task = self.cluster.task(compute_shard)
        recipe, reader = self.cluster.share(self.recipe), self.cluster.share(read)
        batch = self.runtime.batch  # whole batches, so that the same images share a batch as elsewhere
        groups = in_groups(keys, max(1, SHARD // batch) * batch)
        shards = self.cluster.in_order(lambda shard: task(self.recipe.name, recipe, reader, shard), groups)
        for shard in shards:
            yield from shard


def compute_shard(name: str, recipe: list[Any], read: list[Any], keys: list[Any]) -> list[list[Loaded]]:
    """Runs in a worker."""
    import ray

    if name not in _passes:
        _passes.clear()  # of another job
        _passes[name] = local_pass(ray.get(recipe[0])), ray.get(read[0])
    one_pass, reader = _passes[name]
    return list(one_pass.over(keys, reader))


_passes: dict[str, tuple[FeaturePass, Callable[[Any], list[Sample]]]] = {}


def local_pass(recipe: Recipe) -> FeaturePass:
    device = torch.device(recipe.device)
    runtime = choose_runtime(recipe.backbone.to(device), recipe.runtime, recipe.size, device, recipe.precision)
    finish = recipe.finish.to(device) if isinstance(recipe.finish, torch.nn.Module) else recipe.finish
    made = Runtime(runtime.name, runtime.run, recipe.batch, runtime.in_threads)
    return FeaturePass(made, finish, workers=recipe.threads)


def make_pass(
    backbone: Backbone,
    runtime: Runtime,
    size: int,
    device: torch.device,
    precision: torch.dtype | None = None,
    finish: Callable[[Tensor], Tensor] | None = None,
    workers: int | None = None,
) -> FeaturePass | RayPass:
    """On the active cluster, else in this process. Each worker of a cluster uses the same `runtime`."""
    there = active_cluster()
    if there is None:
        return FeaturePass(runtime, finish, workers=workers)
    recipe = Recipe(
        uuid.uuid4().hex,
        copy.deepcopy(backbone).cpu(),
        copy.deepcopy(finish).cpu() if isinstance(finish, torch.nn.Module) else finish,
        runtime.name,
        runtime.batch,
        size,
        device.type,
        precision,
        max(1, int(there.cpus)),
    )
    return RayPass(there, recipe, runtime)
