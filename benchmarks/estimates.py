"""Estimated against true: mAP and the number of missing tags, from partial labels alone and from complete ones.

    .venv/bin/python benchmarks/estimates.py --data ../shared/data/VOCdevkit \\
        --weights ../shared/weights/tf_efficientnet_lite0_fp16.safetensors [--out results/estimates] [--work FOLDER]

`instant` is fitted to training images of which a share of the positives is known. Estimated is what `fewtags train`
says at the end, from each label judged without itself; true is the same scores measured with the complete labels.
"""

from __future__ import annotations

import csv

import numpy as np
import torch
from photo_features import Photos, options_parser, photos

from fewtags.data.partial_labels import hide_labels
from fewtags.engine.quality import no_answers
from fewtags.labels import PRESENT
from fewtags.metrics import mean_average_precision
from fewtags.presence.estimates import Judged, estimate
from fewtags.presence.fitting import fit_presence
from fewtags.presence.model import Presence
from fewtags.presence.ridge import ImageSums

COLUMNS = (
    "known", "seed", "estimated_map", "map_low", "map_high", "true_map",
    "estimated_missing", "missing_low", "missing_high", "true_missing",
)  # fmt: skip


def measure(found: Photos, known: float, seed: int) -> dict[str, object]:
    truth = found.train.annotations.labels == PRESENT
    labels = torch.from_numpy(hide_labels(truth, known, seed))
    features = found.train.features
    model = Presence(labels.shape[1], features.shape[1])
    sums = ImageSums.of(features, labels)
    fitted = fit_presence(model, sums, features, labels, names=found.train.names, named=found.named)
    odds = fitted.left_out()
    judged = Judged(odds, labels, model.answers.observation)
    estimates = estimate(judged, no_answers(judged), model.thresholds.numpy())
    values: tuple[object, ...] = (
        known,
        seed,
        *(f"{100 * value:.1f}" for value in estimates.map),
        f"{100 * mean_average_precision(odds.numpy(), truth):.1f}",
        *(round(value) for value in estimates.missing),
        int((truth & (labels.numpy() != PRESENT)).sum()),
    )
    return dict(zip(COLUMNS, values, strict=True))


def summary(rows: list[dict[str, object]]) -> str:
    """Mean absolute errors by known proportion, as a table in Markdown."""
    lines = ["| known | mAP estimated | true | mean error, points | missing estimated | true | mean error |"]
    lines.append("|---|---|---|---|---|---|---|")
    for known in dict.fromkeys(row["known"] for row in rows):
        group = [{name: float(str(value)) for name, value in row.items()} for row in rows if row["known"] == known]
        est_map, true_map, est, true = (
            np.array([row[name] for row in group])
            for name in ("estimated_map", "true_map", "estimated_missing", "true_missing")
        )
        error, share = np.abs(est_map - true_map).mean(), np.abs(est / true - 1).mean()
        lines.append(
            f"| {float(str(known)):.0%} | {est_map.mean():.1f} | {true_map.mean():.1f} | {error:.1f} | "
            f"{est.mean():,.0f} | {true.mean():,.0f} | {share:.0%} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = options_parser(__doc__, "results/estimates")
    parser.add_argument("--known", type=float, nargs="+", default=[0.1, 0.3, 0.5])
    options = parser.parse_args()
    found = photos(options.data, options.weights, options.work)
    rows = []
    for known in options.known:
        for seed in options.seeds:
            rows.append(measure(found, known, seed))
            print(*rows[-1].values(), flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "runs.csv").open("w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(summary(rows))


if __name__ == "__main__":
    main()
