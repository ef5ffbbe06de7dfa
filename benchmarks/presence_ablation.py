"""What is each rule of `presence` worth? Each one removed by itself, on VOC 2007 and on COCO.

    .venv/bin/python benchmarks/presence_ablation.py [--shared ../shared] [--cache features] [--seeds 0]

The presence of tags is fitted to pooled features with and without names, as `train` does with `instant`, on 100, 500
and all photos with one known tag each, with 10 and 50 % of the tags known, and with those that people choose by habit,
by size, by both, or only the largest thing. Measured are mAP and OF1 on the test images, and how many of the unknown
labels above one half are promised and found to be right. Appends to results/presence-ablation/runs.csv, skips what it
finds there, and prints the tables of README.md.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import torch
from result_rows import append_result, read_results
from selection import Photos, run_on_sets
from torch import Tensor

from fewtags.data.partial_labels import single_positive
from fewtags.metrics import evaluate_scores
from fewtags.models.closed_form import NAME_SHARPNESS
from fewtags.presence import answers, fitting, observation, regression, ridge, thresholds
from fewtags.presence.fitting import fit_presence
from fewtags.presence.model import Presence
from fewtags.presence.ridge import ImageSums, unit_length

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results/presence-ablation/runs.csv"
SIZES = (100, 500, 0)  # photos; 0: all
COINS = ("single", 0.1, 0.5)
PEOPLE = ("habit", "both", "salience", "largest")
KNOWN: dict[str, tuple[str | float, ...]] = {"voc2007": (*COINS, *PEOPLE), "coco": (*COINS, "habit")}
NAMES = ("yes", "no")
KEYS = ("rule", "data", "photos", "known", "names", "seed")
FIELDS = (*KEYS, "map", "of1", "suggested", "promised", "right")

Change = tuple[ModuleType, str, Any]
NO_BEND = 0.0
RULES: dict[str, tuple[Change, ...]] = {
    "everything": (),
    "TILT: plain ridge regression": ((ridge, "TILT", 0.0),),
    "OWN_VARIANCE: one penalty factor for all tags": ((ridge, "OWN_VARIANCE", 1e-6),),
    "R^2: means as noisy as if nothing were explained": ((ridge, "_LEAST_UNEXPLAINED", 1.0),),
    "BEND: straight log-odds": ((observation, "BEND", NO_BEND), (fitting, "BEND", NO_BEND)),
    "OWN_SLOPE: one slope for all tags": ((regression, "OWN_SLOPE", 1e-3), (regression, "OWN_NAME_SLOPE", 1e-3)),
    "SLOPE_SPREAD: slopes as the labels have them": (
        (regression, "SLOPE_SPREAD", 10.0), (regression, "OWN_SLOPE", 4.0),
    ),
    "propensities: every known label counts the same": ((fitting, "_by_propensity", lambda images, shared: images),),
    "HABIT_SPREADS: one habit for all tags": (
        (regression, "WAYS", tuple(product(regression.HABIT_SPREADS[:1], regression.CLARITIES))),
    ),
    "CLARITIES: how clearly a tag is seen does not matter": (
        (regression, "WAYS", tuple(product(regression.HABIT_SPREADS, (0.0,)))),
    ),
    "HABIT_SPREAD: no idea of how many tags apply": ((regression, "HABIT_SPREAD", 10.0),),
    "CREDENCE: likelihoods count fully": ((regression, "CREDENCE", 1.0),),
    "USUAL_DOUBT: habits as they seem": ((answers, "USUAL_DOUBT", 0.0),),
    "LOWEST_THRESHOLD, HIGHEST_THRESHOLD: any threshold": (
        (thresholds, "LOWEST_THRESHOLD", 0.0), (thresholds, "HIGHEST_THRESHOLD", 1.0),
    ),
}  # fmt: skip


def measured(photos: Photos, size: int, known: str | float, names: str, seed: int) -> dict[str, float | str]:
    number = len(photos.truth["train"])
    rows = np.random.default_rng(seed).permutation(number)[:size] if size else np.arange(number)
    truth, features, test = photos.truth["train"][rows], photos.features["train"][rows], photos.features["test"]
    labels = (single_positive(photos.truth["train"], seed) if known == "single" else photos.known(known, seed))[rows]
    given, presence = torch.from_numpy(labels), Presence(truth.shape[1], features.shape[1])
    of_train, of_test = (name_scores(photos, part, features) if names == "yes" else None for part in (features, test))
    fit = fit_presence(
        presence, ImageSums.of(features, given), features, given, names=of_train, named=photos.names.known
    )
    hidden = presence.answers.if_unknown(fit.left_out()).sigmoid()
    chance = presence.log_odds(test, of_test).sigmoid().numpy()
    scores = evaluate_scores(chance, photos.truth["test"], threshold=presence.thresholds.numpy())
    likely = (labels == 0) & (hidden.numpy() > 0.5)
    return {
        "map": round(100 * scores.map, 2),
        "of1": round(100 * scores.of1, 2),
        "suggested": int(likely.sum()),
        "promised": round(100 * float(hidden.numpy()[likely].mean()), 1) if likely.any() else "",
        "right": round(100 * float(truth[likely].mean()), 1) if likely.any() else "",
    }


def name_scores(photos: Photos, features: Tensor, of_fit: Tensor) -> Tensor:
    """[N, C] of features [N, D], treated as having the length of those of the fit."""
    return photos.names.scores(unit_length(features) * (NAME_SHARPNESS * of_fit.norm(dim=1).mean()))


def measure(sets: dict[str, Photos], seeds: list[int]) -> None:
    done = {tuple(row[key] for key in KEYS) for row in read_results(RESULTS)}
    cells = ((data, known) for data in sets for known in KNOWN[data])
    for seed, size, names, (data, known), rule in product(seeds, SIZES, NAMES, cells, RULES):
        key = (rule, data, str(size or "all"), str(known), names, str(seed))
        if key in done:
            continue
        with ExitStack() as changed:
            for where, name, value in RULES[rule]:
                changed.enter_context(mock.patch.object(where, name, value))
            if rule.startswith("BEND"):  # also the default of a parameter
                changed.enter_context(mock.patch.object(observation.bent, "__defaults__", (NO_BEND,)))
            row = measured(sets[data], size, known, names, seed)
        append_result(RESULTS, FIELDS, {**dict(zip(KEYS, key, strict=True)), **row})


def gaps(rows: list[dict[str, str]]) -> Iterator[float]:
    return (abs(float(row["promised"]) - float(row["right"])) for row in rows if row["promised"])


PARTS = {  # columns of the tables
    "VOC 2007, a coin": ("voc2007", ("single", "0.1", "0.5")),
    "VOC 2007, people": ("voc2007", PEOPLE),
    "COCO, a coin": ("coco", ("single", "0.1", "0.5")),
    "COCO, people": ("coco", ("habit",)),
}


def table(rows: list[dict[str, str]]) -> str:
    """What a rule is worth: mAP and OF1 lost, and points of promised precision by which it is further off, without."""
    lines = []
    for names in NAMES:
        lines += [
            f"\n{'With' if names == 'yes' else 'Without'} names:\n",
            "| without | " + " | ".join(f"{part}: mAP, OF1, promise" for part in PARTS) + " |",
            "|---" * (len(PARTS) + 1) + "|",
        ]
        mine = [row for row in rows if row["names"] == names]
        for rule in RULES:
            lines.append(f"| {rule} | " + " | ".join(_cell(mine, rule, *part) for part in PARTS.values()) + " |")
    return "\n".join(lines)


def _cell(rows: list[dict[str, str]], rule: str, data: str, known: tuple[str, ...]) -> str:
    here = [row for row in rows if row["data"] == data and row["known"] in known]
    mine, full = ([row for row in here if row["rule"] == name] for name in (rule, "everything"))
    if not mine or len(mine) != len(full):
        return "not measured"
    means = [[statistics.mean(float(row[name]) for row in of) for name in ("map", "of1")] for of in (mine, full)]
    apart = [statistics.mean(gaps(of)) for of in (mine, full)]
    if rule == "everything":
        return f"{means[0][0]:.1f}, {means[0][1]:.1f}, off by {apart[0]:.1f}"
    return f"{means[0][0] - means[1][0]:+.2f}, {means[0][1] - means[1][1]:+.1f}, {apart[0] - apart[1]:+.1f}"


if __name__ == "__main__":
    run_on_sets(__doc__, "0", measure, RESULTS, table)
