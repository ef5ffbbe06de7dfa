"""Quality of a run without complete labels: estimates from the known tags and the answers.

How complete the labels are, and how many tags are missing, is judged by the closed form on the training images, each
label without itself (`engine.judge`). How well a model ranks is judged on the known tags of its validation images, by
`train`, `evaluate` and `compare` alike; without any, `instant` is judged on its training images.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fewtags import distributed
from fewtags.data.prepare import RunData
from fewtags.engine.kept_judge import kept_bursts, kept_inputs
from fewtags.engine.own_images import OwnImages
from fewtags.engine.predictions import Predictions
from fewtags.engine.run import Run, has_labels
from fewtags.engine.run_folder import RunFolder
from fewtags.labels import PRESENT
from fewtags.models.saved import SavedModel, read_object
from fewtags.presence.answers import Correction
from fewtags.presence.estimates import Estimates, Judged, estimate, judge_scores, log_odds

QUALITY = ("num_images", "map", "of1", "cf1", "op", "or_", "cp", "cr")
CATEGORY_QUALITY = ("ap", "precision", "recall")


def estimate_run(run: Run, saved: SavedModel) -> dict[str, Any] | None:
    """The estimates for result.json; None if there are complete labels or none at all, or if several processes would
    have to judge images together.

    They are about all images that are partly labelled, as in `discover` and `review`, which judge them in the same way.
    """
    parts = (run.data.train, run.data.val, run.data.test)
    if any(part is not None and part.complete for part in parts) or not has_labels(run.data):
        return None
    if distributed.world_size() == 1:
        own, device = OwnImages.of(run.data), str(run.device)
        outputs, judge = own.judge(lambda: saved, run.config, run=run.folder, device=device, quiet=run.log.quiet)
        if outputs.key:  # many images: the first review, and the one after the first decisions, would have to wait
            kept_bursts(outputs, run.folder)
            kept_inputs(outputs, run.folder, judge.model)
        judged, correction = judge.judged(), judge.learn([], [], [])
    elif run.judged is not None and run.data.given is None:
        judged, correction = run.judged, no_answers(run.judged)
    else:
        return None
    judged_by_itself = run.judged is not None and not run.learner.objective.trains
    thresholds = saved.thresholds if judged_by_itself else 0.5
    record = without_found(estimate(judged, correction, thresholds).as_json(saved.categories), run.data)
    quality = held_out_quality(run, saved.thresholds, record["known_proportion"][0])
    if quality is None and judged_by_itself:
        return {**record, "judged_on": "training images, leaving each label out"}
    other = None if quality is None else quality.as_json(saved.categories)
    return {**with_quality(record, other), "judged_on": "validation images" if other else None}


def no_answers(judged: Judged) -> Correction:
    nothing = torch.zeros(0)
    return Correction.of(nothing, nothing.long(), nothing, judged.observation.habit)


def held_out_quality(run: Run, thresholds: np.ndarray, known_proportion: float) -> Estimates | None:
    """From the validation images, else the test images; None if neither has known tags."""
    split = "val" if run.data.val is not None else "test"
    part = run.data.val if split == "val" else run.data.test
    if part is None or not (part.labels == PRESENT).any():
        return None
    return estimate_predictions(run.latest[split].predictions, part.labels, thresholds, known_proportion)


def estimate_predictions(
    predictions: Predictions, labels: np.ndarray, thresholds: np.ndarray | float, known_proportion: float | None
) -> Estimates:
    """The quality of a model's predictions for images it was not trained on, by their known tags."""
    probabilities, said = predictions.probabilities[predictions.read], labels[predictions.read]
    judged = judge_scores(log_odds(probabilities), said, known_proportion)
    return estimate(judged, no_answers(judged), thresholds, probabilities)


def without_found(record: dict[str, Any], data: RunData) -> dict[str, Any]:
    """Missing tags minus those found in a review."""
    if data.given is None:
        return record
    found = ((data.train.labels == PRESENT) & (data.given != PRESENT)).sum(0)

    def less(values: list[float] | None, number: int) -> list[float] | None:
        return None if values is None else [max(value - number, 0.0) for value in values]

    categories = {
        name: {**values, "missing_tags": less(values["missing_tags"], int(found[column]))}
        for column, (name, values) in enumerate(record["categories"].items())
    }
    return {**record, "missing": less(record["missing"], int(found.sum())), "categories": categories}


def with_quality(record: dict[str, Any], other: dict[str, Any] | None) -> dict[str, Any]:
    """A record of estimates with its quality replaced by another one's, or removed."""
    merged = {**record, **{key: other[key] if other else None for key in QUALITY}}
    merged["categories"] = {
        name: {**values, **{key: other["categories"][name][key] if other else None for key in CATEGORY_QUALITY}}
        for name, values in record["categories"].items()
    }
    return merged


def recorded_estimates(files: RunFolder) -> dict[str, Any] | None:
    """What `train` has estimated; None where it measured with complete labels instead."""
    estimates = read_object(files.result).get("estimates") if files.result.is_file() else None
    return estimates if isinstance(estimates, dict) and estimates.get("known_proportion") else None


def estimated_proportion(files: RunFolder) -> float | None:
    """The known proportion that `train` has estimated."""
    estimates = recorded_estimates(files)
    return None if estimates is None else float(estimates["known_proportion"][0])
