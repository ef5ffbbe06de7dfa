"""How long `instant` takes from pooled features on, and how it scales: many categories, long features, one click.

    .venv/bin/python benchmarks/instant_scale.py [--out results/instant-scale]

Random features with a direction per category; a tenth of the positives known. Times are wall-clock seconds of one run.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from fewtags.labels import PRESENT
from fewtags.models.closed_form import ClosedFormHead
from fewtags.presence.fitting import fit_presence
from fewtags.presence.model import Presence
from fewtags.presence.ridge import ImageSums, unit_length

CASES = {
    "like VOC 2007": (5011, 20, 1280),
    "10,000 categories": (5000, 10_000, 512),
    "4,096 features": (10_000, 80, 4096),
}
RERANKED = 100_000


def some_images(num_images: int, num_categories: int, dim: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    truth = torch.rand(num_images, num_categories, generator=generator) < max(0.05, 1 / num_categories) / 2
    directions = torch.randn(num_categories, dim, generator=generator)
    features = truth.float() @ directions + torch.randn(num_images, dim, generator=generator)
    known = torch.rand(truth.shape, generator=generator) < 0.1
    return features, (truth & known).to(torch.int8)


def timed(work: Callable[[], object]) -> tuple[float, object]:
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result


def fit_row(title: str, size: tuple[int, int, int]) -> str:
    features, labels = some_images(*size)
    gather, sums = timed(lambda: ImageSums.of(features, labels))
    assert isinstance(sums, ImageSums)
    model = Presence(labels.shape[1], features.shape[1])
    fit, _ = timed(lambda: fit_presence(model, sums, features, labels))
    predict, _ = timed(lambda: model.log_odds(features[:1000]))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    numbers = " | ".join(f"{value:,}" for value in size)
    return f"| {title} | {numbers} | {gather:.2f} | {fit:.2f} | {predict:.3f} | {memory:.1f} |"


def click_times(dim: int = 1280) -> tuple[float, float]:
    """Milliseconds to take in one label, and to rank all images of its category again."""
    features, labels = some_images(2000, 20, dim)
    head = ClosedFormHead(ClosedFormHead.Config(names="none"), dim, labels.shape[1])
    model = head.presence
    fit_presence(model, ImageSums.of(features, labels), features, labels)
    many, category, present = unit_length(torch.randn(RERANKED, dim)), torch.tensor([3]), torch.tensor([PRESENT])
    head.relabel(many[:1], category, present)  # the first call of anything is slower
    relabel, _ = timed(lambda: head.relabel(many[1:2], category, present))
    rerank = min(timed(lambda: head.log_odds(many, 3).argsort())[0] for _ in range(3))
    return 1000 * relabel, 1000 * rerank


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder for README.md")
    options = parser.parse_args()
    relabel, rerank = click_times()
    lines = [
        "# `instant` from pooled features on", "",
        f"    .venv/bin/python benchmarks/instant_scale.py     ({torch.get_num_threads()} threads, seed 0)", "",
        "| | images | categories | features | sums, s | penalty and calibration, s | 1,000 predictions, s | peak GB |",
        "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for title, size in CASES.items():
        lines.append(fit_row(title, size))
        print(lines[-1], flush=True)
    lines += ["", f"One label more or less: {relabel:.1f} ms. Ranking {RERANKED:,} images anew: {rerank:.0f} ms.", ""]
    print("\n".join(lines))
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "README.md").write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
