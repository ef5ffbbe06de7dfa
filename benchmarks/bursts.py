"""Bursts flatter: what a run promises on an archive of near copies, and what is true, with and without groups.

    .venv/bin/python benchmarks/bursts.py --shared ../shared [--out results/bursts]

PHOTOS training photos of VOC 2007, every third copied five times (another crop, brightness and JPEG quality). Copies
show the same things, and each is tagged by itself: a known tag of one copy is unknown in another. Names are not used.

    single   every photo is judged without itself
    groups   without its burst, which the data names
    bursts   without its burst, found by the features (head.bursts=true)

Promised is the mean probability of the tags that are more likely than not in photos of the test set, which have no
copies, and true the share of them that are right. Estimated is the mAP by the left-out scores on the archive itself,
and true mAP that of the same model on the test set.
"""

from __future__ import annotations

import argparse
import csv
import io
import statistics
import tempfile
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageEnhance

from fewtags.data.annotations import Annotations
from fewtags.data.formats import read_annotations
from fewtags.data.partial_labels import hide_labels, single_positive
from fewtags.data.preprocess import InputConfig
from fewtags.engine.features import FeatureMaker, kept_features
from fewtags.engine.quality import no_answers
from fewtags.labels import PRESENT
from fewtags.metrics import mean_average_precision
from fewtags.models.backbones import create_backbone
from fewtags.presence.bursts import SAME_MOMENT, burst_leaders
from fewtags.presence.estimates import Judged, estimate
from fewtags.presence.fitting import fit_presence
from fewtags.presence.model import Presence
from fewtags.presence.observation import Observation
from fewtags.presence.ridge import ImageSums, unit_length
from fewtags.train_settings import CacheConfig

PHOTOS, TESTS, COPIES = 600, 1000, 5
LABELS = ("10 %", "30 %", "single")
SEEDS = range(3)
Row = tuple[object, ...]
COLUMNS = ("labels", "seed", "how", "bursts", "promised", "true", "estimated", "true_map")


def make_archive(photos: Annotations, folder: Path) -> Annotations:
    """With the copies; `groups` says which belong together."""
    random, images, rows, groups = np.random.default_rng(0), [], [], []
    for row in range(len(photos)):
        images.append(str(photos.path(row).resolve()))
        rows.append(row)
        groups.append(row)
        if row % 3 == 0:
            for copy in range(COPIES):
                file = folder / f"{row}-{copy}.jpg"
                file.write_bytes(copied(photos.path(row), random))
                images.append(str(file.resolve()))
                rows.append(row)
                groups.append(row)
    labels = photos.labels[rows]
    splits = np.full(len(images), "train")
    return Annotations(Path("/"), images, photos.categories, labels, splits, groups=np.array(groups))


def copied(photo: Path, random: np.random.Generator) -> bytes:
    with Image.open(photo) as image:
        image = image.convert("RGB")
        width, height = image.size
        left, top, right, bottom = random.uniform(0, 0.06, 4)
        box = (int(left * width), int(top * height), int((1 - right) * width), int((1 - bottom) * height))
        image = ImageEnhance.Brightness(image.crop(box)).enhance(random.uniform(0.8, 1.2))
        out = io.BytesIO()
        image.save(out, "JPEG", quality=int(random.integers(60, 95)))
        return out.getvalue()


def features_of(part: Annotations, maker: FeatureMaker) -> torch.Tensor:
    kept = kept_features(part, maker, pooled=True)
    return unit_length(kept.rows(0, torch.arange(len(part))).flatten(1))


def judged(features: torch.Tensor, known: torch.Tensor, groups: torch.Tensor | None) -> tuple[Presence, torch.Tensor]:
    model = Presence(known.shape[1], features.shape[1])
    fitted = fit_presence(model, ImageSums.of(features, known), features, known, groups=groups)
    return model, fitted.left_out()


def estimated_map(model: Presence, odds: torch.Tensor, known: torch.Tensor) -> float:
    said = Judged(odds, known, Observation(model.habit, model.clarity), len(known))
    names = [str(category) for category in range(known.shape[1])]
    return float(estimate(said, no_answers(said), model.thresholds.numpy()).as_json(names)["map"][0])


def measure(archive: Annotations, features: torch.Tensor, test: Annotations, of_test: torch.Tensor) -> list[Row]:
    truth, right, found = archive.labels == PRESENT, test.labels == PRESENT, []
    assert archive.groups is not None
    units = {
        "single": None,
        "groups": torch.from_numpy(archive.groups),
        "bursts": burst_leaders(features, least=SAME_MOMENT),
    }
    for labels in LABELS:
        for seed in SEEDS:
            share = None if labels == "single" else int(labels[:2]) / 100
            known = torch.from_numpy(single_positive(truth, seed) if share is None else hide_labels(truth, share, seed))
            for how, groups in units.items():
                model, odds = judged(features, known, groups)
                chance = model.log_odds(of_test).sigmoid().numpy()
                given = chance >= 0.5
                number = 0 if groups is None else int((torch.unique(groups, return_counts=True)[1] > 1).sum())
                true_map = mean_average_precision(chance, right)
                values = (chance[given].mean(), right[given].mean(), estimated_map(model, odds, known), true_map)
                found.append((labels, seed, how, number, *(f"{100 * value:.1f}" for value in values)))
                print(*found[-1], flush=True)
    return found


def write_tables(rows: list[Row], out: Path) -> None:
    means = defaultdict(list)
    for labels, _, how, number, *values in rows:
        means[labels, how].append([float(number), *map(float, values)])
    doc = (__doc__ or "").split("\n\n", 2)[2].strip()
    about = f"Means over {len(SEEDS)} draws of known tags, in per cent; {PHOTOS} photos, a third of them six times."
    names = ("known", "left out", "bursts", "promised", "true", "estimated mAP", "true mAP")
    lines = ["# Bursts", "", "    .venv/bin/python benchmarks/bursts.py --shared ../shared", "", doc, "", about, ""]
    lines += [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for (labels, how), each in means.items():
        number, *others = (statistics.mean(column) for column in zip(*each, strict=True))
        lines.append(f"| {labels} | {how} | {number:.0f} | " + " | ".join(f"{value:.1f}" for value in others) + " |")
    (out / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=Path("../shared"))
    parser.add_argument("--out", type=Path, default=Path("results/bursts"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    voc = read_annotations(str(options.shared / "data/VOCdevkit"))
    photos, test = voc.split("train"), voc.split("test")
    photos = photos.take(np.sort(np.random.default_rng(0).permutation(len(photos))[:PHOTOS]))
    test = test.take(np.sort(np.random.default_rng(0).permutation(len(test))[:TESTS]))
    weights = options.shared / "weights/tf_efficientnet_lite0_fp16.safetensors"
    backbone = create_backbone("tf_efficientnet_lite0", pretrained=False, weights=weights).eval()
    backbone.freeze_before("head")
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        archive = make_archive(photos, Path(folder))
        maker = FeatureMaker(backbone, InputConfig(augment=False), CacheConfig(), torch.device("cpu"))
        rows = measure(archive, features_of(archive, maker), test, features_of(test, maker))
    with (options.out / "runs.csv").open("w", newline="") as out:
        csv.writer(out).writerows([COLUMNS, *rows])
    write_tables(rows, options.out)


if __name__ == "__main__":
    main()
