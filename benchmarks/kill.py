"""kill -9 at random moments, and what is left of the work.

    .venv/bin/python benchmarks/kill.py [--kills 200] [--seed 0] [--out results/reliability]

Four kinds of work, each in a process of its own that is killed after a random part of the time it takes:

    train    a run of one method after the other, from drawn images: feature cache, start, epochs, checkpoints, model
    cache    the feature cache alone, noting its progress after every image
    review   decisions of people, one after the other
    bench    a bench of two runs, by its command

A killed run is resumed, and killed again up to three times, before it may end. Its checkpoint (weights, optimiser,
method state, sums), log and predictions must then be those of a run that was never killed, to the last bit; a cache
must have the bytes of one that was never killed; a store every decision that was acknowledged. kills.csv has a row for
each kill, written as they come; started again it goes on behind the last.
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from fewtags.config import RunConfig, load_config
from fewtags.data.annotations import Annotations
from fewtags.data.prepare import split_data
from fewtags.engine import features
from fewtags.engine.checkpoint import load_checkpoint
from fewtags.engine.feature_store import FeatureStore
from fewtags.engine.run_log import read_rows
from fewtags.engine.training import train
from fewtags.methods import METHODS
from fewtags.review.store import DecisionStore, Draft

COLUMNS = ("work", "number", "after_seconds", "left", "outcome")
MOST_KILLS = 3  # of one run
SETTINGS = (
    "model.backbone=test_resnet", "model.pretrained=false", "input.size=32", "train.epochs=3", "train.batch_size=12",
    "train.workers=0", "words.dim=8", "data.known=0.6", "cache.runtime=torch",
)  # fmt: skip


def make_images(folder: Path) -> Annotations:
    """48 images of noise with coloured patches."""
    rng = np.random.default_rng(0)
    colours = {"red": (220, 40, 40), "green": (40, 180, 60), "blue": (50, 70, 220)}
    folder.mkdir(parents=True)
    names, tags = [f"{number:02d}.png" for number in range(48)], []
    for name in names:
        pixels = rng.integers(90, 160, (40, 40, 3), dtype=np.uint8)
        tags.append([colour for colour in colours if rng.random() < 0.5])
        for colour in tags[-1]:
            left, top = rng.integers(0, 26, 2)
            pixels[top : top + 12, left : left + 12] = colours[colour]
        Image.fromarray(pixels).save(folder / name)
    splits = ["train"] * 36 + ["test"] * 12
    return Annotations.from_tags(names, tags, root=folder, categories=list(colours), splits=splits, complete=True)


class Child:
    """A forked process: torch is imported once, so that a kill takes a second and not ten."""

    def __init__(self, work: Callable[[], None]):
        self.pid = os.fork()
        if self.pid == 0:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            code = 1
            try:
                work()
                code = 0
            finally:
                os._exit(code)

    def ended_within(self, seconds: float) -> bool:
        """Did it end by itself? Otherwise it is killed."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                if status:
                    raise RuntimeError(f"it failed by itself with status {status}")
                return True
            time.sleep(0.002)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        return False


class Kills:
    """The rows of kills.csv."""

    def __init__(self, file: Path, seed: int):
        self.file = file
        self.rows = list(csv.DictReader(file.open())) if file.is_file() else []
        self.random = random.Random(f"{seed} {len(self.rows)}")

    def add(self, work: str, seconds: float, left: str, outcome: str) -> None:
        row = dict(zip(COLUMNS, (work, len(self.rows) + 1, f"{seconds:.3f}", left, outcome), strict=True))
        self.rows.append(row)
        new = not self.file.is_file()
        with self.file.open("a", newline="") as out:
            writer = csv.DictWriter(out, COLUMNS)
            if new:
                writer.writeheader()
            writer.writerow(row)
        print(*row.values(), flush=True)

    def after(self, seconds: float) -> float:
        return self.random.uniform(0.0, seconds)


# --- runs ---


def config_of(method: str, cache: Path) -> RunConfig:
    return load_config(None, [f"method={method}", *SETTINGS, f"cache.folder={cache}"])


def start(method: str, data: Annotations, root: Path, name: str) -> Child:
    config = config_of(method, root / f"cache-{name}")
    folder = root / name

    def work() -> None:
        resume = (folder / "config.yaml").is_file()
        train(config, folder, data=split_data(data, config.data, config.seed), resume=resume, quiet=True)

    return Child(work)


def what_is_left(run: Path) -> str:
    parts = {
        "result": run / "result.json",
        "model": run / "model/config.json",
        "checkpoint": run / "checkpoints/last.pt",
    }
    return next((name for name, file in parts.items() if file.is_file()), "settings" if run.exists() else "nothing")


def content(run: Path) -> dict[str, object]:
    """Everything that a run ends with, but for times."""
    found: dict[str, object] = {}
    if (run / "checkpoints/last.pt").is_file():
        checkpoint = load_checkpoint(run / "checkpoints/last.pt")
        checkpoint.pop("seconds")
        config = checkpoint.pop("config")
        config.pop("cache")
        found["checkpoint"] = [config, *flattened(checkpoint)]
    rows = read_rows(run / "metrics.jsonl")
    found["log"] = [{name: value for name, value in row.items() if name != "seconds"} for row in rows]
    with np.load(run / "predictions-test.npz") as arrays:
        found["predictions"] = arrays["probabilities"].tobytes()
    found["weights"] = (run / "model/model.safetensors").read_bytes()
    return found


def flattened(value: object) -> list[object]:
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), tuple(value.shape), value.contiguous().view(-1).view(torch.uint8).numpy().tobytes()]
    if isinstance(value, dict):
        return [part for key in value for part in (key, *flattened(value[key]))]
    if isinstance(value, list | tuple):
        return [part for one in value for part in flattened(one)]
    return [value]


def kill_runs(
    method: str, data: Annotations, root: Path, expected: dict[str, object], took: float, kills: Kills
) -> None:
    """One run, killed up to MOST_KILLS times and then compared."""
    run, killed = root / "killed", []
    for _ in range(MOST_KILLS):
        seconds = kills.after(1.1 * took)
        if start(method, data, root, "killed").ended_within(seconds):
            break
        killed.append((seconds, what_is_left(run)))
    if not start(method, data, root, "killed").ended_within(600):
        outcome = "hangs"
    else:
        found = content(run)
        different = [name for name in expected if found.get(name) != expected[name]]
        outcome = f"other {', '.join(different)}" if different else "as if never killed"
    for seconds, left in killed:
        kills.add(f"train {method}", seconds, left, outcome)
    for name in ("killed", "cache-killed"):
        shutil.rmtree(root / name, ignore_errors=True)


def unbroken(method: str, data: Annotations, root: Path) -> tuple[dict[str, object], float]:
    started = time.monotonic()
    assert start(method, data, root, "whole").ended_within(600)
    took = time.monotonic() - started
    found = content(root / "whole")
    for name in ("whole", "cache-whole"):
        shutil.rmtree(root / name, ignore_errors=True)
    return found, took


# --- caches and decisions ---


def kill_cache(data: Annotations, root: Path, expected: bytes, took: float, kills: Kills) -> None:
    folder, killed = root / "cache", []
    for _ in range(MOST_KILLS):
        seconds = kills.after(took)
        if compute_cache(data, folder).ended_within(seconds):
            break
        rows = max((shelf.rows for shelf in FeatureStore(folder).shelves()), default=0)
        killed.append((seconds, f"{rows} rows"))
    assert compute_cache(data, folder).ended_within(600)
    outcome = "as if never killed" if cache_bytes(folder) == expected else "other bytes"
    for seconds, left in killed:
        kills.add("cache", seconds, left, outcome)
    shutil.rmtree(folder)


def compute_cache(data: Annotations, folder: Path) -> Child:
    config = config_of("an", folder)

    def work() -> None:
        features.SAVE_EVERY = 1
        part = split_data(data, config.data, config.seed).train
        from fewtags.engine.run import build_learner
        from fewtags.models.build import make_problem

        torch.manual_seed(0)
        problem = make_problem(config.head_name, config.words, part.categories, part.labels, 0)
        backbone = build_learner(config, problem).model.backbone
        maker = features.FeatureMaker(backbone, config.input, config.cache, torch.device("cpu"), seed=0, workers=0)
        features.cached_batches(part, maker, shuffle=True, batch_size=8)

    return Child(work)


def cache_bytes(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(folder.glob("*/*.bin")))


def kill_review(root: Path, kills: Kills) -> None:
    """Every decision that was acknowledged is there afterwards, once."""
    file, told = root / "decisions.sqlite", root / "told.txt"

    def decide() -> None:
        with DecisionStore(file) as store, told.open("a") as out:
            for number in range(10_000):
                store.append([Draft(f"{number}.jpg", "dog", 0, 1)], reviewer="ann", queue="missing", run="r")
                out.write(f"{number}\n")
                out.flush()

    seconds = kills.after(0.3)
    Child(decide).ended_within(0.05 + seconds)
    acknowledged = told.read_text().split() if told.is_file() else []
    with DecisionStore(file) as store:
        kept = [decision.image.removesuffix(".jpg") for decision in store]
    whole = kept[: len(acknowledged)] == acknowledged and len(kept) - len(acknowledged) <= 1
    kills.add("review", seconds, f"{len(acknowledged)} decisions", "as if never killed" if whole else "decisions lost")
    for place in root.glob("decisions.sqlite*"):
        place.unlink()
    told.unlink(missing_ok=True)


def kill_bench(data: Annotations, root: Path, kills: Kills) -> None:
    """By its command, as its runs are processes of their own; the second start must finish every run."""
    import yaml

    data.save(root / "data.jsonl")
    groups: dict[str, dict[str, object]] = {}
    for setting in (*SETTINGS, f"cache.folder={root / 'cache'}"):
        name, value = setting.split("=")
        group, name = name.split(".")
        if (group, name) != ("data", "known"):
            groups.setdefault(group, {})[name] = yaml.safe_load(value)
    grid = {
        "settings": groups, "datasets": {"patches": {"data": {"source": str(root / "data.jsonl")}}},
        "methods": {"an": None, "instant": None}, "parts": [{"proportions": [0.5]}],
    }  # fmt: skip
    (root / "grid.yaml").write_text(yaml.safe_dump(grid))
    command = [sys.executable, "-m", "fewtags", "bench", str(root / "grid.yaml"), "--out", str(root / "bench"), "-q"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    seconds = kills.after(30)
    time.sleep(seconds)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    left = f"{len(list((root / 'bench').rglob('result.json')))} runs"
    code = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode
    finished = len(list((root / "bench").rglob("result.json")))
    kills.add("bench", seconds, left, "as if never killed" if (code, finished) == (0, 2) else f"exit code {code}")
    for name in ("bench", "cache"):
        shutil.rmtree(root / name, ignore_errors=True)


# --- all of it ---


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--benches", type=int, default=5, help="of these, kills of a bench, which are slow")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results/reliability"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    kills = Kills(options.out / "kills.csv", options.seed)
    methods = list(METHODS)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        os.environ["XDG_CACHE_HOME"] = str(root / "home")
        data = make_images(root / "images")
        started = time.monotonic()
        assert compute_cache(data, root / "cache").ended_within(600)
        took, cache = time.monotonic() - started, cache_bytes(root / "cache")
        shutil.rmtree(root / "cache")
        expected: dict[str, tuple[dict[str, object], float]] = {}
        number = len(kills.rows)
        while len(kills.rows) < options.kills:
            number += 1
            benches = sum(row["work"] == "bench" for row in kills.rows)
            if number % 8 == 0:
                kill_review(root, kills)
            elif number % 8 == 4:
                kill_cache(data, root, cache, took, kills)
            elif number % 20 == 3 and benches < options.benches:
                kill_bench(data, root, kills)
            else:
                method = methods[number % len(methods)]
                if method not in expected:
                    expected[method] = unbroken(method, data, root)
                kill_runs(method, data, root, *expected[method], kills)
    print(Counter((row["work"].split()[0], row["outcome"]) for row in kills.rows))


if __name__ == "__main__":
    main()
