"""Which method is best, by the tags that people typed and by the truth?

    .venv/bin/python benchmarks/typed_tags.py [--shared ../shared] [--cache feature-cache] [--seeds 0,1,2]

The same imagined taggers type tags of training and of test images of VOC 2007 and COCO. Methods learn from the first
and are measured twice on the test images: by what the tagger typed there, which is all that an archive has, and by what
is in them. Appends to results/typed-tags/runs.csv, skips what it finds there, and prints a table.
"""

from __future__ import annotations

import statistics
from itertools import product

import numpy as np
import torch
from result_rows import append_result, read_results
from selection import COIN, ROOT, Case, Photos, read_coco, read_voc
from shared_data import shared_backbone, shared_parser

from fewtags.data.formats import read_annotations
from fewtags.data.formats.voc import largest_shares
from fewtags.data.partial_labels import hide_labels, tagged_by
from fewtags.metrics import mean_average_precision
from fewtags.models.heads import Standardise
from fewtags.models.logistic import choose_strength, fit, logits

RESULTS = ROOT / "results/typed-tags/runs.csv"
TAGGERS = {"voc2007": ("coin", "habit", "salience", "both"), "coco": ("coin", "habit")}
METHODS = ("linear", "instant without names", "instant")
FIELDS = ("data", "tagger", "seed", "method", "typed", "by_typed", "by_truth", "known_only")


def typed_in_test(photos: Photos, shares: np.ndarray | None, tagger: str, seed: int) -> np.ndarray:
    """[N, C] by the tagger of the training images: a tag has the same rate, and each image a draw of its own."""
    truth = photos.truth["test"]
    return hide_labels(truth, COIN, seed) if tagger == "coin" else tagged_by(tagger, truth, seed, shares)


def scores_of(method: str, photos: Photos, tagger: str, seed: int) -> np.ndarray:
    """[N, C] of the test images, by a model of the tags typed in the training images."""
    case = Case(photos, tagger, seed, method if method != "linear" else METHODS[1])
    if method != "linear":
        return case.model.log_odds(photos.features["test"], case.of_test).numpy()
    standardise, known = Standardise(photos.features["train"].shape[1]), (case.known == 1).float()
    standardise.start([photos.features["train"]])
    train, test = (standardise(photos.features[split]) for split in ("train", "test"))
    return logits(test, *fit(train, known, choose_strength(train, known, seed))).numpy()


def measure(data: str, photos: Photos, shares: np.ndarray | None, seeds: list[int]) -> None:
    done = {(row["data"], row["tagger"], row["seed"], row["method"]) for row in read_results(RESULTS)}
    for tagger, seed, method in product(TAGGERS[data], seeds, METHODS):
        if (data, tagger, str(seed), method) in done:
            continue
        truth, typed = photos.truth["test"], typed_in_test(photos, shares, tagger, seed) == 1
        scores = scores_of(method, photos, tagger, seed)
        row = {
            "data": data,
            "tagger": tagger,
            "seed": seed,
            "method": method,
            "typed": round(float(typed.sum() / truth.sum()), 3),
            "by_typed": round(100 * mean_average_precision(scores, typed), 2),
            "by_truth": round(100 * mean_average_precision(scores, truth), 2),
            # Typed tags against what is truly absent: the rank of untyped but present ones does not count.
            "known_only": round(100 * mean_average_precision(scores, typed, mask=typed | ~truth), 2),
        }
        append_result(RESULTS, FIELDS, row)


def table(rows: list[dict[str, str]]) -> str:
    lines = [
        "| data, tagger | tags typed | " + " | ".join(f"`{method}`" for method in METHODS) + " |",
        "|---" * 5 + "|",
    ]
    for data, tagger in ((data, tagger) for data, taggers in TAGGERS.items() for tagger in taggers):
        found = [row for row in rows if (row["data"], row["tagger"]) == (data, tagger)]
        typed = statistics.mean(float(row["typed"]) for row in found)
        cells = []
        for method in METHODS:
            mine = [row for row in found if row["method"] == method]
            means = (statistics.mean(float(row[key]) for row in mine) for key in ("by_typed", "by_truth"))
            cells.append(" / ".join(f"{value:.1f}" for value in means))
        lines.append(f"| {data}, {tagger} | {100 * typed:.0f} % | {' | '.join(cells)} |")
    return "\n".join(lines)


@torch.no_grad()
def main() -> None:
    options = shared_parser(__doc__, seeds="0,1,2").parse_args()
    backbone = shared_backbone(options.shared)
    coco = read_coco(options.shared, backbone)
    photos = read_voc(options.shared, options.cache, backbone)
    shares = largest_shares(read_annotations(str(options.shared / "data/VOCdevkit")).split("test"))
    assert shares is not None
    seeds = [int(seed) for seed in options.seeds.split(",")]
    measure("voc2007", photos, shares, seeds)
    measure("coco", coco, None, seeds)
    print(table(read_results(RESULTS)))


if __name__ == "__main__":
    main()
