"""The bench: finishes what it can, says what failed, skips what is done, and resumes after being killed."""

from __future__ import annotations

import csv
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from typer.testing import CliRunner

from fewtags.cli import app
from fewtags.data.annotations import Annotations
from fewtags.engine.run_folder import RunFolder
from fewtags.engine.run_log import read_rows
from fewtags.errors import Interrupted, UserError
from fewtags.experiments import bench
from fewtags.experiments.bench import Bench, check_settings, outlook
from fewtags.experiments.executors import Ended, LocalExecutor
from fewtags.experiments.grid import PlannedRun, read_grid
from fewtags.experiments.runs import COLUMNS, METRICS, read_run, tidy_rows
from fewtags.experiments.tables import write_tables
from fewtags.progress import duration
from made_processes import processes


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


@pytest.fixture(scope="module", autouse=True)
def server_of_processes() -> None:
    """The one of other tests, which has imported timm: a bench's own has not, so each run would. The tests that start
    `fewtags bench` have its own."""
    processes()


def wait_for(condition, seconds: float = 600.0) -> None:
    """The limit only keeps a broken bench from waiting for ever."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


class FakeExecutor:
    """Finishes runs at once: they end with the exit code that their method has in `ends`, else well."""

    def __init__(self, ends: dict[str, int] | None = None, room: int = 1):
        self.ends, self.room = ends or {}, room
        self.running: list[tuple[PlannedRun, Path]] = []
        self.started: list[str] = []
        self.most = 0
        self.stopped = False

    @property
    def has_room(self) -> bool:
        return len(self.running) < self.room

    def start(self, run: PlannedRun, folder: Path) -> None:
        self.running.append((run, folder))
        self.started.append(run.method)
        self.most = max(self.most, len(self.running))

    def wait(self) -> list[Ended]:
        run, folder = self.running.pop(0)
        code = self.ends.get(run.method, 0)
        if code == 0:
            leave_result(run, folder)
        return [Ended(run, code)]

    def stop(self) -> None:
        self.stopped = True


def leave_result(run: PlannedRun, folder: Path) -> None:
    files = RunFolder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    scores = {metric: 0.5 for metric in METRICS}
    files.config.write_text(run.config.to_yaml())
    files.data.write_text("{}")
    files.cell.write_text(json.dumps(run.cell))
    files.result.write_text(
        json.dumps({"test": scores, "best": {"split": "test", **scores}, "seconds": 1, "epochs": 1})
    )


def csv_rows(file: Path) -> list[dict[str, str]]:
    with file.open() as lines:
        return list(csv.DictReader(lines))


def test_one_failing_run_does_not_stop_the_others(grid, tmp_path):
    """Two processes, one run with a loss that is not finite; what the others measured is in runs.csv."""
    file = grid({"linear": None, "an": None, "asl": {"train": {"lr": 1e30}}}, [0.5])
    folder = tmp_path / "bench"
    failed = Bench(read_grid(file), folder, LocalExecutor(2), quiet=True).run()
    assert [run.method for run in failed] == ["asl"]
    assert "not finite" in (folder / failed[0].name / "log.txt").read_text()

    rows = csv_rows(folder / "runs.csv")
    assert tuple(rows[0]) == COLUMNS
    assert [(row["method"], row["epoch_rule"]) for row in rows] == [
        ("linear", "last"), ("an", "last"), ("an", "best"),  # logistic regression has no epochs
    ]  # fmt: skip
    result = json.loads((folder / "patches/an/known-50/seed-0/result.json").read_text())
    assert float(rows[1]["map"]) == pytest.approx(100 * result["test"]["map"], abs=1e-3)
    assert float(rows[2]["map"]) == pytest.approx(100 * result["best"]["map"], abs=1e-3)
    assert "**Scores on patches, 50 % known.**" in (folder / "tables.md").read_text()


def test_started_again_it_tries_only_what_failed(grid, tmp_path):
    runs, folder = read_grid(grid({"an": None, "asl": None, "focal": None}, [0.5])), tmp_path / "bench"
    first, second, third = FakeExecutor({"asl": 1}), FakeExecutor(), FakeExecutor()
    assert [run.method for run in Bench(runs, folder, first, quiet=True).run()] == ["asl"]
    assert first.started == ["an", "asl", "focal"]
    assert not Bench(runs, folder, second, quiet=True).run()
    assert second.started == ["asl"]
    assert not Bench(runs, folder, third, quiet=True).run()
    assert not third.started
    assert [row["method"] for row in csv_rows(folder / "runs.csv")][::2] == ["an", "asl", "focal"]


def test_an_executor_is_given_no_more_than_it_has_room_for(grid, tmp_path):
    executor = FakeExecutor(room=2)
    assert not Bench(read_grid(grid({"an": None, "asl": None}, [0.1, 0.5, 0.9])), tmp_path, executor, quiet=True).run()
    assert (len(executor.started), executor.most) == (6, 2)


def test_the_first_run_makes_what_all_share_and_says_nothing_about_the_others(grid, tmp_path, monkeypatch, capsys):
    """It takes 600 seconds, each of the others 10."""
    executor, clock = FakeExecutor(dict.fromkeys(("an", "asl", "focal"), 3)), iter((600.0, 610.0, 620.0))
    monkeypatch.setattr(bench, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    Bench(read_grid(grid({"an": None, "asl": None, "focal": None}, [0.5])), tmp_path, executor).run()
    said = " ".join(capsys.readouterr().err.split())
    left = re.findall(r"log\.txt\. (\d runs? left[^.]*)\.", said)
    assert left == ["2 runs left", "1 run left, about 10 s", "0 runs left"]


def test_a_killed_run_is_told_from_one_that_failed(grid, tmp_path, capsys):
    Bench(read_grid(grid({"an": None, "asl": None}, [0.5])), tmp_path, FakeExecutor({"an": -9, "asl": 3})).run()
    said = " ".join(capsys.readouterr().err.split())
    assert "an known-50 seed-0: failed (killed by signal 9)" in said
    assert "asl known-50 seed-0: failed (exit code 3)" in said


def test_an_interrupted_bench_stops_its_runs(grid, tmp_path, monkeypatch):
    executor = FakeExecutor()
    monkeypatch.setattr(executor, "wait", lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(Interrupted, match="run the same command to resume"):
        Bench(read_grid(grid({"an": None}, [0.5])), tmp_path, executor, quiet=True).run()
    assert executor.stopped


def test_a_scheduler_that_ends_a_bench_lets_it_save(grid, tmp_path):
    """SIGTERM reaches only the bench, which stops its run as it would on Ctrl-C."""
    file, folder = grid({"an": None}, [0.5], epochs=100000, evaluate_every=100000), tmp_path / "bench"
    run = folder / "patches/an/known-50/seed-0"
    command = [sys.executable, "-m", "fewtags", "bench", str(file), "--out", str(folder)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    wait_for(lambda: (run / "checkpoints/last.pt").is_file() or process.poll() is not None)
    process.terminate()
    _, said = process.communicate(timeout=300)
    assert process.returncode == Interrupted.exit_code
    assert "run the same command to resume" in said
    assert "everything is saved" in (run / "log.txt").read_text()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
def test_a_killed_bench_goes_on_where_it_was(grid, tmp_path):
    """kill -9: its process ends too, the checkpoint stays, and the second start resumes it to the same log."""
    file, folder = grid({"an": None}, [0.5], epochs=15, evaluate_every=15), tmp_path / "bench"
    run = folder / "patches/an/known-50/seed-0"
    command = [sys.executable, "-m", "fewtags", "bench", str(file), "--out", str(folder)]
    for _ in range(10):  # on a busy machine it may end before it is killed
        shutil.rmtree(folder, ignore_errors=True)
        start_and_kill(command, once=run / "checkpoints/last.pt")
        if not (run / "result.json").exists():
            break
    assert not (run / "result.json").exists()

    assert not Bench(read_grid(file), folder, quiet=True).run()
    assert "Resuming at epoch" in (run / "log.txt").read_text()
    epochs = [row["epoch"] for row in read_rows(run / "metrics.jsonl") if row["kind"] == "train"]
    assert epochs == list(range(1, 16))


def start_and_kill(command: list[str], once: Path) -> None:
    """Once that file is there; until all of its processes are gone."""
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        wait_for(lambda: once.is_file() or process.poll() is not None)
    finally:
        process.kill()
        process.wait()
    wait_for(lambda: not session(process.pid))


def session(leader: int) -> list[int]:
    """The processes that are left of a session."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, number = stat.read_text().rpartition(")")[2].split()[:4]
        except OSError:  # it has ended since
            continue
        found += [int(stat.parent.name)] if int(number) == leader and state != "Z" else []
    return found


def test_other_settings_in_the_same_folder_are_refused(grid, tmp_path):
    folder = tmp_path / "bench"
    run = read_grid(grid({"an": None}, [0.5]))[0]
    (folder / run.name).mkdir(parents=True)
    (folder / run.name / "config.yaml").write_text(run.config.to_yaml())
    check_settings(run, RunFolder(folder / run.name))
    other = read_grid(grid({"an": None}, [0.5], lr=0.5, device="auto"))[0]
    with pytest.raises(UserError, match=r"run with train.lr=0.0001, but the grid has 0.5"):
        check_settings(other, RunFolder(folder / run.name))


def test_more_epochs_in_the_grid_continue_what_is_there(grid, tmp_path):
    """A bench of three epochs, then of five in the same folder: the result is that of five from the start."""
    methods, steps = {"an": None, "linear": None}, {"schedule": "step", "step_epochs": 2}
    short, whole = tmp_path / "continued", tmp_path / "whole"
    Bench(read_grid(grid(methods, [0.5], epochs=3, **steps)), short, LocalExecutor(), quiet=True).run()
    runs = read_grid(grid(methods, [0.5], epochs=5, **steps))
    for folder in (short, whole):
        assert not Bench(runs, folder, LocalExecutor(), quiet=True).run()

    files, expected = (RunFolder(folder / runs[0].name) for folder in (short, whole))
    epochs = [row["epoch"] for row in read_rows(files.metrics) if row["kind"] == "train"]
    assert epochs == [1, 2, 3, 4, 5]
    result, wanted = (json.loads(f.result.read_text()) for f in (files, expected))
    assert (result["epochs"], result["test"]) == (5, wanted["test"])
    assert files.config.read_text() == expected.config.read_text()
    assert (short / "runs.csv").read_text().count("\n") == (whole / "runs.csv").read_text().count("\n")


def test_more_epochs_are_refused_where_they_would_have_changed_the_first_ones(grid, tmp_path):
    """With a cosine the learning rate of every step depends on the number of epochs; fewer epochs are no beginning."""
    run = read_grid(grid({"an": None}, [0.5], epochs=3))[0]
    files = RunFolder(tmp_path / run.name)
    files.path.mkdir(parents=True)
    files.config.write_text(run.config.to_yaml())
    for changed in ({"epochs": 5}, {"epochs": 2}):
        with pytest.raises(UserError, match=rf"run with train.epochs=3, but the grid has {changed['epochs']}"):
            check_settings(read_grid(grid({"an": None}, [0.5], **changed))[0], files)


def test_the_command_ends_with_1_when_a_run_failed(grid, tmp_path, monkeypatch):
    file = grid({"an": None, "asl": None}, [0.5])
    monkeypatch.setattr(bench.Bench, "run", lambda self: [self.runs[1]])
    result = CliRunner().invoke(app, ["bench", str(file), "--out", str(tmp_path / "bench")])
    assert result.exit_code == 1
    assert "patches asl known-50 seed-0 failed" in result.output


def test_the_command_lists_its_plan(grid):
    result = CliRunner().invoke(app, ["bench", str(grid({"an": None}, [0.1, 0.5])), "--plan"])
    assert result.stdout.split() == ["patches/an/known-10/seed-0", "patches/an/known-50/seed-0"]
    assert "2 runs in runs/grid: 0 finished, 2 to do; how long they take can be said once" in result.stderr


def test_a_plan_says_what_is_left_and_how_long_it_takes(grid, tmp_path):
    """Finished runs of the method say it; of a method without any, those on the same data, by their epochs."""
    runs = read_grid(grid({"an": None, "asl": {"train": {"epochs": 3}}}, [0.1, 0.5, 0.9]))
    for run, seconds in ((runs[0], 100), (runs[1], 140)):
        leave_result(run, tmp_path / run.name)
        file = RunFolder(tmp_path / run.name).result
        file.write_text(json.dumps({**json.loads(file.read_text()), "seconds": seconds}))
    seconds = 120 + 3 * 3 * 120 / runs[0].config.train.epochs
    about = f"about {duration(seconds)} by those that are finished."
    assert outlook(runs, tmp_path) == f"6 runs in {tmp_path}: 2 finished, 4 to do, {about}"
    assert f"about {duration(seconds / 2)} " in outlook(runs, tmp_path, at_once=2)


def test_what_has_no_epochs_has_no_best_one(grid, tmp_path):
    runs = read_grid(grid({"an": None, "instant": None}, [0.5]))
    for run in runs:
        leave_result(run, tmp_path / run.name)
    file = RunFolder(tmp_path / runs[1].name).result
    file.write_text(json.dumps({**json.loads(file.read_text()), "epochs": 0}))
    rows = tidy_rows(read_run(tmp_path / run.name) for run in runs)
    assert [(row["method"], row["epoch_rule"]) for row in rows] == [("an", "last"), ("an", "best"), ("instant", "last")]
    write_tables(rows, tmp_path)
    assert (tmp_path / "tables.md").read_text().count("| instant |") == 1


def test_only_some_runs_are_made_and_tables_have_all_that_are_finished(grid, tmp_path):
    file = str(grid({"an": None, "asl": None}, [0.1, 0.5]))
    call = ["bench", file, "--out", str(tmp_path / "bench"), "--quiet"]
    for only in (["an/known-50"], ["asl/known-50", "asl/known-10"]):
        assert CliRunner().invoke(app, call + [part for text in only for part in ("--only", text)]).exit_code == 0
    rows = csv_rows(tmp_path / "bench" / "runs.csv")
    assert [(row["method"], row["proportion"]) for row in rows if row["epoch_rule"] == "last"] == [
        ("an", "0.5"),
        ("asl", "0.1"),
        ("asl", "0.5"),
    ]
    result = CliRunner().invoke(app, [*call, "--only", "linear"])
    assert "No run of the grid has 'linear' in its name" in str(result.exception)
