"""Dynamic batching: concurrent requests share a batch.

Model threads take the images that wait, up to a batch, run them, and answer each. They never wait for more: an idle
server answers at once, and a busy one finds the images that came during the last batch. An image that comes alone is
computed on all cores; where several wait, they are shared among the threads, each of which computes on one core, which
is more images per second. The queue is bounded: when it is full, a request is rejected immediately instead of
outlasting its client's patience.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future

import numpy as np

Model = Callable[[np.ndarray], np.ndarray]  # pixels [N, 3, size, size] bytes -> probabilities [N, C]
Waiting = tuple[np.ndarray, Future[np.ndarray]]


class QueueFull(Exception):
    """Too many images are waiting."""


class Batcher:
    """`model` computes on all cores, one batch at a time; `on_one_core`, if there is one, `num_threads` at a time."""

    def __init__(
        self,
        model: Model,
        on_one_core: Model | None = None,
        *,
        num_threads: int = 1,
        max_batch: int = 16,
        max_queue: int = 96,
        on_batch: Callable[[int], None] = lambda size: None,
    ):
        self.model, self.on_one_core = model, on_one_core
        self.max_batch = max_batch
        self.on_batch = on_batch  # told the size of each batch
        self.waiting: queue.Queue[Waiting | None] = queue.Queue(max_queue)
        self.computing = 0  # threads that are
        self.lock = threading.Lock()
        number = 1 if on_one_core is None else num_threads
        self.threads = [
            threading.Thread(target=self._work, name=f"fewtags-model-{n}", daemon=True) for n in range(number)
        ]
        for thread in self.threads:
            thread.start()

    def submit(self, pixels: np.ndarray) -> Future[np.ndarray]:
        """One image [3, size, size] -> a future with its probabilities [C]. Raises QueueFull."""
        answer: Future[np.ndarray] = Future()
        try:
            self.waiting.put_nowait((pixels, answer))
        except queue.Full:
            raise QueueFull from None
        return answer

    def stop(self, timeout: float = 10.0) -> None:
        """Answer everything that is waiting, then stop."""
        for _ in self.threads:
            self.waiting.put(None)
        for thread in self.threads:
            thread.join(timeout)

    def _work(self) -> None:
        while (first := self.waiting.get()) is not None:
            batch, stopping = self._take(first)
            with self.lock:
                alone = self.computing == 0 and len(batch) == 1
                self.computing += 1
            self._run(batch, self.model if alone or self.on_one_core is None else self.on_one_core)
            with self.lock:
                self.computing -= 1
            if stopping:
                return

    def _take(self, first: Waiting) -> tuple[list[Waiting], bool]:
        """This thread's share of what waits, and whether the end was among it."""
        batch = [first]
        share = -(-(1 + self.waiting.qsize()) // len(self.threads))
        while len(batch) < min(share, self.max_batch):
            try:
                more = self.waiting.get_nowait()
            except queue.Empty:
                break
            if more is None:
                return batch, True
            batch.append(more)
        return batch, False

    def _run(self, batch: list[Waiting], model: Model) -> None:
        """Requests whose client has given up are dropped from the batch."""
        batch = [(pixels, answer) for pixels, answer in batch if answer.set_running_or_notify_cancel()]
        if not batch:
            return
        self.on_batch(len(batch))
        try:
            rows = model(np.stack([pixels for pixels, _ in batch]))
        except Exception as error:  # an exception in the model fails these requests, not the server
            for _, answer in batch:
                answer.set_exception(error)
            return
        for (_, answer), row in zip(batch, rows, strict=True):
            answer.set_result(row)
