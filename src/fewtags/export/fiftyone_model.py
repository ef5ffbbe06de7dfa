"""A tagger as one of FiftyOne's models, for `dataset.apply_model(model, "tags")` and `compute_embeddings(model)`.

Import it only where FiftyOne is installed (extra: fiftyone); `Tagger.to_fiftyone()` does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import fiftyone as fo
import numpy as np
from fiftyone.core.models import EmbeddingsMixin, Model

Pictures = Sequence[np.ndarray]  # [H, W, 3] bytes, as FiftyOne opens images


class TaggerModel(EmbeddingsMixin, Model):
    """Predictions are Classifications with confidences: the tags that reach their thresholds, most probable first."""

    media_type = "image"
    has_embeddings = True
    ragged_batches = False  # images of different sizes may come together: each is resized by itself
    transforms = None
    preprocess = False

    def __init__(
        self,
        classes: Sequence[str],
        thresholds: np.ndarray,
        probabilities: Callable[[Pictures], np.ndarray],
        features: Callable[[Pictures], np.ndarray],
    ):
        self.classes, self.thresholds = list(classes), thresholds
        self.probabilities, self.features = probabilities, features
        self.last: np.ndarray | None = None

    def predict(self, arg: np.ndarray) -> Any:
        return self.predict_all([arg])[0]

    def predict_all(self, args: Pictures) -> list[Any]:
        pictures = list(args)
        self.last = None
        return [self._label(row) for row in self.probabilities(pictures)]

    def _label(self, row: np.ndarray) -> Any:
        given = [c for c in np.argsort(-row, kind="stable") if row[c] >= self.thresholds[c]]
        return fo.Classifications(
            classifications=[fo.Classification(label=self.classes[c], confidence=float(row[c])) for c in given]
        )

    def embed(self, arg: np.ndarray) -> np.ndarray:
        return self.embed_all([arg])[0]

    def embed_all(self, args: Pictures) -> np.ndarray:
        self.last = self.features(list(args))
        return self.last

    def get_embeddings(self) -> np.ndarray:
        """Of the last call of `embed` or `embed_all`."""
        if self.last is None:
            raise ValueError("No embeddings yet; call embed(image) first.")
        return self.last
