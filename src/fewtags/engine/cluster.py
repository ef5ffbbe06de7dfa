"""The machines of a Ray cluster (extra: ray). Tasks that are lost with their worker are retried on another one.

    with cluster("auto"):
        train(config, folder)  # the frozen stages' features are computed by the cluster

"local" starts Ray on this machine, closed to all others; "auto" joins the cluster this machine is part of; anything
else is an address.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, TypeVar

from fewtags.errors import MissingExtra, RunFailed, UserError

RETRIES = 10  # of a task whose worker or machine was lost
AHEAD = 2  # tasks queued per running one, so that no worker waits

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Cluster:
    ray: Any  # the module
    cpus: float = 1  # per task
    gpus: float = 0

    @property
    def num_tasks(self) -> int:
        """Number of tasks that can run in parallel on the cluster now."""
        there = self.ray.cluster_resources()
        by_cpu = there.get("CPU", 0) / self.cpus if self.cpus else float("inf")
        by_gpu = there.get("GPU", 0) / self.gpus if self.gpus else float("inf")
        return int(min(by_cpu, by_gpu))

    def task(self, function: Callable[..., Result]) -> Callable[..., Any]:
        """Returns a function that starts a task and returns a reference to its result."""
        options = {"num_cpus": self.cpus, "num_gpus": self.gpus, "max_retries": RETRIES}
        return self.ray.remote(**options)(function).remote

    def share(self, value: Any) -> list[Any]:
        """Sent to each machine once, however many tasks use it. In a list, because Ray would otherwise unpack it for
        every task."""
        return [self.ray.put(value)]

    def in_order(self, start: Callable[[Item], Any], items: Iterable[Item]) -> Iterator[Any]:
        """The results of `start(item)` for every item, in order; `items` is consumed lazily."""
        if self.num_tasks < 1:
            raise UserError(
                f"A task needs {self.cpus:g} CPUs and {self.gpus:g} GPUs, but no machine of the cluster has them."
            )
        waiting: deque[Any] = deque()
        try:
            for item in items:
                waiting.append(start(item))
                if len(waiting) > AHEAD * self.num_tasks:
                    yield self.result(waiting.popleft())
            while waiting:
                yield self.result(waiting.popleft())
        finally:
            for task in waiting:
                self.ray.cancel(task, force=True)

    def result(self, task: Any) -> Any:
        """User errors are passed on; a worker that is lost repeatedly ends the run."""
        from ray.exceptions import RayError, RayTaskError

        try:
            return self.ray.get(task)
        except RayTaskError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, UserError):
                raise cause from None
            raise
        except RayError as error:
            first = str(error).strip().splitlines()[0]
            raise RunFailed(f"A task of the Ray cluster was lost {RETRIES + 1} times ({first[:200]}).") from error


_active: list[Cluster] = []


def active_cluster() -> Cluster | None:
    """The active cluster for passes over images; None if they run on this machine."""
    return _active[-1] if _active else None


@contextmanager
def cluster(address: str | None, *, cpus: float = 1, gpus: float = 0) -> Iterator[Cluster | None]:
    """Compute on the cluster at `address` within the block; None: in this process."""
    if address is None:
        yield None
        return
    ray = import_ray()
    started = not ray.is_initialized()
    if started:
        connect(ray, address)
    _active.append(Cluster(ray, cpus, gpus))
    try:
        yield _active[-1]
    finally:
        _active.pop()
        if started:
            ray.shutdown()


def import_ray() -> Any:
    try:
        import ray
    except ImportError:
        raise MissingExtra("--ray", "ray") from None
    return ray


def connect(ray: Any, address: str) -> None:
    try:
        if address == "local":
            start_on_loopback(ray)
        else:
            ray.init(address=address, log_to_driver=False, logging_level="error")
    except (ConnectionError, ValueError, RuntimeError) as error:
        first = str(error).strip().splitlines()[0]
        raise UserError(
            f"There is no Ray cluster at '{address}' ({first[:200]}). Start one with `ray start --head`, or use "
            "--ray local for this machine only."
        ) from error


def start_on_loopback(ray: Any) -> None:
    """Ray's services have no password and run what they are told, so other machines must not reach them."""
    with without_a_cluster():
        ray.init(address="local", log_to_driver=False, logging_level="error", include_dashboard=False)
    if not ip_address(ray.util.get_node_ip_address()).is_loopback:
        ray.shutdown()
        raise RunFailed(
            f"Ray {ray.__version__} would listen to other machines; use another version of Ray, or start a cluster "
            "yourself with `ray start --head` and give its address."
        )


@contextmanager
def without_a_cluster() -> Iterator[None]:
    """Ray replaces a loopback address by a public one unless it is told that no other machine will join. It reads
    this on import, and again in each of its processes. It also sends statistics of its use unless told not to."""
    from ray._private import ray_constants

    settings = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    before, enabled = {name: os.environ.get(name) for name in settings}, ray_constants.ENABLE_RAY_CLUSTER
    os.environ.update(settings)
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = enabled
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
