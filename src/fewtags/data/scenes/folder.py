"""A dataset of scenes on disk: images by split, `annotations.jsonl` with complete labels, and the recipe."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from fewtags.data.annotations import Annotations
from fewtags.data.scenes.composition import draw_scene
from fewtags.data.scenes.objects import OBJECTS
from fewtags.errors import UserError

VERSION = 1  # of the drawings; increase it when the same seed gives other pictures or labels
ANNOTATIONS, RECIPE = "annotations.jsonl", "recipe.json"
_SPLITS = ("train", "test")


def make_scenes(folder: str | Path, num_train: int, num_test: int, seed: int = 0, size: int = 96) -> Annotations:
    """Draw the dataset into `folder`, unless it already exists, and return its annotations.

    An image depends only on the seed, its split and its number, so a larger dataset contains the smaller one.
    """
    folder = Path(folder)
    recipe = {"version": VERSION, "seed": seed, "size": size, "train": num_train, "test": num_test}
    # The recipe has its final name only while everything it describes exists.
    finished, unfinished = folder / RECIPE, folder / (RECIPE + ".part")
    if finished.exists() and json.loads(finished.read_text()) == recipe:
        return Annotations.load(folder / ANNOTATIONS)
    _claim(folder, finished, unfinished)
    unfinished.write_text(json.dumps(recipe))

    counts = {"train": num_train, "test": num_test}
    names = [(split, number) for split in _SPLITS for number in range(counts[split])]
    annotations = Annotations.from_tags(
        [_image(split, number) for split, number in names],
        [_draw_into(folder, split, number, seed, size) for split, number in names],
        root=folder,
        categories=list(OBJECTS),
        splits=[split for split, _ in names],
        complete=True,
        name="scenes",
    )
    annotations.save(folder / ANNOTATIONS)
    unfinished.replace(finished)
    return annotations


def _claim(folder: Path, finished: Path, unfinished: Path) -> None:
    """Prepare the folder; one that contains anything but scenes is left alone."""
    if finished.exists():
        finished.replace(unfinished)
    elif not unfinished.exists() and folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} contains files that are not scenes; choose a new or empty folder.")
    for split in _SPLITS:
        (folder / split).mkdir(parents=True, exist_ok=True)


def _draw_into(folder: Path, split: str, number: int, seed: int, size: int) -> list[str]:
    rng = np.random.default_rng([seed, _SPLITS.index(split), number])
    picture, present = draw_scene(rng, size)
    picture.save(folder / _image(split, number), quality=90)
    return sorted(present)


def _image(split: str, number: int) -> str:
    return f"{split}/{number:05d}.jpg"
