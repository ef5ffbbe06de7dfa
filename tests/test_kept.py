"""What a run keeps to be opened at once, its labels as read and the judge: the same as fresh, and made again whenever
something that counts has changed or the file is damaged."""

from __future__ import annotations

import os
import shutil
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from conftest import TINY
from fewtags.config import load_config
from fewtags.data import prepare
from fewtags.data.annotations import Annotations
from fewtags.data.formats import read_annotations
from fewtags.data.prepare import DataConfig
from fewtags.engine import kept, kept_judge, kept_labels
from fewtags.engine.model_outputs import ModelOutputs
from fewtags.engine.own_images import OwnImages
from fewtags.engine.record import load_run_config, load_run_data
from fewtags.engine.training import train
from fewtags.labels import PRESENT, UNKNOWN
from fewtags.models.saved import SavedModel, load_model
from fewtags.review.opening import open_review
from fewtags.review.session import Answer


@pytest.fixture
def run(partly_tagged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that keeps everything, however small it is."""
    monkeypatch.setattr(kept_judge, "SMALL", 0)
    monkeypatch.setattr(kept_labels, "SMALL", 0)
    shutil.copytree(partly_tagged, tmp_path / "run")
    return tmp_path / "run"


class Opened:
    """The judge of a run, and whether its model had to be loaded for it: then it was fitted."""

    def __init__(self, run: Path, own: OwnImages | None = None):
        self.fitted = False
        self.own = own or OwnImages.of(load_run_data(run))
        config = load_run_config(run)
        self.outputs, self.judge = self.own.judge(lambda: self._load(run), config, run=run, quiet=True)

    def _load(self, run: Path) -> SavedModel:
        self.fitted = True
        return load_model(run)


def test_a_kept_judge_says_the_same_as_a_fresh_one_without_the_model(run: Path):
    fresh, again = Opened(run), Opened(run)
    assert fresh.fitted
    assert not again.fitted
    np.testing.assert_allclose(again.judge.hidden(), fresh.judge.hidden(), atol=1e-6)
    np.testing.assert_allclose(again.judge.present(), fresh.judge.present(), atol=1e-6)
    rows = np.flatnonzero(fresh.own.given[:, 0] == UNKNOWN)[:6]
    for opened in (fresh, again):
        opened.judge.decide(rows, np.zeros(6, dtype=int), [1, -1, 1, 1, -1, 1])
    np.testing.assert_allclose(again.judge.hidden(), fresh.judge.hidden(), atol=1e-6)
    features = fresh.outputs.unit_features(np.arange(4))
    for one, other in zip(again.judge.elsewhere(features), fresh.judge.elsewhere(features), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def refuse(*_: object, **__: object) -> None:
    raise AssertionError("it was kept, so it should not be computed")


def test_train_leaves_everything_for_the_first_review(
    patches, some_tags, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It reads the same labels and judges the same images to estimate the quality. Paths may be relative."""
    monkeypatch.setattr(kept_judge, "SMALL", 0)
    monkeypatch.setattr(kept_labels, "SMALL", 0)
    settings = [value for value in TINY if not value.startswith("method=")]
    monkeypatch.chdir(patches.root.parent)
    data = {"source": patches.root.name, "tags": os.path.relpath(some_tags)}
    train(load_config(None, [*settings, "method=instant"], data=data), tmp_path / "run", quiet=True)
    monkeypatch.chdir(tmp_path)
    fresh = read_annotations(str(patches.root), tags=str(some_tags))
    for module in (kept_labels, prepare):
        monkeypatch.setattr(module, "read_data", refuse)
    monkeypatch.setattr(kept_judge, "burst_leaders", refuse)
    monkeypatch.setattr(ModelOutputs, "chunks", refuse)
    assert not Opened(tmp_path / "run").fitted
    review = open_review(tmp_path / "run", quiet=True)
    assert len(review.session.ranker.inputs) == len(fresh)  # what decisions teach with
    assert set(review.session.annotations.images) == set(fresh.images)
    assert review.pictures.content_hash(0)  # its files are found from elsewhere, too


def test_a_review_with_decisions_opens_without_looking_at_all_images(run: Path, monkeypatch: pytest.MonkeyPatch):
    """What lessons are about is kept, too."""
    session = open_review(run, quiet=True).session
    tag, rows = session.annotations.categories[0], np.flatnonzero(session.given[:, 0] == UNKNOWN)[:5]
    session.decide([Answer(int(row), tag, PRESENT) for row in rows], queue="missing")
    expected = session.ranker.chances(0).missing
    in_full = Opened(run).judge
    in_full.decide(rows, np.zeros(5, dtype=int), [PRESENT] * 5)
    np.testing.assert_allclose(expected, in_full.hidden()[:, 0], atol=1e-5)
    session.store.close()
    looked: list[int] = []
    original = ModelOutputs.unit_features
    monkeypatch.setattr(ModelOutputs, "unit_features", lambda self, at: looked.append(len(at)) or original(self, at))
    again = open_review(run, quiet=True).session
    again.summaries()
    np.testing.assert_array_equal(again.ranker.chances(0).missing, expected)
    assert sum(looked) == 5
    again.store.close()


def test_a_changed_label_is_judged_anew(run: Path):
    own = Opened(run).own
    changed = own.given.copy()
    changed[np.flatnonzero(changed[:, 0] == UNKNOWN)[0], 0] = PRESENT
    other = Opened(run, OwnImages(own.annotations, changed, None))
    assert other.fitted
    assert Opened(run, OwnImages(own.annotations, changed, None)).fitted is False


def test_decisions_are_not_part_of_what_is_kept(run: Path):
    """They are learned from after it was loaded, so that taking one back leaves nothing behind."""
    before = open_review(run, quiet=True).session
    rows = np.flatnonzero(before.given[:, 0] == UNKNOWN)[:5]
    tag = before.annotations.categories[0]
    before.decide([Answer(int(row), tag, PRESENT) for row in rows], queue="missing")
    expected = before.ranker.chances(0).missing
    before.store.close()
    opened = Opened(run)
    assert not opened.fitted
    after = open_review(run, quiet=True).session
    np.testing.assert_allclose(after.ranker.chances(0).missing, expected, atol=1e-6)
    after.undo()
    untouched = opened.judge.hidden()[:, 0]
    np.testing.assert_allclose(after.ranker.chances(0).missing, untouched, atol=1e-6)
    after.store.close()


@pytest.mark.parametrize("what", ["model", "image", "decoder", "code"])
def test_whatever_else_counts_is_judged_anew(run: Path, what: str, monkeypatch: pytest.MonkeyPatch):
    opened = Opened(run)
    if what == "model":
        saved = load_model(run)
        next(saved.classifier.backbone.parameters()).data += 0.01
        saved.save(run / "model")
    elif what == "image":
        path = opened.own.annotations.path(0)
        before = path.read_bytes()
        Image.new("RGB", (60, 60), "green").save(path)
    elif what == "decoder":
        monkeypatch.setattr(kept_judge, "DECODER", -1)
    else:
        monkeypatch.setattr(kept_judge, "code_of", lambda *modules: "another version")
    try:
        assert Opened(run, opened.own).fitted
    finally:
        if what == "image":
            path.write_bytes(before)


@pytest.mark.parametrize("damage", ["cut off", "a bit", "empty", "gone"])
@pytest.mark.parametrize("name", ["judge.npz", "labels.npz", "bursts.npz", "inputs.npz"])
def test_a_damaged_file_is_made_again(run: Path, name: str, damage: str):
    first = open_review(run, quiet=True)
    row = int(np.flatnonzero(first.session.given[:, 0] == UNKNOWN)[0])
    first.session.decide([Answer(row, first.session.annotations.categories[0], PRESENT)], queue="missing")
    chances, leaders = first.session.ranker.chances(0).missing, first.session.leaders
    file = run / "outputs" / name
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    changed = {"cut off": content[: len(content) // 2], "a bit": content, "empty": b"", "gone": None}[damage]
    file.unlink()
    if changed is not None:
        file.write_bytes(changed)
    again = open_review(run, quiet=True)
    np.testing.assert_allclose(again.session.ranker.chances(0).missing, chances, atol=1e-6)
    np.testing.assert_array_equal(again.session.leaders, leaders)
    assert kept.load_kept(file, "") is None
    assert file.stat().st_size > 100


def test_what_cannot_be_kept_is_not_missed(run: Path, monkeypatch: pytest.MonkeyPatch):
    """As on a read-only or full disk."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError("read-only")

    monkeypatch.setattr(kept.np, "savez", refuse)
    assert Opened(run).fitted
    assert Opened(run).fitted


def test_features_that_left_the_store_are_computed_before_the_page_opens(run: Path):
    opened = Opened(run)
    expected = opened.judge.hidden()
    shutil.rmtree(kept_judge.cache_root(load_run_config(run).cache))
    again = Opened(run)
    assert again.fitted
    np.testing.assert_allclose(again.judge.hidden(), expected, atol=1e-3)


# --- labels ---


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    (tmp_path / "photos" / "sea").mkdir(parents=True)
    for number in range(6):
        Image.new("RGB", (40, 40), (40 * number, 0, 0)).save(tmp_path / "photos" / "sea" / f"{number}.jpg")
    rows = "".join(f"sea/{number}.jpg,dog;animal|cat\n" for number in range(5))
    (tmp_path / "photos" / "tags.csv").write_text("image,tags\n" + rows, encoding="utf-8")
    return tmp_path / "photos"


class Reader:
    """`read_labels`, and how often it has read the source."""

    def __init__(self, run: Path, monkeypatch: pytest.MonkeyPatch, **config: object):
        self.run, self.config, self.reads = run, DataConfig.model_validate(config), 0
        original = kept_labels.read_data

        def counted(config: DataConfig) -> Annotations:
            self.reads += 1
            return original(config)

        monkeypatch.setattr(kept_labels, "SMALL", 0)
        monkeypatch.setattr(kept_labels, "read_data", counted)

    def __call__(self) -> Annotations:
        return kept_labels.read_labels(self.run, self.config)


@pytest.fixture(params=["file", "folder"])
def reader(request: pytest.FixtureRequest, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reader:
    if request.param == "file":
        return Reader(tmp_path / "run", monkeypatch, source=str(photos / "tags.csv"))
    return Reader(tmp_path / "run", monkeypatch, source=str(photos), tags=str(photos / "tags.csv"))


def test_labels_are_read_once_and_stay_what_they_were(reader: Reader):
    read, again = reader(), reader()
    assert reader.reads == 1
    for name in (field.name for field in fields(Annotations)):
        one, other = getattr(read, name), getattr(again, name)
        assert np.array_equal(one, other) if isinstance(one, np.ndarray) else one == other, name
    assert again.content_hash() == read.content_hash()


@pytest.mark.parametrize("what", ["label", "photo removed", "photo added", "damaged"])
def test_labels_are_read_again_if_their_source_changed(reader: Reader, photos: Path, what: str):
    reader()
    if what == "label":
        file = photos / "tags.csv"
        file.write_text(file.read_text(encoding="utf-8").replace("dog", "fox", 1), encoding="utf-8")
    elif what == "photo removed":
        (photos / "sea" / "0.jpg").unlink()
    elif what == "photo added":
        shutil.copy(photos / "sea" / "0.jpg", photos / "sea" / "new.jpg")
    else:
        file = reader.run / "outputs" / "labels.npz"
        file.write_bytes(file.read_bytes()[:-200])
    fresh = kept_labels.read_data(reader.config)
    again = reader()
    assert reader.reads == 3
    assert again.content_hash() == fresh.content_hash()


def test_labels_that_change_while_they_are_read_are_read_again(
    reader: Reader, photos: Path, monkeypatch: pytest.MonkeyPatch
):
    original, file = kept_labels.read_data, photos / "tags.csv"

    def changed_meanwhile(config: DataConfig) -> Annotations:
        read = original(config)
        file.write_text(file.read_text(encoding="utf-8").replace("dog", "fox", 1), encoding="utf-8")
        return read

    monkeypatch.setattr(kept_labels, "read_data", changed_meanwhile)
    assert "fox" not in reader().categories
    monkeypatch.setattr(kept_labels, "read_data", original)
    assert "fox" in reader().categories
