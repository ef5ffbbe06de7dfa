"""Estimated quality of runs without complete labels, from training to the commands that show it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conftest import TINY, Cli

SETTINGS = [setting for setting in TINY if not setting.startswith("method=")]


def result_of(run: Path) -> dict:
    return json.loads((run / "result.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("method", "judged_on"), [("instant", "validation images"), ("an", "validation images")])
def test_train_ends_with_estimates(cli: Cli, patches, some_tags, tmp_path, method, judged_on):
    run = tmp_path / "run"
    answer = cli("train", patches.root, "--tags", some_tags, "--method", method, *SETTINGS, "--out", run, "-q")
    assert answer.code == 0, answer.err
    estimates = result_of(run)["estimates"]
    assert estimates["judged_on"].startswith(judged_on)
    value, low, high = estimates["map"]
    assert 0 <= low <= value <= high <= 1
    assert set(estimates["categories"]) == set(patches.categories)
    assert f"estimated: mAP {100 * value:.0f} ({100 * low:.0f} to {100 * high:.0f})" in answer.out
    assert "Not audited" in answer.out
    assert answer.out.strip().endswith(str(run))


def test_complete_labels_are_measured_with(trained: Path):
    assert "estimates" not in result_of(trained)


def test_evaluate_estimates_on_partial_labels_and_gates(cli: Cli, patches, some_tags, tmp_path):
    run = tmp_path / "run"
    cli("train", patches.root, "--tags", some_tags, "--method", "instant", *SETTINGS, "--out", run, "-q")
    answer = cli("evaluate", run, patches.root, "--tags", some_tags, "--split", "all")
    assert answer.code == 0, answer.err
    assert answer.out.startswith("estimated: mAP")
    assert answer.out.count("OF1") == 1  # estimated; with unknown as absent it would say something else
    assert "mAP of the given tags, every other tag counted as absent: " in answer.out
    as_json = json.loads(cli("evaluate", run, patches.root, "--tags", some_tags, "--json").out)
    estimate = as_json["estimates"]["map"][0]
    low = cli("evaluate", run, patches.root, "--tags", some_tags, "--min-map", f"{estimate - 0.01:.4f}")
    high = cli("evaluate", run, patches.root, "--tags", some_tags, "--min-map", f"{estimate + 0.01:.4f}")
    assert (low.code, high.code) == (0, 4)
    assert "estimated mAP" in high.err


def test_the_gate_measures_where_labels_are_complete(cli: Cli, trained: Path):
    measured = json.loads(cli("evaluate", trained, "--json").out)
    assert "estimates" not in measured
    assert measured["map"] < 0.99
    reached, missed = (
        cli("evaluate", trained, "--min-map", f"{measured['map'] + step:.4f}") for step in (-0.001, 0.001)
    )
    assert (reached.code, missed.code) == (0, 4)
    assert "measured mAP" in missed.err


def test_all_commands_say_the_same_known_proportion(cli: Cli, patches, some_tags, tmp_path):
    run = tmp_path / "run"
    told = cli("train", patches.root, "--tags", some_tags, "--method", "instant", *SETTINGS, "--out", run, "-q").out
    known = result_of(run)["estimates"]["known_proportion"][0]
    assert f"{100 * known:.0f} % of those that apply are known" in told
    said = f"{100 * known:.0f} % of those that apply are known"
    assert said in " ".join(cli("discover", run).out.split())
    card = (run / "model" / "README.md").read_text(encoding="utf-8")
    assert f"{100 * known:.0f} % of the tags that apply are known" in card
    assert "Not audited" in card


def test_who_knows_how_complete_the_labels_are_says_it(cli: Cli, patches, some_tags, tmp_path):
    """With 36 images the estimate is still drawn to what is usual, but goes the way that was said."""
    shares = []
    for said in ("0.2", "0.9"):
        more = ["--method", "instant", "--known-proportion", said, *SETTINGS, "--out", tmp_path / said, "-q"]
        assert cli("train", patches.root, "--tags", some_tags, *more).code == 0
        shares.append(result_of(tmp_path / said)["estimates"]["known_proportion"][0])
    assert shares[0] < 0.5 < 0.7 < shares[1]
