"""Experiment trackers: what a run writes to metrics.jsonl, shown elsewhere too.

`fewtags train --logger mlflow` uses one of those below, or one that another installed package adds:

[project.entry-points."fewtags.loggers"]
mine = "my_package:MyLogger"                        # a subclass of fewtags.loggers.Logger

In Python an object does: `Tagger(loggers=[MyLogger()])`. Where a tracker keeps its files, or its server, is set as its
own documentation says (MLFLOW_TRACKING_URI, WANDB_MODE, ...).
"""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fewtags import plugins
from fewtags.errors import MissingExtra, UserError, did_you_mean

Table = Sequence[Mapping[str, Any]]  # a row per category: its name, number of known images, threshold, AP


class Logger:
    """What your own tracker, or any other code that follows a run, overrides. Under several processes only the first
    one calls it."""

    def start(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """A new or resumed run begins in `folder`; `settings` by their dotted names."""

    def row(self, kind: str, epoch: int, values: Mapping[str, Any]) -> None:
        """A row of metrics.jsonl: after an epoch ("train", "state", "categories") or an evaluation ("eval")."""

    def finish(self, result: Mapping[str, Any], categories: Table) -> None:
        """The run is complete; `result` is what result.json has."""

    def artifact(self, file: Path) -> None:
        """A file to keep with the run: its report."""

    def close(self, failed: bool = False) -> None:
        """Always called last."""


# --- finding and opening them ---


@contextmanager
def opened(loggers: Iterable[str | Logger]) -> Iterator[list[Logger]]:
    """Loggers by name, or as they are; closed at the end. A missing package is reported before anything starts."""
    found = [logger if isinstance(logger, Logger) else logger_class(logger)() for logger in loggers]
    failed = True
    try:
        yield found
        failed = False
    finally:
        for logger in found:
            logger.close(failed)


def logger_class(name: str) -> type[Logger]:
    known = {
        entry.name: entry.value for entry in plugins.named("fewtags.loggers")
    }  # ours among them, in pyproject.toml
    if name not in known:
        raise UserError(f"There is no logger '{name}'; {did_you_mean(name, known)}")
    module, _, attribute = known[name].partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UserError(f"Logger '{name}' ({known[name]}) cannot be loaded: {error}.") from error
    if not (isinstance(found, type) and issubclass(found, Logger)):
        raise UserError(f"Logger '{name}' ({known[name]}) should be a subclass of fewtags.loggers.Logger.")
    return found


# --- the ones that come with fewtags ---


def numbers(kind: str, values: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of a row, by names such as "train/loss" and "test/map"."""
    group = values.get("split", kind)
    return {
        f"{group}/{name}": value
        for name, value in values.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }


class TensorBoard(Logger):
    """In the folder `tensorboard` of the run."""

    def __init__(self) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingExtra("TensorBoard logging", "tensorboard") from None
        self.writer_class = SummaryWriter
        self.writer: Any = None

    def start(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.writer = self.writer_class(str(folder / "tensorboard"))
        self.writer.add_text("settings", markdown_table([{"setting": k, "value": v} for k, v in settings.items()]))

    def row(self, kind: str, epoch: int, values: Mapping[str, Any]) -> None:
        for name, value in numbers(kind, values).items():
            self.writer.add_scalar(name, value, epoch)
        self.writer.flush()

    def finish(self, result: Mapping[str, Any], categories: Table) -> None:
        self.writer.add_text("categories", markdown_table(categories))

    def close(self, failed: bool = False) -> None:
        if self.writer is not None:
            self.writer.close()


def markdown_table(rows: Table) -> str:
    if not rows:
        return ""
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(row.values() for row in rows)]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


class MLflow(Logger):
    """A run of the active experiment, or the run that is active in this process already."""

    def __init__(self) -> None:
        try:
            import mlflow
        except ImportError:
            raise MissingExtra("MLflow logging", "mlflow") from None
        self.mlflow: Any = mlflow
        self.own = False

    def start(self, folder: Path, settings: Mapping[str, Any]) -> None:
        if self.mlflow.active_run() is None:
            note = folder / "mlflow_run.txt"  # so that a resumed run continues there
            known = note.read_text().strip() if note.is_file() else None
            started = self.mlflow.start_run(run_id=known, run_name=None if known else folder.name)
            note.write_text(started.info.run_id)
            self.own = True
        if not self.mlflow.get_run(self.mlflow.active_run().info.run_id).data.params:  # they cannot be changed later
            self.mlflow.log_params({name: str(value)[:500] for name, value in settings.items()})

    def row(self, kind: str, epoch: int, values: Mapping[str, Any]) -> None:
        self.mlflow.log_metrics(numbers(kind, values), step=epoch)

    def finish(self, result: Mapping[str, Any], categories: Table) -> None:
        for split in ("val", "test"):
            self.mlflow.log_metrics(numbers(split, {**result.get(split, {}), "split": f"final-{split}"}))
        columns = {name: [row[name] for row in categories] for name in categories[0]} if categories else {}
        self.mlflow.log_table(columns, "categories.json")

    def artifact(self, file: Path) -> None:
        if self.mlflow.active_run() is not None:  # it is None if there was nothing to resume
            self.mlflow.log_artifact(str(file))

    def close(self, failed: bool = False) -> None:
        if self.own:
            self.mlflow.end_run("FAILED" if failed else "FINISHED")


class WeightsAndBiases(Logger):
    """A run of the project `fewtags`, or of WANDB_PROJECT; without a network if WANDB_MODE=offline."""

    def __init__(self) -> None:
        try:
            import wandb
        except ImportError:
            raise MissingExtra("Weights & Biases logging", "wandb") from None
        self.wandb: Any = wandb
        self.run: Any = None

    def start(self, folder: Path, settings: Mapping[str, Any]) -> None:
        note = folder / "wandb_run.txt"  # so that a resumed run continues there
        known = note.read_text().strip() if note.is_file() else None
        project = None if "WANDB_PROJECT" in os.environ else "fewtags"
        self.run = self.wandb.init(
            project=project, name=folder.name, config=dict(settings), id=known, resume="allow" if known else None
        )
        note.write_text(self.run.id)
        self.run.define_metric("*", step_metric="epoch")

    def row(self, kind: str, epoch: int, values: Mapping[str, Any]) -> None:
        self.run.log({**numbers(kind, values), "epoch": epoch})

    def finish(self, result: Mapping[str, Any], categories: Table) -> None:
        for split in ("val", "test"):
            self.run.summary.update(numbers(split, {**result.get(split, {}), "split": f"final-{split}"}))
        if categories:
            rows = [list(row.values()) for row in categories]
            self.run.log({"categories": self.wandb.Table(columns=list(categories[0]), data=rows)})

    def artifact(self, file: Path) -> None:
        if self.run is None:  # there was nothing to resume
            return
        kept = self.wandb.Artifact(f"{self.run.id}-{file.stem}", type=file.stem)
        kept.add_file(str(file))
        self.run.log_artifact(kept)

    def close(self, failed: bool = False) -> None:
        if self.run is not None:
            self.run.finish(exit_code=int(failed))
