"""Where in an image a tag was seen, as a picture."""

from __future__ import annotations

import threading
from pathlib import Path

import torch
from torch import Tensor

from fewtags.engine.prediction import load_file
from fewtags.models.attention_maps import overlay
from fewtags.models.saved import SavedModel
from fewtags.review.pictures import NotShown, Pictures, as_jpeg
from fewtags.review.session import ReviewSession


class HeatMaps:
    """By the attention of the run's head; where it has none, by what each place adds to the closed form's score."""

    def __init__(self, saved: SavedModel, session: ReviewSession, pictures: Pictures):
        self.saved, self.session, self.pictures = saved, session, pictures
        self._lock = threading.Lock()  # one at a time: each takes all cores

    def picture(self, row: int, category: str) -> bytes:
        """A JPEG of the image under the heat map."""
        column = self.session.column(category)
        file = self.pictures.path(row)
        with self._lock:
            heat = self._heat(file, column)
        return as_jpeg(overlay(self.pictures.opened(row), heat))

    @torch.inference_mode()
    def _heat(self, file: Path, column: int) -> Tensor:
        """[h, w]"""
        loaded = load_file(self.saved, file)
        if loaded.batch is None:
            raise NotShown(next(iter(loaded.broken.values())))
        model = self.saved.classifier.cpu().eval()
        attention = model(loaded.batch.images).attention
        if attention is not None:
            return attention[0, column]
        # A score is linear in the average over places, so every place has a share in it.
        return torch.einsum("dhw,d->hw", model.feature_map(loaded.batch.images)[0], self.session.model.weights[column])
