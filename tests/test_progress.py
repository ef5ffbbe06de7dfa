"""Progress for people: plain lines where there is no terminal."""

from __future__ import annotations

import io
import re
import sys
import time

import pytest
from rich.console import Console

from fewtags import progress
from fewtags.progress import ProgressBar, duration, progress_bar, working


@pytest.fixture
def plain_lines(monkeypatch):
    """The lines of a bar whose steps end at the given seconds."""

    def lines(*seconds: float, detail: str = "", total: int = 0, **options) -> list[str]:
        clock = [0.0]
        monkeypatch.setattr(progress, "now", lambda: clock[0])
        out = io.StringIO()
        bar = ProgressBar("Tagging", total or len(seconds), Console(file=out, width=200), **options)
        for clock[0] in seconds:
            bar.step(detail)
        bar.close()
        return out.getvalue().splitlines()

    return lines


def test_a_line_counts_and_says_what_is_left(plain_lines):
    first, last = plain_lines(1, 3, 5, 15, detail="loss 0.1000")[:2]
    assert first == "Tagging: 2 of 4, loss 0.1000, 4 s left"
    assert last == "Tagging: 4 of 4, loss 0.1000"


def test_without_a_detail_no_comma_hangs_in_the_air(plain_lines):
    assert plain_lines(1, 3, 5) == ["Tagging: 2 of 3, 2 s left"]
    assert plain_lines(3) == ["Tagging: 1 of 1"]


def test_what_takes_two_seconds_says_nothing_and_then_a_line_comes_every_ten(plain_lines):
    assert plain_lines(*(n / 10 for n in range(20))) == []
    numbers = [int(line.split()[1]) for line in plain_lines(*range(1, 40))]
    assert numbers == [2, 4, 14, 24, 34], "the second one because the first could not tell the speed yet"


def test_the_start_up_before_the_first_step_does_not_count_as_speed(plain_lines):
    """Seen: 0.162 images/s and 6 h 33 min left, from one image after six seconds of loading."""
    seconds = [6.25 + n / 128 for n in range(512)]
    first, second = plain_lines(*seconds, total=3840, unit="images")
    assert first == "Tagging: 1 of 3840"
    assert second == "Tagging: 257 of 3840, 128 images/s, 28 s left"


def test_steps_that_come_in_batches_look_neither_faster_nor_slower_than_they_are(plain_lines):
    """Two threads with batches of eight that take eight seconds each."""
    seconds = [start + n / 1000 for start in (8, 16, 24) for n in range(16)]
    assert plain_lines(*seconds, total=160, unit="images") == [
        "Tagging: 1 of 160",
        "Tagging: 17 of 160, 2 images/s, 1 min 12 s left",
    ]


def test_the_speed_is_that_of_the_last_minute(plain_lines):
    slow, fast = range(1, 101), [100 + n / 10 for n in range(1, 1001)]
    assert "10 images/s" in plain_lines(*slow, *fast, total=9999, unit="images")[-1]


def test_work_without_an_end_in_sight_says_how_long_it_takes(monkeypatch):
    monkeypatch.setattr(progress, "FIRST_LINE", 0.05)
    monkeypatch.setattr(progress, "PLAIN_SECONDS", 0.1)
    out = io.StringIO()
    with working("Fitting", Console(file=out, width=200)):
        while not out.getvalue():
            time.sleep(0.01)
    assert re.match(r"Fitting: \d+ s so far\n", out.getvalue())
    out = io.StringIO()
    with working("Fitting", Console(file=out)), progress_bar("Reading", 2, Console(file=out)):
        while out.getvalue().count("\n") < 3:
            time.sleep(0.01)
    assert "Fitting" not in out.getvalue(), "a bar of its own speaks instead"
    out = io.StringIO()
    with working("Fitting", Console(file=out), quiet=True):
        time.sleep(0.1)
    assert not out.getvalue()


def test_a_bar_speaks_while_no_step_ends(monkeypatch):
    """Seen: six minutes without a word, while a busy machine loaded the model that the first step needs."""
    monkeypatch.setattr(progress, "FIRST_LINE", 0.05)
    monkeypatch.setattr(progress, "PLAIN_SECONDS", 0.1)
    out = io.StringIO()
    with progress_bar("Tagging", 3, Console(file=out, width=200), unit="images") as bar:
        while out.getvalue().count("\n") < 2:
            time.sleep(0.01)
        assert set(out.getvalue().splitlines()) == {"Tagging: 0 of 3, 0 s so far"}
        bar.step()
        while "Tagging: 1 of 3\n" not in out.getvalue():
            time.sleep(0.01)
    said = out.getvalue()
    time.sleep(0.2)
    assert out.getvalue() == said, "it is over"


def test_of_two_jobs_the_inner_one_speaks(monkeypatch):
    monkeypatch.setattr(progress, "FIRST_LINE", 0.05)
    monkeypatch.setattr(progress, "PLAIN_SECONDS", 0.05)
    out = io.StringIO()
    with working("Updating", Console(file=out, width=200)):
        with working("Fitting", Console(file=out, width=200)):
            while out.getvalue().count("\n") < 3:
                time.sleep(0.01)
        assert set(re.findall(r"^\w+", out.getvalue(), re.MULTILINE)) == {"Fitting"}
        while "Updating" not in out.getvalue():
            time.sleep(0.01)


@pytest.mark.parametrize(
    ("command", "line"),
    [("discover", "Searching the images of run for missing tags.\n"), ("audit", "Opening run for an audit.\n")],
)
def test_a_command_speaks_before_it_imports_torch(command, line, cli, monkeypatch, capsys):
    """On a busy machine that import took a quarter of a minute."""
    monkeypatch.setitem(sys.modules, f"fewtags.commands.{command}", None)  # what imports it cannot be imported
    with pytest.raises(ModuleNotFoundError):
        cli(command, "run")
    assert capsys.readouterr().err == line


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
