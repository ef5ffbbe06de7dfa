"""The feature store with many images: how long it takes to open a review, to add photos, to see that nothing changed.

    .venv/bin/python benchmarks/feature_store.py [--images 100000 1000000] [--out results/feature-store]

Features are made (1280 numbers per image, half precision, seed 0; 20 tags, one known in ten), files are real but hold
only their number, so nothing is decoded. One thread, with byte code, as an installed package has it. Each row of
runs.csv is a process of its own; from `train` on they are the commands as a user runs them, from the shell to the end,
or to the answer with the first ranked queue; then the processor seconds are those of the server:

    fill       write the features of all images into an empty store
    open       find and read the features of all images, checksums of all chunks included
    add 100    find that 100 of the images are new, and add theirs
    train      `fewtags train tags.csv --method instant`
    review     `fewtags review RUN`, the first time after that
    decided    the same, the first time after 300 decisions
    again      the same, opened once more
    refitted   the same, as if nothing had been kept: labels are read, the judge is fitted, bursts are found
    update     `fewtags update RUN photos/` with nothing to do
    torch      `import torch`, for comparison
"""

from __future__ import annotations

import argparse
import csv
import json
import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit
from urllib.request import Request, urlopen

import numpy as np

DIM, TAGS, CHUNK = 1280, 20, 8192
BACKBONE, DECISIONS = "tf_efficientnet_lite0", 300
os.environ["OMP_NUM_THREADS"] = "1"
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
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
    """The shelf that the run will look for its features in."""
    import timm
    import torch
    from safetensors.torch import save_file

    from fewtags.data.preprocess import InputConfig
    from fewtags.engine.feature_spec import FeatureSpec
    from fewtags.engine.feature_store import FeatureStore
    from fewtags.models.backbones import create_backbone

    weights = folder / "weights.safetensors"
    if not weights.is_file():
        torch.manual_seed(0)
        save_file(timm.create_model(BACKBONE, pretrained=False).state_dict(), weights)
    backbone = create_backbone(BACKBONE, pretrained=False, weights=weights).all_frozen()
    return FeatureStore(folder / "store").shelf(FeatureSpec.of(backbone, InputConfig(augment=False)), pooled=True)


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


def open_it(folder: Path, number: int) -> None:
    shelf = shelf_of(folder)
    found = shelf.find(shelf.store.contents(files_of(folder, number)))
    for first in range(0, number, CHUNK):
        shelf.read(found[first : first + CHUNK])


def make_tags(folder: Path, number: int) -> None:
    with (folder / "tags.csv").open("w") as out:
        print("image,tags", file=out)
        for file, row in zip(files_of(folder, number), labels(number), strict=True):
            print(f"{file},{';'.join(f'tag {c}' for c in np.flatnonzero(row))}", file=out)


def train(folder: Path, number: int) -> None:
    fewtags(
        folder, "train", folder / "tags.csv", "--method", "instant", "--out", folder / "run", "-q", "--allow-outside",
        f"model.backbone={BACKBONE}", f"model.weights={folder / 'weights.safetensors'}",
        f"cache.folder={folder / 'store'}",
    )  # fmt: skip


def forget(folder: Path, number: int) -> None:
    shutil.rmtree(folder / "run" / "outputs")


def fewtags(folder: Path, *words: object) -> None:
    subprocess.run([sys.executable, "-m", "fewtags", *map(str, words)], check=True, cwd=folder, stdout=subprocess.PIPE)


def review(folder: Path, number: int) -> tuple[float, float, float]:
    return opened(folder / "run")


def opened(run: Path) -> tuple[float, float, float]:
    """Seconds, processor seconds and GB until the first queue is there."""
    words = [sys.executable, "-m", "fewtags", "review", str(run), "--no-browser", "--quiet"]
    began = time.perf_counter()
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        link = urlsplit(server.stdout.readline().strip())
        (token,) = parse_qs(link.query)["token"]
        headers = {"x-fewtags-token": token, "cookie": f"fewtags-review-{link.port}={token}"}

        def ask(path: str) -> Any:
            with urlopen(Request(f"http://{link.netloc}/api/{path}", headers=headers)) as answer:
                return json.load(answer)

        ask(f"queues?{urlencode({'tag': ask('session')['tags'][0]['name']})}")
        taken = time.perf_counter() - began, *used_by(server.pid)
        server.send_signal(signal.SIGINT)
    return taken


def used_by(process: int) -> tuple[float, float]:
    """Processor seconds, and GB at most; on Linux."""
    ticks = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
    status = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK"), int(status["VmHWM"].split()[0]) / 1e6


def compile_page(folder: Path, number: int) -> None:
    """Open a copy of the run, which leaves byte code and nothing else."""
    shutil.copytree(folder / "run", folder / "copy")
    opened(folder / "copy")
    shutil.rmtree(folder / "copy")


def decide(folder: Path, number: int) -> None:
    from fewtags.review.store import DecisionStore, Draft, decisions_file

    given, files, random = labels(number), files_of(folder, number), np.random.default_rng(3)
    drafts = []
    for tag in range(TAGS):
        unknown = random.permutation(np.flatnonzero(given[:, tag] == 0))[: DECISIONS // TAGS]
        names = [os.path.relpath(files[row], folder) for row in unknown]  # as the run has them
        drafts += [Draft(name, f"tag {tag}", 0, 1 if place % 2 else -1) for place, name in enumerate(names)]
    with DecisionStore(decisions_file(folder / "run")) as store:
        store.append(drafts, reviewer="made", queue="missing", run="run")


def update(folder: Path, number: int) -> None:
    fewtags(folder, "update", folder / "run", folder / "photos", "-q")


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


def import_torch(folder: Path, number: int) -> None:
    subprocess.run([sys.executable, "-c", "import torch"], check=True)


WORK: dict[str, Callable[[Path, int], Any]] = {
    "fill": fill, "open": open_it, "add 100": add, "train": train, "review": review, "decided": review,
    "again": review, "refitted": review, "update": update, "torch": import_torch,
}  # fmt: skip
BEFORE: dict[str, Callable[[Path, int], None]] = {
    "fill": make_files, "train": make_tags, "review": compile_page, "decided": decide, "refitted": forget,
    "update": update,
}  # fmt: skip


def used() -> float:
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def measured(work: str, folder: Path, number: int, answers: Any) -> None:
    if work in ("fill", "open", "add 100"):
        shelf_of(folder)  # imports what these need; a command's start is part of its own time
    wall, cpu = time.perf_counter(), used()
    told = WORK[work](folder, number)
    who = resource.RUSAGE_CHILDREN if WORK[work] in (train, update, import_torch) else resource.RUSAGE_SELF
    peak = resource.getrusage(who).ru_maxrss / 1e6
    answers.put(told or (time.perf_counter() - wall, used() - cpu, peak))


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
    from fewtags.presence.fitting import fit_presence
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
            fit_presence(model, ImageSums.of(features, known), features, known)
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
            os.environ["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
            try:
                for work in WORK:
                    BEFORE.get(work, lambda *_: None)(folder, number)
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
