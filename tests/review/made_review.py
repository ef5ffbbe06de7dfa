"""Images whose features are made, so that it is known what is near what."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fewtags.data.annotations import Annotations

CATEGORIES = ["cat", "dog", "sea"]


def made_data(
    num_images: int = 400, dim: int = 24, known: float = 0.3, seed: int = 0, root: Path = Path("photos")
) -> tuple[Annotations, Tensor]:
    """Each category is a direction in noise; a share of the true labels is known."""
    rng = np.random.default_rng(seed)
    truth = rng.random((num_images, len(CATEGORIES))) < 0.3
    directions = rng.normal(size=(len(CATEGORIES), dim))
    features = 0.8 + 0.35 * rng.normal(size=(num_images, dim)) + truth @ directions * 0.35
    labels = (truth & (rng.random(truth.shape) < known)).astype(np.int8)
    images = [f"{number:04d}.jpg" for number in range(num_images)]
    annotations = Annotations(root, images, CATEGORIES, labels, np.full(num_images, "train"))
    return annotations, torch.nn.functional.normalize(torch.from_numpy(features).float(), dim=1)


def save_pictures(annotations: Annotations) -> None:
    """Image files for all rows: one colour each, with a stripe whose place tells the row."""
    annotations.root.mkdir(parents=True, exist_ok=True)
    for row, image in enumerate(annotations.images):
        pixels = np.full((60, 80, 3), (37 * row % 200 + 40, 91 * row % 200 + 40, 53 * row % 200 + 40), dtype=np.uint8)
        pixels[:, row % 80] = 255
        Image.fromarray(pixels).save(annotations.root / image)
