"""How good methods are on archives of 20 to 5,000 photos: random subsets of VOC 2007, measured on its test set.

    .venv/bin/python benchmarks/small_archives.py [--shared ../shared] [--cache features] [--methods instant,linear]

Every row is a run of the product: `train` on the subset, with the settings of configs/bench-voc2007-256.yaml; features
are computed once for all of them. Appends to results/small-archives/runs.csv as runs finish, skips those it finds
there, and prints the tables of README.md. A seed draws other photos and hides other labels.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from result_rows import append_result, read_results

from fewtags.config import load_config, read_yaml
from fewtags.data.annotations import Annotations
from fewtags.data.formats import read_annotations
from fewtags.data.loaders import EpochBatches
from fewtags.data.prepare import split_data
from fewtags.engine import run as engine_run
from fewtags.engine.features import CachedBatches, LoadedFeatures
from fewtags.engine.run_folder import RunFolder
from fewtags.engine.training import train
from fewtags.labels import PRESENT
from fewtags.models.saved import read_thresholds

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results/small-archives"
GRID = ROOT / "configs/bench-voc2007-256.yaml"
SEEDS = (0, 1, 2)
SIZES = {"single": (20, 50, 60, 100, 120, 200, 300, 500, 1000, 5000), "30 %": (20, 50, 100, 200, 500, 1000, 5000)}
METHODS = (("linear", "no"), ("instant", "no"), ("instant", "yes"), ("an", "no"), ("refined", "no"), ("refined", "yes"))
FIELDS = ("method", "names", "images", "seed", "labels", "map", "precision", "promised_precision")


@dataclass(frozen=True)
class Cell:
    method: str
    names: str  # yes or no
    images: int
    seed: int
    labels: str  # "single": one known tag an image, or the share of known tags

    @property
    def key(self) -> tuple[str, ...]:
        return tuple(str(value) for value in vars(self).values())


def cells() -> Iterator[Cell]:
    """Small archives first."""
    for size in sorted({size for sizes in SIZES.values() for size in sizes}):
        for labels, sizes in SIZES.items():
            for seed in SEEDS:
                for method, names in METHODS:
                    if size in sizes:
                        yield Cell(method, names, size, seed, labels)


def subset(annotations: Annotations, size: int, seed: int) -> Annotations:
    """`size` random training images, all where there are hardly more, and the whole test set."""
    rows = np.flatnonzero(annotations.splits == "train")
    if len(rows) > 1.01 * size:
        rows = np.sort(np.random.default_rng(seed).permutation(rows)[:size])
    return annotations.take(np.concatenate([rows, np.flatnonzero(annotations.splits == "test")]))


def share_features(annotations: Annotations) -> None:
    """Have runs on some of the images take their augmented views from those of all."""
    original = engine_run.cached_batches

    def batches(some: Annotations, *args: Any, **options: Any) -> CachedBatches:
        whole = annotations.take(np.flatnonzero(annotations.splits == some.splits[0]))
        place = {image: row for row, image in enumerate(whole.images)}
        rows = torch.tensor([place[image] for image in some.images])
        kept = original(whole, *args, **options).features
        maps = torch.stack([kept.rows(view, rows) for view in range(kept.num_views)])
        shuffle = bool(options.get("shuffle"))
        sampler = EpochBatches(len(some), options["batch_size"], shuffle=shuffle, seed=options.get("seed", 0))
        return CachedBatches(LoadedFeatures(maps, {}), torch.from_numpy(some.labels), sampler)

    engine_run.cached_batches = batches  # type: ignore[assignment]


def measure(cell: Cell, annotations: Annotations, shared: Path, cache: str, work: Path) -> dict[str, object]:
    grid = read_yaml(GRID)
    settings = [
        f"method={cell.method}",
        f"model.weights={shared / 'weights/tf_efficientnet_lite0_fp16.safetensors'}",
        f"words.source={shared / 'words/glove300_voc20.npz'}",
        f"cache.folder={cache}",
        f"data.known={'single' if cell.labels == 'single' else float(cell.labels.split()[0]) / 100}",
        f"data.mask_seed={cell.seed}",
        *(["head.names=none"] if cell.method in ("instant", "refined") and cell.names == "no" else []),
        *(["train.epochs=10"] if cell.method == "an" else []),
        "train.evaluate_every=100",
    ]
    config = load_config(None, settings, **{k: v for k, v in grid["settings"].items() if k != "train"})
    shutil.rmtree(work, ignore_errors=True)
    data = split_data(subset(annotations, cell.images, cell.seed), config.data)
    result = train(config, work, data=data, quiet=True)
    assert data.test is not None
    assert result.last is not None
    chance = np.load(RunFolder(work).predictions("test"))["probabilities"]
    given = chance >= read_thresholds(RunFolder(work).model)
    truth = data.test.labels == PRESENT
    precision, promised = (100 * part[given].mean() if given.any() else float("nan") for part in (truth, chance))
    numbers = {"map": 100 * result.last.map, "precision": precision, "promised_precision": promised}
    return {**vars(cell), **{name: round(float(value), 2) for name, value in numbers.items()}}


def tables(rows: list[dict[str, str]]) -> str:
    """Means over seeds: mAP, and precision at the saved thresholds with what was promised."""
    parts = []
    for labels, sizes in SIZES.items():
        head = f"| labels: {labels} | " + " | ".join(f"{size:,}" for size in sizes) + " |\n|---|" + "---|" * len(sizes)
        for title, number in (("mAP", _map), ("Precision (promised)", _precision)):
            lines = [f"### {title}, {labels}\n", head]
            for method, names in METHODS:
                cells = [number(_rows(rows, method, names, size, labels)) for size in sizes]
                title_of_row = f"`{method}`" + (" with names" if names == "yes" else "")
                lines.append(f"| {title_of_row} | " + " | ".join(cells) + " |")
            parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _rows(rows: list[dict[str, str]], method: str, names: str, size: int, labels: str) -> list[dict[str, str]]:
    wanted = (method, names, str(size), labels)
    return [row for row in rows if (row["method"], row["names"], row["images"], row["labels"]) == wanted]


def _map(rows: list[dict[str, str]]) -> str:
    return f"{statistics.mean(float(row['map']) for row in rows):.1f}" if rows else ""


def _precision(rows: list[dict[str, str]]) -> str:
    if not rows:
        return ""
    real, promised = (statistics.mean(float(row[key]) for row in rows) for key in ("precision", "promised_precision"))
    return f"{real:.0f} ({promised:.0f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared")
    parser.add_argument("--cache", default="feature-cache")
    parser.add_argument("--work", type=Path, default=Path("small-archives-run"))
    parser.add_argument("--methods", default=",".join(sorted({method for method, _ in METHODS})))
    parser.add_argument("--tables", action="store_true", help="only print the tables of what was measured")
    options = parser.parse_args()
    if not options.tables:
        annotations = read_annotations(str(options.shared / "data/VOCdevkit"))
        share_features(annotations)
        done = {tuple(row[field] for field in FIELDS[:5]) for row in read_results(RESULTS / "runs.csv")}
        for cell in cells():
            if cell.key not in done and cell.method in options.methods.split(","):
                row = measure(cell, annotations, options.shared, options.cache, options.work)
                append_result(RESULTS / "runs.csv", FIELDS, row)
                print(row, flush=True)
    print(tables(read_results(RESULTS / "runs.csv")))


if __name__ == "__main__":
    main()
