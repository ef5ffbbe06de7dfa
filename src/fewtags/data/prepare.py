"""The data of a run: reads it, hides labels for experiments, holds out a validation set."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from fewtags.data.annotations import Annotations
from fewtags.data.audit import quick_counts
from fewtags.data.decisions import decided, latest, read_decisions, with_tags_of
from fewtags.data.formats import read_annotations
from fewtags.data.formats.voc import largest_shares
from fewtags.data.partial_labels import TaggerName, hide_labels, single_positive, tagged_by
from fewtags.data.splitting import stratified_split
from fewtags.errors import DataError, UserError
from fewtags.labels import ABSENT, PRESENT, UNKNOWN
from fewtags.settings import Settings
from fewtags.wording import plural

HOLD_OUT = 0.15  # if the data has neither a val nor a test split


class DataConfig(Settings):
    source: str = ""
    """Folder or file with the images and their tags; every layout in `docs/reference/data-formats.md` is recognised."""
    tags: str | None = None
    """Label file for a plain folder of images (CSV, JSON lines)."""
    format: str = "auto"
    """Name of the layout, if it is not detected."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the reader, such as `data.options.zero=absent` for one-hot files."""
    known: float | TaggerName | Literal["single"] | None = None
    """For experiments on complete labels: the share of positives that stay known, or "single" for one per image. With 0
    only the names of the categories are used. People choose otherwise than coins: "habit" knows each tag at its own
    rate, "salience" what is large, "both" by both, "hasty" a quarter as often, "five" the five largest things of an
    image, "largest" only one (all but "habit" need boxes, as in VOC)."""
    mask_seed: int = 0
    """Which positives stay known; 0 is the paper's draw."""
    decisions: str | None = None
    """Decisions about single labels, applied on top of the source; `fewtags train --reviewed RUN` writes the file."""
    store: str | None = None
    """Folder that `fewtags prepare` made of these images: they are read from it, which is faster where the backbone is
    trained. The numbers of a run are the same."""
    val_share: float | None = Field(None, ge=0, lt=1)
    """Share of the training images held out for validation; default: 0.15 if the data has no val or test split."""


@dataclass(frozen=True)
class RunData:
    train: Annotations  # the labels a method may see
    truth: np.ndarray | None = None  # [N, C] complete labels of the training images: for the log only
    val: Annotations | None = None
    test: Annotations | None = None
    sentences: list[str] = field(default_factory=list)  # how the data was read, printed first in a run
    given: np.ndarray | None = None  # [N, C] training labels before decisions, if there are any


def prepare_data(config: DataConfig, seed: int = 0) -> RunData:
    return split_data(read_data(config), config, seed)


def read_data(config: DataConfig) -> Annotations:
    if not config.source:
        raise UserError(
            "No data was given; pass a folder or file, for example `fewtags train photos/ --tags tags.csv`."
        )
    return read_annotations(config.source, tags=config.tags, format=config.format, **config.options)


def split_data(annotations: Annotations, config: DataConfig, seed: int = 0) -> RunData:
    train, val, test = (annotations.split(name) for name in ("train", "val", "test"))
    if not len(train):
        raise DataError(
            f"{annotations.name} has no training images ({len(val)} for validation, {len(test)} for testing)."
        )
    sentences = list(annotations.notes)
    if counts := quick_counts(annotations):
        sentences.append(f"See `fewtags check` for: {counts}.")
    observed, truth = observe(train, config)
    share = config.val_share
    if share is None:
        share = 0.0 if len(val) or len(test) else HOLD_OUT
    if share and not len(val):
        known = (train.labels != UNKNOWN).any(1)  # images without known labels cannot be evaluated on
        held_out = np.zeros(len(train), dtype=bool)
        groups = None if train.groups is None else train.groups[known]
        held_out[known] = stratified_split(observed.labels[known], share, seed, groups)
        if train.groups is not None:  # an unlabelled image is not learned from if its twin is measured on
            held_out |= np.isin(train.groups, train.groups[held_out])
        val = train.take(held_out)  # with the labels it came with: complete ones stay complete
        observed, truth = observed.take(~held_out), truth[~held_out] if truth is not None else None
        if len(val):
            sentences.append(f"{plural(len(val), 'training image')} held out for validation.")
    # Categories listed by the user may be learned from their names; whether those are known is up to the model.
    if not (observed.labels == PRESENT).any() and not (config.known == 0 or config.options.get("categories")):
        raise DataError(
            f"No image of {annotations.name} is known to have any tag, so there is nothing to learn from; without "
            "tags, list the categories to find (--categories dog,sea)."
        )
    # Decisions come after the split, so that the same images are held out with them and without, and only in training
    # images: held-out labels must be a random sample, and reviewed labels are not.
    decisions = [] if config.decisions is None else list(latest(read_decisions(Path(config.decisions))).values())
    given, labels = None, {(d.image, d.tag): d.label for d in decisions if d.image}
    if labels:
        if truth is not None:
            truth = with_tags_of(replace(observed, labels=truth), decisions).labels
        observed, val, test = (with_tags_of(part, decisions) for part in (observed, val, test))
        given, observed = observed.labels, decided(observed, labels)
        sentences.append(f"{plural(len(labels), 'label')} set by a review ({config.decisions}).")
    sentences.append(describe_labels(observed))
    for name, part in (("validation", val), ("test", test)):
        if len(part) and not part.complete:
            sentences.append(f"Warning: {part.partial_warning(name)}")
    return RunData(observed, truth, val if len(val) else None, test if len(test) else None, sentences, given)


def observe(train: Annotations, config: DataConfig) -> tuple[Annotations, np.ndarray | None]:
    """The training labels a method may see, and the complete ones where the experiment hides some."""
    if config.known is None:
        return train, train.labels if train.complete else None
    if not train.complete:
        raise UserError(
            f"data.known={config.known} hides labels of a fully labelled dataset for an experiment, but "
            f"{train.unknown_share:.0%} of these labels are already unknown; remove data.known."
        )
    truth = train.labels
    if config.known == 0:
        labels = np.zeros_like(truth)
    elif config.known == "single":
        labels = single_positive(truth == PRESENT, config.mask_seed)
    elif isinstance(config.known, str):
        shares = None if config.known == "habit" else largest_shares(train)
        labels = tagged_by(config.known, truth == PRESENT, config.mask_seed, shares)
    else:
        labels = hide_labels(truth == PRESENT, config.known, config.mask_seed)
    return replace(train, labels=train.tree.closed(labels, train.categories)), truth


def describe_labels(train: Annotations) -> str:
    known = int((train.labels == PRESENT).sum())
    absent = int((train.labels == ABSENT).sum())
    without = int((train.known_positives == 0).sum())
    text = (
        f"Training on {plural(len(train), 'image')} with {plural(len(train.categories), 'category', 'categories')}: "
        f"{plural(known, 'tag')} known "
        f"({known / len(train):.2f} per image), {absent:,} known absent, {train.unknown_share:.1%} of labels unknown."
    )
    if not without or not known:
        return text
    return f"{text} {plural(without, 'category has', 'categories have')} no known positives and cannot be learned."


def measurable(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """Truth [N, C] and the mask of entries that count. If no absence is known, unknown has to count as absent."""
    truth = labels == PRESENT
    if (labels != UNKNOWN).all() or not (labels == ABSENT).any():
        return truth, None
    return truth, labels != UNKNOWN
