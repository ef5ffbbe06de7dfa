"""How much faster is an epoch on cached feature maps than one that computes them anew?

    python benchmarks/feature_cache.py                 256 images, 3 epochs of each
    python benchmarks/feature_cache.py --images 64     quick

Both train the same linear head on the frozen tf_efficientnet_lite0 at 224 pixels, on generated images, in the same run.
Computing the cache is timed apart. The weights are those of the folder in FEWTAGS_SHARED (default: ../shared), else
random: that changes the maps, not the time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from fewtags.config import RunConfig, load_config
from fewtags.data.annotations import Annotations
from fewtags.data.prepare import RunData, split_data
from fewtags.engine.run import Run, build_run, choose_device
from fewtags.engine.run_folder import RunFolder
from fewtags.engine.run_log import RunLog
from fewtags.engine.training import train_one_epoch

PROJECT = Path(__file__).resolve().parent.parent
WEIGHTS = Path(os.environ.get("FEWTAGS_SHARED", PROJECT.parent / "shared")) / "weights"
LITE0 = WEIGHTS / "tf_efficientnet_lite0_fp16.safetensors"


def make_images(folder: Path, number: int) -> Annotations:
    """Blurred noise of 256 x 256 with random tags, complete."""
    rng = np.random.default_rng(0)
    names = [f"{index:05d}.jpg" for index in range(number)]
    for name in names:
        small = Image.fromarray(rng.integers(0, 255, (16, 16, 3), dtype=np.uint8))
        small.resize((256, 256), Image.Resampling.BICUBIC).save(folder / name, quality=75)
    categories = [f"tag {c}" for c in range(20)]
    tags = [[name for name in categories if rng.random() < 0.1] for _ in names]
    return Annotations.from_tags(names, tags, root=folder, categories=categories, complete=True)


def make_config(cached: bool, folder: Path) -> RunConfig:
    settings = ["method=an", "model.backbone=tf_efficientnet_lite0", "model.pretrained=false", "model.train_from=head",
                "data.known=0.3", "input.size=224", "input.resize=256", "train.workers=0", "data.val_share=0",
                f"cache.enabled={str(cached).lower()}", "cache.views=1", f"cache.folder={folder}"]  # fmt: skip
    return load_config(None, [*settings, *([f"model.weights={LITE0}"] if LITE0.is_file() else [])])


def make_run(cached: bool, data: Annotations, folder: Path) -> Run:
    config = make_config(cached, folder / "cache")
    run_data: RunData = split_data(data, config.data)
    return build_run(
        config, folder / "run", run_data, choose_device("auto"), RunLog(RunFolder(folder / "run"), quiet=True)
    )


def epoch_seconds(run: Run) -> float:
    started = time.perf_counter()
    train_one_epoch(run, lambda: False)
    run.step = 0
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = make_images(folder, options.images)
        plain = make_run(False, data, folder)
        started = time.perf_counter()
        cached = make_run(True, data, folder)
        computing = time.perf_counter() - started
        pairs = [(epoch_seconds(plain), epoch_seconds(cached)) for _ in range(options.epochs)]
    slow, fast = (statistics.median(times) for times in zip(*pairs, strict=True))
    print(f"{options.images} images, {torch.get_num_threads()} threads, medians of {options.epochs} epochs")
    print(f"computing the features each time  {slow:8.2f} s an epoch ({options.images / slow:.0f} images/s)")
    print(f"cached                            {fast:8.2f} s an epoch ({options.images / fast:.0f} images/s)")
    print(f"computing the cache once          {computing:8.2f} s for one view")
    print(f"ratio                             {slow / fast:8.1f}")


if __name__ == "__main__":
    main()
