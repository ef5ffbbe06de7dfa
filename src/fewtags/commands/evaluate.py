"""`fewtags evaluate`: measures a saved model on its own data or on other data."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fewtags.commands.models import Inference, OpenModel, open_model
from fewtags.data.annotations import Annotations
from fewtags.data.formats import read_annotations
from fewtags.engine.onnx_tagger import is_exported
from fewtags.engine.predictions import Predictions, gathered, measure
from fewtags.errors import DataError, QualityTooLow, UserError, did_you_mean
from fewtags.labels import ABSENT, PRESENT, SPLITS
from fewtags.metrics import Scores
from fewtags.presence.summary import estimate_lines
from fewtags.progress import progress_bar, working
from fewtags.wording import plural


@dataclass(frozen=True)
class Evaluation:
    scores: Scores  # if labels are partial: over the known ones, or with unknown as absent
    categories: list[str]
    estimates: dict[str, Any] | None  # if labels are partial; see fewtags.presence.estimates
    warnings: list[str]
    typed_only: bool = False  # tags are known to be present or not known at all, so unknown counts as absent

    @property
    def map(self) -> float:
        """Measured, or estimated if it cannot be measured."""
        return self.scores.map if self.estimates is None else self.estimates["map"][0]

    def must_reach(self, min_map: float) -> None:
        if not self.map >= min_map:
            how = "measured" if self.estimates is None else "estimated"
            raise QualityTooLow(f"The {how} mAP is {self.map:.4f}, below the {min_map:g} of --min-map.")


def evaluate_saved(
    run: Path,
    data: Path | None,
    tags: Path | None,
    format: str,
    options: dict[str, Any],
    split: str | None,
    threshold: str | None,
    device: str,
    moved_to: Path | None = None,
) -> Evaluation:
    """`split` defaults to the test split, else the validation images.

    `data` is other data; `moved_to` is where the run's own data is now.
    """
    with working("Opening the model and its data"):
        model = open_model(run)
        if data is None:
            part, warnings = own_part(run, split, moved_to, tags)
        else:
            part, warnings = other_part(model.categories, data, tags, format, options, split), []
    warnings += [] if part.complete else [f"Warning: {part.partial_warning('measured')}"]
    with progress_bar("Evaluating", len(part), unit="images") as bar:
        files = (part.path(row) for row in range(len(part)))
        predictions = gathered(model.predict(files, Inference(device), len(part)), part.labels.shape, bar.step)
    warnings += [f"Skipped: {reason}" for reason in predictions.broken.values()]
    limits = threshold_of(threshold or ("0.5" if part.complete else "saved"), model)
    estimates = None
    if not part.complete and (part.labels == PRESENT).any():
        estimates = estimate(model.categories, predictions, part, limits, run if data is None else None, split)
    typed_only = not part.complete and not (part.labels == ABSENT).any()
    return Evaluation(measure(predictions, part, limits), model.categories, estimates, warnings, typed_only)


def estimate(
    categories: list[str],
    predictions: Predictions,
    part: Annotations,
    thresholds: float | np.ndarray,
    run: Path | None,
    split: str | None,
) -> dict[str, Any] | None:
    """Estimates from the known tags. For the run's own data, what is known and missing is what `train` has found."""
    if run is not None and split == "train":
        return None  # the model was trained on these labels
    from fewtags.engine.quality import estimate_predictions, recorded_estimates, with_quality
    from fewtags.engine.run_folder import RunFolder

    record = None if run is None else recorded_estimates(RunFolder(run))
    known = None if record is None else record["known_proportion"][0]
    now = estimate_predictions(predictions, part.labels, thresholds, known).as_json(categories)
    return now if record is None else with_quality(record, now)


def own_part(
    run: Path, split: str | None, moved_to: Path | None = None, tags: Path | None = None
) -> tuple[Annotations, list[str]]:
    """A split of the data the model was trained on, as it was for training; a warning if it has changed."""
    if split is not None and split not in SPLITS:
        raise UserError(f"--split {split}: {did_you_mean(split, SPLITS)}")
    if is_exported(run):
        raise UserError(f"{run} is an exported model without data; pass the data to evaluate on after it.")
    from fewtags.engine.record import load_run_data
    from fewtags.engine.run_folder import RunFolder
    from fewtags.models.saved import read_object

    if not RunFolder(run).is_run:
        raise UserError(f"{run} is a saved model without data; pass the data to evaluate on after it.")
    data = load_run_data(run, moved_to, tags)
    parts = {name: part for name, part in zip(SPLITS, (data.train, data.val, data.test), strict=True) if part}
    split = split or ("test" if "test" in parts else "val")
    if split not in parts:
        raise UserError(f"The run's data has no {split} split; it has: {', '.join(parts)}.")
    then = read_object(RunFolder(run).data).get(split, {}).get("hash")
    if then is None or then == parts[split].content_hash():
        return parts[split], []
    return parts[split], [f"Warning: the {split} images or their labels have changed since {run} was trained."]


def other_part(
    categories: list[str], data: Path, tags: Path | None, format: str, options: dict[str, Any], split: str | None
) -> Annotations:
    """Other data, with columns in the model's order. Data without splits is used as a whole."""
    annotations = read_annotations(data, tags=tags, format=format, **options)
    there = set(annotations.splits.tolist())
    split = split or ("test" if "test" in there else "val")
    if split != "all" and len(there) > 1:
        annotations = annotations.split(split)
    if not len(annotations):
        raise DataError(f"{data} has no images in the {split} split.")
    return in_model_order(annotations, categories, data)


def in_model_order(annotations: Annotations, categories: list[str], data: Path) -> Annotations:
    """With the model's categories as columns; categories missing from the data are unknown."""
    shared = [name for name in categories if name in annotations.categories]
    if not shared:
        raise DataError(f"{data} has none of the model's categories ({', '.join(categories[:3])}, …).")
    labels = np.zeros((len(annotations), len(categories)), dtype=np.int8)
    to = [categories.index(name) for name in shared]
    labels[:, to] = annotations.labels[:, [annotations.categories.index(name) for name in shared]]
    return replace(annotations, categories=categories, labels=labels)


def threshold_of(text: str, model: OpenModel) -> float | np.ndarray:
    if text == "saved":
        return model.thresholds
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise UserError(f"--threshold {text} should be a number from 0 to 1, or 'saved'.")
    return value


def scores_json(evaluation: Evaluation) -> str:
    scores, categories = evaluation.scores, evaluation.categories
    values = {key: value for key, value in asdict(scores).items() if not isinstance(value, list | np.ndarray)}
    ap = {
        name: None if np.isnan(v) else round(float(v), 6)
        for name, v in zip(categories, scores.per_category, strict=True)
    }
    more = {} if evaluation.estimates is None else {"estimates": evaluation.estimates}
    return json.dumps({**values, "ap": ap, **more}, indent=1, ensure_ascii=False)


def render_scores(evaluation: Evaluation, per_category: bool) -> str:
    scores, categories = evaluation.scores, evaluation.categories
    excluded = scores.num_categories_left_out
    images = f"{plural(scores.num_images, 'image')}, {plural(len(categories), 'category', 'categories')}"
    images += f" ({excluded} without positives excluded)" if excluded else ""
    lines = [*estimate_lines(evaluation.estimates), ""] if evaluation.estimates is not None else []
    if evaluation.typed_only:
        lines += [images, *given_tag_lines(scores)]
    else:
        lines += [images, *measured_lines(scores, known_only=evaluation.estimates is not None)]
    if per_category:
        width = max(map(len, categories))
        ap = np.array(scores.per_category)
        for c in np.argsort(-np.nan_to_num(ap, nan=-1), kind="stable"):
            lines.append(f"{categories[c]:{width}}  {'no positives' if np.isnan(ap[c]) else f'{100 * ap[c]:6.2f}'}")
    return "\n".join(lines)


def given_tag_lines(scores: Scores) -> list[str]:
    """Where no absence is known. Precision and F1 would count every found tag as wrong, so they are not shown."""
    return [
        f"Of the given tags, {100 * scores.or_:.2f} % are predicted (OR); as a mean over the tags, "
        f"{100 * scores.cr:.2f} % (CR).",
        f"mAP of the given tags, every other tag counted as absent: {100 * scores.map:.2f}. It compares runs on the "
        "same labels; how good the tags are, only the estimate says.",
    ]


def measured_lines(scores: Scores, *, known_only: bool) -> list[str]:
    return [
        *(["Measured on the known labels only:"] if known_only else []),
        f"mAP {100 * scores.map:.2f}   VOC-2012 mAP {100 * scores.map_voc12:.2f}",
        f"all    OP {100 * scores.op:.2f}  OR {100 * scores.or_:.2f}  OF1 {100 * scores.of1:.2f}   "
        f"CP {100 * scores.cp:.2f}  CR {100 * scores.cr:.2f}  CF1 {100 * scores.cf1:.2f}",
        f"top 3  OF1 {100 * scores.of1_top3:.2f}   CF1 {100 * scores.cf1_top3:.2f}",
    ]
