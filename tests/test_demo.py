"""The demo from the command to its page, on few pictures."""

from __future__ import annotations

import json
import re

import pytest

from conftest import Cli


def test_the_demo_trains_tells_and_shows(cli: Cli, tmp_path):
    answer = cli("demo", "--quick", "--methods", "an,caldnr", "--out", str(tmp_path / "demo"))
    assert answer.code == 0
    assert "of their" in answer.out  # how many tags are known
    table = [line.replace("│", " ").replace("┃", " ").split() for line in answer.out.splitlines()]
    assert ["method", "mAP", "OF1", "CF1", "seconds"] in table
    for method in ("an", "caldnr"):
        (row,) = (cells for cells in table if cells[:1] == [method])
        measured = json.loads((tmp_path / f"demo/runs/{method}/result.json").read_text())["test"]
        expected = [100 * measured[name] for name in ("map", "of1", "cf1")]
        assert [float(score) for score in row[1:4]] == pytest.approx(expected, abs=0.051)
    assert re.search(
        r"Missing tags found by (an|caldnr): [\d,]+, of which [\d,]+ are right", " ".join(answer.out.split())
    )
    page = (tmp_path / "demo/report.html").read_text(encoding="utf-8")
    assert "fewtags demo" in page
    assert "http://" not in page.replace("http://www.w3.org", "")  # nothing is fetched
    assert (tmp_path / "demo/runs/caldnr/model/config.json").is_file()


def test_a_method_that_does_not_exist_is_found_out_before_anything_is_drawn(cli: Cli, tmp_path):
    answer = cli("demo", "--methods", "an,caldnrr", "--out", str(tmp_path / "demo"))
    assert answer.code == 2
    assert "did you mean 'caldnr'" in answer.err
    assert not (tmp_path / "demo").exists()
