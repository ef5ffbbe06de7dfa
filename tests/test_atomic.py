"""Files are whole or absent, and an error names the file that was asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from conftest import Cli
from fewtags.atomic import atomic_write, remove_leftovers, write_json


def test_what_is_written_appears_at_the_end(tmp_path):
    file = tmp_path / "a.txt"
    with atomic_write(file) as beside:
        beside.write_text("whole")
        assert not file.exists()
    assert file.read_text() == "whole"
    assert list(tmp_path.iterdir()) == [file]


def test_a_failure_leaves_the_old_file_and_nothing_beside_it(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("old")
    with pytest.raises(RuntimeError), atomic_write(file) as beside:
        beside.write_text("ha")
        raise RuntimeError
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_json_reads_back(tmp_path):
    write_json(tmp_path / "a.json", {"tag": "Bär"})
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == {"tag": "Bär"}


def test_an_error_names_the_file_that_was_asked_for(tmp_path):
    for place in (tmp_path / "missing" / "a.txt", tmp_path):  # no such folder; a folder in its place
        with pytest.raises(OSError) as caught, atomic_write(place) as beside:
            beside.write_text("x")
        assert caught.value.filename == str(place)


def test_a_page_that_cannot_be_written_is_called_by_its_name(cli: Cli, trained, tmp_path):
    (tmp_path / "report.html").mkdir()
    answer = cli("report", trained, "--out", tmp_path / "report.html")
    assert answer.code == 1
    assert f"{tmp_path / 'report.html'} cannot be used: Is a directory." in answer.err
    assert ".part" not in answer.err


# --- in a folder where others write too ---


def test_a_link_laid_out_under_the_old_temporary_name_leads_nowhere(tmp_path):
    (tmp_path / "victim.txt").write_text("untouched")
    (tmp_path / "a.txt.part").symlink_to("victim.txt")
    with atomic_write(tmp_path / "a.txt") as beside:
        assert not beside.is_symlink()
        beside.write_text("new")
    assert (tmp_path / "victim.txt").read_text() == "untouched"
    assert (tmp_path / "a.txt.part").is_symlink()
    assert (tmp_path / "a.txt").read_text() == "new"


def test_a_persons_own_part_file_stays(tmp_path):
    (tmp_path / "a.txt.part").write_text("mine")
    with atomic_write(tmp_path / "a.txt") as beside:
        beside.write_text("new")
    assert (tmp_path / "a.txt.part").read_text() == "mine"


def test_the_temporary_file_is_new_or_nothing_is_written(tmp_path, monkeypatch):
    (tmp_path / "victim.txt").write_text("untouched")
    monkeypatch.setattr("secrets.token_hex", lambda _: "0" * 16)  # somebody guessed it
    (tmp_path / f".fewtags-{'0' * 16}.part").symlink_to("victim.txt")
    with pytest.raises(FileExistsError), atomic_write(tmp_path / "a.txt") as beside:
        beside.write_text("new")
    assert (tmp_path / "victim.txt").read_text() == "untouched"


@pytest.mark.skipif(sys.platform == "win32", reason="permissions of POSIX")
def test_permissions_are_those_of_the_file_that_is_replaced(tmp_path):
    file = tmp_path / "a.txt"
    write_json(file, 1)
    usual = file.stat().st_mode & 0o777
    for mode in (0o600, 0o640, 0o664):
        file.chmod(mode)
        with atomic_write(file) as beside:
            beside.write_text("secret")
            assert beside.stat().st_mode & 0o777 == 0o600
        assert file.stat().st_mode & 0o777 == mode
    file.unlink()
    file.symlink_to(tmp_path / "elsewhere")
    write_json(file, 1)
    assert (file.stat().st_mode & 0o777, file.is_symlink()) == (usual, False)


def test_the_longest_name_has_room_for_a_temporary_file(tmp_path):
    write_json(tmp_path / ("a" * 250 + ".json"), 1)


def test_content_and_name_are_on_disk_at_the_end(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.path.samestat(os.fstat(handle), tmp_path.stat())))
    write_json(tmp_path / "a.json", 1)
    assert synced == [False, True]  # the file, then the folder


WRITER = """
import sys, time
from pathlib import Path
from fewtags.atomic import write_json
end = time.monotonic() + float(sys.argv[2])
print("ready", flush=True)
while time.monotonic() < end:
    write_json(Path(sys.argv[1]), [sys.argv[3]] * 2000)
"""


def test_two_writers_of_one_file_never_meet(tmp_path):
    file = tmp_path / "a.json"
    write_json(file, ["0"] * 2000)
    command = [sys.executable, "-c", WRITER, str(file), "0.5"]
    writers = [subprocess.Popen([*command, name], stdout=subprocess.PIPE, stderr=subprocess.PIPE) for name in "12"]
    for writer in writers:
        assert writer.stdout is not None
        writer.stdout.readline()
    seen = set()
    while any(writer.poll() is None for writer in writers):
        content = json.loads(file.read_text())  # whole
        assert len(content) == 2000
        seen |= set(content)
    for writer in writers:
        assert (writer.communicate()[1], writer.returncode) == (b"", 0)
    assert seen >= {"1", "2"}
    assert [file.name for file in tmp_path.iterdir()] == ["a.json"]


def test_leftovers_of_killed_processes_go_and_nothing_else(tmp_path):
    names = [".fewtags-0123456789abcdef.part", ".fewtags-fedcba9876543210.part", "a.part", ".fewtags-mine.part"]
    for name in names:
        (tmp_path / name).write_text("")
    os.utime(tmp_path / names[0], (0, 0))
    os.utime(tmp_path / names[2], (0, 0))
    remove_leftovers(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(names[1:])
