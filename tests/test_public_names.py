"""The names that code outside may build on: kept stable from the first release on."""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys

import numpy as np
import pytest

import fewtags
from fewtags import extend
from fewtags.metrics import F1Scores


def parameters(function: object) -> dict[str, object]:
    """Name -> default, in order."""
    return {name: p.default for name, p in inspect.signature(function).parameters.items()}  # type: ignore[arg-type]


REQUIRED = inspect.Parameter.empty


def test_public_names_are_these():
    assert set(fewtags.__all__) == {"Annotations", "Tagger", "__version__", "hide_labels", "list_methods", "metrics"}
    for name in fewtags.__all__:
        assert getattr(fewtags, name) is not None
    assert set(fewtags.__all__) <= set(dir(fewtags))


def test_what_methods_of_your_own_build_on_is_these():
    assert set(extend.__all__) == {
        "ABSENT", "PRESENT", "UNKNOWN",
        "Batch", "Outputs", "Problem", "Progress", "Start", "StepResult", "WordVectors",
        "Head", "HeadSpec", "Method", "Objective", "Profile", "Settings",
        "assume_negative_loss", "asymmetric_loss", "focal_loss", "gather_rows", "sum_across_ranks",
        "register", "register_head",
    }  # fmt: skip
    assert all(hasattr(extend, name) for name in extend.__all__)


def fields_of(kind: type) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]


def test_what_they_are_handed_and_hand_back_has_these_fields():
    assert fields_of(extend.Batch) == ["images", "labels", "index", "are_maps"]
    assert fields_of(extend.Outputs)[:3] == ["logits", "features", "attention"]
    assert fields_of(extend.Problem)[:2] == ["categories", "labels"]
    assert fields_of(extend.Progress) == ["epoch", "num_epochs", "step", "steps_per_epoch"]
    assert fields_of(extend.StepResult) == ["losses", "stats", "decisions"]
    assert fields_of(extend.Profile) == ["settings", "note", "word_dim"]
    assert fields_of(extend.HeadSpec) == [
        "needs_words", "uses_names", "needs_start", "starts_plain", "assumes_random_labels", "looks_at_the_average",
        "settles", "calibrated",
    ]  # fmt: skip
    assert fields_of(extend.Method) == [
        "name", "title", "sentence", "head", "objective", "venue", "bibtex", "settings", "note", "profiles", "group",
    ]  # fmt: skip


def test_an_objective_is_called_with_these():
    step = ["self", "batch", "outputs", "progress"]
    for name in ("observe", "loss", "decide"):
        assert list(parameters(getattr(extend.Objective, name))) == step
    for name in ("start_epoch", "epoch_stats", "category_stats"):
        assert list(parameters(getattr(extend.Objective, name))) == ["self", "progress"]
    assert list(parameters(extend.Objective.__init__)) == ["self", "config", "problem", "feature_dim"]
    assert list(parameters(extend.Head.__init__)) == ["self", "config", "in_channels", "num_categories", "words"]
    assert list(parameters(extend.Head.forward)) == ["self", "feature_map"]


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'tagger2'"):
        fewtags.tagger2  # noqa: B018


def test_functions_take_what_they_took():
    assert parameters(fewtags.hide_labels) == {"truth": REQUIRED, "proportion": REQUIRED, "seed": 0}
    assert parameters(fewtags.list_methods) == {}
    for function in (fewtags.metrics.average_precision, fewtags.metrics.mean_average_precision):
        given = parameters(function)
        assert list(given)[:3] == ["scores", "truth", "interpolated"]
        assert given["interpolated"] is False
    given = parameters(fewtags.metrics.f1_scores)
    assert list(given)[:4] == ["scores", "truth", "threshold", "top"]
    assert (given["threshold"], given["top"]) == (0.5, None)


def test_f1_scores_have_the_papers_fields():
    truth = np.array([[1, 0], [0, 1]])
    scores = fewtags.metrics.f1_scores(truth.astype(float), truth)
    assert isinstance(scores, F1Scores)
    assert [getattr(scores, name) for name in ("op", "or_", "of1", "cp", "cr", "cf1")] == [1.0] * 6


def test_hide_labels_gives_known_and_unknown():
    known = fewtags.hide_labels(np.ones((50, 4), dtype=int), 0.5)
    assert set(np.unique(known)) == {0, 1}


def test_tagger_takes_what_it_took():
    assert parameters(fewtags.Tagger) == {
        "method": "instant", "backbone": "tf_efficientnet_lite0", "weights": None, "pretrained": True, "epochs": None,
        "settings": (), "classes": None, "output": "tags", "loggers": (), "seed": 0, "device": "auto",
        "out": None, "verbose": False,
    }  # fmt: skip
    for name in (
        "fit",
        "predict",
        "predict_proba",
        "score",
        "save",
        "load",
        "get_params",
        "set_params",
        "relabel",
        "rerank",
    ):
        assert callable(getattr(fewtags.Tagger, name))


def test_every_method_is_listed_by_name():
    names = fewtags.list_methods()
    assert {"instant", "an", "focal", "asl", "ssgrl", "kggr", "cst", "sst", "ll-r", "role", "caldnr", "refined"} <= set(
        names
    )
    assert all(isinstance(name, str) for name in names)


def test_import_is_light():
    """`import fewtags` loads neither torch nor numpy; `fewtags.hide_labels` no torch."""
    code = (
        "import sys, fewtags; assert not {'torch', 'timm', 'numpy', 'pydantic'} & set(sys.modules);"
        "fewtags.hide_labels; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
