"""Output of a run: always `metrics.jsonl`, a progress bar on a terminal, plain lines elsewhere, and loggers on request.

Results go to standard output; progress and warnings go to standard error. Only the main process writes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from rich.console import Console

from fewtags import distributed
from fewtags.atomic import append_line, atomic_write
from fewtags.engine.run_folder import RunFolder
from fewtags.loggers import Logger, Table
from fewtags.progress import ProgressBar, progress_bar, working


class RunLog:
    """The output of one run; it writes files once `open` was called."""

    def __init__(self, folder: RunFolder, quiet: bool = False, loggers: Sequence[Logger] = ()):
        self.folder = folder
        self.main = distributed.is_main()
        self.quiet = quiet or not self.main
        self.console = Console(stderr=True, soft_wrap=True)
        self.loggers = loggers if self.main else ()

    def open(self, settings: Mapping[str, Any] | None = None, after_epoch: int = 0) -> None:
        """Create the folder, and drop the rows of later epochs, which a resumed run will repeat."""
        if not self.main:
            return
        self.folder.path.mkdir(parents=True, exist_ok=True)
        kept = [row for row in read_rows(self.folder.metrics) if row["epoch"] <= after_epoch]
        with atomic_write(self.folder.metrics) as temporary:
            temporary.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
        for logger in self.loggers:
            logger.start(self.folder.path, settings or {})

    def row(self, kind: str, epoch: int, values: Mapping[str, Any]) -> None:
        """One JSON line. `epoch` is 1-based here, for readers."""
        if not self.main:
            return
        append_line(self.folder.metrics, json.dumps({"kind": kind, "epoch": epoch, **_plain(values)}))
        for logger in self.loggers:
            logger.row(kind, epoch, values)

    def finish(self, result: Mapping[str, Any], categories: Table) -> None:
        for logger in self.loggers:
            logger.finish(result, categories)

    def say(self, text: str) -> None:
        if not self.quiet:
            self.console.print(text, highlight=False, markup=False)

    def warn(self, text: str) -> None:
        if self.main and text:
            self.console.print(text, style="yellow", highlight=False, markup=False)

    def progress_bar(self, title: str, total: int, unit: str = "") -> AbstractContextManager[ProgressBar]:
        return progress_bar(title, total, self.console, self.quiet, unit)

    def working(self, title: str) -> AbstractContextManager[None]:
        return working(title, self.console, self.quiet)


def read_rows(file: Path) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl; a last line cut off by a crash is ignored, and so is everything after a damaged
    one."""
    rows = []
    if file.is_file():
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            row = _row(line)
            if row is None:
                break
            rows.append(row)
    return rows


def _row(line: str) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    whole = isinstance(row, dict) and isinstance(row.get("epoch"), int) and isinstance(row.get("kind"), str)
    return row if whole else None


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has no NaN: non-finite numbers become null."""

    def plain(value: Any) -> Any:
        if isinstance(value, list):
            return [plain(inner) for inner in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return {key: plain(value) for key, value in values.items()}
