"""Runs a whole grid: skips finished runs, resumes interrupted ones, survives failed or killed ones.

An executor decides how runs are executed. All a bench knows of a run is in its folder, so starting the
same bench again resumes it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from fewtags.config import flat, read_yaml, resolve
from fewtags.engine.run_folder import RunFolder
from fewtags.errors import Interrupted, UserError
from fewtags.experiments.executors import Ended, Executor, LocalExecutor
from fewtags.experiments.grid import PlannedRun
from fewtags.experiments.runs import read_run, tidy_rows, write_csv
from fewtags.experiments.tables import write_tables
from fewtags.locks import only_process_in
from fewtags.models.saved import read_object
from fewtags.progress import ProgressBar, duration, progress_bar
from fewtags.wording import plural

# Settings about where and how fast, not what: a finished run may differ in them.
INCIDENTAL = ("train.device", "train.workers", "train.timeout", "cache.folder", "input.keep_in_memory")


class Bench:
    def __init__(
        self,
        runs: Sequence[PlannedRun],
        folder: Path,
        executor: Executor | None = None,
        *,
        wanted: Sequence[PlannedRun] | None = None,  # the runs to make now; tables have all that are finished
        quiet: bool = False,
    ):
        self.runs, self.folder = runs, folder
        self.wanted = runs if wanted is None else wanted
        self.executor: Executor = LocalExecutor() if executor is None else executor
        self.console = Console(stderr=True, soft_wrap=True, quiet=quiet)
        self.quiet = quiet
        self.waiting: list[PlannedRun] = []
        self.failed: list[PlannedRun] = []
        self.num_running = self.num_done = 0  # in this session
        self.first_ended = 0.0

    def run(self) -> list[PlannedRun]:
        """Complete every wanted run and return those that failed; runs.csv and tables.* are updated after each."""
        with only_process_in(self.folder, "fewtags bench"):
            return self._run()

    def _run(self) -> list[PlannedRun]:
        for run in self.runs:
            check_settings(run, self.files(run))
        self.waiting = [run for run in self.wanted if not is_done(run, self.files(run))]
        num_finished = len(self.wanted) - len(self.waiting)
        self.say(
            f"{plural(len(self.wanted), 'run')} in {self.folder}: {num_finished} finished, {len(self.waiting)} to do."
        )
        self.write_results()
        no_bar = self.quiet or not self.console.is_terminal
        with progress_bar("Runs", len(self.waiting), self.console, no_bar) as bar:
            try:
                self._execute_all(bar)
            except KeyboardInterrupt:
                self.executor.stop()
                raise Interrupted("Stopped; run the same command to resume.") from None
        return self.failed

    def _execute_all(self, bar: ProgressBar) -> None:
        while self.waiting or self.num_running:
            while self.waiting and self.executor.has_room:
                run = self.waiting.pop(0)
                self.executor.start(run, self.files(run).path)
                self.num_running += 1
            for ended in self.executor.wait():
                self.num_running -= 1
                self.num_done += 1
                self._finish(ended)
                bar.step()

    def _finish(self, ended: Ended) -> None:
        files = self.files(ended.run)
        if ended.exit_code == 0 and is_done(ended.run, files):
            self.write_results()
            outcome = outcome_line(files)
        else:
            self.failed.append(ended.run)
            outcome = f"failed ({why(files, ended.exit_code)}); see {files.log}"
        num_left = len(self.waiting) + self.num_running
        self.say(f"{ended.run}: {outcome}. {plural(num_left, 'run')} left{self._time_left(num_left)}.")

    def _time_left(self, num_left: int) -> str:
        """By the pace since the first run ended, which may have made the features of all others."""
        now = time.monotonic()
        if self.num_done == 1:
            self.first_ended = now
        if self.num_done == 1 or not num_left:
            return ""
        return f", about {duration((now - self.first_ended) / (self.num_done - 1) * num_left)}"

    def files(self, run: PlannedRun) -> RunFolder:
        return RunFolder(self.folder / run.name)

    @property
    def runs_csv(self) -> Path:
        return self.folder / "runs.csv"

    def write_results(self) -> None:
        """Write runs.csv and the tables of all finished runs, in the order of the grid."""
        finished = [self.files(run) for run in self.runs if is_done(run, self.files(run))]
        rows = tidy_rows(read_run(files.path) for files in finished)
        write_csv(rows, self.runs_csv)
        write_tables(rows, self.folder)

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False)


def outlook(runs: Sequence[PlannedRun], folder: Path, at_once: int = 1) -> str:
    """How many of the runs are finished, and how long the others will take."""
    done = [run for run in runs if is_done(run, RunFolder(folder / run.name))]
    waiting = [run for run in runs if run not in done]
    guess = expected_seconds(waiting, [(run, RunFolder(folder / run.name)) for run in done])
    line = f"{plural(len(runs), 'run')} in {folder}: {len(done)} finished, {len(waiting)} to do"
    if waiting and guess is None:
        line += "; how long they take can be said once a run on each dataset is finished"
    elif guess:
        line += f", about {duration(guess / at_once)} by those that are finished"
    return line + "."


def expected_seconds(waiting: Sequence[PlannedRun], done: Sequence[tuple[PlannedRun, RunFolder]]) -> float | None:
    """From finished runs of the same method on the same data, else from any on that data, by their epochs."""
    per_epoch: dict[tuple[str, str], list[float]] = {}
    for run, files in done:
        seconds = read_object(files.result)["seconds"] / max(run.config.train.epochs, 1)
        for key in ((run.dataset, run.method), (run.dataset, "")):
            per_epoch.setdefault(key, []).append(seconds)
    total = 0.0
    for run in waiting:
        known = per_epoch.get((run.dataset, run.method)) or per_epoch.get((run.dataset, ""))
        if known is None:
            return None
        total += max(run.config.train.epochs, 1) * sum(known) / len(known)
    return total


def is_done(run: PlannedRun, files: RunFolder) -> bool:
    """Finished, with the epochs that the grid has now; what cannot be resumed was not trained, and has none."""
    if not (files.is_finished and files.can_resume):
        return files.is_finished
    planned = run.config.train.epochs
    return read_object(files.result).get("epochs", planned) >= planned


def check_settings(run: PlannedRun, files: RunFolder) -> None:
    """An existing run must match the planned one, or be its first epochs."""
    if not files.is_run:
        return
    there, planned = flat(resolve(read_yaml(files.config)).nested()), flat(run.config.nested())
    differing = [name for name in sorted(there.keys() | planned.keys()) if there.get(name) != planned.get(name)]
    for name in differing:
        if name in INCIDENTAL or (name == "train.epochs" and are_first_epochs(there, planned)):
            continue
        raise UserError(
            f"{files.path} was run with {name}={there.get(name)}, but the grid has {planned.get(name)}; "
            "remove that folder, or choose another with --out."
        )


def are_first_epochs(there: dict[str, Any], planned: dict[str, Any]) -> bool:
    """Are the epochs of the existing run the first of the planned one? With a cosine they had other learning rates."""
    return there["train.epochs"] < planned["train.epochs"] and planned["train.schedule"] != "cosine"


def outcome_line(files: RunFolder) -> str:
    run = read_run(files.path)
    scores = run.scores("last")
    took = duration(run.result["seconds"])
    return f"done in {took}" if scores is None else f"{run.split} mAP {100 * scores['map']:.2f} in {took}"


def why(files: RunFolder, exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return f"killed by signal {-exit_code}"
    if exit_code == 0:
        return f"it ended without an error, but {files.result} is missing; all machines must share that folder"
    lines = files.log.read_text(encoding="utf-8").strip().splitlines() if files.log.is_file() else []
    return lines[-1] if lines else f"exit code {exit_code}"
