"""Damaged files of ours are refused by name or made anew; none is loaded by half."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import Cli, TinyConfig
from fewtags.config import load_config, read_yaml
from fewtags.data.prepare import split_data
from fewtags.engine import feature_store, features
from fewtags.engine.model_outputs import model_outputs
from fewtags.engine.run import build_run
from fewtags.engine.run_log import RunLog, read_rows
from fewtags.engine.training import train
from fewtags.errors import DataError, UserError
from fewtags.models.graph import LabelGraph
from fewtags.models.saved import load_model
from fewtags.models.words import find_word_vectors
from fewtags.review.store import DecisionStore, Draft


def flip(file: Path, place: float = 0.5) -> None:
    """One bit of the byte at this share of the file."""
    content = bytearray(file.read_bytes())
    content[int(place * (len(content) - 1))] ^= 4
    file.write_bytes(content)


# --- the feature store ---


@pytest.fixture
def cached(patches, tmp_path):
    """Train with a store in tmp_path/cache; gives the file with the maps of the training images."""

    def run(name: str) -> Path:
        config = TinyConfig.make("model.train_from=head", f"cache.folder={tmp_path / 'cache'}", "train.epochs=1")
        train(config, tmp_path / name, data=split_data(patches, config.data, 0), quiet=True)
        return max((tmp_path / "cache").glob("*/0.bin"), key=lambda file: file.stat().st_size)

    return run


@pytest.mark.parametrize("how", ["bit", "short", "gone"])
def test_damaged_features_are_computed_anew(how, cached, tmp_path, capsys):
    file = cached("first")
    whole = file.read_bytes()
    if how == "bit":
        flip(file, 0.7)
    elif how == "short":
        file.write_bytes(whole[:-1])
    else:
        file.unlink()
    assert cached("second") == file
    assert f"Features in {file.parent} are damaged" in " ".join(capsys.readouterr().err.split())
    capsys.readouterr()
    cached("third")
    assert "damaged" not in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"not a database", None])
def test_a_damaged_index_of_the_store_begins_anew(content, cached, tmp_path):
    file = cached("first")
    whole, index = file.read_bytes(), tmp_path / "cache" / "index.sqlite"
    if content is None:
        flip(index, 0.0)
    else:
        index.write_bytes(content)
    assert cached("second").read_bytes() == whole


def test_much_is_checked_where_it_is_used_and_computed_again(cached, patches, tmp_path, monkeypatch):
    """Chunk by chunk, each once; of the others nothing is computed."""
    monkeypatch.setattr(feature_store, "ROWS_PER_CHUNK", 8)
    file = cached("first")
    monkeypatch.setattr(features, "IN_MEMORY", 0)
    config = TinyConfig.make("model.train_from=head", f"cache.folder={tmp_path / 'cache'}", "train.epochs=1")
    data = split_data(patches, config.data, 0)
    batches = build_run(config, tmp_path / "run", data, torch.device("cpu"), RunLog(tmp_path, quiet=True)).train_batches
    assert isinstance(batches, features.CachedBatches)
    there = batches.features
    whole = torch.cat([there.rows(view, torch.arange(36)) for view in range(4)])
    flip(file, 0.5)
    found: list[int] = []
    original = features.ImageDataset.views
    monkeypatch.setattr(
        features.ImageDataset, "views", lambda self, row, views: found.append(row) or original(self, row, views)
    )
    again = build_run(config, tmp_path / "run", data, torch.device("cpu"), RunLog(tmp_path, quiet=True)).train_batches
    assert not found
    rows = torch.cat([again.features.rows(view, torch.arange(36)) for view in range(4)])
    torch.testing.assert_close(rows, whole, rtol=1e-3, atol=1e-3)
    assert 1 <= len(found) <= 8


# --- what discover and review keep ---


def test_kept_features_that_are_damaged_are_computed_again(trained, patches, tmp_path):
    saved, part = load_model(trained), patches.split("test")
    config = TinyConfig.make(f"cache.folder={tmp_path}")
    before = model_outputs(saved, part, config=config, quiet=True).unit_features(np.arange(len(part)))
    (file,) = tmp_path.glob("*/0.bin")
    flip(file)
    again = model_outputs(saved, part, config=config, quiet=True).unit_features(np.arange(len(part)))
    torch.testing.assert_close(again, before, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("how", ["no database", "cut off", "zeros inside", "other table"])
def test_a_damaged_label_store_is_refused_by_name(how, tmp_path):
    file = tmp_path / "decisions.sqlite"
    with DecisionStore(file) as store:
        for number in range(300):
            store.append([Draft(f"{number}.jpg", "dog", 0, 1)], reviewer="ann", queue="missing", run="r")
    content = file.read_bytes()
    if how == "other table":
        file.unlink()
        with sqlite3.connect(file) as other:
            other.execute("CREATE TABLE decisions (id INTEGER)")
            other.execute("PRAGMA user_version = 1")
        other.close()
    else:
        third = len(content) // 3
        damaged = {
            "no database": b"not a database" * 100,
            "cut off": content[: 2 * third],
            "zeros inside": content[:third] + bytes(third) + content[2 * third :],
        }
        file.write_bytes(damaged[how])
    with pytest.raises(UserError, match=r"decisions.sqlite cannot be used .*300 decisions can be read from .*: move"):
        DecisionStore(file)
    file.rename(tmp_path / "damaged")
    with DecisionStore(file) as again:  # what the sentence says
        assert len(again.labels()) == 300
    (tmp_path / "decisions.sqlite-sealed.jsonl").unlink()
    (tmp_path / "damaged").rename(file)
    with pytest.raises(UserError, match=r"decisions.sqlite cannot be used as a file of decisions: .*\.recover"):
        DecisionStore(file)


# --- a run's own files ---


@pytest.mark.parametrize("content", ["{", "[]", ""])
@pytest.mark.parametrize("name", ["data.json", "result.json", "config.yaml", "model/labels.json", "model/config.json"])
def test_no_command_has_a_traceback_for_a_damaged_file(name, content, cli: Cli, trained, patches, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    (run / name).write_text(content)
    for command in (("train", "--resume", run), ("evaluate", run), ("report", run, "--out", tmp_path / "page.html")):
        answer = cli(*command)  # a traceback would come through
        assert answer.code in (0, 1, 2, 3), answer.err
        if answer.code:
            assert answer.err.startswith("fewtags: "), answer.err


def test_a_damaged_line_of_the_log_ends_it(tmp_path):
    file = tmp_path / "metrics.jsonl"
    row = json.dumps({"kind": "train", "epoch": 1})
    for damaged in ("{", "[]", "null", "{}", '{"kind": 1, "epoch": 1}', "\ufffd", "[" * 100_000):
        file.write_text(f"{row}\n{damaged}\n{row}\n", encoding="utf-8")
        assert read_rows(file) == [json.loads(row)]
    file.write_bytes(b"\xff\xfe\n")
    assert read_rows(file) == []


# --- what people give ---


def test_a_few_bytes_of_yaml_cannot_fill_the_screen(tmp_path):
    levels = "\n".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 9))
    file = tmp_path / "bomb.yaml"
    file.write_text(f"l0: &l0 [a, a, a, a, a, a, a, a, a]\n{levels}\n")
    with pytest.raises(UserError, match="its aliases expand to more than 100,000 values"):
        read_yaml(file)
    file.write_text("train: &t\n  lr: *t\n")
    with pytest.raises(UserError, match="aliases"):
        read_yaml(file)
    file.write_text("[" * 20_000)
    with pytest.raises(UserError, match="not valid YAML"):
        read_yaml(file)
    with pytest.raises(UserError) as refused:
        load_config(None, [f"train.lr=[{', '.join(['0'] * 5000)}]"])
    assert len(str(refused.value)) < 300


def test_aliases_that_people_use_are_fine(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("train: &fast {lr: 0.1}\nmodel: {a: *fast}\n")
    assert read_yaml(file)["model"]["a"] == {"lr": 0.1}


@pytest.mark.parametrize("name", ["words.npz", "words.npy", "words.txt"])
@pytest.mark.parametrize(
    "content",
    [b"", b"no words", b"dog 1 2 x\n", b"dog\n", b"dog 1 2\ncat 1 2 3\n", b"\xff\xfe\x00", b"PK\x03\x04" + bytes(60),
     b"\x93NUMPY\x01\x00\x06\x00{}    ", b"dog nan 1\n"],
)  # fmt: skip
def test_bad_word_files_are_named(name, content, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=name):
        find_word_vectors(["dog", "cat"], str(tmp_path / name))


def test_arrays_that_are_no_word_vectors_are_named(tmp_path):
    file = tmp_path / "words.npz"
    for arrays in (
        {"names": np.array("dog"), "vectors": np.zeros((1, 3))},
        {"names": np.array(["dog"]), "vectors": np.array([["a"]])},
        {"names": np.array(["dog"]), "vectors": np.array([[np.nan]])},
        {"names": np.array(["dog"]), "vectors": np.array([object()])},
    ):
        np.savez(file, **arrays)
        with pytest.raises(DataError, match=r"words\.npz"):
            find_word_vectors(["dog"], str(file))


def test_a_graph_of_too_many_categories_is_refused_before_it_fills_the_memory():
    from fewtags.contract import WordVectors

    words = WordVectors(torch.zeros(1, 1).expand(50_000, 1), "made")
    with pytest.raises(UserError, match=r"A graph of 50,000 categories needs 20 GB"):
        LabelGraph("cooccurrence", words)


def test_markup_in_a_data_sets_name_stays_text():
    from fewtags.experiments.tables import Table, Value, to_latex, to_markdown

    table = Table("mAP on <img src=x onerror=alert(1)>|a\\input{b}&$#^", "note", ["50 %"], [("a_b", [Value(1.0)])])
    page, latex = to_markdown(table), to_latex(table)
    assert "<" not in page.splitlines()[0]
    assert r"&lt;img src=x onerror=alert(1)&gt;\|a" in page
    assert r"a\textbackslash{}input\{b\}\&\$\#\textasciicircum{}" in latex
    assert r"\input" not in latex
