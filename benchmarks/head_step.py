"""How fast and how small is a training step of CALDNR's head and objective, against the equations as they are written?

    python benchmarks/head_step.py            C = 20, 80, 200, 1000; writes results/head-step/
    python benchmarks/head_step.py --quick    C = 20, under 50 seconds

Both sides get the same parameters, feature map, labels, queue and random numbers, and must give the same losses and
gradients. A step is forward, objective and backward at B = 32, 7x7 locations, D = 1024, d = 512, K = 100 on the CPU.
The two take turns, and the speed-up is the ratio of their medians. Time is the processor's, of one thread, so that a
busy machine disturbs it little. Memory is the peak of a process of its own that takes one step, less what it held after
its imports.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import resource
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from fewtags.contract import Batch, Problem, Progress, StepResult, WordVectors
from fewtags.methods.base import Learner
from fewtags.methods.category_adaptive import CategoryAdaptive, reject_probability
from fewtags.models.decoupling import DecoupledHead

BATCH, SIDE, CHANNELS, WIDTH, QUEUE, WORD_DIM = 32, 7, 1024, 512, 100, 300
PROGRESS = Progress(epoch=10, num_epochs=20, step=50, steps_per_epoch=100)
REFERENCE_MEGABYTES = 60  # that the reference takes per category, about; it is left out where this is not free
RESULTS = Path(__file__).resolve().parent.parent / "results" / "head-step"


@dataclass
class Case:
    """One problem, and the two ways to take a step on it."""

    learner: Learner
    batch: Batch
    queue: list[Tensor]  # the reference's: per category [K, D], newest first

    def step(self) -> StepResult:
        torch.manual_seed(0)
        return self.learner(self.batch, PROGRESS)

    def reference_step(self) -> StepResult:
        torch.manual_seed(0)
        return reference_step(self.learner.model, self.learner.objective, self.queue, self.batch)

    def tensors(self) -> list[Tensor]:
        return [self.batch.images, *self.learner.parameters()]


def build(num_categories: int) -> Case:
    torch.manual_seed(0)
    labels = (torch.rand(BATCH, num_categories) < min(0.1, 3 / num_categories)).to(torch.int8)
    words = WordVectors(0.4 * torch.randn(num_categories, WORD_DIM), "random")
    problem = Problem(tuple(map(str, range(num_categories))), labels, words)
    head = DecoupledHead(DecoupledHead.Config(width=WIDTH), CHANNELS, problem.num_categories, problem.words)
    objective = CategoryAdaptive(
        CategoryAdaptive.Config(queue_size=QUEUE, theta_start=0.03, theta_floor=0.03, theta_step=0), problem, CHANNELS
    )
    feature_map = torch.randn(BATCH, CHANNELS, SIDE, SIDE, requires_grad=True)
    queue = [F.normalize(torch.randn(QUEUE, CHANNELS) + 0.1, dim=-1) for _ in range(num_categories)]
    for c, entries in enumerate(queue):
        objective.queue.features[c] = entries.flip(0)  # oldest first: the next one to be replaced
        objective.queue.total[c] = entries.sum(0)
    objective.queue.seen.fill_(QUEUE)
    return Case(Learner(head, objective), Batch(feature_map, labels, torch.arange(BATCH)), queue)


# --- the equations, literally ---


def reference_step(head: DecoupledHead, objective: CategoryAdaptive, queue: list[Tensor], batch: Batch) -> StepResult:
    config, known, unknown = objective.config, batch.labels == 1, batch.labels == 0
    features = reference_features(head, batch.images)
    hidden = torch.tanh(head.hidden(features))
    logits = (hidden * head.weight).sum(-1) + head.bias

    for c in range(len(queue)):
        queue[c] = torch.cat([features[known[:, c], c].detach().flip(0), queue[c]])[:QUEUE]
    similarity = reference_similarity(features.detach(), torch.stack(queue))
    s_pos = torch.stack([reference_mean(similarity[known[:, c], c]) for c in range(len(queue))])
    s_neg = torch.stack([reference_mean(similarity[~known[:, c], c]) for c in range(len(queue))])
    fraction = PROGRESS.epoch_fraction
    theta_pos = (fraction * s_pos).clamp(min=objective.theta(PROGRESS))
    theta_neg = (theta_pos + fraction * s_neg) / 2

    found = unknown & (similarity >= theta_pos)
    chance = reject_probability(similarity, theta_pos, theta_neg)
    kept = ~(unknown & (chance > torch.rand_like(chance)))
    observed = F.binary_cross_entropy_with_logits(logits, known.float(), reduction="none")
    discovered = F.binary_cross_entropy_with_logits(logits, (known | found).float())
    losses = {
        "observed": observed.mean(),
        "discovered": discovered,
        "kept": observed[kept].mean(),
        "cross_image": config.csl_weight * reference_cross_image(features, known),
    }
    return StepResult(losses, {"found": found.sum(), "rejected": (~kept).sum()})


def reference_features(head: DecoupledHead, feature_map: Tensor) -> Tensor:
    """Eq. 3: repeat both sides to [B*L, C, d], two linear layers on the product, repeat again to pool."""
    decoupling = head.decoupling
    locations = feature_map.flatten(2).transpose(1, 2)  # [B, L, D]
    batch, num_locations, _ = locations.shape
    num_categories = len(decoupling.words)
    mapped = decoupling.project_map(locations).flatten(0, 1)[:, None].repeat(1, num_categories, 1)
    words = decoupling.project_words(decoupling.words)[None].repeat(batch * num_locations, 1, 1)
    scores = decoupling.score(decoupling.mix(torch.tanh(mapped * words)))
    attention = scores.view(batch, num_locations, num_categories, 1).softmax(1)
    return (attention * locations[:, :, None].repeat(1, 1, num_categories, 1)).sum(1)


def reference_similarity(features: Tensor, queue: Tensor) -> Tensor:
    """Eq. 6: the cosine of every feature with every entry of its category's queue, and their mean."""
    return F.cosine_similarity(features[:, :, None], queue[None], dim=-1).mean(-1)


def reference_mean(values: Tensor) -> Tensor:
    return values.mean() if len(values) else values.new_zeros(())


def reference_cross_image(features: Tensor, known: Tensor) -> Tensor:
    """L_csl: gather both images of every pair."""
    first, second = torch.triu_indices(len(features), len(features), offset=1)
    cosine = F.cosine_similarity(features[first], features[second], dim=-1)
    return torch.where(known[first] & known[second], 1 - cosine, 1 + cosine).mean()


# --- measuring ---


def check_equal(case: Case) -> None:
    """Both sides give the same losses and gradients, to single precision. (Tests compare them in double.)"""
    results, gradients = [], []
    for step in (case.step, case.reference_step):
        case.learner.objective.means.start_epoch()
        case.learner.objective.means.previous.zero_()
        results.append(step())
        gradients.append(torch.autograd.grad(results[-1].total, case.tensors()))
    for name, loss in results[1].losses.items():
        torch.testing.assert_close(results[0].losses[name], loss, rtol=1e-4, atol=1e-6)
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3 * float(theirs.abs().max()) + 1e-9)


def take(step: Callable[[], StepResult], tensors: list[Tensor]) -> float:
    start = time.process_time()
    step().total.backward()
    seconds = time.process_time() - start
    for tensor in tensors:
        tensor.grad = None
    return seconds


def measure_time(case: Case, rounds: int, with_reference: bool) -> dict[str, float]:
    steps = {"seconds": case.step} | ({"reference_seconds": case.reference_step} if with_reference else {})
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            taken[name].append(take(step, case.tensors()))
    return {name: statistics.median(values) for name, values in taken.items()}


def peak_megabytes() -> float:
    """Of this process. Linux lets a child inherit its parent's ru_maxrss, so the kernel's own record is read there."""
    status = Path("/proc/self/status")
    if status.exists():
        return int(re.search(r"VmHWM:\s+(\d+) kB", status.read_text())[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # bytes on macOS


def measure_memory_here(num_categories: int, kind: str) -> float:
    before = peak_megabytes()
    case = build(num_categories)
    take(case.step if kind == "fast" else case.reference_step, case.tensors())
    return peak_megabytes() - before


def measure_memory(num_categories: int, kind: str) -> float:
    command = [sys.executable, __file__, "--memory-of", kind, "--categories", str(num_categories)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def reference_fits(num_categories: int) -> bool:
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        return num_categories <= 80
    free = int(re.search(r"MemAvailable:\s+(\d+) kB", meminfo.read_text())[1]) / 1024
    return 1.3 * REFERENCE_MEGABYTES * num_categories < free


def measure(num_categories: int, rounds: int) -> dict[str, float]:
    with_reference = reference_fits(num_categories)
    row: dict[str, float] = {"categories": num_categories, "megabytes": measure_memory(num_categories, "fast")}
    if with_reference:
        row["reference_megabytes"] = measure_memory(num_categories, "reference")
        row["memory_ratio"] = row["megabytes"] / row["reference_megabytes"]
    case = build(num_categories)
    if with_reference:
        check_equal(case)  # and warm up
    row |= measure_time(case, rounds, with_reference)
    if with_reference:
        row["speedup"] = row["reference_seconds"] / row["seconds"]
    return row


# --- reporting ---


def as_markdown(rows: list[dict[str, float]]) -> str:
    def cell(row: dict[str, float], key: str, form: str) -> str:
        return form.format(row[key]) if key in row else "-"

    lines = [
        "# A training step of CALDNR's head and objective",
        "",
        f"Made by `python benchmarks/head_step.py`, which says what is measured. {platform.machine()}, "
        f"{torch.get_num_threads()} threads, torch {torch.__version__}.",
        "",
        "| categories | seconds | as written, seconds | faster by | peak MB | as written, peak MB | of its memory |",
        "|---|---|---|---|---|---|---|",
    ]
    columns = {
        "categories": "{}",
        "seconds": "{:.3f}",
        "reference_seconds": "{:.2f}",
        "speedup": "{:.1f}x",
        "megabytes": "{:.0f}",
        "reference_megabytes": "{:.0f}",
        "memory_ratio": "{:.3f}",
    }
    lines += ["| " + " | ".join(cell(row, key, form) for key, form in columns.items()) + " |" for row in rows]
    lines += ["", f"-: as written it takes about {REFERENCE_MEGABYTES} MB per category, more than was free."]
    return "\n".join(lines) + "\n"


def run_full(rounds: int) -> None:
    rows = []
    for num_categories in (20, 80, 200, 1000):
        rows.append(measure(num_categories, rounds))
        print(json.dumps(rows[-1]), flush=True)
    RESULTS.mkdir(parents=True, exist_ok=True)
    report = {"command": shlex.join(["python", *sys.argv]), "threads": torch.get_num_threads(), "rows": rows}
    (RESULTS / "head_step.json").write_text(json.dumps(report, indent=2) + "\n")
    (RESULTS / "head_step.md").write_text(as_markdown(rows))
    print(as_markdown(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="C = 20 only; ends with one line of JSON")
    parser.add_argument("--categories", type=int, help="one number of categories only")
    parser.add_argument("--rounds", type=int, default=5, help="steps of each side (default: %(default)s)")
    parser.add_argument("--memory-of", choices=["fast", "reference"], help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default: %(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.memory_of:
        print(measure_memory_here(options.categories, options.memory_of))
    elif options.quick or options.categories:
        row = measure(options.categories or 20, min(options.rounds, 3) if options.quick else options.rounds)
        print({name: round(value, 4) for name, value in row.items()})
        print(json.dumps({key: round(row[key], 4) for key in ("speedup", "memory_ratio") if key in row}))
    else:
        run_full(options.rounds)


if __name__ == "__main__":
    main()
