"""Is as much right as probabilities promise? `instant` on 20 to 500 photos of VOC 2007 and COCO, on many draws.

    .venv/bin/python benchmarks/promised_precision.py [--shared ../shared] [--cache features] [--seeds 30,31,32,33]

The closed form is fitted to pooled features, as `train` does; COCO is here as features only. The priors of the
calibration were looked at with the seeds 0 to 5 and 20 to 23, so other seeds are the check. Appends to
results/small-archives/other-draws.csv as draws finish, skips those it finds there, and prints the table of README.md.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import torch
from coco_features import read_features
from result_rows import append_result, read_results
from shared_data import shared_backbone, shared_parser
from torch import Tensor

from fewtags.data.annotations import Annotations
from fewtags.data.formats import read_annotations
from fewtags.data.partial_labels import hide_labels, single_positive
from fewtags.data.preprocess import InputConfig
from fewtags.engine.features import FeatureMaker, cached_batches
from fewtags.labels import PRESENT
from fewtags.metrics import mean_average_precision
from fewtags.models.backbones import Backbone
from fewtags.models.closed_form import NAME_SHARPNESS
from fewtags.models.names import NameScorer, find_names
from fewtags.presence.fitting import fit_presence
from fewtags.presence.model import Presence
from fewtags.presence.ridge import ImageSums, unit_length
from fewtags.train_settings import CacheConfig

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results/small-archives/other-draws.csv"
SIZES = (20, 50, 100, 200, 500)
LABELS = ("single", "10 %", "30 %", "60 %")
FIELDS = ("data", "names", "images", "labels", "seed", "map", "precision", "promised_precision")


@dataclass(frozen=True)
class Photos:
    features: dict[str, Tensor]  # by split, [N, D] pooled
    truth: dict[str, np.ndarray]  # [N, C]
    names: NameScorer

    @classmethod
    def of(cls, annotations: Annotations, features: dict[str, Tensor], backbone: Backbone) -> Photos:
        truth = {split: annotations.labels[annotations.splits == split] == PRESENT for split in features}
        names = find_names(backbone.class_head, annotations.categories, None)
        assert names is not None
        return cls(features, truth, names)


def read_voc(shared: Path, cache: str, backbone: Backbone) -> Photos:
    annotations = read_annotations(str(shared / "data/VOCdevkit"))
    backbone.freeze_before("head")
    features = {}
    for split in ("train", "test"):
        part = annotations.take(np.flatnonzero(annotations.splits == split))
        config = CacheConfig(folder=cache, runtime="openvino")
        maker = FeatureMaker(backbone, InputConfig(augment=False), config, torch.device("cpu"))
        batches = cached_batches(part, maker, pooled=True, shuffle=False, batch_size=256)
        loaded = [each.batch for each in batches.epoch()]
        features[split] = torch.cat([each.images.mean((2, 3)) for each in loaded if each is not None])
    return Photos.of(annotations, features, backbone)


def read_coco(shared: Path, backbone: Backbone) -> Photos:
    annotations, maps = read_features(shared / "data/coco_lite0_pooled.npz")
    return Photos.of(annotations, {split: each[0, :, :, 0, 0] for split, each in maps.items()}, backbone)


def measure(photos: Photos, names: bool, size: int, labels: str, seed: int) -> dict[str, float] | None:
    """None if no label is known in this draw."""
    rows = np.sort(np.random.default_rng(seed).permutation(len(photos.features["train"]))[:size])
    truth, features = photos.truth["train"][rows], photos.features["train"][torch.from_numpy(rows)]
    share = None if labels == "single" else float(labels.split()[0]) / 100
    known = torch.from_numpy(single_positive(truth, seed) if share is None else hide_labels(truth, share, seed))
    if not (known == PRESENT).any():
        return None
    sharpness = NAME_SHARPNESS * features.norm(dim=1).mean()
    of_train, of_test = (
        photos.names.scores(unit_length(each) * sharpness) if names else None
        for each in (features, photos.features["test"])
    )
    model = Presence(known.shape[1], features.shape[1])
    named = photos.names.known if names else None
    fit_presence(model, ImageSums.of(features, known), features, known, names=of_train, named=named)
    chance = model.log_odds(photos.features["test"], of_test).sigmoid()
    given, right = chance >= model.thresholds, torch.from_numpy(photos.truth["test"])
    if not given.any():
        return None
    return {
        "map": round(100 * mean_average_precision(chance.numpy(), photos.truth["test"]), 2),
        "precision": round(100 * float(right[given].float().mean()), 2),
        "promised_precision": round(100 * float(chance[given].mean()), 2),
    }


def table(rows: list[dict[str, str]]) -> str:
    """Real precision and, in brackets, the promised one."""
    lines = ["| | " + " | ".join(str(size) for size in SIZES) + " |", "|---" * (len(SIZES) + 1) + "|"]
    for data, names, labels in product(("voc2007", "coco"), ("no", "yes"), LABELS):
        cells = []
        for size in SIZES:
            wanted = (data, names, str(size), labels)
            found = [r for r in rows if (r["data"], r["names"], r["images"], r["labels"]) == wanted]
            real, promised = (
                statistics.mean([float(r[key]) for r in found] or [float("nan")])
                for key in ("precision", "promised_precision")
            )
            cells.append(f"{real:.0f} ({promised:.0f})")
        lines.append(f"| {data}, {labels}{', names' if names == 'yes' else ''} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


@torch.no_grad()
def main() -> None:
    parser = shared_parser(__doc__, seeds="30,31,32,33")
    parser.add_argument("--tables", action="store_true", help="only print the table of what was measured")
    options = parser.parse_args()
    if not options.tables:
        backbone = shared_backbone(options.shared)
        sets = {
            "voc2007": read_voc(options.shared, options.cache, backbone),
            "coco": read_coco(options.shared, backbone),
        }
        done = {tuple(row[field] for field in FIELDS[:5]) for row in read_results(RESULTS)}
        seeds = map(int, options.seeds.split(","))
        for seed, data, size, labels, names in product(seeds, sets, SIZES, LABELS, ("no", "yes")):
            key = (data, names, str(size), labels, str(seed))
            numbers = None if key in done else measure(sets[data], names == "yes", size, labels, seed)
            if numbers is not None:
                append_result(RESULTS, FIELDS, {**dict(zip(FIELDS[:5], key, strict=True)), **numbers})
    print(table(read_results(RESULTS)))


if __name__ == "__main__":
    main()
