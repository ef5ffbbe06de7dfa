"""Dynamic batching: concurrent requests share a batch.

One thread owns the model. It takes the waiting images, up to a batch, runs them, and answers each. The queue is
bounded: when it is full, a request is rejected immediately instead of outlasting its client's patience.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

import numpy as np

Model = Callable[[np.ndarray], np.ndarray]  # pixels [N, 3, size, size] bytes -> probabilities [N, C]


class QueueFull(Exception):
    """Too many images are waiting."""


class Batcher:
    def __init__(
        self,
        model: Model,
        *,
        max_batch: int = 16,
        max_wait: float = 0.005,
        max_queue: int = 128,
        on_batch: Callable[[int], None] = lambda size: None,
    ):
        self.model = model
        self.on_batch = on_batch  # told the size of each batch
        self.max_batch, self.max_wait = max_batch, max_wait
        self.waiting: queue.Queue[tuple[np.ndarray, Future[np.ndarray]] | None] = queue.Queue(max_queue)
        self.thread = threading.Thread(target=self._work, name="fewtags-model", daemon=True)
        self.thread.start()

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
        self.waiting.put(None)
        self.thread.join(timeout)

    def _work(self) -> None:
        stopping = False
        while not stopping:
            first = self.waiting.get()
            if first is None:
                return
            batch = [first]
            until = time.monotonic() + self.max_wait
            while len(batch) < self.max_batch:
                try:
                    more = self.waiting.get(timeout=max(0.0, until - time.monotonic()))
                except queue.Empty:
                    break
                if more is None:
                    stopping = True
                    break
                batch.append(more)
            self._run([(pixels, answer) for pixels, answer in batch if answer.set_running_or_notify_cancel()])

    def _run(self, batch: list[tuple[np.ndarray, Future[np.ndarray]]]) -> None:
        """Requests whose client has given up are dropped from the batch."""
        if not batch:
            return
        self.on_batch(len(batch))
        try:
            rows = self.model(np.stack([pixels for pixels, _ in batch]))
        except Exception as error:  # an exception in the model fails these requests, not the server
            for _, answer in batch:
                answer.set_exception(error)
            return
        for (_, answer), row in zip(batch, rows, strict=True):
            answer.set_result(row)
