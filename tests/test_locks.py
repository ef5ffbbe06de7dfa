"""Two processes never write one folder, and a lock does not outlive its process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import TinyConfig
from fewtags.data.prepare import split_data
from fewtags.engine.training import train
from fewtags.errors import UserError
from fewtags.locks import LOCK, only_process_in

HOLD = """
import sys, time
from pathlib import Path
from fewtags.locks import only_process_in
with only_process_in(Path(sys.argv[1]), "fewtags train"):
    print("locked", flush=True)
    time.sleep(60)
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


def test_no_two_train_into_one_folder(holder, patches, tmp_path, monkeypatch):
    """Neither a new run nor a resumed one, and not a bench; all before anything is read or written."""
    from fewtags import locks
    from fewtags.experiments.bench import Bench

    monkeypatch.setattr(locks, "PATIENCE", 0.0)
    config = TinyConfig.make()
    data = split_data(patches, config.data, config.seed)
    for resume in (False, True):
        with pytest.raises(UserError, match="is in use by another process"):
            train(config, tmp_path / "run", data=data, resume=resume, quiet=True)
    with pytest.raises(UserError, match="is in use by another process"):
        Bench([], tmp_path / "run", quiet=True).run()
    assert [file.name for file in (tmp_path / "run").iterdir()] == [LOCK]


def test_no_two_predict_into_one_file(cli, trained, patches, tmp_path):
    from fewtags.locks import try_to_lock

    out = tmp_path / "tags.csv"
    with out.open("a") as stream:
        assert try_to_lock(stream)
        answer = cli("predict", trained, patches.path(0), "--out", out)
    assert answer.code == 2
    assert f"Another process is writing to {out}" in answer.err
    assert cli("predict", trained, patches.path(0), "--out", out).code == 0
