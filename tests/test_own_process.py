"""A command in a process of its own: it ends at once, but not before what was to be done at the end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN = """
import atexit, gc, sys
import fewtags.cli
from fewtags.__main__ import start

class Held:
    def __del__(self):
        print("freed one by one")

def command():
    atexit.register(lambda: print("registered is done"))
    print("said", gc.get_threshold()[0])
    {how}

held = Held()
fewtags.__main__.main = command
start()
"""


def run(how: str, **where: object) -> subprocess.CompletedProcess[str]:
    options: dict = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | where
    return subprocess.run([sys.executable, "-c", RUN.format(how=how)], **options)


@pytest.mark.parametrize(("how", "code"), [("sys.exit(0)", 0), ("sys.exit(3)", 3), ("raise RuntimeError('a bug')", 1)])
def test_it_ends_at_once_with_its_code_and_says_everything(how: str, code: int) -> None:
    done = run(how)
    assert done.returncode == code
    assert done.stdout == "said 5000\nregistered is done\n"
    assert ("a bug" in done.stderr) == ("a bug" in how)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a file that is always full")
def test_what_cannot_be_said_is_an_error() -> None:
    with open("/dev/full", "w") as full:
        assert run("sys.exit(0)", stdout=full).returncode != 0


@pytest.mark.skipif(sys.platform != "linux", reason="torch has another OpenMP elsewhere")
def test_threads_of_torch_do_not_keep_a_core_that_they_wait_for() -> None:
    """GNU OpenMP says what it has read, which it does when torch is imported."""
    done = run("import torch", env={**os.environ, "OMP_DISPLAY_ENV": "verbose"})
    assert "GOMP_SPINCOUNT = '10000'" in done.stderr


@pytest.mark.parametrize("own", [{"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "active"}])
def test_a_wait_that_somebody_has_chosen_stays(own: dict[str, str]) -> None:
    done = run("import os; print(os.environ.get('GOMP_SPINCOUNT'))", env={**os.environ, **own})
    assert own.get("GOMP_SPINCOUNT", "None") in done.stdout.splitlines()
