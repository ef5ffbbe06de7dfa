"""Progress for people: plain lines where there is no terminal."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from fewtags import progress
from fewtags.progress import ProgressBar, duration


@pytest.fixture
def plain_lines(monkeypatch):
    """Two steps of ten, and the lines they print when a line is due at every step."""
    monkeypatch.setattr(progress, "PLAIN_SECONDS", -1.0)

    def lines(detail: str, total: int = 2) -> list[str]:
        out = io.StringIO()
        bar = ProgressBar("Tagging", total, Console(file=out, width=200))
        for _ in range(total):
            bar.step(detail)
        bar.close()
        return out.getvalue().splitlines()

    return lines


def test_a_line_counts_and_says_what_is_left(plain_lines):
    first, last = plain_lines("loss 0.1000")
    assert re.fullmatch(r"Tagging: 1 of 2, loss 0\.1000, \d+ s left", first)
    assert last == "Tagging: 2 of 2, loss 0.1000"


def test_without_a_detail_no_comma_hangs_in_the_air(plain_lines):
    assert re.fullmatch(r"Tagging: 1 of 2, \d+ s left", plain_lines("")[0])
    assert plain_lines("", total=1) == ["Tagging: 1 of 1"]


def test_quiet_says_nothing():
    out = io.StringIO()
    ProgressBar("Tagging", 1, Console(file=out), quiet=True).step()
    assert not out.getvalue()


def test_durations_are_read_at_a_glance():
    assert [duration(s) for s in (4.4, 59.6, 75, 3600, 5400)] == [
        "4 s",
        "1 min 00 s",
        "1 min 15 s",
        "1 h 00 min",
        "1 h 30 min",
    ]
