"""The files of a run have their names in one place, and say where the run is."""

from __future__ import annotations

from pathlib import Path

import pytest

import fewtags
from fewtags.engine.run_folder import RunFolder
from fewtags.engine.run_log import RunLog, read_rows
from fewtags.errors import UserError

PACKAGE = Path(fewtags.__file__).parent
NAMES = (
    "config.yaml", "environment.json", "data.json", "metrics.jsonl", "bad_images.txt", "last.pt", "best.pt",
    "predictions-", "result.json", "cell.json", "log.txt", "names.txt",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_file_of_a_run_is_named_once(name: str):
    quoted = (f'"{name}"', f"'{name}'", f'"{name}{{', f"'{name}{{")
    users = [file.name for file in PACKAGE.rglob("*.py") if any(text in file.read_text() for text in quoted)]
    assert users == ["run_folder.py"]


def test_what_the_files_say(tmp_path: Path):
    run = RunFolder(tmp_path / "a" / "run")
    with pytest.raises(UserError, match="run does not exist"):
        run.must_be_run()
    run.path.mkdir(parents=True)
    with pytest.raises(UserError, match=r"run is not a run folder \(it has no config\.yaml\)"):
        run.must_be_run()
    assert (run.is_run, run.can_resume, run.is_finished) == (False, False, False)
    run.last.parent.mkdir(parents=True)
    run.config.touch()
    assert run.must_be_run() == run
    run.last.touch()
    assert (run.can_resume, run.is_finished) == (True, False)
    run.result.touch()
    assert run.is_finished
    assert RunFolder.below(tmp_path) == [run]


def test_a_log_writes_nothing_before_it_is_opened(tmp_path: Path):
    log = RunLog(RunFolder(tmp_path / "run"), quiet=True)
    assert not (tmp_path / "run").exists()
    log.open()
    log.row("train", 1, {"loss": 2.0})
    assert read_rows(tmp_path / "run" / "metrics.jsonl") == [{"kind": "train", "epoch": 1, "loss": 2.0}]


def test_a_log_that_is_opened_again_drops_the_epochs_to_come(tmp_path: Path):
    log = RunLog(RunFolder(tmp_path), quiet=True)
    log.open()
    for epoch in (1, 2, 3):
        log.row("train", epoch, {})
    with RunFolder(tmp_path).metrics.open("a") as out:
        out.write('{"kind": "tra')  # a crash
    RunLog(RunFolder(tmp_path), quiet=True).open(after_epoch=2)
    assert [row["epoch"] for row in read_rows(RunFolder(tmp_path).metrics)] == [1, 2]
