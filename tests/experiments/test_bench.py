"""The bench: finishes what it can, says what failed, skips what is done, and goes on after being killed."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from fewtags.cli import app
from fewtags.data.annotations import Annotations
from fewtags.engine.run_log import read_rows
from fewtags.errors import UserError
from fewtags.experiments import bench
from fewtags.experiments.grid import read_grid
from fewtags.experiments.runs import COLUMNS


@pytest.fixture
def grid(patches: Annotations, tmp_path: Path):
    """Writes a grid of quick runs and gives its file."""
    patches.save(tmp_path / "data" / "patches.jsonl")
    settings = {
        "model": {"backbone": "test_resnet", "pretrained": False},
        "input": {"size": 32},
        "train": {"epochs": 2, "batch_size": 8, "workers": 0, "device": "cpu"},
    }

    def write(methods: dict, proportions: list, **train) -> Path:
        content = {
            "settings": {**settings, "train": settings["train"] | train},
            "datasets": {"patches": {"data": {"source": str(tmp_path / "data" / "patches.jsonl")}}},
            "methods": methods,
            "parts": [{"proportions": proportions}],
        }
        (tmp_path / "grid.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
        return tmp_path / "grid.yaml"

    return write


def wait_for(condition, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def test_one_failing_run_does_not_stop_the_others(grid, tmp_path, monkeypatch):
    """Two workers, one run with a loss that is not finite; then the same again: only the failed one is tried."""
    file = grid({"linear": None, "an": None, "asl": {"train": {"lr": 1e30}}}, [0.5])
    runs, folder = read_grid(file), tmp_path / "bench"
    failed = bench.run_bench(runs, folder, workers=2, quiet=True)
    assert [run.method for run in failed] == ["asl"]
    assert "not finite" in (folder / failed[0].name / "log.txt").read_text()

    with (folder / "runs.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    assert tuple(rows[0]) == COLUMNS
    assert [(row["method"], row["epoch_rule"]) for row in rows] == [
        ("linear", "last"), ("linear", "best"), ("an", "last"), ("an", "best"),
    ]  # fmt: skip
    result = json.loads((folder / "patches/an/known-50/seed-0/result.json").read_text())
    assert float(rows[2]["map"]) == pytest.approx(100 * result["test"]["map"], abs=1e-3)
    assert float(rows[3]["map"]) == pytest.approx(100 * result["best"]["map"], abs=1e-3)
    assert "**Scores on patches, 50 % known.**" in (folder / "tables.md").read_text()

    started = []
    monkeypatch.setattr(bench, "start", lambda _, run: started.append(run.method) or pytest.fail("started"))
    bench.run_bench([run for run in runs if run not in failed], folder, quiet=True)
    assert not started


def test_a_killed_bench_goes_on_where_it_was(grid, tmp_path):
    """kill -9: its process ends too, the checkpoint stays, and the second start resumes it to the same log."""
    file, folder = grid({"an": None}, [0.5], epochs=15, evaluate_every=15), tmp_path / "bench"
    run = folder / "patches/an/known-50/seed-0"
    command = [sys.executable, "-m", "fewtags", "bench", str(file), "--out", str(folder)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        wait_for(lambda: (run / "checkpoints/last.pt").is_file())
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    wait_for(lambda: stays_the_same(run / "metrics.jsonl"))
    assert not (run / "result.json").exists()

    assert not bench.run_bench(read_grid(file), folder, quiet=True)
    assert "Resuming at epoch" in (run / "log.txt").read_text()
    epochs = [row["epoch"] for row in read_rows(run / "metrics.jsonl") if row["kind"] == "train"]
    assert epochs == list(range(1, 16))


def stays_the_same(file: Path) -> bool:
    before = file.read_bytes()
    time.sleep(0.7)
    return file.read_bytes() == before


def test_other_settings_in_the_same_folder_are_refused(grid, tmp_path):
    folder = tmp_path / "bench"
    run = read_grid(grid({"an": None}, [0.5]))[0]
    (folder / run.name).mkdir(parents=True)
    (folder / run.name / "config.yaml").write_text(run.config.to_yaml())
    bench.check_settings(run, folder / run.name)
    other = read_grid(grid({"an": None}, [0.5], lr=0.5, device="auto"))[0]
    with pytest.raises(UserError, match=r"made with train.lr=0.0001, and the grid says 0.5"):
        bench.check_settings(other, folder / run.name)


def test_the_command_ends_with_1_when_a_run_failed(grid, tmp_path, monkeypatch):
    file = grid({"an": None, "asl": None}, [0.5])
    monkeypatch.setattr(bench, "run_bench", lambda runs, *_, **__: [runs[1]])
    result = CliRunner().invoke(app, ["bench", str(file), "--out", str(tmp_path / "bench")])
    assert result.exit_code == 1
    assert "patches asl known-50 seed-0 failed" in result.output


def test_the_command_lists_its_plan(grid):
    result = CliRunner().invoke(app, ["bench", str(grid({"an": None}, [0.1, 0.5])), "--plan"])
    assert result.stdout.split() == ["patches/an/known-10/seed-0", "patches/an/known-50/seed-0"]
