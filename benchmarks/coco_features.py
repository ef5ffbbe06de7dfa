"""`instant` and `refined` on COCO photographs of which only pooled features are here: many categories, long-tailed.

    .venv/bin/python benchmarks/coco_features.py [--features ../shared/data/coco_lite0_pooled.npz]

Runs of the product's `train` with its defaults. A feature is a map of one place, so nothing can be found in windows.
Appends to results/coco-features/runs.csv as runs finish, skips those it finds there, and prints the table of
README.md.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from result_rows import append_result, read_results

from fewtags.config import load_config
from fewtags.data.annotations import Annotations
from fewtags.data.loaders import EpochBatches
from fewtags.data.prepare import split_data
from fewtags.engine import run as engine_run
from fewtags.engine.features import CachedBatches, LoadedFeatures
from fewtags.engine.training import train
from fewtags.labels import ABSENT, PRESENT

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results/coco-features"
METHODS = ("linear", "instant-no-names", "refined-no-names", "instant", "refined")
PROPORTIONS = (0.1, 0.5, 0.3, 0.9)
SEEDS = (0, 1, 2)
FIELDS = ("method", "proportion", "seed", "map", "of1", "cf1", "seconds")


def read_features(file: Path) -> tuple[Annotations, dict[str, torch.Tensor]]:
    """Complete labels of both splits, and the features of each as maps [1, N, D, 1, 1]."""
    data = np.load(file)
    categories = [str(name) for name in data["categories"]]
    images, labels, splits, maps = [], [], [], {}
    for split in ("train", "test"):
        present = np.unpackbits(data[f"{split}_labels"], axis=1)[:, : len(categories)]
        labels.append(np.where(present, PRESENT, ABSENT).astype(np.int8))
        images += [f"{split}/{number}.jpg" for number in range(len(present))]
        splits += [split] * len(present)
        features = (data[split].astype(np.float32) / 255) ** 2 * data["scale"]
        maps[split] = torch.from_numpy(features.astype(np.float32))[None, :, :, None, None]
    annotations = Annotations(
        root=Path(), images=images, labels=np.concatenate(labels), categories=categories, splits=np.array(splits)
    )
    return annotations, maps


def use_features(maps: dict[str, torch.Tensor]) -> None:
    """Have runs take these features instead of computing them from images."""

    def batches(annotations: Annotations, *_: Any, **options: Any) -> CachedBatches:
        split = annotations.images[0].split("/")[0]
        rows = torch.tensor([int(Path(image).stem) for image in annotations.images])
        shuffle = bool(options.get("shuffle"))
        sampler = EpochBatches(len(rows), options["batch_size"], shuffle=shuffle, seed=options.get("seed", 0))
        cache = LoadedFeatures(maps[split][:, rows], {})
        return CachedBatches(cache, torch.from_numpy(annotations.labels), sampler)

    engine_run.cached_batches = batches  # type: ignore[assignment]


def cells() -> Iterator[tuple[str, float, int]]:
    for seed in SEEDS:
        for proportion in PROPORTIONS:
            for method in METHODS:
                yield method, proportion, seed


def measure(annotations: Annotations, cell: tuple[str, float, int], weights: Path, work: Path) -> dict[str, object]:
    name, proportion, seed = cell
    method = name.removesuffix("-no-names")
    settings = [
        f"method={method}",
        "model.backbone=tf_efficientnet_lite0",
        f"model.weights={weights}",
        f"data.known={proportion}",
        f"data.mask_seed={seed}",
        *(["head.names=none"] if method != name else []),
        "cache.enabled=true",
        "input.augment=false",
        "train.evaluate_every=100",
    ]
    config = load_config(None, settings)
    shutil.rmtree(work, ignore_errors=True)
    result = train(config, work, data=split_data(annotations, config.data), quiet=True)
    assert result.last is not None
    scores = {key: round(100 * getattr(result.last, key), 2) for key in ("map", "of1", "cf1")}
    return {
        "method": name,
        "proportion": proportion,
        "seed": seed,
        **scores,
        "seconds": round(result.seconds, 1),
    }


def table(rows: list[dict[str, str]]) -> str:
    shares = sorted({float(row["proportion"]) for row in rows})
    lines = [
        "| known positives | " + " | ".join(f"{share:.0%}" for share in shares) + " |",
        "|---" * (len(shares) + 1) + "|",
    ]
    for method in METHODS:
        cells = []
        for share in shares:
            found = [float(r["map"]) for r in rows if r["method"] == method and float(r["proportion"]) == share]
            cells.append(f"{statistics.mean(found):.2f} ({len(found)})" if found else "")
        lines.append(f"| `{method}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shared = ROOT.parent / "shared"
    parser.add_argument("--features", type=Path, default=shared / "data/coco_lite0_pooled.npz")
    parser.add_argument("--weights", type=Path, default=shared / "weights/tf_efficientnet_lite0_fp16.safetensors")
    parser.add_argument("--work", type=Path, default=Path("coco-features-run"))
    parser.add_argument("--tables", action="store_true", help="only print the table of what was measured")
    options = parser.parse_args()
    if not options.tables:
        annotations, maps = read_features(options.features)
        use_features(maps)
        done = {
            (row["method"], float(row["proportion"]), int(row["seed"])) for row in read_results(RESULTS / "runs.csv")
        }
        for cell in cells():
            if cell not in done:
                row = measure(annotations, cell, options.weights, options.work)
                append_result(RESULTS / "runs.csv", FIELDS, row)
                print(row, flush=True)
    print(table(read_results(RESULTS / "runs.csv")))


if __name__ == "__main__":
    main()
