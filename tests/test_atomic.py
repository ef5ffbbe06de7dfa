"""Files are whole or absent, and an error names the file that was asked for."""

from __future__ import annotations

import json

import pytest

from conftest import Cli
from fewtags.atomic import atomic_write, write_json


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
