"""Two processes started by the real launcher: for every method the state and the scores of one process on the joint
batch, resumed on one and on two, and what happens when a process is killed or stands still."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from conftest import TINY
from fewtags import distributed
from fewtags.config import load_config
from fewtags.engine.checkpoint import load_checkpoint
from fewtags.engine.run_log import read_rows
from fewtags.engine.training import train
from fewtags.methods import METHODS, objective_class
from made_processes import METHOD, start_server

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")

# Each process in these has images, and steps, of its own; so the joint batch is twice as large as each one's.
# Its layers normalise each image by itself: batch norm is joined only on GPUs.
SETTINGS = (
    *TINY[1:],
    "model.backbone=test_convnext",
    "train.epochs=2",
    "train.batch_size=12",
    "train.precision=fp32",
    "train.evaluate_every=2",
)
# Why a method that is trained on halves of a batch is not what it is on the whole of it.
BY_HALVES = {
    **dict.fromkeys(("ll-r", "ll-ct", "ll-cp"), "the largest losses are chosen among the labels of each half"),
    **dict.fromkeys(("epr", "nnpu", "pu-mlc"), "means over the batch enter the loss in other ways than as a sum"),
    "boostlu": "the largest losses are chosen among the labels of each half",
    "role": "the expected number of positives is compared with the mean of each half",
    **dict.fromkeys(("cst", "sst"), "L_csl's pairs stay within a half"),
    **dict.fromkeys(
        ("cald-no-catu", "cald", "canr-no-catu", "canr", "caldnr", *(n for n in METHODS if n.startswith("refined"))),
        "dropout and CANR are drawn by each process for its half",
    ),
}

MANY = """
import sys
from pathlib import Path
from fewtags.config import load_config
from fewtags.engine.training import train
from fewtags import distributed
root, source, tags, *methods = sys.argv[1:]
for method in methods:
    data = {"source": source, "tags": tags, "options": {"complete": True}, "known": 0.6}
    settings = SETTINGS
    train(load_config(None, [f"method={method}", *settings], data=data), Path(root) / method, quiet=True)
distributed.finish()
"""


def launch(*arguments: object, processes: int = 2, **how) -> subprocess.Popen:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([*command, *map(str, arguments)], env=environment, text=True, start_new_session=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **how)  # fmt: skip


@contextmanager
def launcher_in_this_process() -> Iterator[None]:
    """It takes the process's signals, and notes which in the environment; both are as they were afterwards."""
    taken = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    before = {number: signal.getsignal(number) for number in taken}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHELASTIC_SIGNALS_TO_HANDLE", "")
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def finished(process: subprocess.Popen, seconds: float = 600) -> str:
    said, _ = process.communicate(timeout=seconds)
    assert process.returncode == 0, said[-3000:]
    return said


@pytest.fixture(scope="module")
def script(tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("script") / "many.py"
    file.write_text(MANY.replace("SETTINGS", repr(SETTINGS)))
    return file


@pytest.fixture(scope="module")
def both(script, patches, tags_file, tmp_path_factory) -> dict[int, Path]:
    """By number of processes: a folder with a run of every method, all of them in one launch."""
    roots = {}
    for processes in (1, 2):
        roots[processes] = tmp_path_factory.mktemp(f"by-{processes}")
        finished(launch(script, roots[processes], patches.root, tags_file, *METHODS, processes=processes))
    return roots


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_two_processes_learn_what_one_does(method, both):
    one, two = (both[processes] / method for processes in (1, 2))
    probabilities = [np.load(run / "predictions-test.npz")["probabilities"] for run in (one, two)]
    scores = [json.loads((run / "result.json").read_text())["test"] for run in (one, two)]
    assert scores[0]["num_images"] == scores[1]["num_images"] == 12
    if method in BY_HALVES:
        assert abs(scores[0]["map"] - scores[1]["map"]) < 0.25, BY_HALVES[method]
        return
    np.testing.assert_allclose(probabilities[1], probabilities[0], atol=2e-3)
    if objective_class(method).trains:
        first, second = (load_checkpoint(run / "checkpoints/last.pt")["model"] for run in (one, two))
        for name, value in first.items():
            torch.testing.assert_close(second[name], value, rtol=1e-2, atol=2e-3, msg=name)


# --- stopped, killed, standing still ---


def command(patches, tags_file, folder: Path, *more: str) -> list[object]:
    settings = [*SETTINGS, "method=an", "train.epochs=30", "model.train_from=all", *more]
    return ["-m", "fewtags", "train", patches.root, *settings, "--tags", tags_file, "-o", "complete=true",
            "--known", "0.6", "--out", folder, "-q"]  # fmt: skip


def wait_for(condition, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def ranks_of(launcher: int) -> list[int]:
    """The processes that torchrun started and that still live."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        found += [int(stat.parent.name)] if int(parent) == launcher and state != "Z" else []
    return sorted(found)


def epochs_of(run: Path) -> list[int]:
    return [row["epoch"] for row in read_rows(run / "metrics.jsonl") if row["kind"] == "train"]


def losses_of(run: Path) -> list[float]:
    return [row["loss"] for row in read_rows(run / "metrics.jsonl") if row["kind"] == "train"]


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), [(2, 1), (1, 2), (2, 2)])
def test_stopped_in_mid_epoch_and_resumed_with_another_number(first, second, patches, tags_file, tmp_path):
    """Every epoch's sums are over all of its images, whoever counted them: the losses are those of an unbroken run."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    finished(launch(*command(patches, tags_file, whole, "train.epochs=6"), processes=1))
    process = launch(*command(patches, tags_file, parts, "train.epochs=6"), processes=first)
    wait_for(lambda: (parts / "checkpoints/last.pt").is_file() or process.poll() is not None)
    for rank in ranks_of(process.pid):
        os.kill(rank, signal.SIGTERM)
    process.communicate(timeout=120)
    assert not (parts / "result.json").exists()
    finished(launch("-m", "fewtags", "train", "--resume", parts, "-q", processes=second))
    assert epochs_of(parts) == list(range(1, 7))
    losses = [
        [row["loss"] for row in read_rows(run / "metrics.jsonl") if row["kind"] == "train"] for run in (whole, parts)
    ]
    np.testing.assert_allclose(losses[1], losses[0], rtol=0.02)
    maps = [json.loads((run / "result.json").read_text())["test"]["map"] for run in (whole, parts)]
    assert abs(maps[0] - maps[1]) < 0.02


@pytest.mark.slow
def test_one_process_killed(patches, tags_file, tmp_path):
    """The others end within 30 seconds, and the run resumes."""
    run = tmp_path / "run"
    process = launch(*command(patches, tags_file, run))
    wait_for(lambda: (run / "checkpoints/last.pt").is_file() or process.poll() is not None)
    os.kill(ranks_of(process.pid)[1], signal.SIGKILL)
    killed = time.monotonic()
    process.communicate(timeout=60)
    assert time.monotonic() - killed < 30
    assert process.returncode != 0
    assert not ranks_of(process.pid)
    finished(launch("-m", "fewtags", "train", "--resume", run, "-q"))
    assert epochs_of(run) == list(range(1, 31))


@pytest.mark.slow
def test_the_launcher_killed(patches, tags_file, tmp_path):
    """Its processes end too, within ten seconds, and are not in the way of a resume."""
    run = tmp_path / "run"
    process = launch(*command(patches, tags_file, run))
    wait_for(lambda: (run / "checkpoints/last.pt").is_file() or process.poll() is not None)
    ranks = ranks_of(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    wait_for(lambda: not any(Path(f"/proc/{rank}").exists() for rank in ranks), seconds=10)
    finished(launch("-m", "fewtags", "train", "--resume", run, "-q", processes=1))
    assert epochs_of(run) == list(range(1, 31))


@pytest.mark.slow
def test_one_process_stands_still(patches, tags_file, tmp_path):
    """The other gives up after train.timeout and says so."""
    run = tmp_path / "run"
    process = launch(*command(patches, tags_file, run, "train.timeout=5"))
    wait_for(lambda: (run / "checkpoints/last.pt").is_file() or process.poll() is not None)
    frozen = ranks_of(process.pid)[1]
    os.kill(frozen, signal.SIGSTOP)
    try:
        said, _ = process.communicate(timeout=90)  # torchrun waits 30 s for the one that stands still, then kills it
    finally:
        if Path(f"/proc/{frozen}").exists():
            os.kill(frozen, signal.SIGCONT)
    assert process.returncode != 0
    assert "lost the connection to the others" in " ".join(said.split())


@pytest.mark.slow
def test_bad_images_of_every_process_are_warned_about_and_counted(patches, tags_file, tmp_path):
    import shutil

    folder = tmp_path / "photos"
    shutil.copytree(patches.root, folder)
    for name in patches.images[:6]:
        (folder / name).write_bytes(b"no image")
    said = finished(launch(*command(type(patches)(**{**vars(patches), "root": folder}), folder / "tags.csv",
                                    tmp_path / "run", "train.epochs=2")))  # fmt: skip
    for name in patches.images[:6]:
        assert said.count(f"{name}:") == 1, said
    assert json.loads((tmp_path / "run" / "result.json").read_text())["unreadable_images"] == 6


def one_rank(root: Path, source: Path, tags: Path, method: str) -> None:
    data = {"source": str(source), "tags": str(tags), "options": {"complete": True}, "known": 0.6}
    train(load_config(None, [f"method={method}", *SETTINGS], data=data), root / method, quiet=True)
    distributed.finish()


def test_two_processes_by_the_launcher(patches, tags_file, tmp_path):
    """The quick one: the closed form is that of one process. What torchrun calls, with processes that are forked."""
    start_server()
    how = LaunchConfig(1, 1, 2, run_id="two", rdzv_backend="c10d", rdzv_endpoint="localhost:0", start_method=METHOD)
    with launcher_in_this_process():
        elastic_launch(how, one_rank)(tmp_path / "two", patches.root, tags_file, "instant")
    one_rank(tmp_path / "one", patches.root, tags_file, "instant")
    one, two = (np.load(tmp_path / n / "instant/predictions-test.npz")["probabilities"] for n in ("one", "two"))
    np.testing.assert_allclose(two, one, atol=1e-4)
