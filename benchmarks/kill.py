"""kill -9 at random moments, and what is left of the work.

    .venv/bin/python benchmarks/kill.py update 1000 [--seed 0] [--out results/reliability]

Kinds of work, each in processes of its own that are killed after a random part of the time it takes:

    train     a run of one method after the other, from drawn images: feature cache, start, epochs, checkpoints, model
    cache     the features of drawn images, noting progress after every image
    store     rows for the feature store, by one process or by two at a time
    update    `fewtags update` of a run whose archive has new photos and new tags, writing XMP sidecars
    review    decisions of people, one after the other
    bench     a bench of two runs, by its command
    torchrun  a run by two processes: one of them, the launcher, or all of them are killed

Killed work is started again, and killed again a few times, before it may end. What it leaves must then be what it
leaves when it is never killed, to the last bit: of a run its checkpoint (weights, optimiser, method state, sums), log
and predictions; of an update the files of the run and the sidecars; of a store every row that its index lists, and
every decision that was acknowledged. kills.csv has a row for each kill, written as they come; started again it goes on
behind the last.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from fewtags.config import RunConfig, load_config
from fewtags.data.annotations import Annotations
from fewtags.data.prepare import split_data
from fewtags.engine import features
from fewtags.engine.checkpoint import load_checkpoint
from fewtags.engine.feature_spec import PLAIN, FeatureSpec
from fewtags.engine.feature_store import DamagedChunks, FeatureStore, Shelf
from fewtags.engine.run_log import read_rows
from fewtags.engine.training import train
from fewtags.locks import LOCK
from fewtags.methods import METHODS
from fewtags.review.store import DecisionStore, Draft

COLUMNS = ("work", "number", "after_seconds", "left", "outcome")
MOST_KILLS = 3  # of one run
MOST_KILLS_OF_AN_UPDATE = 6
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
    """The rows of kills.csv of one kind of work."""

    def __init__(self, file: Path, work: str, seed: int):
        self.file, self.work = file, work
        rows = list(csv.DictReader(file.open())) if file.is_file() else []
        self.rows = [row for row in rows if row["work"].split()[0] == work]
        self.random = random.Random(f"{seed} {work} {len(self.rows)}")

    def add(self, seconds: float, left: str, outcome: str, *, of: str = "") -> None:
        work = f"{self.work} {of}".strip()
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
        kills.add(seconds, left, outcome, of=method)
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
        kills.add(seconds, left, outcome)
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
    kills.add(seconds, f"{len(acknowledged)} decisions", "as if never killed" if whole else "decisions lost")
    for place in root.glob("decisions.sqlite*"):
        place.unlink()
    told.unlink(missing_ok=True)


# --- the feature store ---

ROW = (3, 1, 1)
STORE_SPEC = FeatureSpec(("stem", "layer1"), "weights", 224, PLAIN, 1, "exact", "fp32")


def row_keys(writer: int, first: int, last: int) -> np.ndarray:
    numbers = np.arange(first, last, dtype=np.uint64)
    return np.stack([(numbers + np.uint64(writer << 32)) * np.uint64(0x9E3779B97F4A7C15), numbers], axis=1)


def stored_rows(writer: int, first: int, last: int) -> torch.Tensor:
    return (torch.arange(first, last, dtype=torch.float32) + 0.5 * writer)[:, None, None, None].expand(-1, *ROW)


def shelf_of(root: Path) -> Shelf:
    return FeatureStore(root / "store").shelf(STORE_SPEC, pooled=True)


def rows_there(root: Path, writer: int) -> int:
    """How many rows of a writer the index lists. They must be its first ones, and right."""
    shelf = shelf_of(root)
    places = shelf.find(row_keys(writer, 0, len(shelf) + 1))
    number = int((places >= 0).sum())
    found = shelf.read(places[:number]) if number and (places[:number] >= 0).all() else None
    if number and (found is None or not torch.equal(found, stored_rows(writer, 0, number))):
        raise ValueError(f"rows of writer {writer} are missing or wrong")
    return number


def write_rows(root: Path, writer: int, first: int) -> None:
    with shelf_of(root).writer() as out:
        for row in range(first, first + 10**6, 3):
            out.add(row_keys(writer, row, row + 3), stored_rows(writer, row, row + 3))
            out.commit()


def kill_store(root: Path, kills: Kills) -> None:
    """One store through many kills; what was listed stays, and the next process goes on behind it."""
    kept = [0, 0]
    for kill in range(50):
        writers = (0, 1) if kill % 4 == 0 else (kill % 2,)
        children = [Child(partial(write_rows, root, writer, kept[writer])) for writer in writers]
        seconds = kills.after(0.4)
        for child in children:
            child.ended_within(seconds)
        try:
            found = [rows_there(root, writer) for writer in (0, 1)]
            outcome = "as if never killed" if all(new >= old for new, old in zip(found, kept, strict=True)) else "fewer"
        except (ValueError, DamagedChunks) as error:
            found, outcome = kept, str(error)
        kept = found
        kills.add(seconds, f"{sum(kept)} rows, {len(writers)} writing", outcome)
    shutil.rmtree(root / "store")


# --- update ---


class Archive:
    """36 photos with a run of `instant`; then four photos more, and tags for two of them."""

    def __init__(self, data: Annotations, root: Path):
        self.photos, self.run, self.root = root / "archive/photos", root / "archive/run", root
        self.photos.mkdir(parents=True)
        for name in data.images[:36]:
            shutil.copy(data.root / name, self.photos)
        self.write_tags(data, 30)
        settings = [setting for setting in SETTINGS if not setting.startswith(("data.", "train."))]
        source = {"source": str(self.photos), "tags": str(self.photos / "tags.csv")}
        config = load_config(None, ["method=instant", f"cache.folder={root / 'archive/cache'}", *settings], data=source)
        train(config, self.run, quiet=True)
        for name in data.images[36:40]:
            shutil.copy(data.root / name, self.photos)
        self.write_tags(data, 38)
        shutil.copytree(root / "archive", root / "as-it-was")

    def write_tags(self, data: Annotations, number: int) -> None:
        lines = ["image,tags"]
        for image, row in list(zip(data.images, data.labels, strict=True))[:number]:
            names = [name for name, label in zip(data.categories, row, strict=True) if label == 1]
            lines.append(f"{image},{';'.join(names)}")
        (self.photos / "tags.csv").write_text("\n".join(lines) + "\n")

    def as_it_was(self) -> None:
        shutil.rmtree(self.root / "archive")
        shutil.copytree(self.root / "as-it-was", self.root / "archive")

    def update(self) -> Child:
        from fewtags.commands.update import Tagging, update

        tagging = Tagging(write="xmp", options={"marker": "auto"}, thresholds={"threshold": 0.0})
        return Child(lambda: update(self.run, [self.photos], tagging, quiet=True) and None)

    def content(self) -> dict[str, Any]:
        """Of every file of the run and every sidecar, but for times; and that an update finds nothing left to do."""
        from fewtags.commands.update import Tagging, update

        found: dict[str, Any] = {file.name: file.read_bytes() for file in self.photos.glob("*.xmp")}
        for name in ("model/model.safetensors", "labels.npz", "update/plan.json"):
            file = self.run / name
            found[name] = file.read_bytes() if file.is_file() else None
        files = [file for file in self.run.rglob("*") if file.is_file() and not file.name.startswith(LOCK)]
        found["files"] = sorted(str(file.relative_to(self.run)) for file in files)  # a lock that nobody holds may stay
        found["probabilities"] = [
            np.load(file)["probabilities"].tobytes() for file in self.run.glob("predictions*.npz")
        ]
        found["again"] = update(self.run, [self.photos], Tagging(), quiet=True).sentences
        return found


def kill_update(archive: Archive, expected: dict[str, Any], took: float, kills: Kills) -> None:
    killed = []
    archive.as_it_was()
    for _ in range(MOST_KILLS_OF_AN_UPDATE):
        seconds = kills.after(took)
        if archive.update().ended_within(seconds):
            break
        steps = [name for name in ("seen.npz", "old-model", "next/result.json", "next", "plan.json", "planned.npz")
                 if (archive.run / "update" / name).exists()]  # fmt: skip
        killed.append((seconds, steps[0] if steps else "nothing"))
    archive.update().ended_within(600)
    found = archive.content()
    different = sorted(name for name in {*expected, *found} if found.get(name) != expected.get(name))
    if "files" in different:
        different += sorted({*found["files"]} ^ {*expected["files"]})
    outcome = f"other {', '.join(different)}" if different else "as if never killed"
    for seconds, left in killed:
        kills.add(seconds, left, outcome)


# --- commands with processes of their own ---


def grid_of(data: Annotations, root: Path) -> Path:
    """A bench of two runs."""
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
    return root / "grid.yaml"


def started(*words: object) -> subprocess.Popen[bytes]:
    """A command in a session of its own, so that all of its processes can be killed at once."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-m", *map(str, words)], env=environment, start_new_session=True,
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip


def ended_within(process: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def kill_bench(root: Path, expected: dict[str, object], took: float, kills: Kills) -> None:
    """The bench alone is killed; its runs must notice. The next start comes at once, while they may still be there."""
    words, killed = ("fewtags", "bench", root / "grid.yaml", "--out", root / "bench", "-q"), []
    for _ in range(MOST_KILLS):
        seconds = kills.after(took)
        process = started(*words)
        if ended_within(process, seconds):
            break
        process.kill()
        process.wait()
        killed.append((seconds, f"{len(list((root / 'bench').rglob('result.json')))} runs"))
    code = started(*words).wait(600)
    found = bench_content(root / "bench")
    outcome = "as if never killed" if code == 0 and found == expected else f"exit code {code}, other results"
    for seconds, left in killed:
        kills.add(seconds, left, outcome)
    for name in ("bench", "cache"):
        shutil.rmtree(root / name, ignore_errors=True)


def bench_content(folder: Path) -> dict[str, object]:
    return {str(file.parent.relative_to(folder)): content(file.parent) for file in folder.rglob("result.json")}


def torchrun(data: Annotations, root: Path) -> tuple[object, ...]:
    run = root / "by-two"
    words = ("torch.distributed.run", "--standalone", "--nproc-per-node", 2, "-m", "fewtags", "train")
    if (run / "config.yaml").is_file():
        return (*words, "--resume", run, "-q")
    data.save(root / "data.jsonl")
    settings = [*SETTINGS, "model.backbone=test_convnext", "train.timeout=60", f"cache.folder={root / 'cache'}"]
    return (*words, root / "data.jsonl", "--method", "an", *settings, "--out", run, "-q")


def kill_torchrun(data: Annotations, root: Path, expected: dict[str, object], took: float, kills: Kills) -> None:
    run, killed = root / "by-two", []
    for _ in range(MOST_KILLS):
        seconds, whom = kills.after(took), kills.random.choice(("the launcher", "the first", "the second", "all"))
        process = started(*torchrun(data, root))
        if ended_within(process, seconds):
            break
        ranks = children_of(process.pid)
        if whom == "all":
            os.killpg(process.pid, signal.SIGKILL)
        chosen = {"the first": ranks[:1], "the second": ranks[1:2]}.get(whom) or [process.pid]
        for pid in chosen if whom != "all" else ranks:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait(120)  # of two, the other one must end by itself
        killed.append((seconds, f"{what_is_left(run)}; killed: {whom}"))
    tries = 0
    while (code := started(*torchrun(data, root)).wait(600)) and tries < 5:  # refused while the old ones still end
        tries += 1
        time.sleep(2)
    outcome = "as if never killed" if code == 0 and content(run) == expected else f"exit code {code}, other results"
    for seconds, left in killed:
        kills.add(seconds, left, outcome)
    for name in ("by-two", "cache"):
        shutil.rmtree(root / name, ignore_errors=True)


def children_of(parent: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, number = stat.read_text().rpartition(")")[2].split()[:2]
            found += [int(stat.parent.name)] if int(number) == parent and state != "Z" else []
    return sorted(found)


# --- all of it ---


def rounds(work: str, data: Annotations, root: Path, kills: Kills) -> Iterator[None]:
    """One round of kills after the other, after the same work was done without any."""
    if work == "train":
        expected: dict[str, tuple[dict[str, object], float]] = {}
        for method in itertools.cycle(METHODS):
            if method not in expected:
                expected[method] = unbroken(method, data, root)
            yield kill_runs(method, data, root, *expected[method], kills)
    elif work == "cache":
        _, took = timed(lambda: compute_cache(data, root / "cache").ended_within(600))
        whole = cache_bytes(root / "cache")
        shutil.rmtree(root / "cache")
        while True:
            yield kill_cache(data, root, whole, took, kills)
    elif work == "update":
        archive = Archive(data, root)
        _, took = timed(lambda: archive.update().ended_within(600))
        wanted = archive.content()
        while True:
            yield kill_update(archive, wanted, took, kills)
    elif work == "bench":
        words = ("fewtags", "bench", grid_of(data, root), "--out", root / "bench", "-q")
        _, took = timed(lambda: started(*words).wait(600))
        wanted = bench_content(root / "bench")
        for name in ("bench", "cache"):
            shutil.rmtree(root / name, ignore_errors=True)
        while True:
            yield kill_bench(root, wanted, took, kills)
    elif work == "torchrun":
        _, took = timed(lambda: started(*torchrun(data, root)).wait(600))
        wanted = content(root / "by-two")
        for name in ("by-two", "cache"):
            shutil.rmtree(root / name, ignore_errors=True)
        while True:
            yield kill_torchrun(data, root, wanted, took, kills)
    else:
        while True:
            yield {"review": kill_review, "store": kill_store}[work](root, kills)


def timed(work: Callable[[], object]) -> tuple[object, float]:
    start = time.monotonic()
    return work(), time.monotonic() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", choices=("train", "cache", "store", "update", "review", "bench", "torchrun"))
    parser.add_argument("kills", type=int, help="at least so many, together with those in kills.csv")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results/reliability"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    kills = Kills(options.out / "kills.csv", options.work, options.seed)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        os.environ["XDG_CACHE_HOME"] = str(root / "home")
        again = rounds(options.work, make_images(root / "images"), root, kills)
        while len(kills.rows) < options.kills:
            next(again)
    print(Counter(row["outcome"] for row in kills.rows))


if __name__ == "__main__":
    main()
