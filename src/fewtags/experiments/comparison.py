"""Runs compared on the same images, with the same labels: before and after a review, or one method and another."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fewtags.data.agreement import Agreement
from fewtags.data.annotations import Annotations
from fewtags.data.decisions import latest, read_decisions
from fewtags.data.prepare import measurable
from fewtags.engine.predictions import Predictions
from fewtags.engine.quality import estimate_predictions, estimated_proportion
from fewtags.engine.record import load_labels, load_run_config
from fewtags.engine.run_folder import RunFolder
from fewtags.errors import DataError, UserError
from fewtags.labels import ABSENT, PRESENT, UNKNOWN
from fewtags.metrics import evaluate_scores
from fewtags.models.saved import read_object, read_thresholds
from fewtags.models.tensor_files import read_arrays


@dataclass(frozen=True)
class Review:
    """What the decisions that a run was trained with changed, compared with the labels it was given."""

    found: dict[str, int]  # tag -> how many images have it that were not known to
    removed: dict[str, int]  # tag -> how many images had it wrongly
    confirmed: int  # given tags that are right
    refuted: int  # suggestions that are wrong
    unsure: int
    agreement: str = ""  # of several reviewers, as a sentence

    @property
    def tags(self) -> set[str]:
        return {*self.found, *self.removed}


@dataclass(frozen=True)
class ComparedRun:
    name: str
    method: str
    known_tags: int  # it was trained with
    decisions: int  # of these, decided in a review
    map: float
    of1: float
    cf1: float
    ap: list[float | None]
    review: Review | None = None  # of the decisions it was trained with


@dataclass(frozen=True)
class Comparison:
    runs: list[ComparedRun]
    split: str
    num_images: int
    categories: list[str]
    estimated: bool  # the labels are partial

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, ensure_ascii=False)


def compare_runs(folders: Sequence[Path]) -> Comparison:
    """Measured with complete labels if there are any, else with the tags known before any decision."""
    if len(folders) < 2:
        raise UserError("Pass at least two runs to compare.")
    parts = [measured_part(folder, split_of(folders)) for folder in folders]
    shared = set.intersection(*(set(part.images) for part in parts))
    images = [image for image in parts[0].images if image in shared]
    categories = [name for name in parts[0].categories if all(name in part.categories for part in parts[1:])]
    if not images or not categories:
        raise DataError("The runs have no evaluation image or no tag in common; there is nothing to compare.")
    split = split_of(folders)
    labels = chosen(parts[0], parts[0].labels, images, categories)
    complete = bool((labels != UNKNOWN).all())
    runs = [
        compared(folder, chosen(part, predictions(folder, split), images, categories), labels, complete, categories)
        for folder, part in zip(folders, parts, strict=True)
    ]
    return Comparison(runs, split, len(images), categories, not complete)


def split_of(folders: Sequence[Path]) -> str:
    """The split all runs were evaluated on; test takes precedence over val."""
    there = [{s for s in ("test", "val") if RunFolder(f).must_be_run().predictions(s).is_file()} for f in folders]
    shared = set.intersection(*there)
    if not shared:
        without = [str(folder) for folder, splits in zip(folders, there, strict=True) if not splits]
        which = f"{without[0]} has no predictions; is it finished?" if without else "some on val, some on test."
        raise UserError(f"The runs were not evaluated on the same split: {which}")
    return "test" if "test" in shared else "val"


def measured_part(folder: Path, split: str) -> Annotations:
    return load_labels(folder).split(split)


def predictions(folder: Path, split: str) -> np.ndarray:
    return read_arrays(RunFolder(folder).predictions(split), "probabilities")[0]


def chosen(part: Annotations, values: np.ndarray, images: Sequence[str], categories: Sequence[str]) -> np.ndarray:
    """Rows and columns of `values` in a common order."""
    row = {image: number for number, image in enumerate(part.images)}
    return values[np.ix_([row[image] for image in images], [part.categories.index(name) for name in categories])]


def compared(
    folder: Path, probabilities: np.ndarray, labels: np.ndarray, complete: bool, categories: Sequence[str]
) -> ComparedRun:
    config, known = load_run_config(folder), read_object(RunFolder(folder).data)
    decisions = known.get("labels_from") or {}
    about: dict[str, Any] = {
        "name": folder.name,
        "method": config.method_name,
        "known_tags": sum(known["known_positives"]),
        "decisions": decisions.get("decisions", 0),
        "review": review_of(folder),
    }
    read = ~np.isnan(probabilities).any(1)
    if complete:
        truth, mask = measurable(labels[read])
        scores = evaluate_scores(probabilities[read], truth, mask=mask)
        ap = [None if np.isnan(value) else value for value in scores.per_category]
        return ComparedRun(**about, map=scores.map, of1=scores.of1, cf1=scores.cf1, ap=ap)
    if not (labels[read] == PRESENT).any():
        raise DataError("None of the images the runs have in common has a known tag.")
    predictions = Predictions(probabilities[read], {})
    thresholds = read_thresholds(folder)[[known["categories"].index(name) for name in categories]]  # as `train` has it
    estimates = estimate_predictions(predictions, labels[read], thresholds, estimated_proportion(RunFolder(folder)))
    ap = [None if np.isnan(value) else float(value) for value in estimates.ap[:, 0]]
    return ComparedRun(**about, map=estimates.map.value, of1=estimates.of1.value, cf1=estimates.cf1.value, ap=ap)


def review_of(folder: Path) -> Review | None:
    """None if the run was trained without decisions."""
    file = RunFolder(folder).decisions
    if not file.is_file():
        return None
    given = load_labels(folder)
    rows = {image: row for row, image in enumerate(given.images)}
    columns = {name: column for column, name in enumerate(given.categories)}
    kinds: dict[tuple[int, int], Counter[str]] = defaultdict(Counter)  # (label before, label now) -> tags
    decisions = read_decisions(file)
    opinions: dict[tuple[str, str], list[tuple[str, int]]] = defaultdict(list)
    for decision in decisions:
        opinions[decision.image, decision.tag].append((decision.reviewer, decision.label))
    for (image, tag), decision in latest(decisions).items():
        if image in rows and tag in columns:
            kinds[int(given.labels[rows[image], columns[tag]]), decision.label][tag] += 1
        elif image in rows and decision.tag_is == "new":
            kinds[UNKNOWN, decision.label][tag] += 1
    return Review(
        found=dict(kinds[UNKNOWN, PRESENT].most_common()),
        removed=dict(kinds[PRESENT, ABSENT].most_common()),
        confirmed=kinds[PRESENT, PRESENT].total(),
        refuted=kinds[UNKNOWN, ABSENT].total(),
        unsure=sum(counts.total() for (_, now), counts in kinds.items() if now == UNKNOWN),
        agreement=Agreement.of(opinions.values()).words,
    )
