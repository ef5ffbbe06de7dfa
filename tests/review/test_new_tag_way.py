"""A new tag goes on from the review: `apply`, `train --reviewed`, `compare`, `export`, `predict`; and in Python."""

from __future__ import annotations

import shutil
from html import unescape
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")

from conftest import Cli
from fewtags import Tagger
from fewtags.data.annotations import Annotations
from fewtags.data.decisions import read_decisions
from fewtags.data.formats import read_annotations
from fewtags.engine.onnx_tagger import ExportedTagger
from fewtags.engine.record import load_run_data
from fewtags.errors import UserError
from fewtags.labels import ABSENT, PRESENT
from fewtags.models.saved import load_model
from fewtags.review.opening import open_review
from fewtags.review.session import Answer, ReviewSession


@pytest.fixture
def run(partly_tagged: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(partly_tagged, tmp_path / "run"))


@pytest.fixture
def session(run: Path) -> ReviewSession:
    return open_review(run, reviewer="ann", quiet=True).session


def truth_of(patches: Annotations, session: ReviewSession, tag: str) -> np.ndarray:
    row = {image: number for number, image in enumerate(patches.images)}
    rows = [row[image] for image in session.annotations.images]
    return patches.labels[rows, patches.categories.index(tag)] == PRESENT


def answered(session: ReviewSession, truth: np.ndarray, tag: str, number: int = 20, reviewer: str = "ann") -> None:
    answers = [Answer(row, tag, PRESENT if truth[row] else ABSENT) for row in range(number)]
    session.decide(answers, queue="missing", reviewer=reviewer)


def test_a_new_tag_is_applied_trained_compared_exported_and_predicted(cli: Cli, run, session, patches, tmp_path):
    """What the pictures' own labels call "red" is the new tag "crimson"."""
    truth = truth_of(patches, session, "red")
    session.add_tag("Rot", examples=[int(np.flatnonzero(truth)[0])])
    session.change_tag("Rot", "rename", "crimson")
    answered(session, truth, "crimson")
    answered(session, truth, "crimson", 3, reviewer="bob")
    session.store.close()

    written = cli("apply", run, "--out", tmp_path / "new.csv", "--yes")
    assert written.code == 0, written.err
    new = read_annotations(str(patches.root), tags=str(tmp_path / "new.csv"))
    of_new = dict(zip(new.images, new.labels[:, new.categories.index("crimson")].tolist(), strict=True))
    decided = {image: PRESENT if truth[row] else ABSENT for row, image in enumerate(session.annotations.images[:20])}
    assert {image: of_new[image] for image in decided} == decided

    again = cli("train", "--reviewed", run, "--out", tmp_path / "second", "--quiet")
    assert again.code == 0, again.err
    data = load_run_data(tmp_path / "second")
    assert data.train.categories[-1] == "crimson"
    assert {d.tag_is for d in read_decisions(tmp_path / "second" / "decisions.jsonl")} == {"new"}
    assert load_model(tmp_path / "second").categories[-1] == "crimson"

    compared = cli("compare", run, tmp_path / "second")
    assert compared.code == 0, compared.err
    assert "crimson" in compared.out
    assert "100 % agreement" in " ".join(compared.out.split())
    assert cli("report", run, tmp_path / "second", "--out", tmp_path / "report.html").code == 0
    assert "100 % agreement (Krippendorff's alpha 1.00)" in unescape((tmp_path / "report.html").read_text())

    pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")
    before = cli("export", run, "--out", tmp_path / "before.onnx")
    assert before.code == 0, before.err
    assert "Not in it: crimson" in before.out
    assert f"`fewtags train --reviewed {run}`" in before.out
    after = cli("export", tmp_path / "second", "--out", tmp_path / "after.onnx")
    assert after.code == 0, after.err
    assert "Not in it" not in after.out
    assert ExportedTagger(tmp_path / "after.onnx").categories[-1] == "crimson"
    by_file = cli("predict", tmp_path / "after.onnx", patches.root, "--out", tmp_path / "by-file.csv", "-q")
    assert by_file.code == 0, by_file.err
    assert "crimson" in (tmp_path / "by-file.csv").read_text()

    told = cli("predict", tmp_path / "second", patches.root, "--out", tmp_path / "said.csv", "-q")
    assert told.code == 0, told.err
    assert "crimson" in (tmp_path / "said.csv").read_text()


def test_a_given_tag_that_was_renamed_takes_its_labels_along(cli: Cli, run, session, tmp_path):
    before = load_run_data(run).train
    old = before.categories[0]
    session.change_tag(old, "rename", "renamed")
    session.store.close()
    again = cli("train", "--reviewed", run, "--out", tmp_path / "second", "--quiet")
    assert again.code == 0, again.err
    after = load_run_data(tmp_path / "second").train
    assert old not in after.categories
    np.testing.assert_array_equal(after.labels[:, after.categories.index("renamed")], before.labels[:, 0])


def test_a_deleted_new_tag_is_neither_applied_nor_trained(cli: Cli, run, session, patches, tmp_path):
    truth = truth_of(patches, session, "red")
    session.add_tag("crimson", examples=[int(np.flatnonzero(truth)[0])])
    answered(session, truth, "crimson")
    session.change_tag("crimson", "delete")
    name = session.names[0]
    session.decide([Answer(0, name, PRESENT)], queue="missing")
    session.store.close()
    assert cli("train", "--reviewed", run, "--out", tmp_path / "second", "--quiet").code == 0
    assert "crimson" not in load_model(tmp_path / "second").categories


# --- search ---


def test_search_by_example_finds_what_looks_alike(cli: Cli, run, session, patches):
    image = session.annotations.path(0)
    found = cli("search", run, "--like", image, "-n", 5)
    assert found.code == 0, found.err
    assert len(found.out.splitlines()) == 6
    assert found.out.splitlines()[1].split()[0] == session.annotations.images[0]  # a picture is most like itself


def test_a_word_that_nothing_knows_is_said(cli: Cli, run):
    answer = cli("search", run, "--text", "lighthouse")
    assert answer.code == 2
    assert "Search by an example instead" in " ".join(answer.err.split())
    assert cli("search", run).code == 2
    assert cli("search", run, "--like", "nowhere.jpg").code == 2


# --- in Python ---


def test_add_tag_and_search_of_a_tagger(run, session, patches):
    truth = truth_of(patches, session, "red")
    paths = [session.annotations.path(row) for row in range(len(session))]
    tagger = Tagger.load(run)
    features = tagger.features(paths)
    example = int(np.flatnonzero(truth)[0])
    assert tagger.search(features, like=[paths[example]], number=3)[0][0] == example
    with pytest.raises(UserError, match="by pictures"):
        tagger.search(features)
    tag = tagger.add_tag("crimson", features, examples=[paths[example]])
    for _ in range(30):
        row = tag.next(1)[0]
        tag.answer(row, truth[row])
    assert tag.probabilities()[truth].mean() > tag.probabilities()[~truth].mean()
    assert tag.forecast().missing.value >= 0
    with pytest.raises(UserError, match="already"):
        tagger.add_tag("red", features, examples=[paths[example]])


def test_a_new_tag_of_the_images_of_the_run(run, session, patches, tmp_path):
    paths = [str(session.annotations.path(row)) for row in range(len(session))]
    tagger = Tagger.load(run)
    tag = tagger.add_tag("crimson", examples=paths[:1])
    assert tag.images == paths
    np.testing.assert_allclose(
        tag.probabilities(), tagger.add_tag("crimson", paths, examples=paths[:1]).probabilities(), atol=1e-3
    )
    tagger.save(tmp_path / "saved")
    with pytest.raises(UserError, match="belongs to no run, so pass them"):
        Tagger.load(tmp_path / "saved").add_tag("crimson", examples=paths[:1])
