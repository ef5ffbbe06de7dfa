"""The runs of a bench as tasks of a Ray cluster. All machines must see the bench's folder: the state of a run is
there, and a run whose machine was lost is resumed from it on another one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fewtags.engine.cluster import Cluster
from fewtags.experiments.executors import Ended, LocalExecutor
from fewtags.experiments.grid import PlannedRun


class RayExecutor:
    def __init__(self, cluster: Cluster):
        self.cluster = cluster
        self.running: dict[Any, PlannedRun] = {}
        self._start = cluster.task(execute_run)

    @property
    def has_room(self) -> bool:
        return len(self.running) < max(1, self.cluster.num_tasks)

    def start(self, run: PlannedRun, folder: Path) -> None:
        self.running[self._start(run, folder.absolute(), str(Path.cwd()))] = run

    def wait(self) -> list[Ended]:
        ended, _ = self.cluster.ray.wait(list(self.running), num_returns=1)
        return [Ended(self.running.pop(task), self._exit_code(task)) for task in ended]

    def _exit_code(self, task: Any) -> int | None:
        """None if the run was lost too many times."""
        from ray.exceptions import RayError

        try:
            return self.cluster.ray.get(task)
        except RayError:
            return None

    def stop(self) -> None:
        for task in self.running:
            self.cluster.ray.cancel(task)  # a KeyboardInterrupt there
        self.cluster.ray.wait(list(self.running), num_returns=len(self.running), timeout=60)


def execute_run(run: PlannedRun, folder: Path, working_folder: str) -> int | None:
    """Runs in a worker: the run as a separate process, as on one machine. It ends with the worker."""
    if os.path.isdir(working_folder):
        os.chdir(working_folder)  # what the grid's relative paths are relative to
    local = LocalExecutor()
    local.start(run, folder)
    try:
        return local.wait()[0].exit_code
    except KeyboardInterrupt:
        local.stop()
        raise
