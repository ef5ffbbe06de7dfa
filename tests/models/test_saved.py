"""Saved models of every format load, without the method and the settings that made them."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from fewtags import Tagger
from fewtags.errors import UserError
from fewtags.methods import METHODS
from fewtags.models.saved import load_model

GOLDEN = Path(__file__).parents[1] / "golden"
PICTURES = [GOLDEN / "pictures" / "00000.jpg", GOLDEN / "pictures" / "00001.jpg"]
FORMATS = ("format-1", "format-2")


@pytest.fixture(params=FORMATS)
def golden(request: pytest.FixtureRequest) -> Path:
    return GOLDEN / request.param


@pytest.fixture
def expected() -> np.ndarray:
    by_picture = json.loads((GOLDEN / "expected.json").read_text())
    return np.array([list(by_picture[picture.name].values()) for picture in PICTURES])


def test_a_model_of_any_format_predicts_what_it_did_when_it_was_saved(golden: Path, expected: np.ndarray):
    tagger = Tagger.load(golden)
    assert tagger.classes_.tolist() == list(json.loads((GOLDEN / "expected.json").read_text())["00000.jpg"])
    np.testing.assert_allclose(tagger.predict_proba(PICTURES), expected, atol=2e-5)


def test_thresholds_are_the_saved_ones(golden: Path):
    of_format_1 = json.loads((GOLDEN / "format-1" / "tagger.json").read_text())["thresholds"]
    np.testing.assert_allclose(load_model(golden).thresholds, of_format_1, atol=1e-5)


def test_a_model_loads_without_any_method(golden: Path, expected: np.ndarray, monkeypatch: pytest.MonkeyPatch):
    for name in list(METHODS):
        monkeypatch.delitem(METHODS, name)
    np.testing.assert_allclose(Tagger.load(golden).predict_proba(PICTURES), expected, atol=2e-5)


@pytest.mark.parametrize(
    ("folder", "file", "record"), [("format-1", "tagger.json", "config"), ("format-2", "config.json", "training")]
)
def test_settings_of_training_that_nobody_knows_any_more_do_not_matter(
    folder: str, file: str, record: str, tmp_path: Path
):
    """A model of a registered method, or of a version whose settings had other names."""
    shutil.copytree(GOLDEN / folder, tmp_path / "model")
    about = json.loads((tmp_path / "model" / file).read_text())
    about[record] |= {"method": {"name": "my-own", "power": 3}, "train": {"old_name": 1}, "gone": {}}
    (tmp_path / "model" / file).write_text(json.dumps(about))
    assert load_model(tmp_path / "model").method == "my-own"


def test_a_model_names_no_place_of_the_machine_it_was_made_on(golden: Path):
    for file in golden.iterdir():
        if file.suffix == ".safetensors":
            with safe_open(file, "np") as content:
                text = json.dumps(content.metadata())
        else:
            text = file.read_text()
        assert not list(absolute_paths(text)), file


def test_a_saved_model_names_no_place_of_this_machine(tmp_path: Path):
    """Saved again from format 1, whose record had some."""
    shutil.copytree(GOLDEN / "format-1", tmp_path / "old")
    about = json.loads((tmp_path / "old" / "tagger.json").read_text())
    about["config"]["data"] |= {"source": "/home/me/photos", "tags": "/home/me/tags.csv"}
    about["config"]["model"]["weights"] = "/home/me/weights.safetensors"
    (tmp_path / "old" / "tagger.json").write_text(json.dumps(about))
    Tagger.load(tmp_path / "old").save(tmp_path / "new")
    for file in ("config.json", "labels.json", "README.md"):
        assert not list(absolute_paths((tmp_path / "new" / file).read_text()))


def absolute_paths(text: str) -> Iterator[str]:
    return (found.group() for found in re.finditer(r"(?<![\w.<:/])(/|[A-Z]:\\\\)[\w.-]+([/\\][\w.-]+)+", text))


def test_damaged_weights_are_refused_by_name(tmp_path: Path):
    """One bit is enough: without the checksum the model would load and be a little wrong."""
    shutil.copytree(GOLDEN / "format-2", tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(UserError, match=r"model\.safetensors is missing or damaged"):
        load_model(tmp_path / "model")


@pytest.mark.parametrize("file", ["model.safetensors", "instant.safetensors"])
def test_weights_of_format_1_that_are_cut_off_are_refused_by_name(file: str, tmp_path: Path):
    shutil.copytree(GOLDEN / "format-1", tmp_path / "model")
    content = (tmp_path / "model" / file).read_bytes()
    (tmp_path / "model" / file).write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match=file.replace(".", r"\.")):
        load_model(tmp_path / "model")


def test_labels_are_taken_in_after_loading(golden: Path, tmp_path: Path):
    tagger = Tagger.load(golden)
    features = tagger.features(PICTURES)
    before = tagger.predict_proba(PICTURES)
    chair = tagger.classes_.tolist().index("chair")
    tagger.relabel(features[1], "chair", 1)
    after = tagger.predict_proba(PICTURES)
    assert after[1, chair] > before[1, chair] + 0.01
    others = np.delete(np.arange(len(tagger.classes_)), chair)
    np.testing.assert_array_equal(after[:, others], before[:, others])  # made before answers said something of others
    tagger.save(tmp_path / "relabelled")
    again = Tagger.load(tmp_path / "relabelled")
    np.testing.assert_allclose(again.predict_proba(PICTURES), after, atol=1e-6)
    again.relabel(features[1], "chair", 0)  # it remembers what it was told, so that it can be taken back
    np.testing.assert_allclose(again.predict_proba(PICTURES), before, atol=1e-4)
