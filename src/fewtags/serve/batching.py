"""Requests that arrive together go through the model together.

One thread owns the model. It takes what is waiting, up to a batch, runs it, and answers each. The queue is bounded:
when it is full a request is refused at once instead of waiting longer than its client will.
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
    """More is waiting than will be answered in time."""


class Batcher:
    def __init__(self, model: Model, *, max_batch: int = 16, max_wait: float = 0.005, max_queue: int = 128):
        self.model = model
        self.max_batch, self.max_wait = max_batch, max_wait
        self.waiting: queue.Queue[tuple[np.ndarray, Future[np.ndarray]] | None] = queue.Queue(max_queue)
        self.batch_sizes: dict[int, int] = {}  # how many batches of each size were run, for the metrics
        self.thread = threading.Thread(target=self._work, name="fewtags-model", daemon=True)
        self.thread.start()

    def submit(self, pixels: np.ndarray) -> Future[np.ndarray]:
        """One image [3, size, size]; its probabilities [C] come later. Raises QueueFull."""
        answer: Future[np.ndarray] = Future()
        try:
            self.waiting.put_nowait((pixels, answer))
        except queue.Full:
            raise QueueFull from None
        return answer

    def stop(self, timeout: float = 10.0) -> None:
        """Answer what is waiting, then end."""
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
        """A client that gave up meanwhile is no longer in the batch."""
        if not batch:
            return
        self.batch_sizes[len(batch)] = self.batch_sizes.get(len(batch), 0) + 1
        try:
            rows = self.model(np.stack([pixels for pixels, _ in batch]))
        except Exception as error:  # whatever the model raises belongs to these requests, not to the server
            for _, answer in batch:
                answer.set_exception(error)
            return
        for (_, answer), row in zip(batch, rows, strict=True):
            answer.set_result(row)
