"""Work done ahead by threads, its results in order.

Threads, not processes: Pillow, torch and the other runtimes do their work outside the interpreter lock, so two threads
keep two cores busy; nothing is copied or pickled, and there is no child to lose a signal, a lock or its shared memory.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

MOST_WORKERS = 16


def num_cores() -> int:
    """Cores that this process may use, shared with the other processes that torchrun started here."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def default_workers() -> int:
    return min(MOST_WORKERS, num_cores())


def in_order(
    work: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    workers: int,
    ahead: int,
    initializer: Callable[[], object] | None = None,  # called once in each thread
) -> Generator[Result, None, None]:
    """`work(item)` for every item, in order. Threads are at most `ahead` items before the one that is asked for.

    `items` is read as it is needed, in the caller's thread. What `work` raises is raised here, in its place. With no
    workers everything happens here, one item at a time.
    """
    if workers == 0:
        yield from map(work, items)
        return
    pool = ThreadPoolExecutor(workers, thread_name_prefix="fewtags", initializer=initializer)
    waiting: deque[Future[Result]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
