"""Tagger: scikit-learn's manners, and the same numbers as the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.base import clone

from conftest import Cli
from fewtags import Annotations, Tagger
from fewtags.engine import prediction
from fewtags.errors import UserError
from fewtags.metrics import mean_average_precision
from fewtags.models.saved import load_model
from made_taggers import SETTINGS, make


@pytest.fixture(scope="module")
def tagger(patches) -> Tagger:
    return make().fit(patches)


# --- scikit-learn's manners ---


def test_fit_leaves_the_parameters_alone_and_returns_itself(patches):
    tagger = make(seed=3)
    before = dict(tagger.get_params())
    assert tagger.fit(patches) is tagger
    assert tagger.get_params() == before
    assert tagger.get_params()["settings"] is SETTINGS


def test_what_is_learned_ends_in_an_underscore(patches, tagger):
    fresh = make()
    learned = {name for name in vars(tagger) if name not in vars(fresh) and not name.startswith("_")}
    assert learned == {"classes_", "thresholds_", "history_", "config_"}
    assert tagger.classes_.tolist() == patches.categories
    assert tagger.thresholds_.shape == (3,)
    assert {"train", "eval"} <= {row["kind"] for row in tagger.history_}
    assert tagger.config_["method"]["name"] == "an"


def test_clone_has_the_parameters_and_nothing_learned(tagger):
    copy = clone(tagger)
    assert copy.get_params() == tagger.get_params()
    assert not hasattr(copy, "classes_")


def test_set_params(tagger):
    other = clone(tagger).set_params(method="asl", epochs=5)
    assert (other.method, other.epochs) == ("asl", 5)
    with pytest.raises(UserError, match="no parameter 'epoch'"):
        other.set_params(epoch=5)


def test_an_unfitted_tagger_says_so():
    with pytest.raises(UserError, match="not fitted"):
        make().predict(["a.png"])


def test_the_same_seed_learns_the_same(patches, tagger):
    again = make().fit(patches)
    np.testing.assert_array_equal(again.predict_proba(patches), tagger.predict_proba(patches))
    other = make(seed=1).fit(patches)
    assert not np.array_equal(other.predict_proba(patches), tagger.predict_proba(patches))


def test_fitting_again_forgets_the_first_time(patches):
    tagger = make().fit(patches)
    once = tagger.predict_proba(patches)
    np.testing.assert_array_equal(tagger.fit(patches).predict_proba(patches), once)


# --- the feature store ---


def test_many_files_are_looked_at_once(patches, tmp_path, monkeypatch):
    """`predict_proba` and `features` take the store's averages: also those of an earlier process, in any order."""
    settings = [value for value in SETTINGS if not value.startswith("train.epochs")]
    tagger = make(method="instant", settings=[*settings, f"cache.folder={tmp_path / 'store'}"]).fit(patches)
    files = [patches.path(row) for row in range(len(patches))]
    in_memory = tagger.predict_proba([np.asarray(Image.open(file)) for file in files])
    chances, features = tagger.predict_proba(files), tagger.features(files)
    np.testing.assert_allclose(chances, in_memory, atol=2e-3)  # half precision
    monkeypatch.setattr(prediction, "plain_sample", None)  # nothing is decoded any more
    np.testing.assert_allclose(tagger.predict_proba(files[::-1]), chances[::-1], rtol=1e-5)  # one product, other rows
    np.testing.assert_array_equal(tagger.features(files[::-1]), features[::-1])


def test_a_few_files_leave_the_store_alone(patches, tagger, monkeypatch):
    monkeypatch.setattr(prediction, "FeatureStore", None)
    files = [patches.path(row) for row in range(prediction.WORTH_LOOKING_UP - 1)]
    assert tagger.predict_proba(files).shape == (len(files), 3)
    assert len(tagger.features(files)) == len(files)


def test_an_unreadable_file_among_many_is_named(patches, tagger, tmp_path):
    (tmp_path / "broken.jpg").write_bytes(b"no picture")
    files = [*(patches.path(row) for row in range(20)), tmp_path / "broken.jpg"]
    with pytest.raises(UserError, match=r"broken\.jpg"):
        tagger.predict_proba(files)
    with pytest.warns(UserWarning, match=r"broken\.jpg"):
        features, paths = tagger.features(files, return_paths=True)
    assert len(features) == len(paths) == 20


# --- what it can learn from ---


def test_from_a_folder_and_a_tag_file(patches, tags_file):
    tagger = make().fit(patches.root, tags_file)
    assert tagger.classes_.tolist() == ["blue", "green", "red"]


def lists(patches: Annotations) -> tuple[list[str], list[list[str]]]:
    paths = [str(patches.path(row)) for row in range(len(patches))]
    tags = [[c for c, label in zip(patches.categories, row, strict=True) if label == 1] for row in patches.labels]
    return paths, tags


def test_from_lists(patches):
    paths, tags = lists(patches)
    tagger = make().fit(paths, tags)
    assert tagger.classes_.tolist() == ["blue", "green", "red"]
    assert tagger.predict_proba(paths[:2]).shape == (2, 3)


def test_from_paths_relative_to_here(patches, monkeypatch):
    monkeypatch.chdir(patches.root)
    tagger = make().fit(patches.images, lists(patches)[1])
    assert tagger.predict_proba(patches.images[:1]).shape == (1, 3)


def test_from_a_matrix(patches):
    paths, _ = lists(patches)
    matrix = (patches.labels == 1).astype(int)
    tagger = make().fit(paths, matrix, classes=patches.categories)
    assert tagger.classes_.tolist() == patches.categories
    with pytest.raises(UserError, match=r"classes=\[...\]"):
        make().fit(paths, matrix)


def test_a_matrix_and_lists_say_the_same(patches):
    paths, tags = lists(patches)
    by_lists = make().fit(paths, tags, classes=patches.categories)
    by_matrix = make().fit(paths, (patches.labels == 1).astype(int), classes=patches.categories)
    np.testing.assert_array_equal(by_lists.predict_proba(paths), by_matrix.predict_proba(paths))


def test_tags_are_needed(patches):
    with pytest.raises(UserError, match="Tags are missing"):
        make().fit(lists(patches)[0])
    with pytest.raises(UserError, match="2 tag lists were given for 48 images"):
        make().fit(lists(patches)[0], [["red"], ["blue"]])


# --- predicting and measuring ---


def test_predict_gives_tags_above_their_thresholds(patches, tagger):
    probabilities = tagger.predict_proba(patches)
    for tags, row in zip(tagger.predict(patches), probabilities, strict=True):
        assert set(tags) == set(tagger.classes_[row >= tagger.thresholds_])
        assert [row[tagger.classes_ == tag][0] for tag in tags] == sorted(row[row >= tagger.thresholds_])[::-1]


def test_score_is_the_mean_average_precision(patches, tagger):
    expected = mean_average_precision(tagger.predict_proba(patches), patches.labels == 1)
    assert tagger.score(patches) == pytest.approx(expected)


def test_score_puts_columns_in_order(patches, tagger):
    """Categories by name, whatever order the measured data has them in; an unknown one is refused."""
    paths, tags = lists(patches)
    backwards = Annotations.from_tags(paths, tags, categories=["blue", "green", "red"], complete=True, root="/")
    assert tagger.score(backwards) == pytest.approx(tagger.score(patches))
    with pytest.raises(UserError, match="does not know 'zebra'"):
        tagger.score(paths[:1], [["zebra"]])


def test_an_unreadable_image_is_named(tagger, tmp_path):
    (tmp_path / "bad.png").write_bytes(b"no image")
    with pytest.raises(UserError, match=r"bad\.png.*Remove it"):
        tagger.predict([tmp_path / "bad.png"])


# --- keeping ---


@pytest.mark.parametrize("method", ["an", "refined"])
def test_save_and_load(method, patches, tmp_path):
    tagger = make(method=method, settings=[*SETTINGS, "data.val_share=0.3"]).fit(patches)
    tagger.save(tmp_path / "tagger")
    loaded = Tagger.load(tmp_path / "tagger")
    np.testing.assert_array_equal(loaded.predict_proba(patches), tagger.predict_proba(patches))
    assert loaded.predict(patches) == tagger.predict(patches)
    assert loaded.classes_.tolist() == tagger.classes_.tolist()
    assert loaded.method == method


@pytest.fixture(scope="module")
def tuned(patches, tmp_path_factory) -> Path:
    """A saved tagger with settings of its own, whose backbone was trained too."""
    folder = tmp_path_factory.mktemp("tuned") / "model"
    own = [setting for setting in SETTINGS if not setting.startswith("train.epochs")]
    own += ["train.lr=0.003", "method.gamma=1.5", "data.val_share=0.25"]
    make(method="focal", epochs=2, settings=own, seed=4).fit(patches).save(folder)
    return folder


def test_a_loaded_tagger_has_the_settings_it_was_fitted_with(tuned):
    loaded = Tagger.load(tuned)
    config = loaded._config()
    assert (loaded.method, loaded.epochs, loaded.seed) == ("focal", 2, 4)
    assert (config.train.epochs, config.train.lr, config.train.batch_size) == (2, 0.003, 12)
    assert (config.method.gamma, config.data.val_share, config.input.size) == (1.5, 0.25, 32)
    assert config.model.train_from == "all"  # it was trained from random weights
    assert not any("method.alpha" in setting for setting in loaded.settings)  # only what differs from the method's own
    assert clone(loaded).get_params() == loaded.get_params()


def test_a_loaded_tagger_fits_on_from_its_own_backbone(tuned, patches):
    """`instant` trains nothing, so the backbone it ends with is the one it started from."""
    before = load_model(tuned).classifier.backbone.state_dict()
    loaded = Tagger.load(tuned)
    settings = [setting for setting in loaded.settings if not setting.startswith("method.")]
    loaded.set_params(method="instant", epochs=None, settings=settings).fit(patches)
    after = loaded._fitted().classifier.backbone.state_dict()
    assert all(torch.equal(value, before[name]) for name, value in after.items())


def test_a_folder_without_a_model_gives_no_backbone(patches, tmp_path):
    with pytest.raises(UserError, match=r"is a folder without a trained model"):
        make(weights=tmp_path).fit(patches)


def test_fitting_into_the_folder_of_a_run_is_refused(patches, tmp_path):
    make(out=tmp_path / "run").fit(patches)
    log = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    with pytest.raises(UserError, match="already contains a finished run"):
        make(out=tmp_path / "run").fit(patches)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == log


def test_evaluating_a_tagger_that_was_fitted_in_memory_asks_for_the_data(patches, tags_file, tmp_path, cli: Cli):
    make(out=tmp_path / "run").fit(patches)
    answer = cli("evaluate", tmp_path / "run")
    assert answer.code == 2
    assert "was passed in Python, so its location is unknown" in answer.err
    assert "--data" in answer.err
    answer = cli("evaluate", tmp_path / "run", patches.root, "--tags", tags_file, "-o", "complete=true")
    assert answer.code == 0
    assert "12 images, 3 categories" in answer.out


def test_a_moving_average_keeps_what_instant_needs_for_more_labels(patches):
    plain = make(method="instant").fit(patches)
    averaged = make(method="instant", settings=[*SETTINGS, "train.ema=0.9"]).fit(patches)
    feature = plain.features(patches)[0]
    for tagger in (plain, averaged):
        tagger.relabel(feature, "red", 1)
    np.testing.assert_allclose(averaged.predict_proba(patches), plain.predict_proba(patches), atol=1e-5)
    assert len(averaged._closed_form().relabelled.labels) == 1


def test_a_run_of_the_command_line_can_be_loaded(trained, patches):
    assert Tagger.load(trained).predict_proba(patches.path(0)).shape == (1, 3)


def test_the_run_folder_is_kept_only_if_asked(patches, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    make().fit(patches)
    assert not list((tmp_path / "temporary").iterdir())
    make(out=tmp_path / "kept").fit(patches)
    assert (tmp_path / "kept/metrics.jsonl").is_file()


# --- labels that change ---


def by_row(tagger: Tagger, tag: str, features: np.ndarray) -> np.ndarray:
    """Probabilities in the order of `features`."""
    rows, probabilities = tagger.rerank(tag, features)
    return probabilities[np.argsort(rows)]


def test_instant_learns_label_by_label(patches, tmp_path):
    tagger = make(method="instant", out=tmp_path / "run").fit(patches)
    tagger.save(tmp_path / "copy")
    tagger = Tagger.load(tmp_path / "copy")
    train = patches.split("train")
    features = tagger.features(train)
    probabilities = by_row(tagger, "red", features)
    known = int(np.flatnonzero(train.labels[:, 0] == 1)[0])
    tagger.relabel(features[known], "red", -1)  # it is not red after all
    assert by_row(tagger, "red", features)[known] < probabilities[known]
    np.testing.assert_allclose(by_row(tagger, "red", features), tagger.predict_proba(train)[:, 0], atol=1e-4)
    tagger.relabel(features[known], "red", 0)  # taken back
    np.testing.assert_allclose(by_row(tagger, "red", features), probabilities, atol=1e-4)


def test_only_instant_learns_label_by_label(tagger):
    with pytest.raises(UserError, match="Only the method 'instant'"):
        tagger.relabel(np.zeros(64, np.float32), "red", 1)
