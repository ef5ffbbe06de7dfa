"""How start-up, memory and time grow with images and tags.

    .venv/bin/python benchmarks/growth.py [--out results/growth]

For N images and C tags, each in a process of its own (one thread, D = 512 features of an image, five known tags an
image, seed 0), in seconds of CPU time, which other work on the machine changes little:

    start-up   from a tags.csv of N rows to what a run trains on, and a look at every image file's size and time
    instant    one fit of the closed form, features given
    epoch      one epoch of the linear head (method an, batches of 32), features given
    refined    the start of `refined` with windows (maps of 5 x 5 given), what its training does not change, one epoch

Peak memory is that of the whole process, less what it has with nothing but its imports. growth.csv has a row for each,
written as they come; started again it goes on behind the last.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import resource
import tempfile
import time
from itertools import product
from pathlib import Path

IMAGES = (1_000, 10_000, 100_000)
CATEGORIES = (20, 80, 1_000, 10_000)
DIM = 512
KNOWN = 5  # tags of an image
COLUMNS = ("work", "images", "categories", "cpu_seconds", "peak_gb", "outcome")
MEMORY = 9e9  # bytes that one case may take


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def tags_of(number: int, num_categories: int) -> list[int]:
    """Of image `number`; every tag is used, the first ones more often."""
    return sorted({(number * 7919 + step * step * 104_729) % num_categories for step in range(KNOWN)})


def start_up(num_images: int, num_categories: int) -> tuple[float, float]:
    from PIL import Image

    from fewtags.data.prepare import DataConfig, prepare_data
    from fewtags.engine.feature_store import stamps_of

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for number in range(num_images):
            if number % 1000 == 0:  # a file system lets one file have so many names
                Image.new("RGB", (8, 8)).save(root / f"{number:06d}.png")
            else:
                os.link(root / f"{number - number % 1000:06d}.png", root / f"{number:06d}.png")
        tags = (";".join(f"tag {c}" for c in tags_of(number, num_categories)) for number in range(num_images))
        rows = (f"{number:06d}.png,{each}" for number, each in enumerate(tags))
        (root / "tags.csv").write_text("image,tags\n" + "\n".join(rows) + "\n")
        before, started = peak(), time.process_time()
        data = prepare_data(DataConfig(source=str(root), tags=str(root / "tags.csv")))
        stamps_of([str(data.train.path(row)) for row in range(len(data.train))])
        return time.process_time() - started, peak() - before


def made(num_images: int, num_categories: int):
    """Features [N, D] and labels [N, C] int8."""
    import numpy as np
    import torch

    torch.manual_seed(0)
    labels = np.zeros((num_images, num_categories), dtype=np.int8)
    for number in range(num_images):
        labels[number, tags_of(number, num_categories)] = 1
    directions = torch.randn(num_categories, DIM)
    features = torch.randn(num_images, DIM)
    for number in range(num_images):
        features[number] += directions[tags_of(number, num_categories)].sum(0)
    return features, torch.from_numpy(labels)


def instant(num_images: int, num_categories: int) -> tuple[float, float]:
    import torch

    from fewtags.contract import Batch
    from fewtags.models.heads import head_class

    features, labels = made(num_images, num_categories)
    kind = head_class("closed_form")
    head = kind(kind.Config(), DIM, num_categories, None)
    before, started = peak(), time.process_time()
    batches = (Batch(features[rows, :, None, None], labels[rows], rows) for rows in torch.arange(num_images).split(256))
    with torch.no_grad():
        head.start(batches, num_images)
    return time.process_time() - started, peak() - before


def epoch(num_images: int, num_categories: int) -> tuple[float, float]:
    import torch

    from fewtags.contract import Batch, Problem, Progress
    from fewtags.methods import objective_class
    from fewtags.models.heads import head_class
    from fewtags.models.optimizers import without_compiler

    features, labels = made(num_images, num_categories)
    kind, method = head_class("linear"), objective_class("an", "default")
    problem = Problem(tuple(f"tag {c}" for c in range(num_categories)), labels)
    head = kind(kind.Config(), DIM, num_categories, None)
    objective = method(method.Config(), problem, None)
    optimizer = without_compiler(torch.optim.AdamW)(head.parameters(), lr=1e-3)
    before, started = peak(), time.process_time()
    for step, rows in enumerate(torch.randperm(num_images).split(32)):
        batch = Batch(features[rows, :, None, None], labels[rows], rows)
        result = objective.loss(batch, head(batch.images), Progress(0, 1, step, num_images // 32))
        optimizer.zero_grad()
        result.total.backward()
        optimizer.step()
    return time.process_time() - started, peak() - before


def refined(num_images: int, num_categories: int) -> tuple[float, float]:
    import torch

    from fewtags.contract import Batch, Problem, Progress
    from fewtags.engine.settled import SettledRows
    from fewtags.methods import objective_class
    from fewtags.models.heads import head_class
    from fewtags.models.optimizers import without_compiler

    features, labels = made(num_images, num_categories)
    where = torch.rand(5, 5) + 0.5  # how much of an image is at each location

    class Maps:
        def __iter__(self):
            for rows in torch.arange(num_images).split(128):
                yield Batch(features[rows, :, None, None] * where, labels[rows], rows)

    kind, method = head_class("closed_form"), objective_class("refined")
    head = kind(kind.Config(refine=True, windows=True, residual=True), DIM, num_categories, None)
    problem = Problem(tuple(f"tag {c}" for c in range(num_categories)), labels)
    objective = method(method.Config(), problem, None)
    before, started = peak(), time.process_time()
    kept = SettledRows(1, num_images, {})
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        objective.start(head.start(Maps(), num_images))
        for batch in Maps():
            assert kept.write(head.settled(batch.images), Path(folder)), "the disk has no room"
    optimizer = without_compiler(torch.optim.AdamW)(head.parameters(), lr=1e-3)
    for step, rows in enumerate(torch.randperm(num_images).split(128)):
        outputs = head.from_settled(kept.rows(0, rows))
        result = objective.loss(Batch(rows, labels[rows], rows), outputs, Progress(0, 1, step, num_images // 128 + 1))
        optimizer.zero_grad()
        (result.total + outputs.prior).backward()
        optimizer.step()
    return time.process_time() - started, peak() - before


WORK = {"start-up": start_up, "instant": instant, "epoch": epoch, "refined": refined}


def measured(work: str, num_images: int, num_categories: int) -> tuple[object, ...]:
    """In a forked process, so that no case sees another's memory; torch is imported once."""
    inlet, outlet = os.pipe()
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_AS, (int(MEMORY + 6e9), int(MEMORY + 6e9)))
        try:
            seconds, memory = WORK[work](num_images, num_categories)
            answer = (f"{seconds:.2f}", f"{memory:.2f}", "done")
        except BaseException as error:
            answer = ("", "", f"{type(error).__name__}: {error}".splitlines()[0][:100])
        os.write(outlet, json.dumps(answer).encode())
        os._exit(0)
    os.close(outlet)
    with os.fdopen(inlet) as answer_of_child:
        said = answer_of_child.read()
    os.waitpid(child, 0)
    return tuple(json.loads(said)) if said else ("", "", "killed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/growth"))
    parser.add_argument("--work", nargs="+", choices=sorted(WORK), default=list(WORK))
    parser.add_argument("--images", type=int, nargs="+", default=IMAGES)
    parser.add_argument("--categories", type=int, nargs="+", default=CATEGORIES)
    options = parser.parse_args()
    import torch

    import fewtags.engine.training  # noqa: F401

    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "growth.csv"
    before = list(csv.DictReader(file.open())) if file.is_file() else []
    done = {(row["work"], int(row["images"]), int(row["categories"])) for row in before}
    with file.open("a", newline="") as out:
        writer = csv.DictWriter(out, COLUMNS)
        if not before:
            writer.writeheader()
        for work, images, categories in product(options.work, options.images, options.categories):
            if (work, images, categories) not in done:
                row = (work, images, categories, *measured(work, images, categories))
                writer.writerow(dict(zip(COLUMNS, row, strict=True)))
                out.flush()
                print(*row, flush=True)


if __name__ == "__main__":
    main()
