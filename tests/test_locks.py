"""Two processes never write one folder, and a lock does not outlive its process."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import TinyConfig
from fewtags import locks
from fewtags.data.prepare import split_data
from fewtags.engine.training import train
from fewtags.errors import UserError
from fewtags.locks import LOCK, only_process_in, only_writer_of

HOLD = """
import sys, time
from pathlib import Path
from fewtags.locks import only_process_in
with only_process_in(Path(sys.argv[1]), "fewtags train"):
    print("locked", flush=True)
    time.sleep(60)
"""


COMPUTE = """
import sys, time
from pathlib import Path
from fewtags.locks import one_at_a_time
result = Path(sys.argv[1])
with one_at_a_time(result):
    if not result.exists():
        time.sleep(0.2)
        with result.open("a") as stream:
            stream.write("computed\\n")
"""


@pytest.fixture
def holder(tmp_path: Path):
    """Another process that works in the folder `run`."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    yield process
    process.kill()
    process.wait()


def test_the_second_process_is_refused_and_told_who_is_there(holder, tmp_path):
    with pytest.raises(UserError) as refused, only_process_in(tmp_path / "run", "fewtags train", patience=0):
        pass
    assert str(refused.value) == (
        f"{tmp_path / 'run'} is in use by another process (fewtags train, process {holder.pid} on "
        f"{socket.gethostname()}); wait until it has ended, or stop it."
    )


def test_a_killed_process_leaves_no_lock(holder, tmp_path):
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    assert (tmp_path / "run" / LOCK).is_file()  # the file stays; nobody holds it
    with only_process_in(tmp_path / "run", "fewtags train", patience=0):
        pass


def test_nothing_is_left_of_a_lock(tmp_path):
    with only_process_in(tmp_path / "new", "fewtags train"):
        assert (tmp_path / "new" / LOCK).is_file()
    assert not (tmp_path / "new").exists()
    (tmp_path / "old").mkdir()
    with pytest.raises(RuntimeError), only_process_in(tmp_path / "old", "fewtags train"):
        raise RuntimeError
    assert list((tmp_path / "old").iterdir()) == []


def test_a_link_beside_a_lock_leads_nowhere(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "victim.txt").write_text("untouched")
    (tmp_path / "run" / f"{LOCK}.json").symlink_to("../victim.txt")
    with only_process_in(tmp_path / "run", "fewtags train"):
        assert (tmp_path / "victim.txt").read_text() == "untouched"


def test_no_two_train_into_one_folder(holder, patches, tmp_path, monkeypatch):
    """Neither a new run nor a resumed one, and not a bench; all before anything is read or written."""
    from fewtags.experiments.bench import Bench

    monkeypatch.setattr(locks, "PATIENCE", 0.0)
    config = TinyConfig.make()
    data = split_data(patches, config.data, config.seed)
    for resume in (False, True):
        with pytest.raises(UserError, match="is in use by another process"):
            train(config, tmp_path / "run", data=data, resume=resume, quiet=True)
    with pytest.raises(UserError, match="is in use by another process"):
        Bench([], tmp_path / "run", quiet=True).run()
    assert [file.name for file in (tmp_path / "run").iterdir() if not file.name.startswith(LOCK)] == []


def test_no_two_predict_into_one_file(cli, trained, patches, tmp_path):
    out = tmp_path / "tags.csv"
    with only_writer_of(out, "fewtags predict"):
        answer = cli("predict", trained, patches.path(0), "--out", out)
    assert answer.code == 2
    assert f"{out} is being written by another process (fewtags predict, process {os.getpid()} on " in answer.err
    assert cli("predict", trained, patches.path(0), "--out", out).code == 0
    assert {file.name for file in tmp_path.iterdir()} == {"tags.csv", "tags.csv.json"}  # nothing is left of a lock


def test_one_computes_and_the_others_wait(tmp_path):
    """Of eight processes, one adds a line; the others find it."""
    processes = [subprocess.Popen([sys.executable, "-c", COMPUTE, str(tmp_path / "result")]) for _ in range(8)]
    assert [process.wait(timeout=180) for process in processes] == [0] * 8
    assert (tmp_path / "result").read_text() == "computed\n"


def test_a_lock_on_a_removed_file_does_not_count(tmp_path, monkeypatch):
    """The last holder removes the file between its opening and its locking here; the next would make a new one."""
    fcntl = pytest.importorskip("fcntl")
    lock_now, removed = fcntl.flock, []

    def lock_too_late(descriptor, how):
        if not removed:
            removed.append((tmp_path / LOCK).unlink())
        return lock_now(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", lock_too_late)
    with only_process_in(tmp_path, "fewtags train"):
        assert (tmp_path / LOCK).is_file()


@pytest.mark.parametrize("cannot", [errno.ENOLCK, errno.ENOTSUP])
def test_a_file_system_without_locks_is_no_obstacle(tmp_path, monkeypatch, cannot):
    def refuse(*_, **__):
        raise OSError(cannot, os.strerror(cannot))

    monkeypatch.setattr(locks.FileLock, "acquire", refuse)
    with only_process_in(tmp_path / "run", "fewtags train"):
        assert (tmp_path / "run").is_dir()
