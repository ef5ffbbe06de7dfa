"""One answer: the commands say the same of the same label, and the same estimates, before and after decisions."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import TINY, Cli
from fewtags.data.annotations import Annotations
from fewtags.engine.own_images import OwnImages
from fewtags.engine.record import load_run_config, load_run_data
from fewtags.labels import ABSENT, PRESENT, UNKNOWN
from fewtags.models.saved import load_model
from fewtags.review.opening import open_review
from fewtags.review.session import Answer
from fewtags.tagger import Tagger

PER_TAG = 8  # decisions


def lines_of(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def discovered(cli: Cli, run: Path, out: Path) -> dict[tuple[str, str], float]:
    answer = cli("discover", run, "--min-probability", "0", "--limit", "100000", "--jsonl", out, "--quiet")
    assert answer.code == 0, answer.err
    return {(row["image"], row["tag"]): row["probability"] for row in lines_of(out) if row["kind"] == "missing"}


def predicted(cli: Cli, run: Path, images: Annotations, out: Path, *more: str) -> dict[tuple[str, str], float]:
    files = [images.path(row) for row in range(len(images))]
    answer = cli("predict", run, *files, "--out", out, "--all-scores", "--overwrite", "--quiet", *more)
    assert answer.code == 0, answer.err
    name = {str(path): image for path, image in zip(files, images.images, strict=True)}
    return {(name[row["image"]], tag): value for row in lines_of(out) for tag, value in row["scores"].items()}


@pytest.fixture
def run(partly_tagged: Path, tmp_path: Path) -> Path:
    shutil.copytree(partly_tagged, tmp_path / "run")
    return tmp_path / "run"


def own(run: Path) -> OwnImages:
    return OwnImages.of(load_run_data(run))


def decide(run: Path, truth: np.ndarray) -> None:
    """Some unknown labels of every tag, as on the page."""
    session = open_review(run, quiet=True).session
    for column, tag in enumerate(session.annotations.categories):
        rows = np.flatnonzero(session.given[:, column] == UNKNOWN)[:PER_TAG]
        answers = [Answer(int(row), tag, PRESENT if truth[row, column] else ABSENT) for row in rows]
        session.decide(answers, queue="missing")
    session.store.close()


@pytest.mark.parametrize("decisions", [False, True])
def test_discover_predict_and_review_give_an_unknown_label_the_same_probability(
    cli: Cli, run: Path, tmp_path: Path, decisions: bool
):
    images = own(run).annotations
    if decisions:
        decide(run, np.random.default_rng(0).random(images.labels.shape) < 0.4)
    found = discovered(cli, run, tmp_path / "found.jsonl")
    said = predicted(cli, run, images, tmp_path / "said.jsonl")
    session = open_review(run, quiet=True).session
    assert len(found) == (images.labels == UNKNOWN).sum()
    rows = {image: row for row, image in enumerate(images.images)}
    for column, tag in enumerate(images.categories):
        page, decided = session.ranker.chances(column).missing, session.state.is_decided(column)
        mine = {image: value for (image, name), value in found.items() if name == tag and not decided[rows[image]]}
        assert len(mine) > 20
        for image, value in mine.items():
            assert said[image, tag] == pytest.approx(value, abs=1e-6)
            assert page[rows[image]] == pytest.approx(value, abs=1e-6)


def test_predict_keeps_what_is_known_of_the_runs_own_photos(cli: Cli, run: Path, tmp_path: Path):
    images = own(run).annotations
    said = predicted(cli, run, images, tmp_path / "said.jsonl")
    for row, column in np.argwhere(images.labels != UNKNOWN)[:50]:
        assert said[images.images[row], images.categories[column]] == float(images.labels[row, column] == PRESENT)
    as_new = predicted(cli, run, images, tmp_path / "new.jsonl", "--as-new")
    known = [(images.images[row], images.categories[column]) for row, column in np.argwhere(images.labels == PRESENT)]
    assert max(as_new[label] for label in known) < 1


def test_decisions_are_taken_back_without_a_trace(run: Path):
    images = own(run)
    _, judge = images.judge(lambda: load_model(run), load_run_config(run), quiet=True)
    before = judge.hidden()
    tag = images.annotations.categories[0]
    rows = np.flatnonzero(images.given[:, 0] == UNKNOWN)[:6]
    images.take(judge, {(images.annotations.images[row], tag): PRESENT for row in rows})
    assert np.abs(judge.hidden() - before).max() > 0.01
    images.take(judge, {})
    np.testing.assert_array_equal(judge.hidden(), before)


def test_the_same_estimates_everywhere(cli: Cli, run: Path):
    """Of `train`, `evaluate`, `compare`, `discover`, and the page."""
    trained = json.loads((run / "result.json").read_text(encoding="utf-8"))["estimates"]
    evaluated = json.loads(cli("evaluate", run, "--json").out)["estimates"]
    compared = json.loads(cli("compare", run, run, "--json").out)["runs"]
    for key in ("missing", "known_proportion", "map", "of1", "cf1"):
        assert evaluated[key] == pytest.approx(trained[key], abs=2e-4), key
    for key in ("map", "of1", "cf1"):
        assert compared[0][key] == pytest.approx(trained[key][0], abs=2e-4), key
    printed = cli("discover", run, "--quiet").out
    assert f"about {trained['missing'][0]:,.0f} tags are missing" in printed
    page = open_review(run, quiet=True).session.estimates()
    assert page.missing.value == pytest.approx(trained["missing"][0], rel=1e-3)
    assert page.known_proportion.value == pytest.approx(trained["known_proportion"][0], rel=1e-3)


# --- one learner of decisions ---


def decisions_of(session, truth: np.ndarray) -> list[tuple[int, int, int]]:
    """Row, column and label: some unknown labels of every tag, and a given one that is wrong."""
    chosen = []
    for column in range(truth.shape[1]):
        unknown = np.flatnonzero(session.given[:, column] == UNKNOWN)[:PER_TAG]
        chosen += [(int(row), column, PRESENT if truth[row, column] else ABSENT) for row in unknown]
    return [*chosen, (int(np.flatnonzero(session.given[:, 0] == PRESENT)[0]), 0, ABSENT)]


def test_page_retraining_and_relabel_learn_the_same_from_the_same_decisions(
    cli: Cli, patches: Annotations, some_tags: Path, tmp_path: Path
):
    """Photos that nobody has seen are ranked alike. `relabel` cannot know that an image was one of the fit, so its
    log-odds before the decision are not those without the image: a few hundredths, with 36 images."""
    run, again = tmp_path / "run", tmp_path / "again"
    settings = [setting for setting in TINY if not setting.startswith("method=")]
    told = ["--tags", some_tags, "--method", "instant", "data.val_share=0", *settings, "--out", run, "-q"]
    assert cli("train", patches.root, *told).code == 0
    session = open_review(run, quiet=True).session
    decided = decisions_of(session, np.random.default_rng(0).random(session.given.shape) < 0.4)
    names, images = session.annotations.categories, own(run)
    for row, column, label in decided:
        session.decide([Answer(row, names[column], label)], queue="missing")
    session.store.close()

    tagger = Tagger.load(run)
    features = tagger.features([images.annotations.path(row) for row, _, _ in decided])
    others = features[:-1] + features[1:]
    others /= np.linalg.norm(others, axis=1, keepdims=True)
    _, judge = images.judge(lambda: load_model(run), load_run_config(run), quiet=True)
    images.take(judge, {(images.annotations.images[row], names[column]): label for row, column, label in decided})
    page = judge.elsewhere(torch.from_numpy(others))[1]
    for column in range(len(names)):  # the page learns like the judge, by one decision after the other
        mine = session.ranker.chances(column).missing[~session.state.is_decided(column)]
        np.testing.assert_allclose(mine, judge.hidden()[~session.state.is_decided(column), column], atol=1e-4)

    assert cli("train", "--reviewed", run, "--out", again, "--quiet").code == 0
    for (row, column, label), feature in zip(decided, features, strict=True):
        given = torch.tensor([int(session.given[row, column])])
        tagger._closed_form().relabel(torch.from_numpy(feature), column, label, given=given)
    for learner, close in ((Tagger.load(again), 1e-3), (tagger, 0.05)):
        for column, tag in enumerate(names):
            order, chance = learner.rerank(tag, others)
            np.testing.assert_allclose(chance, page[order, column], atol=close)
            assert np.ptp(chance) > 0.1
