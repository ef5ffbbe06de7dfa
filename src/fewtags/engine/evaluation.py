"""Predict every image once with the model (never the objective), and measure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fewtags import distributed
from fewtags.data.dataset import Loaded
from fewtags.engine.predictions import Predictions
from fewtags.errors import DataError, RunFailed
from fewtags.models.classifier import Classifier


class Batches(Protocol):
    """Where batches come from: image files (`ImageBatches`) or a cache of feature maps."""

    @property
    def num_steps(self) -> int: ...

    def epoch(self, number: int = 0, from_step: int = 0) -> Iterator[Loaded]: ...


@torch.inference_mode()
def predict(
    model: Classifier,
    batches: Batches,
    shape: tuple[int, int],
    device: torch.device,
    autocast: Callable[[], AbstractContextManager] = nullcontext,
    on_step: Callable[[], None] = lambda: None,
) -> Predictions:
    """Probabilities of `shape` [N, C]; with several processes each predicts its share and all receive the whole."""
    was_training = model.training
    model.eval()
    logits = [torch.zeros(0, shape[1], device=device)]
    index = [torch.zeros(0, dtype=torch.long, device=device)]
    broken: dict[int, str] = {}
    for loaded in batches.epoch():
        broken.update(loaded.broken)
        if loaded.batch is not None:
            batch = loaded.batch.to(device)
            with autocast():
                logits.append(model(batch.images, batch.are_maps).logits.float())
            index.append(batch.index)
        on_step()
    model.train(was_training)
    return _assemble(torch.cat(logits), torch.cat(index), broken, shape)


@torch.inference_mode()
def predict_some(
    model: Classifier,
    batches: Batches,
    most: int,
    device: torch.device,
    autocast: Callable[[], AbstractContextManager] = nullcontext,
) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities [M, C] and labels [M, C] of the readable images in the first batches: about `most`, or all."""
    was_training = model.training
    model.eval()
    rows: list[tuple[Tensor, Tensor]] = []
    seen = 0
    for loaded in batches.epoch():
        count = 0
        if loaded.batch is not None:
            batch = loaded.batch.to(device)
            with autocast():
                rows.append((model(batch.images, batch.are_maps).logits.float().sigmoid(), batch.labels))
            count = len(batch.index)
        seen += int(distributed.sum_across_ranks(torch.tensor(count)))  # all processes stop at the same batch
        if seen >= most:
            break
    model.train(was_training)
    if not rows:
        raise DataError("None of the training images could be read.")
    probabilities, labels = (distributed.gather_rows(torch.cat(part)) for part in zip(*rows, strict=True))
    return probabilities.cpu().numpy(), labels.cpu().numpy()


def _assemble(logits: Tensor, index: Tensor, broken: dict[int, str], shape: tuple[int, int]) -> Predictions:
    logits = distributed.gather_rows(logits)
    rows = distributed.gather_rows(index).cpu().numpy()
    counts = np.bincount(rows, minlength=shape[0])
    num_broken = int(distributed.sum_across_ranks(torch.tensor(len(broken), device=logits.device)))
    if counts.max(initial=0) > 1 or (counts == 0).sum() != num_broken:
        raise RunFailed(
            f"Evaluation saw {len(rows)} of {shape[0]} images ({num_broken} unreadable); please report this."
        )
    probabilities = np.full(shape, np.nan, dtype=np.float32)
    probabilities[rows] = logits.sigmoid().cpu().numpy()
    not_numbers = int(np.isnan(probabilities[rows]).any(1).sum())
    if not_numbers:  # otherwise they would count as unreadable images and vanish from the scores
        raise RunFailed(f"The model's output is NaN for {not_numbers} of {len(rows)} images; is it damaged?")
    return Predictions(probabilities, broken)
