"""`fewtags train`: from arguments to a finished run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from fewtags import distributed
from fewtags.commands.apply import decisions_of
from fewtags.config import RunConfig, load_config, merge, nested
from fewtags.data.decisions import DecidedLabel, write_decisions
from fewtags.engine.record import load_run_config, load_run_data, new_place
from fewtags.engine.run_folder import RunFolder
from fewtags.engine.training import score_line, train
from fewtags.errors import RunFailed, UserError
from fewtags.experiments.report import write_report
from fewtags.loggers import opened
from fewtags.methods import objective_class
from fewtags.presence.summary import estimate_lines


def train_settings(data: str | None, settings: Sequence[str], shortcuts: Mapping[str, Any]) -> RunConfig:
    """The settings of a run. `data` is a dataset, a YAML file, or the first of the `settings`.

    `shortcuts` are the values of command-line options, by the setting they stand for; None: not given.
    """
    file, source, overrides = None, None, list(settings)
    if data is not None and data.endswith((".yaml", ".yml")):
        file = data
    elif data is not None and "=" in data and not Path(data).exists():
        overrides.insert(0, data)
    else:
        source = data
    config = load_config(file, overrides, **nested({"data.source": source, **shortcuts}))
    if shortcuts.get("train.epochs") is not None and not objective_class(config.method_name).trains:
        raise UserError(
            f"Method '{config.method_name}' does not train, so --epochs does not apply; remove it, or choose a "
            "method that does, for example --method refined."
        )
    return config


def reviewed_settings(
    run: Path, moved_to: Path | None, settings: Sequence[str], shortcuts: Mapping[str, Any]
) -> tuple[RunConfig, list[DecidedLabel]]:
    """The settings of a run with overrides, and the decisions about its labels so far."""
    before = load_run_config(run)
    decisions = decisions_of(run)
    if not decisions:
        raise UserError(f"{run} has no decisions yet; review it with `fewtags review {run}`.")
    values = before.nested()
    if moved_to is not None:
        values["data"] |= new_place(before.data, moved_to, None)
    given = {name: value for name, value in shortcuts.items() if value not in (None, {})}
    after = load_config(None, settings, **merge(values, nested(given)))
    if (after.method_name, after.profile) != (before.method_name, before.profile):
        # For another method, keep only the settings about data and images.
        kept = {group: values[group] for group in ("data", "input", "model", "cache", "words", "seed")}
        after = load_config(None, settings, **merge(kept, nested(given)))
    return after, decisions


def start_run(
    config: RunConfig,
    out: Path | None,
    decisions: Sequence[DecidedLabel] | None = None,
    *,
    quiet: bool,
    loggers: Sequence[str] = (),
) -> None:
    """`decisions` are saved in the run's folder and applied to the labels of its data."""
    folder = out or new_run_folder(config.method_name)
    if folder.exists() and not folder.is_dir():
        raise RunFailed(f"{folder} is a file; choose another --out.")
    if decisions is not None and not RunFolder(folder).is_run:
        file = RunFolder(folder).decisions
        if distributed.is_main():
            write_decisions(decisions, file)
        config = config.model_copy(update={"data": config.data.model_copy(update={"decisions": str(file)})})
    train_and_print(config, folder, loggers, quiet=quiet)


def resume_run(
    folder: Path, moved_to: Path | None, epochs: int | None = None, *, quiet: bool, loggers: Sequence[str] = ()
) -> None:
    """`moved_to` is where the run's data is now, if it was moved; `epochs`, how many it shall have, if more."""
    config = load_run_config(folder)
    if epochs is not None:
        config = with_more_epochs(config, epochs)
    data = load_run_data(folder, moved_to)
    train_and_print(config, folder, loggers, data=data, resume=True, quiet=quiet)


def with_more_epochs(config: RunConfig, epochs: int) -> RunConfig:
    if not objective_class(config.method_name).trains:
        raise UserError(f"The run's method '{config.method_name}' does not train, so it cannot train longer.")
    if epochs < config.train.epochs:
        raise UserError(f"The run has {config.train.epochs} epochs; with --resume, --epochs takes as many or more.")
    return config.with_epochs(epochs)


def new_run_folder(method: str) -> Path:
    start = Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}-{method}"
    numbered = (start.with_name(f"{start.name}-{number}") for number in range(2, 1000))
    return start if not start.exists() else next(folder for folder in numbered if not folder.exists())


def train_and_print(config: RunConfig, folder: Path, loggers: Sequence[str] = (), **options: Any) -> None:
    """With torchrun every process trains, and the first one logs and prints."""
    with opened(loggers) as trackers:
        result = train(config, folder, loggers=trackers, **options)
        if trackers and distributed.is_main():
            report = write_report([folder], folder / "report.html", folder.name)
            for tracker in trackers:
                tracker.artifact(report)
    if distributed.is_main():
        when = " after the last epoch" if result.epochs else ""
        if result.estimates:  # with these labels nothing but the estimates says how good it is
            print("\n".join(estimate_lines(result.estimates)))
        elif result.last is not None:
            print(f"{result.split}{when}: {score_line(result.last)}")
        print(result.folder)
    distributed.finish()
