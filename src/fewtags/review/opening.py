"""From a run's folder to a review: its images and labels, their features, the model, the decisions made so far."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewtags.data.annotations import Annotations
from fewtags.data.prepare import prepare_data
from fewtags.engine.feature_cache import cache_root
from fewtags.engine.record import load_run_config
from fewtags.engine.run_folder import RunFolder
from fewtags.models.closed_form import ClosedFormHead
from fewtags.models.saved import SavedModel, damaged, load_model, read_object
from fewtags.review.features import unit_features
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
    annotations = prepare_data(config.data, config.seed).train
    features, unreadable = unit_features(saved, annotations, RunFolder(run).review, quiet=quiet)
    readable = np.ones(len(annotations), dtype=bool)
    readable[list(unreadable)] = False
    file = decisions_file(run)
    store = DecisionStore(file if has_decisions(run) or not read_only else None, read_only=read_only)
    pictures = Pictures(annotations, cache_root(config.cache).parent / "thumbnails")
    name = run.resolve().name
    names, named = scores_from_names(saved, features)
    session = ReviewSession(
        annotations,
        features,
        store,
        names=names,
        named=named,
        run=name,
        reviewer=reviewer,
        readable=readable,
        content_hash=pictures.content_hash,
    )
    about = {"run": name, "folder": str(run), "method": config.method_name, "reviewer": reviewer}
    return Review(session, pictures, HeatMaps(saved, pictures), about, has_changed(run, annotations))


def scores_from_names(saved: SavedModel, unit_features: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """[N, C] scores of the names of the categories and [C] which have any, where the run's head goes by names."""
    head = saved.classifier.head
    if not isinstance(head, ClosedFormHead) or head.names is None:
        return None, None
    with torch.no_grad():
        scores = head.name_scores(unit_features.to(head.feature_norm))
    return None if scores is None else scores.cpu(), head.names.known.cpu()


def has_changed(run: Path, annotations: Annotations) -> bool:
    """Have images, categories or labels changed since the run was trained?"""
    record = RunFolder(run).data
    if not record.is_file():
        return False
    train = read_object(record).get("train")
    if not isinstance(train, dict):
        raise damaged(record)
    return train.get("hash") != annotations.content_hash()
