"""Progress of a long job, for people: a bar with time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

PLAIN_SECONDS = 30.0  # between two progress lines where there is no terminal


class ProgressBar:
    """Counts steps of a long job for people: a bar with time left on a terminal, else a line now and then."""

    def __init__(self, title: str, total: int, console: Console, quiet: bool = False):
        self.title, self.total, self.done = title, total, 0
        self.console, self.quiet = console, quiet
        self.started = self.last_line = time.monotonic()
        self.bar: Progress | None = None
        if console.is_terminal and not quiet:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self.bar = Progress(*columns, console=console, transient=True)
            self.task = self.bar.add_task(title, total=total)
            self.bar.start()

    def step(self, detail: str = "") -> None:
        self.done += 1
        if self.bar is not None:
            self.bar.update(self.task, advance=1, description=f"{self.title} {detail}".strip())
        elif not self.quiet and time.monotonic() - self.last_line > PLAIN_SECONDS:
            self.last_line = time.monotonic()
            left = (self.last_line - self.started) / self.done * (self.total - self.done)
            parts = [f"{self.title}: {self.done} of {self.total}", detail, f"{duration(left)} left" if left > 0 else ""]
            self.console.print(", ".join(part for part in parts if part), highlight=False)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()


@contextmanager
def progress_bar(title: str, total: int, console: Console | None = None, quiet: bool = False) -> Iterator[ProgressBar]:
    bar = ProgressBar(title, total, console or Console(stderr=True), quiet)
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
