"""Clicks to quality: how many decisions it takes until hidden tags are found, by the order in which they are asked for.

    .venv/bin/python benchmarks/review_clicks.py --data ../shared/data/VOCdevkit \\
        --weights ../shared/weights/tf_efficientnet_lite0_fp16.safetensors [--out results/review-clicks] [--work FOLDER]

A tenth of the positives is known; a simulated reviewer answers about unknown labels with the truth:

    random     labels in random order
    linear     by logistic regression on assumed negatives, the likeliest first, not learning
    instant    by the closed form, names included, the likeliest first, not learning
    learning   as the review page does: its session ranks the candidates of a tag and learns from every answer; the next
               ones are always those of the tag that the page calls the surest (key n)

Counted are the decisions until 50, 80, 90 and 95 % of all hidden tags are found (runs.csv), with the test mAP of
`instant` refitted to what is known then. per-tag.csv counts each tag's queue by itself: the sum over the tags of the
decisions until that share of the tag's own hidden ones is found. A run that was stopped goes on where it was.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from photo_features import Photos, options_parser, photos
from torch import Tensor

from fewtags.data.partial_labels import hide_labels
from fewtags.engine.judge import Judge
from fewtags.labels import ABSENT, PRESENT, UNKNOWN
from fewtags.metrics import mean_average_precision
from fewtags.models import logistic
from fewtags.models.heads import Standardise
from fewtags.presence.fitting import fit_presence
from fewtags.presence.model import Presence
from fewtags.presence.ridge import ImageSums
from fewtags.review.session import SCREEN, Answer, ReviewSession, View
from fewtags.review.store import DecisionStore

RANKINGS = ("random", "linear", "instant", "learning")
SHARES = (0.5, 0.8, 0.9, 0.95)
COLUMNS = ("ranking", "seed", "found_share", "decisions", "decisions_per_tag", "map")
AT_ONCE = SCREEN  # answers, after which everything is ranked anew; the page does it after each
Label = tuple[int, int]  # row and column


@dataclass(frozen=True)
class Case:
    photos: Photos
    truth: np.ndarray  # [N, C] bool
    given: np.ndarray  # [N, C] 1 or 0
    seed: int

    @property
    def hidden(self) -> np.ndarray:
        return self.truth & (self.given == UNKNOWN)

    def fitted(self, labels: np.ndarray) -> Presence:
        """`instant` on these labels of the training images."""
        features, told = self.photos.train.features, torch.from_numpy(labels)
        names, named = self.photos.train.names, self.photos.named
        model = Presence(told.shape[1], features.shape[1])
        fit_presence(model, ImageSums.of(features, told), features, told, names=names, named=named)
        return model

    def test_map(self, decided: Sequence[Label]) -> float:
        """Of `instant` fitted to the given labels and the truth of these."""
        labels = self.given.copy()
        rows, columns = np.array(decided).T
        labels[rows, columns] = np.where(self.truth[rows, columns], PRESENT, ABSENT)
        test = self.photos.test
        scores = self.fitted(labels).scores(test.features, test.names)
        return mean_average_precision(scores.numpy(), test.annotations.labels == PRESENT)


# --- orders ---


def order_of(ranking: str, case: Case, wanted: set[int]) -> Iterator[Label]:
    """All unknown labels of the `wanted` columns, which may become fewer, the first to ask for first."""
    if ranking == "learning":
        return learning_order(case, wanted)
    if ranking == "random":
        return fixed_order(case, torch.from_numpy(np.random.default_rng(case.seed).random(case.truth.shape)))
    return fixed_order(case, linear_scores(case) if ranking == "linear" else instant_scores(case))


def fixed_order(case: Case, scores: Tensor) -> Iterator[Label]:
    rows, columns = np.nonzero(case.given == UNKNOWN)
    order = np.argsort(-scores.numpy()[rows, columns], kind="stable")
    yield from zip(rows[order].tolist(), columns[order].tolist(), strict=True)


def linear_scores(case: Case) -> Tensor:
    standardise = Standardise(case.photos.train.features.shape[1])
    standardise.start([case.photos.train.features])
    features = standardise(case.photos.train.features)
    known = torch.from_numpy(case.given).float()
    strength = logistic.choose_strength(features, known, case.seed)
    return logistic.logits(features, *logistic.fit(features, known, strength))


def instant_scores(case: Case) -> Tensor:
    return case.fitted(case.given)(case.photos.train.features, case.photos.train.names)


def learning_order(case: Case, wanted: set[int]) -> Iterator[Label]:
    """As somebody works who always goes to the tag that the page calls the surest."""
    train = replace(case.photos.train.annotations, labels=case.given)
    names, named = case.photos.train.names, case.photos.named
    features, everyone = case.photos.train.features, np.ones(len(train), dtype=bool)
    judge = Judge.of_features(
        lambda rows: features[torch.from_numpy(rows)], everyone, case.given, names=names, named=named
    )
    session = ReviewSession(train, features, DecisionStore(None), judge=judge)
    while wanted:
        column = max(wanted, key=lambda column: session.summary(train.categories[column]).next_right)
        tag = train.categories[column]
        assert len(wanted) < len(train.categories) or tag == session.surest()
        rows = session.queue(View(tag, lowest=0.0)).order[:AT_ONCE].tolist()
        if not rows:
            return
        label = {row: PRESENT if case.truth[row, column] else ABSENT for row in rows}
        session.decide([Answer(row, tag, label[row]) for row in rows], queue="missing")
        yield from ((row, column) for row in rows)


# --- counting ---


def count(case: Case, ranking: str) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """Rows of runs.csv and of per-tag.csv."""
    hidden = case.hidden
    targets = [math.ceil(share * hidden.sum() - 1e-9) for share in SHARES]
    own_target = [math.ceil(SHARES[-1] * number - 1e-9) for number in hidden.sum(0)]
    found = np.zeros(hidden.shape[1], dtype=int)
    decided: list[Label] = []
    hits: list[list[bool]] = [[] for _ in found]  # of each tag, in the order of its own queue
    rows: list[dict[str, object]] = []
    wanted = set(range(len(found)))
    for row, column in order_of(ranking, case, wanted):
        decided.append((row, column))
        hits[column].append(bool(hidden[row, column]))
        found[column] += hidden[row, column]
        while len(rows) < len(targets) and found.sum() >= targets[len(rows)]:
            about = (ranking, case.seed, SHARES[len(rows)], targets[len(rows)])
            rows.append(line(*about, len(decided), case.test_map(decided)))
            print(*rows[-1].values(), flush=True)
        if len(rows) == len(targets):  # what is left is for the count of each tag by itself
            wanted -= set(np.flatnonzero(found >= own_target).tolist())
            if not wanted:
                break
    return rows, per_tag(ranking, case, hits)


def per_tag(ranking: str, case: Case, hits: Sequence[Sequence[bool]]) -> list[dict[str, object]]:
    rows = []
    for share in SHARES:
        targets = [math.ceil(share * number - 1e-9) for number in case.hidden.sum(0)]
        needed = [
            int(np.searchsorted(np.cumsum(of_tag), target)) + 1 for of_tag, target in zip(hits, targets, strict=True)
        ]
        rows.append(line(ranking, case.seed, share, sum(targets), sum(needed), None))
    return rows


def line(
    ranking: str, seed: int, share: float, found: int, decisions: int, test_map: float | None
) -> dict[str, object]:
    quality = "" if test_map is None else f"{100 * test_map:.2f}"
    values = (ranking, seed, share, decisions, f"{decisions / found:.3f}", quality)
    return dict(zip(COLUMNS, values, strict=True))


# --- files ---


def read_rows(file: Path) -> list[dict[str, object]]:
    if not file.is_file():
        return []
    with file.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def write_rows(file: Path, rows: Sequence[dict[str, object]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    place = {ranking: number for number, ranking in enumerate(RANKINGS)}
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted(rows, key=lambda row: (place[str(row["ranking"])], int(str(row["seed"])))))


def main() -> None:
    parser = options_parser(__doc__, "results/review-clicks")
    parser.add_argument("--known", type=float, default=0.1)
    parser.add_argument("--rankings", nargs="+", choices=RANKINGS, default=RANKINGS)
    options = parser.parse_args()
    found = photos(options.data, options.weights, options.work)
    truth = found.train.annotations.labels == PRESENT
    files = (options.out / "runs.csv", options.out / "per-tag.csv")
    for seed in options.seeds:
        case = Case(found, truth, hide_labels(truth, options.known, seed), seed)
        for ranking in options.rankings:
            kept = [read_rows(file) for file in files]
            if any((row["ranking"], str(row["seed"])) == (ranking, str(seed)) for row in kept[0]):
                continue  # counted before
            for file, before, rows in zip(files, kept, count(case, ranking), strict=True):
                write_rows(file, [*before, *rows])


if __name__ == "__main__":
    main()
