"""From a run's folder to a review: its images and labels, their features, the model, the decisions made so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fewtags.config import RunConfig
from fewtags.data.annotations import Annotations
from fewtags.data.images import open_image
from fewtags.data.inputs import Picture
from fewtags.engine.features import cache_root
from fewtags.engine.kept_judge import kept_bursts, kept_inputs
from fewtags.engine.model_outputs import UnitFeatures, model_outputs
from fewtags.engine.own_images import OwnImages
from fewtags.engine.prediction import pooled_features
from fewtags.engine.record import load_run_config, load_run_data
from fewtags.engine.run_folder import RunFolder
from fewtags.errors import RunFailed, UserError
from fewtags.models.backbones import ClassHead, create_backbone
from fewtags.models.build import first_trained
from fewtags.models.clip import TextTower
from fewtags.models.closed_form import NAME_SHARPNESS, ClosedFormHead
from fewtags.models.phrases import Phrases, classes_of
from fewtags.models.saved import SavedModel, damaged, load_model, read_object
from fewtags.presence.rows import FeatureRows
from fewtags.review.heat_maps import HeatMaps
from fewtags.review.pictures import Pictures
from fewtags.review.search import Search
from fewtags.review.session import ReviewSession
from fewtags.review.store import DecisionStore, decisions_file, has_decisions

Model = Callable[[], SavedModel]  # loaded when it is first asked for: most of a review needs the judge alone
LENGTH_OF = 16  # images that the usual length of features is measured by


@dataclass(frozen=True)
class Review:
    session: ReviewSession
    search: Search
    pictures: Pictures
    heat_maps: HeatMaps
    about: dict[str, Any]  # for display: the run, its method, the reviewer
    changed: bool  # has the data changed since the run was trained?


def open_review(run: Path, *, reviewer: str = "", read_only: bool = False, quiet: bool = False) -> Review:
    """Works for runs of any method. The features are computed on first use, which takes a while."""
    config, saved = load_run_config(run), cache(lambda: load_model(run))
    data = load_run_data(run)
    own = OwnImages.of(data)
    annotations = own.annotations
    outputs, judge = own.judge(saved, config, run=run, quiet=quiet)
    readable = outputs.readable
    file = decisions_file(run)
    store = DecisionStore(file if has_decisions(run) or not read_only else None, read_only=read_only)
    pictures = Pictures(annotations, cache_root(config.cache).parent / "thumbnails")
    name = run.resolve().name
    features = UnitFeatures(outputs)
    phrases = phrases_of(saved, config, annotations, features)
    session = ReviewSession(
        annotations,
        features,
        store,
        judge=judge,
        run=name,
        reviewer=reviewer,
        readable=readable,
        content_hash=pictures.content_hash,
        word=lambda text: phrases.find(text).scores,
        shares=phrases.shares,
        leaders=kept_bursts(outputs, run),
        inputs=lambda: kept_inputs(outputs, run, judge.model),
    )
    search = make_search(saved, features, readable, phrases)
    about = {"run": name, "folder": str(run), "method": config.method_name, "reviewer": reviewer}
    return Review(session, search, pictures, HeatMaps(saved, pictures), about, has_changed(run, data.train))


def open_search(run: Path, *, quiet: bool = False) -> tuple[Search, Annotations]:
    """To find images of a run without reviewing it."""
    config, saved = load_run_config(run), cache(lambda: load_model(run))
    annotations = OwnImages.of(load_run_data(run)).annotations
    outputs = model_outputs(saved(), annotations, config=config, quiet=quiet)
    features = UnitFeatures(outputs)
    phrases = phrases_of(saved, config, annotations, features)
    return make_search(saved, features, outputs.readable, phrases), annotations


def make_search(saved: Model, features: FeatureRows, readable: np.ndarray, phrases: Phrases) -> Search:
    def features_of(contents: Sequence[bytes]) -> Tensor:
        return pooled_features(saved(), opened(contents))

    return Search(features, readable, phrase=phrases.find, features_of=features_of)


def opened(contents: Sequence[bytes]) -> list[Picture]:
    return [open_image(content) for content in contents]


def phrases_of(saved: Model, config: RunConfig, annotations: Annotations, unit_features: FeatureRows) -> Phrases:
    """What phrases mean to a run: by the classifier that its head goes by, else by the one of its backbone, where no
    stage of that was trained."""

    def source() -> ClassHead | TextTower | None:
        head = saved().classifier.head
        names = head.names if isinstance(head, ClosedFormHead) else None
        if names is not None and not names.unit_length:
            return classes_of(names.weight.cpu(), names.bias.cpu())
        if first_trained(config.model) != "head" or config.model.width:
            return None
        weights = None if config.model.weights is None else Path(config.model.weights)
        if weights is not None and not weights.is_file():
            return None
        with suppress(UserError, RunFailed):  # without its weights a run can still be searched by example
            return create_backbone(
                config.model.backbone,
                pretrained=config.model.pretrained,
                weights=weights,
                input_size=config.input.size,
                keep_classifier=True,
            ).class_head
        return None

    def sharpness() -> float:
        head = saved().classifier.head
        if isinstance(head, ClosedFormHead):
            return float(NAME_SHARPNESS * head.feature_norm)
        unreadable: dict[int, str] = {}
        some = [annotations.root / image for image in annotations.images[:LENGTH_OF]]
        length = pooled_features(saved(), some, unreadable=unreadable).norm(dim=1)
        return float(NAME_SHARPNESS * length[length > 0].mean())

    return Phrases(source, sharpness, unit_features)


def has_changed(run: Path, trained_on: Annotations) -> bool:
    """Have training images, categories or labels changed since the run was trained?"""
    record = RunFolder(run).data
    if not record.is_file():
        return False
    train = read_object(record).get("train")
    if not isinstance(train, dict):
        raise damaged(record)
    return train.get("hash") != trained_on.content_hash()
