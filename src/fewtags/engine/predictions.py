"""A model's predictions, and their metrics. Does not import torch, which exported models do not need."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fewtags.data.annotations import Annotations
from fewtags.data.remote import remote_url
from fewtags.data.tag_tree import TagTree
from fewtags.errors import DataError
from fewtags.metrics import Scores, evaluate_scores

NO_TREE = TagTree()
NOT_A_NUMBER = "the model's output is NaN: its weights are damaged, or its training diverged."


@dataclass(frozen=True)
class Prediction:
    """The model's prediction for one image, or why its file could not be read."""

    image: str
    probabilities: np.ndarray | None  # [C]; None if the file could not be read
    problem: str = ""

    def tags(self, categories: Sequence[str], thresholds: np.ndarray, tree: TagTree = NO_TREE) -> dict[str, float]:
        """The tags whose probability reaches their threshold and what they imply, most probable first."""
        return {} if self.probabilities is None else given_tags(self.probabilities, categories, thresholds, tree)


def given_tags(
    probabilities: np.ndarray, categories: Sequence[str], thresholds: np.ndarray, tree: TagTree = NO_TREE
) -> dict[str, float]:
    """Tag -> probability, most probable first; of equals, the implied one first, so that no cut-off separates them."""
    given = tree.given(probabilities, thresholds, categories)
    depth = np.array([len(tree.implied.get(name, ())) for name in categories])
    order = np.lexsort(np.stack([depth, -probabilities]))
    return {categories[c]: float(probabilities[c]) for c in order if given[c]}


def name_of(file: object, row: int) -> str:
    """For an image file, or the picture in memory at `row`."""
    return (remote_url(file) or str(file)) if isinstance(file, Path) else f"image {row}"


def prediction_of(
    image: str, values: np.ndarray | None, problem: str, categories: Sequence[str], tree: TagTree
) -> Prediction:
    """From what a model says about an image; here the tree makes no tag more probable than one that it implies."""
    if values is not None and not np.isfinite(values).all():
        return Prediction(image, None, f"{image}: {NOT_A_NUMBER}")
    return Prediction(image, None if values is None else tree.raised(values, categories), problem)


@dataclass(frozen=True)
class Predictions:
    probabilities: np.ndarray  # [N, C] float32; rows of unreadable images are NaN
    broken: dict[int, str]  # row -> what was wrong with its file

    @property
    def read(self) -> np.ndarray:
        return np.logical_not(np.isnan(self.probabilities).any(1))


def gathered(
    predictions: Iterable[Prediction], shape: tuple[int, ...], on_step: Callable[[], object] = lambda: None
) -> Predictions:
    """Predictions for all images of a dataset [N, C]; `on_step` is called after each."""
    probabilities = np.full(shape, np.nan, dtype=np.float32)
    broken: dict[int, str] = {}
    for row, prediction in enumerate(predictions):
        if prediction.probabilities is None:
            broken[row] = prediction.problem
        else:
            probabilities[row] = prediction.probabilities
        on_step()
    return Predictions(probabilities, broken)


def measure(predictions: Predictions, annotations: Annotations, threshold: float | np.ndarray = 0.5) -> Scores:
    """Scores over the readable images and, if labels are partial, over the known ones (see `measurable`)."""
    if not predictions.read.any():
        raise DataError(f"None of the {len(annotations)} evaluation images (val or test) could be read.")
    from fewtags.data.prepare import measurable  # brings every label reader, which `predict` does not need

    truth, mask = measurable(annotations.labels[predictions.read])
    return evaluate_scores(predictions.probabilities[predictions.read], truth, mask=mask, threshold=threshold)
