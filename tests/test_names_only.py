"""A tagger without a single label: the names of the categories are all that is known."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from conftest import Cli
from fewtags.data.formats import read_annotations
from fewtags.engine.record import load_run_data
from fewtags.errors import UserError
from fewtags.labels import ABSENT, PRESENT
from fewtags.models.quick_timm import timm
from fewtags.review.opening import open_review
from fewtags.review.session import Answer, View

BACKBONE = ("--backbone", "test_resnet", "input.size=32", "train.device=cpu")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    for number in range(24):
        place = folder / ("2019" if number % 2 else "2020") / f"{number:02d}.png"
        place.parent.mkdir(exist_ok=True)
        Image.new("RGB", (32, 32), (10 * number, 255 - 10 * number, 7 * number)).save(place)
    return folder


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A backbone with ImageNet's classifier; what it sees is of no matter."""
    torch.manual_seed(0)
    file = tmp_path_factory.mktemp("weights") / "w.safetensors"
    save_file(timm.create_model("test_resnet", pretrained=False).state_dict(), file)
    return file


def test_folders_are_no_tags_where_categories_are_given(photos):
    read = read_annotations(photos, categories=["dog", "sea"])
    assert read.categories == ["dog", "sea"]
    assert len(read) == 24
    assert not read.labels.any()
    assert read_annotations(photos).categories == ["2019", "2020"]
    with pytest.raises(UserError, match="--categories"):
        read_annotations(photos, format="untagged")


def test_tags_that_are_there_are_read_whatever_is_looked_for(photos, tmp_path):
    table = tmp_path / "tags.csv"
    table.write_text("image,tags\n2019/01.png,dog\n2020/02.png,cat\n")
    read = read_annotations(photos, tags=table, categories=["dog", "boat"])
    assert read.categories == ["dog", "boat"]
    assert (read.labels == 1).sum(0).tolist() == [1, 0]


@pytest.mark.parametrize("method", ["instant", "refined"])
def test_photos_without_tags_are_trained_on_predicted_and_looked_through(cli: Cli, photos, weights, tmp_path, method):
    run = tmp_path / "run"
    names = ("--categories", "dog,sea,boat", "--weights", weights, *BACKBONE)
    answer = cli("train", photos, *names, "--method", method, "--out", run)
    assert answer.code == 0, answer.err
    assert "tags come from their names alone" in answer.err
    assert "These could not be checked" in answer.err
    assert answer.out.splitlines() == [str(run)]  # nothing to estimate from
    assert "dog: 118 classes" in answer.err
    assert "no training," in answer.err
    assert "24 images are few" in answer.err
    answer = cli("predict", run, photos, "--all-scores")
    rows = list(csv.DictReader(io.StringIO(answer.out)))
    assert len(rows) == 24
    assert len({row["dog"] for row in rows}) > 5
    answer = cli("discover", run)
    assert answer.code == 2
    assert "`fewtags review` asks about it" in answer.err


def test_an_alias_file_says_what_tags_of_another_language_are(cli: Cli, photos, weights, tmp_path):
    """Hund keeps its name, and scores as a dog does."""
    aliases = tmp_path / "aliases.yaml"
    aliases.write_text("names:\n  Hund: {name: dog}\n  meer: sea\n  Katze: cat\n")
    scores = {}
    for run, names, more in (("de", "Hund,Meer", ["--aliases", aliases]), ("en", "dog,sea", [])):
        call = ("train", photos, "--categories", names, *more, "--weights", weights, *BACKBONE, "--out", tmp_path / run)
        answer = cli(*call)
        assert answer.code == 0, answer.err
        rows = csv.DictReader(io.StringIO(cli("predict", tmp_path / run, photos, "--all-scores").out))
        scores[run] = [[row[name] for name in names.split(",")] for row in rows]
        assert "Hund: as dog: 118 classes" in answer.err or run == "en"
    assert scores["de"] == scores["en"]


def test_a_method_that_learns_from_tags_alone_says_so(cli: Cli, photos, weights, tmp_path):
    answer = cli(
        "train",
        photos,
        "--categories",
        "dog",
        "--weights",
        weights,
        *BACKBONE,
        "--method",
        "an",
        "--out",
        tmp_path / "r",
    )
    assert answer.code == 3
    assert "'an' learns only from tags" in answer.err


def test_names_that_nobody_knows_are_said(cli: Cli, photos, weights, tmp_path):
    answer = cli("train", photos, "--categories", "xqzzy", "--weights", weights, *BACKBONE, "--out", tmp_path / "r")
    assert answer.code == 3
    assert "knows none of the names (xqzzy)" in answer.err
    answer = cli("train", photos, "--categories", "dog", *BACKBONE, "model.pretrained=false", "--out", tmp_path / "r")
    assert answer.code == 3


def test_from_words_alone_to_a_tagger_by_a_review(cli: Cli, photos, weights, tmp_path):
    """`train photos/ --categories lighthouse,pier`, then answers on the page, then what every other run can do."""
    run, second = tmp_path / "run", tmp_path / "second"
    names = ("--categories", "lighthouse,pier", "--weights", weights, *BACKBONE)
    assert cli("train", photos, *names, "--out", run, "-q").code == 0
    session = open_review(run, reviewer="ann", quiet=True).session
    assert session.names == ["lighthouse", "pier"]
    truth = np.array([name.endswith(("0.png", "1.png", "2.png")) for name in session.annotations.images])
    queue = session.queue(View("lighthouse", "missing", lowest=0.0))
    assert len(queue.order) == 24  # all of them are asked about, the likeliest by the word first
    for row in queue.order[:16].tolist():
        session.decide([Answer(row, "lighthouse", PRESENT if truth[row] else ABSENT)], queue="missing")
    assert session.summary("lighthouse").known == truth[queue.order[:16]].sum()
    session.store.close()

    applied = cli("apply", run, "--out", tmp_path / "tags.jsonl", "--as", "jsonl", "--yes")
    assert applied.code == 0, applied.err
    again = cli("train", "--reviewed", run, "--out", second, "-q")
    assert again.code == 0, again.err
    known = load_run_data(second).train
    assert known.categories == ["lighthouse", "pier"]
    assert set(np.unique(known.labels[:, 0])) >= {PRESENT, ABSENT}
    assert not known.labels[:, 1].any()
    told = cli("predict", second, photos, "--all-scores", "-q")
    rows = list(csv.DictReader(io.StringIO(told.out)))
    assert len(rows) == 24
    assert cli("discover", second, "-q").code == 0
