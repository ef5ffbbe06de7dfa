"""`fewtags demo`: the whole workflow on generated pictures, in about three minutes on two cores."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from fewtags.config import RunConfig, load_config
from fewtags.data.annotations import Annotations
from fewtags.data.prepare import RunData, split_data
from fewtags.data.scenes import BACKBONE, make_scenes
from fewtags.discovery import LabelTable, open_run
from fewtags.engine.training import RunResult, train
from fewtags.errors import UserError
from fewtags.experiments.report import write_report
from fewtags.labels import PRESENT, UNKNOWN
from fewtags.methods import METHODS, find_method

NUM_PICTURES = (3000, 800)  # for training and for testing
HANDFUL = ("instant", "an", "caldnr", "refined")
# The backbone was trained to classify single drawn objects (tools/pretrain_demo_backbone.py), as real ones are on
# ImageNet; its last stage is fine-tuned here, as in the paper, and the maps before it are computed once. With an output
# stride of 16 the map of these small pictures is 6x6 instead of 3x3, which is more accurate and gives finer heat maps.
SETTINGS = (
    "model.backbone=test_resnet", "model.train_from=layer4", "model.output_stride=16",
    "cache.enabled=true", "cache.views=3", "input.size=96", "input.resize=96", "input.crops=[96,84,72]", "words.dim=32",
    "train.epochs=10", "train.batch_size=32", "train.lr=5e-4", "train.head_lr_scale=4", "train.evaluate_every=2",
)  # fmt: skip


def run_demo(
    folder: Path, *, methods: Sequence[str], all_methods: bool, known: float, seed: int, quick: bool
) -> list[RunResult]:
    chosen = list(METHODS) if all_methods else list(methods or HANDFUL)
    for name in chosen:
        find_method(name)
    if not 0 < known <= 1:
        raise UserError(f"--known {known} should be above 0 and at most 1.")
    console = Console()
    sizes = (160, 80) if quick else NUM_PICTURES
    console.print(f"Drawing {sum(sizes):,} pictures into {folder / 'pictures'} …", highlight=False)
    scenes = make_scenes(folder / "pictures", *sizes, seed=seed)
    configs = {name: demo_config(name, folder, known, seed, quick) for name in chosen}
    data = split_data(scenes, configs[chosen[0]].data, seed)  # the same for all
    console.print(scene_summary(scenes, data), highlight=False)
    results: dict[str, RunResult] = {}
    for name, config in configs.items():
        results[name] = train_fresh(config, folder / "runs" / name, data, console)
    console.print(score_table(results, known))
    best = max(chosen, key=lambda name: results[name].last.map)  # pyrefly: ignore[missing-attribute]
    found = find_missing(results[best].folder, data)
    console.print(found_table(found, best, data))
    page = folder / "report.html"
    write_report([result.folder for result in results.values()], page, title="fewtags demo")
    console.print(f"Report with curves, categories and pictures: {page}", highlight=False)
    for line in what_next(results[best].folder, folder):
        console.print(line, highlight=False)
    return list(results.values())


def what_next(run: Path, folder: Path) -> list[str]:
    """Next steps with what was found."""
    again = folder / "runs" / "reviewed"
    return [
        f"Review the missing tags in the browser, and watch it learn: fewtags review {run}",
        f"Then train with the decisions: fewtags train --reviewed {run} --out {again}",
        f"See what they were worth: fewtags compare {run} {again}",
        f"Or write them into a label file: fewtags apply {run}",
    ]


def demo_config(method: str, folder: Path, known: float, seed: int, quick: bool) -> RunConfig:
    places = [f"data.source={folder / 'pictures'}", f"model.weights={BACKBONE}", f"cache.folder={folder / 'cache'}"]
    # The paper's tanh layer and dropout help with this backbone's 96 channels; with 1280 frozen ones both hurt.
    decoupled = find_method(method).head == "decoupled"
    head = ["head.hidden=true", "head.dropout=0.5"] if decoupled else []
    overrides = [
        *SETTINGS,
        *places,
        *head,
        f"method={method}",
        f"data.known={known}",
        f"data.mask_seed={seed}",
        f"seed={seed}",
    ]
    return load_config(None, [*overrides, *(["train.epochs=1"] if quick else [])])


def scene_summary(scenes: Annotations, data: RunData) -> str:
    shown, there = int((data.train.labels == PRESENT).sum()), int((scenes.split("train").labels == PRESENT).sum())
    return (
        f"{len(data.train):,} pictures for training with {len(scenes.categories)} categories: "
        f"{shown:,} of their {there:,} tags are known, the rest are hidden. "
        f"{len(scenes.split('test')):,} test pictures with all their tags."
    )


def train_fresh(config: RunConfig, folder: Path, data: RunData, console: Console) -> RunResult:
    """Train from scratch; the results of an earlier demo in this folder are removed."""
    shutil.rmtree(folder, ignore_errors=True)
    console.print(f"Training {config.method_name}: {find_method(config.method_name).sentence}", highlight=False)
    return train(config, folder, data=data)


def score_table(results: dict[str, RunResult], known: float) -> Table:
    table = Table(title=f"Test pictures, {known:.0%} of the training tags known")
    table.add_column("method")
    for name in ("mAP", "OF1", "CF1", "seconds"):
        table.add_column(name, justify="right")
    for method, result in results.items():
        scores = result.last
        assert scores is not None  # the scenes have a test split
        numbers = [f"{100 * value:.1f}" for value in (scores.map, scores.of1, scores.cf1)]
        table.add_row(method, *numbers, f"{result.seconds:.0f}")
    return table


def find_missing(run: Path, data: RunData) -> LabelTable:
    """The training pictures' unknown tags that the model predicts."""
    return open_run(run, data=data).discover(limit=data.train.labels.size).missing


def found_table(found: LabelTable, method: str, data: RunData) -> Table:
    """How many hidden tags were found per category, and how many of them are right."""
    assert data.truth is not None
    hidden = ((data.truth == PRESENT) & (data.train.labels == UNKNOWN)).sum(0)
    right = data.truth[found.rows, found.columns] == PRESENT
    title = f"Missing tags found by {method}: {len(found):,}, of which {right.sum():,} are right"
    title += f"; {hidden.sum():,} were hidden"
    table = Table(title=title)
    for name in ("category", "hidden", "found", "right", "most certain"):
        table.add_column(name, justify="left" if name in ("category", "most certain") else "right")
    for column, category in enumerate(data.train.categories):
        mine = np.flatnonzero(found.columns == column)
        first = ""
        if len(mine):
            first = f"{data.train.images[found.rows[mine[0]]]} ({found.probabilities[mine[0]]:.2f})"
        table.add_row(category, *map(str, (hidden[column], len(mine), right[mine].sum())), first)
    return table
