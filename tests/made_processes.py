"""Processes of their own for tests, forked from one that has done the slow imports, which a new one would do again.

That one is Python's forkserver: started clean, before any thread of torch, and once for all tests of a process.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest
import torch.multiprocessing

METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


def processes() -> Any:
    """As `multiprocessing`, with `Process(target=..., args=...)` of functions that can be imported."""
    chosen = multiprocessing.get_context(METHOD)
    if METHOD == "forkserver":
        start_server()
    return chosen


def start_server() -> None:
    """Unless it runs. It looks for the module where Python does, which is not where the tests are."""
    forkserver.set_forkserver_preload(["made_imports"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        forkserver.ensure_running()


def run_ranks(function: Callable[..., None], arguments: Sequence[object], number: int = 2) -> None:
    """`function(rank, *arguments)` in so many processes at once; raises what one of them raises."""
    processes()
    torch.multiprocessing.start_processes(function, tuple(arguments), nprocs=number, start_method=METHOD)


class Command:
    """`fewtags` with these words in a process of its own, as a terminal starts it: at the head of a group of its own.

    What it says goes to files, so that nothing that is not read holds it up.
    """

    def __init__(self, folder: Path, *words: object):
        folder.mkdir(parents=True, exist_ok=True)
        self.out_file, self.err_file = folder / "out.txt", folder / "err.txt"
        said = (self.out_file, self.err_file)
        self.process = processes().Process(target=run_command, args=(said, [str(word) for word in words]))
        self.process.start()
        self.pid: int = self.process.pid

    @property
    def ended(self) -> bool:
        return not self.process.is_alive()

    @property
    def out(self) -> str:
        return self.out_file.read_text(encoding="utf-8") if self.out_file.exists() else ""

    @property
    def err(self) -> str:
        return self.err_file.read_text(encoding="utf-8") if self.err_file.exists() else ""

    def wait(self, seconds: float = 180) -> int:
        """Its exit code, once it has ended."""
        self.process.join(seconds)
        code = self.process.exitcode
        assert code is not None, f"still running after {seconds} s"
        return code


def run_command(said: Sequence[Path], words: Sequence[str]) -> None:
    from fewtags.cli import main

    os.setsid()
    for stream, file in zip((1, 2), said, strict=True):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), stream)
    sys.argv = ["fewtags", *words]
    main()
