"""The clock goes back, a photo is replaced while it is read: what happens at a bad moment does no harm."""

from __future__ import annotations

import os
import shutil
import threading
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from fewtags.commands import train as train_command
from fewtags.commands.apply import decisions_of
from fewtags.engine.prediction import predict_files
from fewtags.models.saved import load_model
from fewtags.review import store
from fewtags.review.store import DecisionStore, Draft, decisions_file


def test_a_clock_that_goes_back_does_not_reorder_decisions(trained, tmp_path, monkeypatch):
    run = shutil.copytree(trained, tmp_path / "run")
    times = iter(["2026-11-18T12:00:00.000+00:00", "2026-11-18T11:00:00.000+00:00", "2020-01-01T00:00:00.000+00:00"])
    monkeypatch.setattr(store, "_now", lambda: next(times))
    with DecisionStore(decisions_file(run)) as opened:
        for label in (1, -1):
            version = opened.versions().get(("00.png", "red"), 0)
            opened.append([Draft("00.png", "red", 0, label, version=version)], reviewer="a", queue="q", run="r")
        assert opened.labels() == {("00.png", "red"): -1}
        opened.undo(opened.last_step(), reviewer="a")
        assert opened.labels() == {("00.png", "red"): 1}
    with DecisionStore(decisions_file(run), read_only=True) as opened:
        assert opened.labels() == {("00.png", "red"): 1}
    assert [decision.label for decision in decisions_of(run)] == [1]


def test_a_clock_that_goes_back_overwrites_no_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    class Clock(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime(2026, 11, 18, 12, 0, 0)

    monkeypatch.setattr(train_command, "datetime", Clock)
    folders = []
    for _ in range(3):
        folders.append(train_command.new_run_folder("an"))
        folders[-1].mkdir(parents=True)
    assert len(set(folders)) == 3


@pytest.mark.parametrize("how", ["renamed over", "written over", "emptied", "removed"])
def test_a_photo_that_is_replaced_while_it_is_read_is_one_of_the_two_or_said(how, trained, patches, tmp_path):
    """200 reads beside a thread that never stops replacing it."""
    saved, file = load_model(trained), tmp_path / "photo.png"
    contents = [patches.path(row).read_bytes() for row in (0, 1)]
    expected = []
    for content in contents:
        file.write_bytes(content)
        expected += [prediction.probabilities for prediction in predict_files(saved, [file])]
    stop = threading.Event()

    def replace() -> None:
        turn = 0
        while not stop.wait(0.0002):
            turn += 1
            if how == "renamed over":
                beside = tmp_path / "beside"
                beside.write_bytes(contents[turn % 2])
                os.replace(beside, file)
            elif how == "removed" and turn % 2:
                file.unlink()
            else:
                file.write_bytes(b"" if how == "emptied" and turn % 2 else contents[turn % 2])

    thread = threading.Thread(target=replace)
    thread.start()
    try:
        found = list(predict_files(saved, [file] * 200))
    finally:
        stop.set()
        thread.join()
    assert len(found) == 200
    for prediction in found:
        if prediction.probabilities is None:
            assert how != "renamed over"
            assert "photo.png" in prediction.problem
        elif how == "renamed over":
            assert any(np.allclose(prediction.probabilities, one, atol=1e-5) for one in expected)


def test_leftovers_of_the_future_stay(tmp_path: Path):
    """After the clock went back, files seem to be from the future; they may be in use."""
    from fewtags.atomic import remove_leftovers

    file = tmp_path / ".fewtags-0123456789abcdef.part"
    file.write_text("")
    os.utime(file, (2**32, 2**32))
    remove_leftovers(tmp_path)
    assert file.exists()
