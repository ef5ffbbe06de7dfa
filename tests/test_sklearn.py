"""scikit-learn's own tools use a Tagger as they use its own estimators."""

from __future__ import annotations

import os
import pickle
import warnings
from pathlib import Path

import joblib
import numpy as np
import pytest
from PIL import Image
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.metrics import average_precision_score, f1_score
from sklearn.model_selection import GridSearchCV, KFold, cross_val_predict, cross_val_score
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer, MultiLabelBinarizer
from sklearn.utils import estimator_checks, get_tags
from sklearn.utils.validation import check_is_fitted

from conftest import COLOURS, TINY
from fewtags import Tagger

SETTINGS = [setting for setting in TINY if not setting.startswith(("method", "model.backbone", "model.pretrained"))]
CLASSES = list(COLOURS)

# The checks of scikit-learn's API that fit nothing: the others fit a matrix of random numbers, which no picture is.
API_CHECKS = [
    "check_estimator_cloneable", "check_parameters_default_constructible", "check_estimator_tags_renamed",
    "check_valid_tag_types", "check_estimator_repr", "check_no_attributes_set_in_init",
    "check_do_not_raise_errors_in_init_or_set_params", "check_mixin_order", "check_get_params_invariance",
    "check_set_params", "check_estimators_unfitted",
]  # fmt: skip


def make(**parameters) -> Tagger:
    given = {"method": "instant", "backbone": "test_resnet", "pretrained": False, "settings": SETTINGS, **parameters}
    return Tagger(**given)


@pytest.fixture(scope="module")
def paths(patches) -> list[str]:
    return [str(patches.path(row)) for row in range(len(patches))]


@pytest.fixture(scope="module")
def tag_lists(patches) -> list[list[str]]:
    return [[CLASSES[c] for c in np.flatnonzero(row == 1)] for row in patches.labels]


@pytest.fixture(scope="module")
def matrix(patches) -> np.ndarray:
    return (patches.labels == 1).astype(int)


@pytest.mark.parametrize("check", API_CHECKS)
@pytest.mark.parametrize("output", ["tags", "indicator"])
def test_it_passes_scikit_learns_checks_of_the_api(check, output):
    getattr(estimator_checks, check)("Tagger", make(output=output))


@pytest.mark.parametrize("output", ["tags", "indicator"])
def test_check_estimator_itself_leaves_out_what_needs_a_matrix_of_numbers(output):
    with pytest.warns(estimator_checks.SkipTestWarning, match="requires input"):
        checks = estimator_checks.check_estimator(make(output=output))
    assert {check["status"] for check in checks} == {"passed"}


def test_a_tagger_of_matrices_is_a_multi_label_classifier_and_one_of_lists_is_not():
    """Lists of tags as labels are refused by scikit-learn for a classifier, and taken for anything else."""
    assert get_tags(make(output="indicator")).classifier_tags.multi_label
    assert is_classifier(make(output="indicator"))
    assert not is_classifier(make())


def test_it_is_fitted_after_fit(paths, tag_lists):
    tagger = make()
    with pytest.raises(NotFittedError):
        check_is_fitted(tagger)
    with pytest.raises(NotFittedError, match=r"call fit\(...\) first"):
        tagger.predict(paths)
    check_is_fitted(tagger.fit(paths, tag_lists))


def test_cross_validation_with_tag_lists(paths, tag_lists):
    folds = KFold(3, shuffle=True, random_state=0)
    scores = cross_val_score(make(), paths, tag_lists, cv=folds)
    for score, (train, test) in zip(scores, folds.split(paths), strict=True):
        tagger = make().fit([paths[row] for row in train], [tag_lists[row] for row in train])
        assert score == pytest.approx(tagger.score([paths[row] for row in test], [tag_lists[row] for row in test]))
    assert cross_val_score(make(), paths, tag_lists, cv=2).shape == (2,)


def test_a_fold_without_some_tag_needs_the_classes(paths, tag_lists):
    rare = [*tag_lists[:-1], [*tag_lists[-1], "rare"]]
    with pytest.warns(UserWarning, match="does not know 'rare'"):
        without = cross_val_score(make(), paths, rare, cv=2)
    assert np.isnan(without).any()
    assert np.isfinite(cross_val_score(make(classes=[*CLASSES, "rare"]), paths, rare, cv=2)).all()


def test_a_grid_search_over_methods(paths, tag_lists):
    search = GridSearchCV(make(epochs=1), {"method": ["instant", "an"]}, cv=2, error_score="raise")
    search.fit(paths, tag_lists)
    assert search.cv_results_["mean_test_score"].shape == (2,)
    assert search.best_params_["method"] in ("instant", "an")
    assert isinstance(search.predict(paths[:1])[0], list)
    assert "Tagger" in search._repr_html_()  # in a notebook


def test_scorers_compare_matrices(paths, matrix):
    """With f1_micro, f1_macro and average_precision, each computed by scikit-learn itself."""
    tagger = make(classes=CLASSES, output="indicator")
    scoring = ["f1_micro", "f1_macro", "average_precision"]
    search = GridSearchCV(
        tagger, {"method": ["instant"]}, scoring=scoring, refit="f1_micro", cv=KFold(2), error_score="raise"
    )
    search.fit(paths, matrix)
    train, test = next(KFold(2).split(paths))
    half = clone(tagger).fit([paths[row] for row in train], matrix[train])
    seen, truth = [paths[row] for row in test], matrix[test]
    results = {name: search.cv_results_[f"split0_test_{name}"][0] for name in scoring}
    assert results["f1_micro"] == pytest.approx(f1_score(truth, half.predict(seen), average="micro"))
    assert results["f1_macro"] == pytest.approx(f1_score(truth, half.predict(seen), average="macro"))
    assert results["average_precision"] == pytest.approx(average_precision_score(truth, half.predict_proba(seen)))
    assert cross_val_predict(tagger, paths, matrix, cv=2).shape == matrix.shape


@pytest.mark.parametrize("limits", [{}, {"top": 1}, {"threshold": 0.3}])
def test_the_matrix_says_what_the_tags_say(paths, tag_lists, limits):
    tagger = make().fit(paths, tag_lists)
    tags = tagger.predict(paths, **limits)
    expected = MultiLabelBinarizer(classes=list(tagger.classes_)).fit_transform(tags)
    np.testing.assert_array_equal(tagger.predict(paths, output="indicator", **limits), expected)
    assert expected.any()


def test_a_matrix_is_measured_by_the_columns_of_classes(paths, matrix, tag_lists):
    tagger = make(classes=CLASSES).fit(paths, matrix)
    assert tagger.score(paths, matrix) == pytest.approx(tagger.score(paths, tag_lists))


def test_as_the_end_of_a_pipeline(paths, tag_lists):
    opened = FunctionTransformer(lambda files: [Image.open(file).convert("RGB") for file in files])
    pipeline = Pipeline([("open", opened), ("tag", make())])
    assert pipeline.fit(paths, tag_lists).predict(paths) == make().fit(paths, tag_lists).predict(paths)
    assert pipeline.classes_.tolist() == sorted(CLASSES)
    assert 0 < pipeline.set_params(tag__method="an").fit(paths, tag_lists).score(paths, tag_lists) <= 1


@pytest.mark.parametrize("method", ["instant", "an"])
def test_joblib_and_pickle_keep_it(paths, tag_lists, tmp_path, method):
    tagger = make(method=method).fit(paths, tag_lists)
    joblib.dump(tagger, tmp_path / "tagger.joblib")
    for copy in (joblib.load(tmp_path / "tagger.joblib"), pickle.loads(pickle.dumps(tagger))):
        np.testing.assert_array_equal(copy.predict_proba(paths), tagger.predict_proba(paths))
        assert copy.get_params() == tagger.get_params()


@pytest.mark.slow
def test_several_processes_find_the_same(paths, tag_lists, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
    one = cross_val_score(make(), paths, tag_lists, cv=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # joblib says when a worker was slow to start
        np.testing.assert_allclose(cross_val_score(make(), paths, tag_lists, cv=2, n_jobs=2), one, atol=1e-5)
