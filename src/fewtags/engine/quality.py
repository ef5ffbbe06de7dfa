"""Quality of a run without complete labels: estimates from the known tags.

`instant` is judged on its training images, leaving each label out. A trained model knows its training labels too
well for that: it is judged on the known tags of the validation images, with the known proportion and the number of
missing tags from the closed form on the training images' features.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fewtags import distributed
from fewtags.data.prepare import RunData
from fewtags.engine.left_out import LeftOut
from fewtags.engine.model_outputs import model_outputs
from fewtags.engine.predictions import prediction_bins
from fewtags.engine.run import Run, has_labels
from fewtags.engine.run_folder import RunFolder
from fewtags.estimates import Curves, Estimates, estimate_quality, fit_curves
from fewtags.labels import PRESENT
from fewtags.models.saved import SavedModel, read_object

QUALITY = ("num_images", "map", "of1", "cf1", "op", "or_", "cp", "cr")
CATEGORY_QUALITY = ("ap", "precision", "recall")


def estimate_run(run: Run, saved: SavedModel) -> dict[str, Any] | None:
    """The estimates for result.json; None if there are complete labels or none at all, or if it would take another pass
    over the images with several processes."""
    parts = (run.data.train, run.data.val, run.data.test)
    if any(part is not None and part.complete for part in parts) or not has_labels(run.data):
        return None
    reviewed = run.data.given is not None  # reviewed labels are not a random sample; given ones are
    judged_by_itself = run.left_out is not None and not run.learner.objective.trains and not reviewed
    bins, known = (None, None) if reviewed else (run.left_out, run.known_proportion)
    if bins is None:
        if distributed.world_size() > 1:
            return None
        judge = left_out(run, saved)
        bins, known = judge.bins, judge.curves.known_proportion
    record = without_found(estimate_quality(bins, known).as_json(saved.categories), run.data)
    if judged_by_itself:
        return {**record, "judged_on": "training images, leaving each label out"}
    quality = held_out_quality(run, saved.thresholds, fit_curves(bins, known))
    other = None if quality is None else quality.as_json(saved.categories)
    return {**with_quality(record, other), "judged_on": "validation images" if other else None}


def left_out(run: Run, saved: SavedModel) -> LeftOut:
    """From another pass over the training images; its outputs are cached for `fewtags discover`."""
    train, folder = run.data.train, run.files.outputs
    outputs = model_outputs(saved, train, folder, config=run.config, device=str(run.device), quiet=run.log.quiet)
    saved.classifier.takes_maps = run.learner.model.takes_maps
    return LeftOut.of(outputs, train.labels if run.data.given is None else run.data.given)


def held_out_quality(run: Run, thresholds: np.ndarray, like: Curves) -> Estimates | None:
    """From the validation images, else the test images; None if neither has known tags."""
    split = "val" if run.data.val is not None else "test"
    part = run.data.val if split == "val" else run.data.test
    if part is None or not (part.labels == PRESENT).any():
        return None
    bins = prediction_bins(run.latest[split].predictions, part, thresholds)
    return estimate_quality(bins, like.known_proportion, like)


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


def estimated_proportion(files: RunFolder) -> float | None:
    """The known proportion that `train` has estimated; None where it measured with complete labels instead."""
    estimates = read_object(files.result).get("estimates") if files.result.is_file() else None
    interval = (estimates or {}).get("known_proportion")
    return interval[0] if interval else None
