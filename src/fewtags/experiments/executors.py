"""Executes the runs of a bench. An `Executor` starts runs and reports which have ended; `LocalExecutor` does so in
processes on this machine. One for a cluster needs the same four methods."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

from fewtags.atomic import write_json
from fewtags.engine.run_folder import RunFolder
from fewtags.errors import UserError
from fewtags.experiments.grid import PlannedRun


@dataclass(frozen=True)
class Ended:
    """A run that has ended, successfully or not."""

    run: PlannedRun
    exit_code: int | None  # 0 on success, -N if killed by signal N, None if unknown


class Executor(Protocol):
    @property
    def has_room(self) -> bool:
        """May another run be started now?"""

    def start(self, run: PlannedRun, folder: Path) -> None:
        """Start the run in `folder` without waiting for it."""

    def wait(self) -> Sequence[Ended]:
        """Wait until at least one started run has ended; returns those that have, each once."""

    def stop(self) -> None:
        """Ask all running runs to save and stop, and wait for them."""


class LocalExecutor:
    """Every run is a separate process, `workers` at a time, so a crash affects no other run.

    Its output goes to the log in its folder. If the bench is killed, its processes end too.
    """

    def __init__(self, workers: int = 1):
        self.workers = workers
        self.running: dict[BaseProcess, PlannedRun] = {}

    @property
    def has_room(self) -> bool:
        return len(self.running) < self.workers

    def start(self, run: PlannedRun, folder: Path) -> None:
        process = context().Process(target=execute_in_process, args=(run, folder, self.workers), name=str(run))
        process.start()
        self.running[process] = run

    def wait(self) -> list[Ended]:
        connection.wait([process.sentinel for process in self.running])
        ended = [process for process in self.running if not process.is_alive()]
        for process in ended:
            process.join()
        return [Ended(self.running.pop(process), process.exitcode) for process in ended]

    def stop(self) -> None:
        for process in self.running:
            if process.is_alive():
                process.terminate()
        for process in self.running:
            process.join()


def context() -> Any:
    """Processes forked from a clean server that has done the slow imports, where the system supports it."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    chosen = multiprocessing.get_context("forkserver")
    chosen.set_forkserver_preload(["fewtags.engine.training"])
    return chosen


def execute_in_process(run: PlannedRun, folder: Path, workers: int) -> None:
    """One run, in its own process. Its exit code is 0 only if the run is finished."""
    import torch

    end_with_parent()
    if hasattr(os, "setpgrp"):
        os.setpgrp()  # Ctrl-C reaches only the bench, which asks each process once to save and stop
    torch.set_num_threads(max(1, torch.get_num_threads() // workers))
    folder.mkdir(parents=True, exist_ok=True)
    log = RunFolder(folder).log.open("a", encoding="utf-8", buffering=1)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(log.fileno(), stream.fileno())
    try:
        execute(run, folder)
    except UserError as error:
        print(error, file=log)
        sys.exit(error.exit_code)
    except Exception:
        traceback.print_exc(file=log)
        sys.exit(1)


def execute(run: PlannedRun, folder: Path) -> None:
    """Train, resuming from the last checkpoint if there is one."""
    from fewtags.engine.training import train

    write_json(RunFolder(folder).cell, run.cell)
    train(run.config, folder, resume=RunFolder(folder).can_resume)


def end_with_parent() -> None:
    """A killed bench cannot end its processes, so they watch it: two must never write to the same folder."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
