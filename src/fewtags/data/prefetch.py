"""Work done ahead in threads, with results in order.

Threads, not processes: Pillow, torch and the other runtimes do their work outside the interpreter lock, so two threads
keep two cores busy; nothing is copied or pickled, and no child process can lose a signal, a lock or shared memory.
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
    """Cores available to this process, divided among the processes torchrun started on this machine."""
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
    """`work(item)` for every item, in order. Threads run at most `ahead` items ahead of the consumer.

    `items` is consumed lazily, in the caller's thread. An exception in `work` is raised here, in order. With no
    workers, everything runs in the caller's thread.
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
