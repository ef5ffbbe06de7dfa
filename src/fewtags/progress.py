"""Progress of a long job: a bar with speed and time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

FIRST_LINE = 2.0  # seconds until the first progress line without a terminal: what is shorter says nothing
PLAIN_SECONDS = 10.0  # between two of them
SETTLED = 2.0  # seconds of work before a speed is shown
WINDOW = 60.0  # seconds of work it is measured over
BURST = 0.25  # steps within so many seconds come together

now = time.monotonic
_bars: list[ProgressBar] = []  # those that are shown
_titles: list[object] = []  # of `working`, the innermost last


class Speed:
    """Steps per second of late. What came before the first step is start-up, and says nothing about the others.

    Steps come in bursts where several are computed together, so it is measured from the first step of one to that of
    another.
    """

    def __init__(self) -> None:
        self.seen: deque[tuple[float, int]] = deque()  # when a burst began, and how much was done before it

    def add(self, done_before: int) -> None:
        when = now()
        if not self.seen or when - self.seen[-1][0] >= BURST:
            self.seen.append((when, done_before))
        while len(self.seen) > 2 and when - self.seen[1][0] > WINDOW:
            self.seen.popleft()

    @property
    def per_second(self) -> float | None:
        """None as long as nothing sensible can be said."""
        if not self.seen or self.seen[-1][0] - self.seen[0][0] < SETTLED:
            return None
        return (self.seen[-1][1] - self.seen[0][1]) / (self.seen[-1][0] - self.seen[0][0])


class ProgressBar:
    """Shows the progress of a long job: a bar on a terminal, else a line now and then, also while no step ends."""

    def __init__(self, title: str, total: int, console: Console, quiet: bool = False, unit: str = ""):
        self.title, self.total, self.unit = title, total, unit  # with a unit the speed is shown: "12 images/s"
        self.done, self.detail = 0, ""
        self.speed = Speed()
        self.console, self.quiet = console, quiet
        self.started = now()
        self.next_line = self.started + FIRST_LINE
        self.speaking, self.closed = threading.Lock(), threading.Event()
        self.bar: Progress | None = None
        if console.is_terminal and not quiet:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[left]}"),
            )
            self.bar = Progress(*columns, console=console, transient=True)
            self.task = self.bar.add_task(title, total=total, left="")
            self.bar.start()
        elif not quiet:
            threading.Thread(target=self._break_silence, daemon=True, name="fewtags-progress").start()
        if not quiet:
            _bars.append(self)

    def skip(self, count: int) -> None:
        """`count` steps were done before this run; they do not count towards the speed."""
        self.done = count
        if self.bar is not None:
            self.bar.update(self.task, completed=count)

    def step(self, detail: str = "", by: int = 1) -> None:
        self.speed.add(self.done)
        self.done += by
        self.detail = detail
        if self.bar is not None:
            title = f"{self.title} {detail}".strip()
            self.bar.update(self.task, advance=by, description=title, left=", ".join(filter(None, self.pace())))
        elif not self.quiet:
            self._line_if_due()

    def _break_silence(self) -> None:
        """The first step waits for a model to be loaded; others may be long."""
        while not self.closed.wait(FIRST_LINE):
            self._line_if_due()

    def _line_if_due(self) -> None:
        with self.speaking:
            if now() < self.next_line or self.closed.is_set():
                return
            begun = bool(self.speed.seen)
            self.next_line = now() + (FIRST_LINE if begun and not self.speed.per_second else PLAIN_SECONDS)
            so_far = "" if begun else f"{duration(now() - self.started)} so far"
            parts = [f"{self.title}: {self.done} of {self.total}", self.detail, *self.pace(), so_far]
            self.console.print(", ".join(filter(None, parts)), highlight=False)

    def pace(self) -> tuple[str, str]:
        """Speed and time left, as far as they are known."""
        speed = self.speed.per_second
        if not speed:
            return "", ""
        left = (self.total - self.done) / speed
        return f"{speed:.3g} {self.unit}/s" if self.unit else "", f"{duration(left)} left" if left > 0 else ""

    def say(self, text: str) -> None:
        """A line above the bar."""
        if text and not self.quiet:
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def close(self) -> None:
        with self.speaking:
            self.closed.set()
        if self.bar is not None:
            self.bar.stop()
        if self in _bars:
            _bars.remove(self)


@contextmanager
def progress_bar(
    title: str, total: int, console: Console | None = None, quiet: bool = False, unit: str = ""
) -> Iterator[ProgressBar]:
    bar = ProgressBar(title, total, console or Console(stderr=True), quiet, unit)
    try:
        yield bar
    finally:
        bar.close()


@contextmanager
def working(title: str, console: Console | None = None, quiet: bool = False) -> Iterator[None]:
    """For work whose end cannot be foreseen: if it takes longer than two seconds, a line says what and for how long.

    Where a part of it has a bar of its own, or is said to be worked on itself, that one speaks instead.
    """
    out, ended, started = console or Console(stderr=True), threading.Event(), now()
    me = object()

    def tell() -> None:
        wait = FIRST_LINE
        while not ended.wait(wait):
            speaks = not _bars and _titles[-1] is me
            wait = PLAIN_SECONDS if speaks else FIRST_LINE
            if speaks:
                so_far = f"{title}: {duration(now() - started)} so far"
                out.print(so_far, highlight=False, markup=False, soft_wrap=True)

    thread = threading.Thread(target=tell, daemon=True, name="fewtags-working")
    if quiet:
        yield
        return
    _titles.append(me)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        _titles.remove(me)


def duration(seconds: float) -> str:
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"
