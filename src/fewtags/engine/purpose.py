"""Thresholds for a target, such as a precision of 0.9, chosen after training on a run's held-out images."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fewtags.config import RunConfig
from fewtags.engine.record import load_run_config, load_run_data
from fewtags.engine.run_folder import RunFolder
from fewtags.engine.thresholds import PurposeThresholds, thresholds_for
from fewtags.errors import UserError
from fewtags.labels import PRESENT
from fewtags.methods import objective_class
from fewtags.models.heads import head_class
from fewtags.models.saved import SavedModel
from fewtags.models.tensor_files import read_arrays
from fewtags.wording import plural

SHOWN = 8


def purpose_thresholds(
    run: Path, saved: SavedModel, *, precision: float | None = None, recall: float | None = None
) -> tuple[np.ndarray, str]:
    """[C] thresholds of a finished run, and a sentence about how they were chosen."""
    files = RunFolder(run)
    if not files.config.is_file():
        raise UserError(
            f"--precision and --recall choose thresholds on the held-out images of a run, but {run} is a model without "
            "its run; pass the run's folder, or save its thresholds there first (--save-thresholds)."
        )
    config = load_run_config(run)
    probabilities, truth, basis = held_out(files, config)
    chosen = thresholds_for(probabilities, truth, precision=precision, recall=recall, otherwise=saved.thresholds)
    target = f"a precision of {precision:g}" if precision is not None else f"a recall of {recall:g}"
    return chosen.values, f"Thresholds for {target}, chosen on {basis}.{missed_words(chosen, saved.categories)}"


def held_out(files: RunFolder, config: RunConfig) -> tuple[np.ndarray, np.ndarray | None, str]:
    """Probabilities of images that were not trained on, their complete labels or None, and a description."""
    calibrated = is_calibrated(config)
    split = next((name for name in ("val", "test") if files.predictions(name).is_file()), None)
    if split is None or (split == "test" and not calibrated):  # test labels are for evaluation only
        raise UserError(
            f"{files.path} has no predictions for validation images to choose thresholds on; train it again with some "
            "held out, for example data.val_share=0.15."
        )
    (probabilities,) = read_arrays(files.predictions(split), "probabilities")
    read = ~np.isnan(probabilities).any(1)
    images = plural(int(read.sum()), "validation image" if split == "val" else "test image")
    if split == "val" and (truth := complete_truth(files.path, len(probabilities))) is not None:
        return probabilities[read], truth[read], f"the labels of {images}"
    if not calibrated:
        raise UserError(
            f"The validation labels of {files.path} are partial, and the probabilities of method "
            f"'{config.method_name}' are not calibrated, so precision and recall cannot be estimated; label the "
            "validation images completely, or use method instant or refined."
        )
    return probabilities[read], None, f"the calibrated probabilities of {images} (expected, not measured)"


def complete_truth(run: Path, count: int) -> np.ndarray | None:
    """[N, C] of the validation images if all labels are known; None otherwise, or if the data cannot be read."""
    try:
        val = load_run_data(run).val
    except UserError:
        return None
    if val is None or not val.complete or len(val) != count:
        return None
    return val.labels == PRESENT


def is_calibrated(config: RunConfig) -> bool:
    """Are probabilities those of presence, rather than of being labelled?"""
    if not head_class(config.head_name).spec.calibrated:
        return False
    if not objective_class(config.method_name, config.profile).trains:
        return True
    return bool(getattr(config.method, "discover", False) and getattr(config.method, "reject", False))


def missed_words(chosen: PurposeThresholds, categories: list[str]) -> str:
    names = [name for name, missed in zip(categories, chosen.missed, strict=True) if missed]
    if not names:
        return ""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f" Not reached, or not estimable, for {', '.join(names[:SHOWN])}{more}."
