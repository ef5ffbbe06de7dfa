"""Progress of a long job: a bar with the time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

PLAIN_SECONDS = 30.0  # between two progress lines without a terminal


class ProgressBar:
    """Shows the progress of a long job: a bar with the time left on a terminal, else a line now and then."""

    def __init__(self, title: str, total: int, console: Console, quiet: bool = False, unit: str = ""):
        self.title, self.total, self.unit = title, total, unit  # with a unit the speed is shown: "12 images/s"
        self.done = self.skipped = 0
        self.console, self.quiet = console, quiet
        self.started = self.last_line = time.monotonic()
        self.bar: Progress | None = None
        if console.is_terminal and not quiet:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self.bar = Progress(*columns, console=console, transient=True)
            self.task = self.bar.add_task(title, total=total)
            self.bar.start()

    def skip(self, count: int) -> None:
        """`count` steps were done before this run; they do not count towards the speed."""
        self.done = self.skipped = count
        if self.bar is not None:
            self.bar.update(self.task, completed=count)

    def step(self, detail: str = "", by: int = 1) -> None:
        self.done += by
        detail = detail or self.speed()
        if self.bar is not None:
            self.bar.update(self.task, advance=by, description=f"{self.title} {detail}".strip())
        elif not self.quiet and time.monotonic() - self.last_line > PLAIN_SECONDS:
            self.last_line = time.monotonic()
            left = (self.last_line - self.started) / max(self.done - self.skipped, 1) * (self.total - self.done)
            parts = [f"{self.title}: {self.done} of {self.total}", detail, f"{duration(left)} left" if left > 0 else ""]
            self.console.print(", ".join(part for part in parts if part), highlight=False)

    def say(self, text: str) -> None:
        """A line above the bar."""
        if text and not self.quiet:
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def speed(self) -> str:
        seconds = time.monotonic() - self.started
        return f"{(self.done - self.skipped) / seconds:.3g} {self.unit}/s" if self.unit and seconds > 1 else ""

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()


@contextmanager
def progress_bar(
    title: str, total: int, console: Console | None = None, quiet: bool = False, unit: str = ""
) -> Iterator[ProgressBar]:
    bar = ProgressBar(title, total, console or Console(stderr=True), quiet, unit)
    try:
        yield bar
    finally:
        bar.close()


def duration(seconds: float) -> str:
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"
