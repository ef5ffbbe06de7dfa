"""Runs a grid to its end: skips what is finished, goes on with what was broken off, survives what fails or is killed.

Every run is a process of its own, so that one which crashes, or is killed for its memory, takes no other with it. What
it says goes to `log.txt` in its folder. Should the bench itself be killed, its processes end too, and starting it again
goes on from their checkpoints.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from rich.console import Console

from fewtags.atomic import write_json
from fewtags.config import flat, read_yaml
from fewtags.engine.run_folder import RunFolder
from fewtags.errors import Interrupted, UserError
from fewtags.experiments.grid import PlannedRun
from fewtags.experiments.runs import read_run, tidy_rows, write_csv
from fewtags.experiments.tables import write_tables
from fewtags.progress import ProgressBar, duration, progress_bar
from fewtags.wording import plural

# Settings that say where and how fast, not what: a finished run may differ in them.
INCIDENTAL = ("train.device", "train.workers", "cache.folder", "input.keep_in_memory")


@dataclass
class Bench:
    runs: Sequence[PlannedRun]
    folder: Path
    workers: int
    console: Console
    running: dict[BaseProcess, PlannedRun] = field(default_factory=dict)
    failed: list[PlannedRun] = field(default_factory=list)
    num_done: int = 0  # in this session
    started: float = field(default_factory=time.monotonic)


def run_bench(runs: Sequence[PlannedRun], folder: Path, *, workers: int = 1, quiet: bool = False) -> list[PlannedRun]:
    """Bring every run to its end in `folder` and return those that failed; runs.csv and tables.* grow with each one."""
    bench = Bench(runs, folder, workers, Console(stderr=True, soft_wrap=True, quiet=quiet))
    for run in runs:
        check_settings(run, folder / run.name)
    waiting = [run for run in runs if not is_finished(folder / run.name)]
    say(bench, f"{plural(len(runs), 'run')} in {folder}: {len(runs) - len(waiting)} finished, {len(waiting)} to do.")
    folder.mkdir(parents=True, exist_ok=True)
    write_results(bench)
    with progress_bar("Runs", len(waiting), bench.console, quiet or not bench.console.is_terminal) as bar:
        try:
            while waiting or bench.running:
                while waiting and len(bench.running) < workers:
                    start(bench, waiting.pop(0))
                for process in ended(bench):
                    finish(bench, process, len(waiting), bar)
        except KeyboardInterrupt:
            stop(bench)
            raise Interrupted("Stopped; the same command goes on from here.") from None
    return bench.failed


def is_finished(folder: Path) -> bool:
    return RunFolder(folder).is_finished


def check_settings(run: PlannedRun, folder: Path) -> None:
    """A run that is there already must be the planned one."""
    if not RunFolder(folder).is_run:
        return
    there, planned = flat(read_yaml(RunFolder(folder).config)), flat(run.config.nested())
    for name in sorted(there.keys() | planned.keys()):
        if there.get(name) != planned.get(name) and name not in INCIDENTAL:
            raise UserError(
                f"{folder} was made with {name}={there.get(name)}, and the grid says {planned.get(name)}; "
                "remove that folder, or write to another with --out."
            )


# --- the processes ---


def start(bench: Bench, run: PlannedRun) -> None:
    process = context().Process(target=execute, args=(run, bench.folder / run.name, bench.workers), name=str(run))
    process.start()
    bench.running[process] = run


def context() -> Any:
    """Processes forked from a clean server that has the slow imports behind it, where the system has that."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    chosen = multiprocessing.get_context("forkserver")
    chosen.set_forkserver_preload(["fewtags.engine.training"])
    return chosen


def execute(run: PlannedRun, folder: Path, workers: int) -> None:
    """One run, in its own process. Its exit code is 0 only if the run is finished."""
    import torch

    end_with_parent()
    if hasattr(os, "setpgrp"):
        os.setpgrp()  # Ctrl-C reaches the bench alone, which then asks each process once to save and stop
    torch.set_num_threads(max(1, torch.get_num_threads() // workers))
    folder.mkdir(parents=True, exist_ok=True)
    log = RunFolder(folder).log.open("a", encoding="utf-8", buffering=1)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(log.fileno(), stream.fileno())
    try:
        write_json(RunFolder(folder).cell, run.cell)
        train_planned(run, folder)
    except UserError as error:
        print(error, file=log)
        sys.exit(error.exit_code)
    except Exception:
        traceback.print_exc(file=log)
        sys.exit(1)


def train_planned(run: PlannedRun, folder: Path) -> None:
    from fewtags.engine.training import train

    train(run.config, folder, resume=RunFolder(folder).can_resume)


def end_with_parent() -> None:
    """A killed bench cannot end its processes, so they watch it: two of them must never write one folder."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def ended(bench: Bench) -> list[BaseProcess]:
    connection.wait([process.sentinel for process in bench.running])
    return [process for process in bench.running if not process.is_alive()]


def stop(bench: Bench) -> None:
    """Ask the processes to save and stop, and wait until they have."""
    for process in bench.running:
        if process.is_alive():
            process.terminate()
    for process in bench.running:
        process.join()


# --- what is said and written ---


def finish(bench: Bench, process: BaseProcess, num_waiting: int, bar: ProgressBar) -> None:
    process.join()
    run = bench.running.pop(process)
    folder = bench.folder / run.name
    bench.num_done += 1
    if process.exitcode == 0 and is_finished(folder):
        write_results(bench)
        outcome = in_words(folder)
    else:
        bench.failed.append(run)
        outcome = f"failed ({why(folder, process.exitcode)}); see {RunFolder(folder).log}"
    num_left = num_waiting + len(bench.running)
    left = duration((time.monotonic() - bench.started) / bench.num_done * num_left)
    say(bench, f"{run}: {outcome}. {plural(num_left, 'run')} left" + (f", about {left}." if num_left else "."))
    bar.step()


def in_words(folder: Path) -> str:
    run = read_run(folder)
    scores = run.scores("last")
    took = duration(run.result["seconds"])
    return f"done in {took}" if scores is None else f"{run.split} mAP {100 * scores['map']:.2f} in {took}"


def why(folder: Path, exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return f"killed by signal {-exit_code}"
    log = RunFolder(folder).log
    lines = log.read_text(encoding="utf-8").strip().splitlines() if log.is_file() else []
    return lines[-1] if lines else f"exit code {exit_code}"


def write_results(bench: Bench) -> None:
    """runs.csv and the tables, of all that is finished, in the order of the grid."""
    folders = [bench.folder / run.name for run in bench.runs]
    rows = tidy_rows(read_run(folder) for folder in folders if is_finished(folder))
    write_csv(rows, bench.folder / "runs.csv")
    write_tables(rows, bench.folder)


def say(bench: Bench, text: str) -> None:
    bench.console.print(text, highlight=False, markup=False)
