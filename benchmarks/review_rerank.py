"""How long the review page takes after a decision: write it durably, learn, and rank all other images anew. And how
long a search takes, and a tag that nobody had, with what a classifier of 1,000 classes sees in the images.

    .venv/bin/python benchmarks/review_rerank.py [--images 100000] [--out results/review-rerank]

Random features with a direction per category; a tenth of the positives known. Wall-clock and processor milliseconds of
single decisions, in the way the server does it; the median and the best of many, because other work on the machine adds
to wall-clock time.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from fewtags.data.annotations import Annotations
from fewtags.labels import ABSENT, PRESENT
from fewtags.models.backbones import ClassHead
from fewtags.models.phrases import Phrases
from fewtags.models.quick_timm import ImageNetInfo
from fewtags.presence.ridge import unit_length
from fewtags.review.search import Search
from fewtags.review.session import Answer, LiveQueue, ReviewSession, View
from fewtags.review.store import DecisionStore


def made_session(num_images: int, num_categories: int, dim: int, folder: Path) -> tuple[ReviewSession, Phrases]:
    generator = torch.Generator().manual_seed(0)
    truth = torch.rand(num_images, num_categories, generator=generator) < 0.03
    directions = torch.randn(num_categories, dim, generator=generator) / 4
    features = torch.empty(num_images, dim)
    for rows in torch.arange(num_images).split(10_000):
        features[rows] = unit_length(
            truth[rows].float() @ directions + 1.5 + torch.randn(len(rows), dim, generator=generator)
        )
    known = torch.rand(truth.shape, generator=generator) < 0.1
    images = [f"{number:06d}.jpg" for number in range(num_images)]
    names = [f"tag {number}" for number in range(num_categories)]
    labels = (truth & known).to(torch.int8).numpy()
    annotations = Annotations(Path("photos"), images, names, labels, np.full(num_images, "train"))
    synsets = tuple(ImageNetInfo("imagenet-1k").label_names())
    head = ClassHead(torch.randn(1000, dim, generator=generator), torch.zeros(1000), synsets)
    phrases = Phrases(lambda: head, lambda: 10.0, features)
    store = DecisionStore(folder / "decisions.sqlite")
    return ReviewSession(annotations, features, store, reviewer="benchmark", shares=phrases.shares), phrases


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Wall-clock and processor milliseconds."""
    wall, processor = time.perf_counter(), time.process_time()
    work()
    return 1000 * (time.perf_counter() - wall), 1000 * (time.process_time() - processor)


def decisions(session: ReviewSession, number: int) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """Times of writing with learning, and of ranking anew: the whole queue, likely or not, behind what was seen."""
    live = LiveQueue(session, View("tag 0", lowest=0.0))
    writing, ranking = [], []
    for place in range(number):
        row, label = int(live.queue.order[place]), PRESENT if place % 3 else ABSENT
        writing.append(
            timed(lambda row=row, label=label: session.decide([Answer(row, "tag 0", label)], queue="missing"))
        )
        ranking.append(timed(lambda place=place: live.follow(seen=place + 1)))
    return writing, ranking


def searches(session: ReviewSession, phrases: Phrases, number: int) -> dict[str, list[tuple[float, float]]]:
    """Times of a search by example, by a phrase, and of the queue of a new tag when it is made and after an answer."""
    search = Search(session.features, session.readable, phrase=phrases.find)
    first_phrase = timed(lambda: search.text("lighthouse"))

    def add() -> None:
        session.add_tag("new", examples=[3])
        session.queue(View("new"))

    first_tag = timed(add)

    def answer(row: int) -> None:
        session.decide([Answer(row, "new", PRESENT if row % 3 else ABSENT)], queue="missing")
        session.queue(View("new"))

    return {
        "search by example": [timed(lambda row=row: search.like([row])) for row in range(number)],
        "search by a phrase": [
            timed(lambda word=word: search.text(word)) for word in ("lighthouse", "dog") * (number // 2)
        ],
        "the first phrase: all images are classified": [first_phrase],
        "the first new tag after it": [first_tag],
        "new tag: write, learn, rank": [timed(lambda row=row: answer(row)) for row in range(100, 100 + number)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--categories", type=int, default=20)
    parser.add_argument("--dim", type=int, default=1280)
    parser.add_argument("--decisions", type=int, default=50)
    parser.add_argument("--out", type=Path, help="folder for README.md")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        session, phrases = made_session(options.images, options.categories, options.dim, Path(folder))
        opening = time.perf_counter() - started
        writing, ranking = decisions(session, options.decisions)
        found = searches(session, phrases, min(options.decisions, 20))
    lines = [
        "# After a decision on the review page", "",
        f"    .venv/bin/python benchmarks/review_rerank.py     ({torch.get_num_threads()} threads, seed 0)", "",
        f"{options.images:,} images, {options.categories} categories, {options.dim} features, {options.decisions} "
        f"decisions; opened in {opening:.0f} s.", "",
        "| milliseconds | wall-clock, median | best | processor, median |", "|---|---|---|---|",
    ]  # fmt: skip
    for title, times in {"write durably and learn": writing, "rank all other images anew": ranking, **found}.items():
        wall, processor = zip(*times, strict=True)
        lines.append(
            f"| {title} | {statistics.median(wall):.1f} | {min(wall):.1f} | {statistics.median(processor):.1f} |"
        )
    text = "\n".join(lines) + "\n"
    print(text)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "README.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
