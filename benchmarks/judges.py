"""Who should judge the unknown labels of a trained method's own photos: the closed form, the method itself out of fold,
or both?

    .venv/bin/python benchmarks/judges.py [--shared ../shared] [--cache features] [--seeds 0]

A trained head has memorised its training labels, so it cannot be asked about them. Out of fold, it is trained five
times on four fifths of the photos and asked about the fifth. Its logits are then evidence for the same regression as
the ridge scores: alone, or beside them. Measured on the hidden tags of the training photos: average precision, and
promised against true precision of what is more likely present than not. Appends to results/judges/runs.csv, skips what
it finds there, and prints a table.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import torch
from coco_features import use_features
from result_rows import append_result, read_results
from selection import Photos, read_sets
from shared_data import BACKBONE, shared_parser
from torch import Tensor

from fewtags.config import load_config
from fewtags.data.annotations import Annotations
from fewtags.data.prepare import RunData
from fewtags.engine.run_folder import RunFolder
from fewtags.engine.training import train
from fewtags.labels import ABSENT, PRESENT
from fewtags.metrics import mean_average_precision
from fewtags.presence.fitting import Fitted, fit_presence, fit_windows, regress
from fewtags.presence.model import Presence
from fewtags.presence.regression import USUAL_SLOPE
from fewtags.presence.ridge import ImageSums

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results/judges/runs.csv"
TAGGERS = {"voc2007": (0.1, 0.3, "both"), "coco": (0.1, 0.3, "habit")}
METHODS = ("refined", "an")
FOLDS = 5
JUDGES = ("closed form", "out of fold", "both")
KEYS = ("data", "tagger", "seed", "method", "judge")
FIELDS = (*KEYS, "hidden_ap", "suggested", "promised", "right")


def out_of_fold(photos: Photos, known: np.ndarray, method: str, shared: Path, work: Path) -> Tensor:
    """[N, C] logits of each photo by models that were not trained on it."""
    truth = photos.truth["train"]
    use_features({"train": photos.features["train"][None, :, :, None, None]})
    settings = [
        f"method={method}",
        f"model.backbone={BACKBONE}",
        f"model.weights={shared / f'weights/{BACKBONE}_fp16.safetensors'}",
        "cache.enabled=true",
        "input.augment=false",
        "train.evaluate_every=100",
    ]
    config = load_config(None, settings)
    images = Annotations(
        root=Path(),
        images=[f"train/{number}.jpg" for number in range(len(known))],
        labels=known,
        categories=list(photos.categories),
        splits=np.full(len(known), "train"),
    )
    logits = torch.empty(known.shape)
    fold = np.random.default_rng(0).permutation(len(known)) % FOLDS
    for number in range(FOLDS):
        others, mine = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        complete = replace(images.take(mine), labels=np.where(truth[mine], PRESENT, ABSENT).astype(np.int8))
        shutil.rmtree(work, ignore_errors=True)
        train(config, work, data=RunData(train=images.take(others), test=complete), quiet=True)
        chance = np.load(RunFolder(work).predictions("test"))["probabilities"]
        logits[torch.from_numpy(mine)] = torch.from_numpy(chance).double().clamp(1e-9, 1 - 1e-9).logit().float()
    return logits


def closed_form(photos: Photos, known: Tensor) -> Fitted:
    features = photos.features["train"]
    model = Presence(known.shape[1], features.shape[1])
    return fit_presence(
        model,
        ImageSums.of(features, known),
        features,
        known,
        names=photos.name_scores(features),
        named=photos.names.known,
    )


def judged(judge: str, photos: Photos, known: Tensor, logits: Tensor) -> Tensor:
    """[N, C] P(present | unknown)."""
    fitted = closed_form(photos, known)
    standard = (logits - logits.mean(0)) / logits.std(0).clamp(min=1e-6)
    if judge == "both":
        fitted = fit_windows(fitted, standard)  # a second evidence beside the first
    if judge == "out of fold":
        instead = replace(fitted.images, names=None, without_groups=standard)
        fitted.model.name_weight.zero_()
        fitted = regress(fitted.model, instead, [USUAL_SLOPE], None)
    return fitted.model.answers.if_unknown(fitted.left_out()).sigmoid()


def numbers(chance: np.ndarray, truth: np.ndarray, known: np.ndarray) -> dict[str, object]:
    unknown = known == 0
    suggested = unknown & (chance > 0.5)
    promised, right = (
        round(100 * float(part[suggested].mean()), 1) if suggested.any() else "" for part in (chance, truth)
    )
    return {
        "hidden_ap": round(100 * mean_average_precision(chance, truth, mask=unknown), 2),
        "suggested": int(suggested.sum()),
        "promised": promised,
        "right": right,
    }


def cells(sets: dict[str, Photos], seeds: list[int]) -> Iterator[tuple[str, str | float, int, str]]:
    for seed in seeds:
        for data in sets:
            yield from product([data], TAGGERS[data], [seed], METHODS)


def table(rows: list[dict[str, str]]) -> str:
    """Means over the seeds."""
    lines = ["| data | tagger | method | judge | AP of hidden tags | suggested | promised | right |", "|---" * 8 + "|"]
    of = {tuple(row[key] for key in KEYS if key != "seed"): [] for row in rows}
    for row in rows:
        of[tuple(row[key] for key in KEYS if key != "seed")].append(row)
    for key, some in of.items():
        means = [statistics.mean(float(r[f]) for r in some) for f in ("hidden_ap", "suggested", "promised", "right")]
        lines.append(f"| {' | '.join(key)} | {means[0]:.1f} | {means[1]:,.0f} | {means[2]:.0f} | {means[3]:.0f} |")
    return "\n".join(lines)


def main() -> None:
    parser = shared_parser(__doc__, seeds="0")
    parser.add_argument("--work", type=Path, default=Path("judges-run"))
    options = parser.parse_args()
    sets = read_sets(options.shared, options.cache)
    done = {tuple(row[key] for key in KEYS[:4]) for row in read_results(RESULTS)}
    for data, tagger, seed, method in cells(sets, [int(seed) for seed in options.seeds.split(",")]):
        if (data, str(tagger), str(seed), method) in done:
            continue
        photos = sets[data]
        known = photos.known(tagger, seed)
        logits = out_of_fold(photos, known, method, options.shared, options.work)
        for judge in JUDGES:
            chance = judged(judge, photos, torch.from_numpy(known), logits).numpy()
            row = dict(zip(KEYS, (data, tagger, seed, method, judge), strict=True))
            append_result(RESULTS, FIELDS, {**row, **numbers(chance, photos.truth["train"], known)})
            print(read_results(RESULTS)[-1], flush=True)
    print(table(read_results(RESULTS)))


if __name__ == "__main__":
    main()
