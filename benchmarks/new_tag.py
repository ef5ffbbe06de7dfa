"""A tag that nobody had: what a reviewer finds in 10 to 500 answers, and how good the tagger is that learns from them.

    .venv/bin/python benchmarks/new_tag.py [--shared ../shared] [--cache features] [--voc-seeds 5] [--coco-seeds 1]

Each category of VOC 2007 and of the COCO features is the new one in turn, its labels all unknown, and a simulated
reviewer answers with the truth. It starts from one example, five, the word, or the word and one example:

    fewtags    `presence.new_tag`: its order, its threshold, what it promises and forecasts
    cosine     similarity to the examples (or the word's score), without learning
    margin     logistic regression on examples and answers, the least certain first; before both kinds of answers are
               known, the likeliest
    likeliest  the same, the likeliest first

Where there is an example, the three start from it alone: they cannot use the word besides.

The penalty of the regressions is the best of four by what `likeliest` finds on VOC: they get every advantage. A model
is fitted again after every answer up to 10, then after every 2, 5, 20 and 50. Appends to results/new-tag/runs.csv,
skips what it finds there, and prints tables. `forecast` is what the answers since the row before were expected to find.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from result_rows import append_result, read_results
from selection import ROOT, Photos, read_coco, read_voc
from torch import Tensor

from fewtags.data.formats.voc import VOC_CATEGORIES
from fewtags.metrics import average_precision
from fewtags.models.backbones import create_backbone
from fewtags.models.closed_form import NAME_SHARPNESS
from fewtags.presence.new_tag import Archive, Learned, name_prior
from fewtags.presence.ridge import Basis, ImageSums, unit_length
from fewtags.presence.rows import AT_ONCE, ClassShares, FeatureRows, with_classes

RESULTS = ROOT / "results/new-tag/runs.csv"
STARTS = {"one example": (1, False), "five examples": (5, False), "word": (0, True), "word + one example": (1, True)}
METHODS = ("fewtags", "cosine", "margin", "likeliest")
ANSWERS = (10, 20, 50, 100, 200, 500)
LEAST = 10  # training images that have a category
KEYS = ("data", "method", "start", "category", "seed")
FIELDS = (
    *KEYS, "answers", "found", "test_ap", "precision", "recall", "promised", "forecast", "forecast_found",
    "missing_estimated", "missing_low", "missing_high", "missing_true", "enough",
)  # fmt: skip
PENALTY_SPREAD = 8.0  # prior variance of a score in the regressions; 1, 100 and 1280 (scikit-learn's default) find less


def steps() -> Iterator[int]:
    """Numbers of answers after which a model is fitted again."""
    number = 0
    while number < ANSWERS[-1]:
        number += 1 if number < 10 else 2 if number < 20 else 5 if number < 100 else 20 if number < 200 else 50
        yield number


@dataclass(frozen=True)
class Data:
    name: str
    categories: Sequence[str]
    train: FeatureRows  # [N, D + K] of unit length, with the classes seen in the images
    test: FeatureRows
    looks: Tensor  # [N, D] of the training images, of unit length
    looks_test: Tensor
    standard: tuple[Tensor, Tensor]  # the same, standardised, for the regressions
    truth: np.ndarray  # [N, C] bool
    truth_test: np.ndarray
    names: tuple[Tensor, Tensor]  # [N, C] name scores
    named: Tensor  # [C]
    archive: Archive

    @classmethod
    def of(cls, name: str, photos: Photos, categories: Sequence[str]) -> Data:
        train, test = (unit_length(photos.features[split]) for split in ("train", "test"))
        basis = Basis.of(ImageSums.of(train, torch.zeros(len(train), 1)))
        size = float(basis.values.sum())
        standard = tuple((each - basis.mean) / basis.scale * (PENALTY_SPREAD / size) ** 0.5 for each in (train, test))
        sharpness = NAME_SHARPNESS * photos.features["train"].norm(dim=1).mean()
        names = tuple(photos.names.scores(each * sharpness) for each in (train, test))
        archive = Archive.of(train, seen(photos, train * sharpness))
        of_test = with_classes(test, seen(photos, test * sharpness))
        return cls(
            name, categories, archive.features, of_test, train, test, (standard[0], standard[1]),
            photos.truth["train"], photos.truth["test"], (names[0], names[1]), photos.names.known, archive,
        )  # fmt: skip

    def priors(self, column: int) -> tuple[Tensor, Tensor]:
        """What the name says, of training and test images."""
        of_train, of_test = (each[:, column] for each in self.names)
        return name_prior(of_train), name_prior(of_test, of_train)


def seen(photos: Photos, features: Tensor) -> ClassShares:
    logits = (F.linear(part, photos.names.weight, photos.names.bias) for part in features.split(AT_ONCE))
    return ClassShares.of(each.softmax(1) for each in logits)


@dataclass
class Fit:
    """A model after some answers."""

    scores: Tensor  # [N] to rank by
    test: Tensor  # [M]
    chance: Callable[[Tensor], Tensor]
    threshold: float = 0.5
    promised: float | None = None
    learned: Learned | None = None


class Session:
    """The review of one new tag by one method."""

    def __init__(self, data: Data, method: str, start: str, column: int, seed: int):
        self.data, self.method, self.truth = data, method, data.truth[:, column]
        self.truth_test = data.truth_test[:, column]
        number, with_word = STARTS[start]
        positives = np.random.default_rng((seed, column)).permutation(np.flatnonzero(self.truth))
        self.examples = positives[:number]
        self.priors = data.priors(column) if with_word else (None, None)
        self.rows = self.examples.copy()
        self.open = np.ones(len(self.truth), dtype=bool)
        self.open[self.rows] = False
        self.answers = self.found = 0

    def fit(self) -> Fit:
        present = self.truth[self.rows]
        if self.method == "fewtags":
            learned = self.data.archive.learn(self.rows, present, self.priors[0], self.examples.tolist())
            scores = learned.scores(self.data.train, self.priors[0])
            own = learned.threshold(scores)
            return Fit(
                scores, learned.scores(self.data.test, self.priors[1]), lambda s: learned.curve(s).sigmoid(),
                own.probability, own.promised, learned,
            )  # fmt: skip
        if self.method == "cosine":
            return self.similar()
        return self.regression(present) if 0 < present.sum() < len(present) else self.similar()

    def similar(self) -> Fit:
        """To the examples; without any, by the word."""
        if not len(self.examples):
            by_word, of_test = self.priors
            assert by_word is not None
            assert of_test is not None
            return Fit(by_word, of_test, torch.sigmoid)
        example = self.data.looks[self.examples].mean(0)
        return Fit(self.data.looks @ example, self.data.looks_test @ example, torch.sigmoid, threshold=2.0)

    def regression(self, present: np.ndarray) -> Fit:
        """Logistic regression with an L2 penalty, by Newton's method in the space of the answers."""
        train, test = self.data.standard
        images = train[self.rows]
        covariance = (images @ images.T + 9.0).double()
        target = torch.from_numpy(present).double()
        scores = torch.zeros(len(target), dtype=torch.float64)
        for _ in range(25):
            chance = scores.sigmoid()
            information = (chance * (1 - chance)).clamp(min=1e-9)
            wanted = scores + (target - chance) / information
            weights = torch.linalg.solve(covariance + torch.diag(1 / information), wanted)
            change = covariance @ weights - scores
            scores = scores + change * min(1.0, 5 / max(float(change.abs().max()), 1e-9))
            if float(change.abs().max()) < 1e-3:
                break
        direction, bias = images.T @ weights.float(), 9.0 * float(weights.sum())
        found = train @ direction + bias
        above = found.sigmoid()[found >= 0]
        promised = float(above.mean()) if len(above) else None
        return Fit(found, test @ direction + bias, torch.sigmoid, 0.5, promised)

    def ask(self, fit: Fit, number: int) -> None:
        open_rows = np.flatnonzero(self.open)
        if fit.learned is not None:
            order = fit.learned.first(fit.scores, open_rows)
        else:
            scores = fit.scores.numpy()[open_rows]
            uncertain = self.method == "margin" and fit.promised is not None
            order = open_rows[np.argsort(np.abs(scores) if uncertain else -scores, kind="stable")]
        asked = order[:number]
        self.open[asked] = False
        self.rows = np.concatenate([self.rows, asked])
        self.answers += len(asked)
        self.found += int(self.truth[asked].sum())

    def run(self) -> Iterator[dict[str, object]]:
        fit, before, forecast = self.fit(), 0, ""
        for number in steps():
            self.ask(fit, number - self.answers)
            fit = self.fit()
            if number in ANSWERS:
                yield {**self.measured(fit), "forecast": forecast, "forecast_found": self.found - before}
                forecast, before = self.expected(fit, number), self.found

    def expected(self, fit: Fit, number: int) -> str:
        """What the answers until the next row are expected to find."""
        if fit.learned is None or number == ANSWERS[-1]:
            return ""
        more = ANSWERS[ANSWERS.index(number) + 1] - number
        best = fit.scores[torch.from_numpy(self.open)].topk(min(more, int(self.open.sum()))).values
        return f"{float(fit.chance(best).sum()):.1f}"

    def measured(self, fit: Fit) -> dict[str, object]:
        given = (fit.chance(fit.test) >= fit.threshold).numpy()
        row: dict[str, object] = {
            "answers": self.answers,
            "found": self.found,
            "test_ap": f"{100 * float(average_precision(fit.test.numpy()[:, None], self.truth_test[:, None])[0]):.2f}",
            "precision": f"{100 * self.truth_test[given].mean():.1f}" if given.any() else "",
            "recall": f"{100 * self.truth_test[given].sum() / max(self.truth_test.sum(), 1):.1f}",
            "promised": "" if fit.promised is None or not given.any() else f"{100 * fit.promised:.1f}",
        }
        if fit.learned is not None:
            told = fit.learned.forecast(fit.scores, np.flatnonzero(self.open), int(self.truth[self.rows].sum()))
            value, low, high = told.missing
            row |= {"missing_estimated": f"{value:.1f}", "missing_low": f"{low:.1f}", "missing_high": f"{high:.1f}"}
            row |= {"missing_true": int(self.truth[self.open].sum()), "enough": int(told.enough)}
        return row


def measure(data: Data, seeds: int) -> None:
    done = {tuple(row[key] for key in KEYS) for row in read_results(RESULTS)}
    columns = [column for column in range(data.truth.shape[1]) if data.truth[:, column].sum() >= LEAST]
    for seed, column, start, method in product(range(seeds), columns, STARTS, METHODS):
        key = (data.name, method, start, data.categories[column], str(seed))
        if key in done or (STARTS[start][1] and not data.named[column]):
            continue
        for row in Session(data, method, start, column, seed).run():
            append_result(RESULTS, FIELDS, {**dict(zip(KEYS, key, strict=True)), **row})


# --- tables ---


def mean(rows: Sequence[dict[str, str]], field: str) -> float:
    return statistics.mean([float(row[field]) for row in rows if row[field]] or [float("nan")])


def of(rows: Sequence[dict[str, str]], **wanted: str) -> list[dict[str, str]]:
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def of_all_methods(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """Rows of the tags and draws that every method was measured on to the end: only those can be compared."""
    ended = {tuple(row[key] for key in KEYS) for row in rows if row["answers"] == str(ANSWERS[-1])}
    shared = {
        (data, start, category, seed)
        for data, _, start, category, seed in ended
        if all((data, method, start, category, seed) in ended for method in METHODS)
    }
    return [row for row in rows if (row["data"], row["start"], row["category"], row["seed"]) in shared]


def tables(rows: list[dict[str, str]]) -> str:
    lines, rows = [], of_all_methods(rows)
    for data, start in product(dict.fromkeys(row["data"] for row in rows), STARTS):
        some = of(rows, data=data, start=start)
        if not some:
            continue
        draws = len({(row["category"], row["seed"]) for row in some})
        lines += [f"\n**{data}, {start}**: found / test AP after so many answers, mean of {draws} draws\n"]
        lines += ["| | " + " | ".join(map(str, ANSWERS)) + " |", "|---" * (len(ANSWERS) + 1) + "|"]
        for method in METHODS:
            cells = [of(some, method=method, answers=str(number)) for number in ANSWERS]
            lines.append(
                f"| {method} | "
                + " | ".join(f"{mean(c, 'found'):.1f} / {mean(c, 'test_ap'):.1f}" for c in cells)
                + " |"
            )
    return "\n".join([*lines, *kept_promises(rows)])


def kept_promises(rows: list[dict[str, str]]) -> list[str]:
    names = (
        "data, start", "answers", "promised", "precision", "recall", "precision 90 and recall 50",
        "forecast", "came true", "missing: estimated, true", "in the interval", "enough said, right",
    )  # fmt: skip
    lines = ["\n**fewtags: promises and forecasts**\n", "| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    for data, start, number in product(dict.fromkeys(row["data"] for row in rows), STARTS, ANSWERS):
        some = of(rows, data=data, start=start, method="fewtags", answers=str(number))
        if not some:
            continue
        categories = dict.fromkeys(row["category"] for row in some)
        reached = 0
        for category in categories:
            own = of(some, category=category)
            reached += mean(own, "precision") >= 90 and mean(own, "recall") >= 50
        inside = [float(r["missing_low"]) <= float(r["missing_true"]) <= float(r["missing_high"]) for r in some]
        stopped = [r for r in some if r["enough"] == "1"]
        right = [10 * float(r["missing_true"]) <= float(r["missing_true"]) + float(r["found"]) for r in stopped]
        forecast = [row for row in some if row["forecast"]]
        lines.append(
            f"| {data}, {start} | {number} | {mean(some, 'promised'):.0f} | {mean(some, 'precision'):.0f} | "
            f"{mean(some, 'recall'):.0f} | {reached} of {len(categories)} | {mean(forecast, 'forecast'):.1f} | "
            f"{mean(forecast, 'forecast_found'):.1f} | {mean(some, 'missing_estimated'):.0f}, "
            f"{mean(some, 'missing_true'):.0f} | {100 * statistics.mean(inside):.0f} % | {len(stopped)}, {sum(right)} |"
        )
    return lines


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared")
    parser.add_argument("--cache", default="feature-cache")
    parser.add_argument("--voc-seeds", type=int, default=5)
    parser.add_argument("--coco-seeds", type=int, default=1)
    parser.add_argument("--tables", action="store_true", help="only print the tables of what was measured")
    options = parser.parse_args()
    if not options.tables:
        weights = options.shared / "weights/tf_efficientnet_lite0_fp16.safetensors"
        backbone = create_backbone("tf_efficientnet_lite0", pretrained=False, weights=weights, keep_classifier=True)
        of_coco = np.load(options.shared / "data/coco_lite0_pooled.npz")["categories"]
        coco = read_coco(options.shared, backbone.eval())
        voc = Data.of("voc2007", read_voc(options.shared, options.cache, backbone), VOC_CATEGORIES)
        measure(voc, options.voc_seeds)
        measure(Data.of("coco", coco, [str(name) for name in of_coco]), options.coco_seeds)
    print(tables(read_results(RESULTS)))


if __name__ == "__main__":
    main()
