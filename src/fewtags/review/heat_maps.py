"""Heat maps: where in an image a tag was seen."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from fewtags.engine.prediction import load_file
from fewtags.models.attention_maps import evidence_maps, overlay
from fewtags.models.saved import SavedModel
from fewtags.review.pictures import NotShown, Pictures, as_jpeg


class HeatMaps:
    """Each location's contribution to the tag's logit, in the run's own model."""

    def __init__(self, model: Callable[[], SavedModel], pictures: Pictures):
        """The `model` is loaded for the first heat map."""
        self.model, self.pictures = model, pictures
        self._lock = threading.Lock()  # one at a time: each takes all cores

    def picture(self, row: int, category: str) -> bytes:
        """A JPEG of the image with the heat map overlaid."""
        file, column = self.pictures.path(row), self.model().categories.index(category)
        with self._lock:
            heat = self._heat(file, column)
        return as_jpeg(overlay(self.pictures.opened(row), heat))

    def _heat(self, file: Path, column: int) -> Tensor:
        """[h, w]"""
        saved = self.model()
        loaded = load_file(saved, file)
        if loaded.batch is None:
            raise NotShown(next(iter(loaded.broken.values())))
        return evidence_maps(saved.classifier.cpu(), loaded.batch.images, torch.tensor([[column]]))[0, 0]
