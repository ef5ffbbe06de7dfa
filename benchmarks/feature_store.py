"""The feature store with many images: how long it takes to open, to add to it, and to see that nothing has changed.

    .venv/bin/python benchmarks/feature_store.py [--images 100000 1000000] [--out results/feature-store]

Features are made (1280 numbers per image, half precision, seed 0; 20 tags, one known in ten), files are real but hold
only their number, so nothing is decoded. Each row of runs.csv is measured in a process of its own, one thread:

    fill       write the features of all images into an empty store
    open       find and read the features of all images, checksums of all chunks included
    review     open, then what `fewtags review` needs before its first page, the first time
    again      the same when the run was opened before
    add 100    find that 100 of the images are new, and add theirs
    look       what `fewtags update` does if nothing has changed
"""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import resource
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

DIM, TAGS, CHUNK = 1280, 20, 8192
COLUMNS = ("work", "images", "seconds", "cpu_seconds", "peak_gb", "on_disk_gb")


def files_of(folder: Path, number: int) -> list[str]:
    return [f"{folder}/photos/{row // 1000:04d}/{row:07d}.jpg" for row in range(number)]


def make_files(folder: Path, number: int) -> None:
    for row, file in enumerate(files_of(folder, number)):
        if row % 1000 == 0:
            Path(file).parent.mkdir(parents=True, exist_ok=True)
        with open(file, "w") as out:
            out.write(str(row))


def shelf_of(folder: Path) -> Any:
    from fewtags.engine.feature_spec import PLAIN, FeatureSpec
    from fewtags.engine.feature_store import FeatureStore

    return FeatureStore(folder / "store").shelf(
        FeatureSpec(("made",), "made", 224, PLAIN, 1, "exact", "fp16"), pooled=True
    )


def made(first: int, last: int) -> Any:
    """[N, D, 1, 1] with directions of the tags in them."""
    import torch

    directions = torch.randn(TAGS, DIM, generator=torch.Generator().manual_seed(0))
    noise = torch.randn(last - first, DIM, generator=torch.Generator().manual_seed(1 + first))
    return (noise + 1.5 * torch.from_numpy(truth(first, last)).float() @ directions)[:, :, None, None]


def truth(first: int, last: int) -> np.ndarray:
    return np.random.default_rng((1, first)).random((last - first, TAGS)) < 0.08


def labels(number: int) -> np.ndarray:
    parts = [truth(first, min(first + CHUNK, number)) for first in range(0, number, CHUNK)]
    known = np.random.default_rng(2).random((number, TAGS)) < 0.1
    return (np.concatenate(parts) & known).astype(np.int8)


def fill(folder: Path, number: int) -> None:
    shelf = shelf_of(folder)
    keys = shelf.store.contents(files_of(folder, number))
    with shelf.writer() as writer:
        for first in range(0, number, CHUNK):
            last = min(first + CHUNK, number)
            writer.add(keys[first:last], made(first, last))
            writer.commit()


def outputs_of(folder: Path, number: int) -> Any:
    """As `engine.features` reads them: what is small is loaded and checked at once, the rest is mapped."""
    from fewtags.engine.features import IN_MEMORY, LoadedFeatures, read_rows
    from fewtags.engine.model_outputs import ModelOutputs

    shelf = shelf_of(folder)
    found = shelf.find(shelf.store.contents(files_of(folder, number)))
    assert (found >= 0).all()
    if len(found) * shelf.row_bytes <= IN_MEMORY:
        return ModelOutputs(LoadedFeatures(read_rows(shelf, found)[None], {}, "made"), number)

    class Mapped:
        num_views, broken, identity = 1, dict[int, str](), "made"

        def rows(self, view: int, index: Any) -> Any:
            return read_rows(shelf, found[index.numpy()]).float()

    return ModelOutputs(Mapped(), number)


def open_it(folder: Path, number: int) -> None:
    outputs = outputs_of(folder, number)
    for rows in outputs.chunks():
        outputs.features.rows(0, __import__("torch").from_numpy(rows))


def review(folder: Path, number: int) -> None:
    from fewtags.data.annotations import Annotations
    from fewtags.engine.judge import Judge
    from fewtags.engine.model_outputs import kept_bursts
    from fewtags.review.session import ReviewSession
    from fewtags.review.store import DecisionStore

    outputs, given = outputs_of(folder, number), labels(number)
    names = [f"{row:07d}.jpg" for row in range(number)]
    annotations = Annotations(folder, names, [f"tag {c}" for c in range(TAGS)], given, np.full(number, "train"))
    judge = Judge.of(outputs, given)
    features = outputs.unit_features(np.arange(number))
    leaders = kept_bursts(outputs, features, folder / "opened")
    session = ReviewSession(annotations, features, DecisionStore(None), judge=judge, leaders=leaders)
    assert len(session) == number


def add(folder: Path, number: int) -> None:
    files = files_of(folder, number + 100)
    for file in map(Path, files[number:]):
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"new {file}")
    shelf = shelf_of(folder)
    keys = shelf.store.contents(files)
    missing = shelf.find(keys) < 0
    assert missing.sum() == 100
    with shelf.writer() as writer:
        writer.add(keys[missing], made(number, number + 100))


def look_again(folder: Path, number: int) -> None:
    from fewtags.data.folder_scan import Snapshot, look

    snapshot = Snapshot.load(folder / "seen.npz")
    assert snapshot is not None
    assert look([folder / "photos"]) == snapshot[0]


WORK: dict[str, Callable[[Path, int], None]] = {
    "fill": fill, "open": open_it, "review": review, "again": review, "add 100": add, "look": look_again,
}  # fmt: skip


def measured(work: str, folder: Path, number: int, answers: Any) -> None:
    import torch

    torch.set_num_threads(1)
    import fewtags.engine.judge
    import fewtags.review.session  # noqa: F401

    wall, cpu = time.perf_counter(), time.process_time()
    WORK[work](folder, number)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    answers.put((time.perf_counter() - wall, time.process_time() - cpu, peak))


def half_precision(shared: Path, out: Path) -> None:
    """Tags that change if pooled features are kept in half precision: 600 training photos of VOC 2007 with 30 % of
    their tags known, 1,000 test photos."""
    import torch
    from bursts import PHOTOS, TESTS
    from bursts import features_of as unit_features_of

    from fewtags.data.formats import read_annotations
    from fewtags.data.partial_labels import hide_labels
    from fewtags.data.preprocess import InputConfig
    from fewtags.engine.features import FeatureMaker
    from fewtags.models.backbones import create_backbone
    from fewtags.presence.model import Presence
    from fewtags.presence.ridge import ImageSums
    from fewtags.train_settings import CacheConfig

    voc, random = read_annotations(str(shared / "data/VOCdevkit")), np.random.default_rng(0)
    parts = [voc.split(name) for name in ("train", "test")]
    train, test = (
        part.take(np.sort(random.permutation(len(part))[:n])) for part, n in zip(parts, (PHOTOS, TESTS), strict=True)
    )
    weights = shared / "weights/tf_efficientnet_lite0_fp16.safetensors"
    backbone = create_backbone("tf_efficientnet_lite0", pretrained=False, weights=weights).eval()
    backbone.freeze_before("head")
    known = torch.from_numpy(hide_labels(train.labels == 1, 0.3, 0))
    chances = {}
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        for dtype in ("fp32", "fp16"):
            config = CacheConfig(folder=folder, dtype=dtype)
            maker = FeatureMaker(backbone, InputConfig(augment=False), config, torch.device("cpu"))
            features, others = unit_features_of(train, maker), unit_features_of(test, maker)
            model = Presence(known.shape[1], features.shape[1])
            model.fit(ImageSums.of(features, known), features, known)
            chances[dtype] = model.log_odds(others).sigmoid()
    full, half = chances["fp32"], chances["fp16"]
    row = ((full > 0.5).sum(), ((full > 0.5) != (half > 0.5)).sum(), (full - half).abs().max(), full.numel())
    text = f"{int(row[3]):,} labels, {int(row[0]):,} tags above one half: {int(row[1])} change"
    text += f"; largest difference of a probability {float(row[2]):.5f}"
    print(text)
    (out / "half-precision.txt").write_text(text + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--shared", type=Path, help="instead: which tags change by half precision, on VOC 2007")
    parser.add_argument("--out", type=Path, default=Path("results/feature-store"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.shared is not None:
        half_precision(options.shared, options.out)
        return
    context = multiprocessing.get_context("spawn")
    with (options.out / "runs.csv").open("w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(COLUMNS)
        for number in options.images:
            folder = Path(tempfile.mkdtemp(prefix="fewtags-store-"))
            try:
                make_files(folder, number)
                for work in WORK:
                    if work == "look":
                        from fewtags.data.folder_scan import look

                        look([folder / "photos"]).save(folder / "seen.npz", {})
                    answers = context.Queue()
                    child = context.Process(target=measured, args=(work, folder, number, answers))
                    child.start()
                    child.join()
                    wall, cpu, peak = answers.get() if child.exitcode == 0 else (float("nan"),) * 3
                    disk = sum(file.stat().st_size for file in (folder / "store").glob("*/*.bin")) / 1e9
                    row = (work, number, f"{wall:.2f}", f"{cpu:.2f}", f"{peak:.2f}", f"{disk:.2f}")
                    print(*row, flush=True)
                    writer.writerow(row)
                    out.flush()
            finally:
                shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
