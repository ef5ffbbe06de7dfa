"""Is a tagger better after 500 decisions? What a review taught, tried on other photos.

    .venv/bin/python benchmarks/after_decisions.py [--shared ../shared] [--cache features] [--seeds 0]

`instant` on pooled features of VOC 2007 and COCO. A reviewer answers with the truth: about the 500 surest suggestions,
about those of each tag in turn, or about the labels nearest to one half. The judge learns as the page, `relabel` and
`train --reviewed` do. Appends to results/after-decisions/runs.csv, skips what it finds there, and prints a table.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
from result_rows import append_result, read_results
from selection import Photos, read_sets
from shared_data import shared_parser

from fewtags.engine.judge import Judge
from fewtags.labels import ABSENT, PRESENT, UNKNOWN
from fewtags.metrics import mean_average_precision
from fewtags.presence.ridge import unit_length

RESULTS = Path(__file__).parents[1] / "results/after-decisions/runs.csv"
DECISIONS = 500
TAGGERS = {"voc2007": (0.1, "both"), "coco": (0.1, "habit")}
ORDERS = ("surest", "each tag", "unsure")
KEYS = ("data", "tagger", "seed", "names", "order")
FIELDS = (*KEYS, "right", "map_before", "map_after", "of1_before", "of1_after")


def fitted(photos: Photos, known: np.ndarray, names: bool) -> Judge:
    units = unit_length(photos.features["train"])
    judge = Judge.of_features(
        lambda rows: units[rows],
        np.ones(len(units), dtype=bool),
        known,
        names=photos.name_scores(units) if names else None,
        named=photos.names.known if names else None,
    )
    judge.decide([], [], [])
    return replace(judge, name_scorer=photos.name_scores if names else None)


def asked(hidden: np.ndarray, order: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of the labels asked about, by their P(present | unknown) [N, C], -1 where they are known."""
    if order == "surest":
        return np.divmod(np.argsort(-hidden, axis=None)[:DECISIONS], hidden.shape[1])
    worth = hidden if order == "each tag" else -np.abs(hidden - 0.5)
    places = np.argsort(-worth, axis=0)[: DECISIONS // hidden.shape[1] + 1]  # [k, C]
    columns = np.broadcast_to(np.arange(hidden.shape[1]), places.shape)
    return places.flatten()[:DECISIONS], columns.flatten()[:DECISIONS]


def measure(photos: Photos, known: np.ndarray, names: bool, order: str) -> dict[str, float]:
    judge, truth = fitted(photos, known, names), photos.truth
    test = unit_length(photos.features["test"])
    before = judge.elsewhere(test)[1]
    rows, columns = asked(np.where(known == UNKNOWN, judge.hidden(), -1), order)
    labels = np.where(truth["train"][rows, columns], PRESENT, ABSENT)
    judge.decide(rows, columns, labels)
    after = judge.elsewhere(test)[1]
    numbers = {"right": (labels == PRESENT).mean()}
    for when, chance in (("before", before), ("after", after)):
        given = chance > 0.5
        numbers[f"map_{when}"] = mean_average_precision(chance, truth["test"])
        numbers[f"of1_{when}"] = 2 * (given & truth["test"]).sum() / (given.sum() + truth["test"].sum())
    return {name: round(100 * float(value), 2) for name, value in numbers.items()}


def table(rows: list[dict[str, str]]) -> str:
    lines = ["| data | tagger | seed | names | order | right | mAP before | after | OF1 before | after |"]
    return "\n".join([*lines, "|---" * 10 + "|", *("| " + " | ".join(row.values()) + " |" for row in rows)])


def main() -> None:
    options = shared_parser(__doc__, seeds="0").parse_args()
    sets = read_sets(options.shared, options.cache)
    done = {tuple(row[key] for key in KEYS) for row in read_results(RESULTS)}
    for seed, data in product(map(int, options.seeds.split(",")), sets):
        for tagger, names, order in product(TAGGERS[data], ("yes", "no"), ORDERS):
            key = (data, str(tagger), str(seed), names, order)
            if key not in done:
                numbers = measure(sets[data], sets[data].known(tagger, seed), names == "yes", order)
                append_result(RESULTS, FIELDS, {**dict(zip(KEYS, key, strict=True)), **numbers})
    print(table(read_results(RESULTS)))


if __name__ == "__main__":
    main()
