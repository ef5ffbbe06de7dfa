"""Small made data that many tests share."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fewtags.config import RunConfig, load_config
from fewtags.data.annotations import Annotations

PROJECT = Path(__file__).parents[1]
COLOURS = {"red": (220, 40, 40), "green": (40, 180, 60), "blue": (50, 70, 220)}


@pytest.fixture(scope="session")
def shared() -> Path:
    """The measuring data beside the project; tests that need it are skipped where it is absent."""
    folder = Path(os.environ.get("FEWTAGS_SHARED", PROJECT.parent / "shared"))
    if not (folder / "data" / "VOCdevkit").is_dir():
        pytest.skip(f"the measuring data is not in {folder}")
    return folder


@pytest.fixture(scope="session")
def patches(tmp_path_factory: pytest.TempPathFactory) -> Annotations:
    """36 training and 12 test images of noise with coloured patches; the tags are the colours. Labels are complete."""
    root = tmp_path_factory.mktemp("patches")
    rng = np.random.default_rng(0)
    images, tags = [], []
    for number in range(48):
        pixels = rng.integers(90, 160, (40, 40, 3), dtype=np.uint8)
        present = [name for name in COLOURS if rng.random() < 0.5]
        for name in present:
            left, top = rng.integers(0, 26, 2)
            pixels[top : top + 12, left : left + 12] = COLOURS[name]
        Image.fromarray(pixels).save(root / f"{number:02d}.png")
        images.append(f"{number:02d}.png")
        tags.append(present)
    splits = ["train"] * 36 + ["test"] * 12
    return Annotations.from_tags(
        images, tags, root=root, categories=list(COLOURS), splits=splits, complete=True, name="patches"
    )


class TinyConfig:
    """Settings of a run that takes a second: a small backbone from random weights, 32 px, two epochs."""

    @staticmethod
    def make(*overrides: str) -> RunConfig:
        settings = (
            "model.backbone=test_resnet", "model.pretrained=false", "input.size=32", "train.epochs=2",
            "train.batch_size=8", "train.workers=0", "words.dim=8", "data.known=0.6",
        )  # fmt: skip
        return load_config(None, [*settings, *overrides])
