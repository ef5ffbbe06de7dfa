"""Are the numbers right when people chose the tags? Taggers that do not toss coins, before and after an audit.

    .venv/bin/python benchmarks/selection.py [--shared ../shared] [--cache features] [--seeds 0,1,2]

The presence of tags is judged from pooled features, as `train` does with `instant`; `tagged_by` hides labels of VOC
2007 as four taggers and a coin would, and of COCO as habits do. Answers are those of `fewtags audit` in waves of 50,
given by the truth; "review 300" are the 300 surest suggestions instead. Appends to results/selection/runs.csv, skips
what it finds there, and prints a table.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
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
from fewtags.data.formats.voc import largest_shares
from fewtags.data.partial_labels import hide_labels, tagged_by
from fewtags.data.preprocess import InputConfig
from fewtags.engine.features import FeatureMaker, cached_batches
from fewtags.labels import PRESENT
from fewtags.metrics import mean_average_precision
from fewtags.models.backbones import Backbone
from fewtags.models.closed_form import NAME_SHARPNESS
from fewtags.models.names import NameScorer, find_names
from fewtags.presence.audit import WAVE, Answered, Candidates, by_design, by_model, choose
from fewtags.presence.estimates import Judged
from fewtags.presence.fitting import fit_presence
from fewtags.presence.model import Presence
from fewtags.presence.ridge import ImageSums, unit_length
from fewtags.train_settings import CacheConfig

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results/selection/runs.csv"
TAGGERS = {"voc2007": ("coin", "salience", "habit", "both", "five"), "coco": ("habit",)}
COIN = 0.3
ANSWERS = (0, 50, 200)
REVIEWED = 300
METHODS = ("instant", "instant without names")
KEYS = ("data", "tagger", "seed", "method", "answers")
FIELDS = (
    *KEYS, "known_true", "known_estimated", "missing_true", "missing_estimated", "suggested", "promised", "right",
    "per_tag_error", "map", "missing_low", "missing_high", "missing_by_design", "error_by_design",
)  # fmt: skip

Table = Callable[[list[dict[str, str]]], str]


@dataclass(frozen=True)
class Photos:
    categories: list[str]
    features: dict[str, Tensor]  # by split, [N, D] pooled
    truth: dict[str, np.ndarray]  # [N, C]
    names: NameScorer
    shares: np.ndarray | None  # [N, C] of the training images

    def known(self, tagger: str | float, seed: int) -> np.ndarray:
        """[N, C] labels of the training images that a tagger leaves, or a coin with this share."""
        truth = self.truth["train"]
        return hide_labels(truth, tagger, seed) if isinstance(tagger, float) else tagged_by(
            tagger, truth, seed, self.shares
        )  # fmt: skip

    def name_scores(self, features: Tensor) -> Tensor:
        """[N, C] of pooled features [N, D], treated as having the length of the training images', as in a run."""
        length = self.features["train"].norm(dim=1).mean()
        return self.names.scores(unit_length(features) * (NAME_SHARPNESS * length))


Measure = Callable[[dict[str, Photos], list[int]], None]


def read_voc(shared: Path, cache: str, backbone: Backbone) -> Photos:
    annotations = read_annotations(str(shared / "data/VOCdevkit"))
    names = find_names(backbone.class_head, annotations.categories, None)
    assert names is not None
    backbone.freeze_before("head")
    parts = {split: annotations.split(split) for split in ("train", "test")}
    features = {split: pooled(part, cache, backbone) for split, part in parts.items()}
    truth = {split: part.labels == PRESENT for split, part in parts.items()}
    return Photos(annotations.categories, features, truth, names, largest_shares(parts["train"]))


def pooled(part: Annotations, cache: str, backbone: Backbone) -> Tensor:
    config = CacheConfig(folder=cache, runtime="openvino")
    maker = FeatureMaker(backbone, InputConfig(augment=False), config, torch.device("cpu"))
    batches = cached_batches(part, maker, pooled=True, shuffle=False, batch_size=256)
    loaded = [each.batch for each in batches.epoch()]
    return torch.cat([each.images.mean((2, 3)) for each in loaded if each is not None])


def read_coco(shared: Path, backbone: Backbone) -> Photos:
    annotations, maps = read_features(shared / "data/coco_lite0_pooled.npz")
    names = find_names(backbone.class_head, annotations.categories, None)
    assert names is not None
    truth = {split: annotations.labels[annotations.splits == split] == PRESENT for split in maps}
    features = {split: each[0, :, :, 0, 0] for split, each in maps.items()}
    return Photos(annotations.categories, features, truth, names, None)


def read_sets(shared: Path, cache: str) -> dict[str, Photos]:
    backbone = shared_backbone(shared)
    coco = read_coco(shared, backbone)  # before reading VOC freezes the backbone
    return {"voc2007": read_voc(shared, cache, backbone), "coco": coco}


class Case:
    """A fit to the labels that a tagger left."""

    def __init__(self, photos: Photos, tagger: str, seed: int, method: str):
        self.photos, self.seed, self.truth = photos, seed, photos.truth["train"]
        known = photos.known(COIN if tagger == "coin" else tagger, seed)
        self.known = torch.from_numpy(known)
        features, with_names = photos.features["train"], method == METHODS[0]
        of_train, self.of_test = (
            photos.name_scores(each) if with_names else None for each in (features, photos.features["test"])
        )
        named = photos.names.known if with_names else None
        self.model = Presence(known.shape[1], features.shape[1])
        sums = ImageSums.of(features, self.known)
        self.odds = fit_presence(self.model, sums, features, self.known, names=of_train, named=named).left_out()

    def hidden(self) -> Tensor:
        return self.model.answers.if_unknown(self.odds)

    def audit(self, number: int) -> tuple[np.ndarray, list[Answered]]:
        """[n, 2] labels asked about, wave by wave, and the answers."""
        asked, waves = np.zeros((0, 2), dtype=np.int64), []
        self.learn(asked)
        while len(asked) < number:
            open_ones = (self.known == 0).numpy()
            open_ones[asked[:, 0], asked[:, 1]] = False
            rows, columns = np.nonzero(open_ones)
            odds = self.hidden().numpy()[rows, columns]
            wave = choose(Candidates(rows, columns, odds, np.ones_like(rows)), WAVE, (self.seed, len(waves)))
            found = int(self.truth[asked[:, 0], asked[:, 1]].sum())
            said = self.truth[wave.rows, wave.columns]
            waves.append(Answered(said, wave.inclusion, wave.stands_for, len(wave), found))
            asked = np.concatenate([asked, np.stack([wave.rows, wave.columns], axis=1)])
            self.learn(asked)
        return asked, waves

    def review(self, number: int) -> np.ndarray:
        """[n, 2] the surest suggestions."""
        self.learn(np.zeros((0, 2), dtype=np.int64))
        worth = torch.where(self.known == 0, self.hidden(), -torch.inf).flatten()
        place = worth.topk(number).indices.numpy()
        asked = np.stack(np.divmod(place, self.known.shape[1]), axis=1)
        self.learn(asked)
        return asked

    def learn(self, asked: np.ndarray) -> None:
        row, column = (torch.from_numpy(asked[:, axis].copy()) for axis in (0, 1))
        said = torch.from_numpy(self.truth[asked[:, 0], asked[:, 1]])
        self.correction = self.model.take_answers(self.odds[row, column], column, said)

    def numbers(self, asked: np.ndarray, waves: list[Answered]) -> dict[str, float | str]:
        running = by_model(Judged(self.odds, self.known, self.model.answers.observation), self.correction)
        chance, unknown = self.hidden().sigmoid().numpy(), (self.known == 0).numpy()
        by_tag, really = (chance * unknown).sum(0), (self.truth & unknown).sum(0)
        left = unknown.copy()
        left[asked[:, 0], asked[:, 1]] = False
        suggested = left & (chance > 0.5)
        design, some = by_design(waves), really > 0
        of_test = self.model.log_odds(self.photos.features["test"], self.of_test).numpy()
        return {
            "known_true": round(float(self.known.sum() / self.truth.sum()), 3),
            "known_estimated": round(running.known.value, 3),
            "missing_true": int(really.sum()),
            "missing_estimated": round(running.missing.value),
            "suggested": int(suggested.sum()),
            "promised": round(100 * float(chance[suggested].mean()), 1) if suggested.any() else "",
            "right": round(100 * float(self.truth[suggested].mean()), 1) if suggested.any() else "",
            "per_tag_error": round(float(np.median(np.abs(by_tag - really)[some] / really[some])), 3),
            "map": round(100 * mean_average_precision(of_test, self.photos.truth["test"]), 2),
            "missing_low": round(running.missing.low),
            "missing_high": round(running.missing.high),
            "missing_by_design": "" if design is None else round(design.missing),
            "error_by_design": "" if design is None else round(design.error),
        }


def measure(sets: dict[str, Photos], seeds: list[int]) -> None:
    done = {tuple(row[key] for key in KEYS) for row in read_results(RESULTS)}
    wanted = [*map(str, ANSWERS), f"review {REVIEWED}"]
    for method, seed, data in product(METHODS, seeds, sets):
        for tagger in TAGGERS[data]:
            keys = [(data, tagger, str(seed), method, answers) for answers in wanted]
            if all(key in done for key in keys):
                continue
            case = Case(sets[data], tagger, seed, method)
            for key in keys:
                if key not in done:
                    is_review = key[-1].startswith("review")
                    asked, waves = (case.review(REVIEWED), []) if is_review else case.audit(int(key[-1]))
                    append_result(RESULTS, FIELDS, {**dict(zip(KEYS, key, strict=True)), **case.numbers(asked, waves)})


def table(rows: list[dict[str, str]]) -> str:
    """Means over the seeds: missing tags estimated and true, promised and right."""
    names = (
        "data, tagger, method", "answers", "known: true, estimated", "missing: true, estimated", "in the interval",
        "suggested", "promised", "right", "median tag off by", "mAP",
    )  # fmt: skip
    lines = ["| " + " | ".join(names) + " |"]
    lines.append("|---" * 10 + "|")
    for key in dict.fromkeys((r["data"], r["tagger"], r["method"], r["answers"]) for r in rows):
        found = [r for r in rows if (r["data"], r["tagger"], r["method"], r["answers"]) == key]
        inside = sum(float(r["missing_low"]) <= float(r["missing_true"]) <= float(r["missing_high"]) for r in found)

        def mean(field: str, found: list[dict[str, str]] = found) -> float:
            return statistics.mean([float(r[field]) for r in found if r[field]] or [float("nan")])

        lines.append(
            f"| {', '.join(key[:3])} | {key[3]} | {mean('known_true'):.2f}, {mean('known_estimated'):.2f} | "
            f"{mean('missing_true'):,.0f}, {mean('missing_estimated'):,.0f} | {inside} of {len(found)} | "
            f"{mean('suggested'):,.0f} | {mean('promised'):.0f} | {mean('right'):.0f} | "
            f"{100 * mean('per_tag_error'):.0f} % | {mean('map'):.1f} |"
        )
    return "\n".join([*lines, "", summary(rows)])


def summary(rows: list[dict[str, str]]) -> str:
    """Means over taggers that hide labels, seeds and methods: how far the numbers are off."""
    lines = ["| data | answers | missing off by | promise off by | median tag off by | inside |", "|---" * 6 + "|"]
    rows = [r for r in rows if r["tagger"] != "five"]
    for data in ("voc2007", "coco", "both sets"):
        for answers in dict.fromkeys(r["answers"] for r in rows):
            found = [r for r in rows if r["answers"] == answers and data in (r["data"], "both sets")]
            missing = [abs(float(r["missing_estimated"]) / float(r["missing_true"]) - 1) for r in found]
            promise = [abs(float(r["promised"]) - float(r["right"])) for r in found if r["promised"]]
            tags = [float(r["per_tag_error"]) for r in found]
            inside = [float(r["missing_low"]) <= float(r["missing_true"]) <= float(r["missing_high"]) for r in found]
            off, tag, share = (100 * statistics.mean(each) for each in (missing, tags, inside))
            numbers = f"{off:.0f} % | {statistics.mean(promise):.1f} points | {tag:.0f} % | {share:.0f} %"
            lines.append(f"| {data} | {answers} | {numbers} |")
    return "\n".join(lines)


@torch.no_grad()
def run_on_sets(about: str | None, seeds: str, measure: Measure, results: Path, table: Table) -> None:
    """The command of a benchmark on both sets: measure what is missing in its results, and print their table."""
    parser = shared_parser(about, seeds=seeds)
    parser.add_argument("--tables", action="store_true", help="only print the table of what was measured")
    options = parser.parse_args()
    if not options.tables:
        measure(read_sets(options.shared, options.cache), [int(seed) for seed in options.seeds.split(",")])
    print(table(read_results(results)))


if __name__ == "__main__":
    run_on_sets(__doc__, "0,1,2", measure, RESULTS, table)
