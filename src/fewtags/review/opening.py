"""From a run's folder to a review: its images and labels, their features, the model, the decisions made so far."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fewtags.data.annotations import Annotations
from fewtags.data.prepare import prepare_data
from fewtags.discovery import images_with_unknown_tags
from fewtags.engine.features import cache_root
from fewtags.engine.judge import Judge
from fewtags.engine.model_outputs import model_outputs
from fewtags.engine.record import load_run_config
from fewtags.engine.run_folder import RunFolder
from fewtags.models.saved import damaged, load_model, read_object
from fewtags.review.heat_maps import HeatMaps
from fewtags.review.pictures import Pictures
from fewtags.review.session import ReviewSession
from fewtags.review.store import DecisionStore, decisions_file, has_decisions


@dataclass(frozen=True)
class Review:
    session: ReviewSession
    pictures: Pictures
    heat_maps: HeatMaps
    about: dict[str, Any]  # for display: the run, its method, the reviewer
    changed: bool  # has the data changed since the run was trained?


def open_review(run: Path, *, reviewer: str = "", read_only: bool = False, quiet: bool = False) -> Review:
    """Works for runs of any method. The features are computed on first use, which takes a while."""
    config, saved = load_run_config(run), load_model(run)
    annotations, _ = images_with_unknown_tags(prepare_data(config.data, config.seed))
    outputs = model_outputs(saved, annotations, config=config, quiet=quiet)
    judge = Judge.of(outputs, annotations.labels, saved.classifier.head)
    readable = outputs.readable
    file = decisions_file(run)
    store = DecisionStore(file if has_decisions(run) or not read_only else None, read_only=read_only)
    pictures = Pictures(annotations, cache_root(config.cache).parent / "thumbnails")
    name = run.resolve().name
    session = ReviewSession(
        annotations,
        outputs.unit_features(np.arange(len(outputs))),
        store,
        judge=judge,
        run=name,
        reviewer=reviewer,
        readable=readable,
        content_hash=pictures.content_hash,
    )
    about = {"run": name, "folder": str(run), "method": config.method_name, "reviewer": reviewer}
    return Review(session, pictures, HeatMaps(saved, pictures), about, has_changed(run, annotations))


def has_changed(run: Path, annotations: Annotations) -> bool:
    """Have images, categories or labels changed since the run was trained?"""
    record = RunFolder(run).data
    if not record.is_file():
        return False
    train = read_object(record).get("train")
    if not isinstance(train, dict):
        raise damaged(record)
    return train.get("hash") != annotations.content_hash()
