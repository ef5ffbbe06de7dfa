"""Run folders as the tables and the report see them: settings and results."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fewtags.atomic import atomic_write
from fewtags.config import read_yaml
from fewtags.engine.run_folder import RunFolder
from fewtags.engine.run_log import read_rows
from fewtags.errors import UserError
from fewtags.methods import METHODS
from fewtags.models.saved import damaged, read_object
from fewtags.renamed import current_names

Proportion = float | str | None  # of known positives; a name: one of NAMED, None: the labels as given
NAMED = {
    "single": "one per image",
    "habit": "by habit",
    "salience": "by size",
    "both": "by habit and size",
    "hasty": "by habit and size, in haste",
    "five": "five at most",
    "largest": "the largest alone",
}

COLUMNS = (
    "dataset", "method", "profile", "proportion", "seed", "epoch_rule", "map", "map_voc12", "of1", "cf1", "seconds",
)  # fmt: skip
METRICS = ("map", "map_voc12", "of1", "cf1")


@dataclass(frozen=True)
class RunRecord:
    folder: Path
    dataset: str
    method: str
    profile: str
    proportion: Proportion
    seed: int
    config: dict[str, Any]  # as in config.yaml
    data: dict[str, Any]  # as in data.json
    result: dict[str, Any]  # as in result.json; empty if the run is not finished
    rows: list[dict[str, Any]]  # as in metrics.jsonl

    @property
    def split(self) -> str | None:
        """The split whose scores count: test if there is one, else val."""
        return next((split for split in ("test", "val") if split in self.result), None)

    def scores(self, epoch_rule: str) -> dict[str, Any] | None:
        """Scores at the end ("last") or, where there were epochs, at the best one on the same images ("best")."""
        if self.split is None or (epoch_rule == "best" and self.result.get("epochs") == 0):
            return None
        if epoch_rule == "last":
            return self.result[self.split]
        best = self.result.get("best") or {}
        return best if best.get("split") == self.split else None

    def rows_of(self, kind: str) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["kind"] == kind]


def read_run(folder: Path) -> RunRecord:
    files = RunFolder(folder)
    recorded, data = read_yaml(files.config), _read_json(files.data)
    config = current_names(recorded)
    result, rows = _read_json(files.result), read_rows(files.metrics)
    try:
        cell: dict[str, Any] = {
            "dataset": data.get("name", "dataset"),
            "method": config["method"]["name"],
            "profile": profile_of(config, data),
            "proportion": config["data"]["known"],
            "seed": config["seed"],
        }
    except (KeyError, TypeError) as error:
        raise damaged(files.config) from error
    noted = {name: value for name, value in _read_json(files.cell).items() if name in cell}
    if config.get("method") != recorded.get("method"):
        noted = renamed_cell(noted, recorded["method"], config["method"])
    cell |= noted
    return RunRecord(folder=folder, config=config, data=data, result=result, rows=rows, **cell)


def renamed_cell(cell: dict[str, Any], before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """The cell of a bench that was made when the method had another name; names of the grid's own stay."""
    of_method = {"method": now["name"]} if cell.get("method") == before["name"] else {}
    of_profile = {"profile": now["profile"]} if cell.get("profile") == before["profile"] else {}
    return {**cell, **of_method, **of_profile}


def profile_of(config: dict[str, Any], data: dict[str, Any]) -> str:
    """A run with labels that people decided about is a row of its own."""
    profile = config["method"]["profile"]
    if not data.get("labels_from"):
        return profile
    return "reviewed" if profile == "default" else f"{profile}, reviewed"


def _read_json(file: Path) -> dict[str, Any]:
    return read_object(file) if file.is_file() else {}


def find_runs(paths: Iterable[Path]) -> list[RunRecord]:
    """The runs in `paths` (run folders, or folders of runs), sorted by dataset, method, proportion and seed."""
    folders: list[Path] = []
    for path in paths:
        if not path.is_dir():
            raise UserError(f"{path} is not a folder; pass a run folder, or a folder that contains runs.")
        found = [path] if is_run(path) else [run.path for run in RunFolder.below(path)]
        folders += [folder for folder in found if is_run(folder) and folder not in folders]
        if not found:
            raise UserError(f"{path} contains no run (no config.yaml in it or below it).")
    return sorted((read_run(folder) for folder in folders), key=_place)


def is_run(folder: Path) -> bool:
    return RunFolder(folder).is_run and RunFolder(folder).data.is_file()


def _place(run: RunRecord) -> tuple:
    return run.dataset, method_place(run.method), run.method, run.profile, proportion_place(run.proportion), run.seed


def method_place(name: str) -> int:
    """Sort key of a method: the order of METHODS, then custom names."""
    order = list(METHODS)
    return order.index(name) if name in order else len(order)


def proportion_place(proportion: Proportion) -> tuple[int, float]:
    """Sort key: numbers, then "single", then taggers, then the labels as given."""
    if isinstance(proportion, str):
        return 1, float(list(NAMED).index(proportion))
    return (2, 0.0) if proportion is None else (0, proportion)


def proportion_label(proportion: Proportion) -> str:
    if proportion is None:
        return "given labels"
    return NAMED[proportion] if isinstance(proportion, str) else f"{100 * proportion:g} %"


def row_label(method: str, profile: str) -> str:
    return method if profile == "default" else f"{method} ({profile})"


def label(run: RunRecord) -> str:
    return row_label(run.method, run.profile)


def groups(runs: Iterable[RunRecord]) -> list[tuple[str, dict[str, RunRecord]]]:
    """For every dataset and proportion, its name and the first seed of each method."""
    found: dict[str, dict[str, RunRecord]] = {}
    for run in runs:
        found.setdefault(f"{run.dataset}, {proportion_label(run.proportion)}", {}).setdefault(label(run), run)
    return list(found.items())


# --- tidy rows: one per run and epoch rule ---


def tidy_rows(runs: Iterable[RunRecord]) -> list[dict[str, Any]]:
    """Rows with COLUMNS; scores in percent. Unfinished runs have none."""
    rows = []
    for run in runs:
        for rule in ("last", "best"):
            scores = run.scores(rule)
            if scores is not None:
                cell = (run.dataset, run.method, run.profile, run.proportion, run.seed, rule)
                measured = [_percent(scores[metric]) for metric in METRICS]
                rows.append(dict(zip(COLUMNS, (*cell, *measured, run.result["seconds"]), strict=True)))
    return rows


def _percent(value: float | None) -> float | None:
    return None if value is None else round(100 * value, 3)


def write_csv(rows: Sequence[dict[str, Any]], file: Path) -> None:
    with atomic_write(file) as temporary, temporary.open("w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)


def read_csv(file: Path) -> list[dict[str, Any]]:
    """Reads a file written by `write_csv`."""
    with file.open(newline="", encoding="utf-8") as lines:
        rows: list[dict[str, Any]] = list(csv.DictReader(lines))
    for row in rows:
        row["seed"] = int(row["seed"])
        for key in (*METRICS, "seconds"):
            row[key] = float(row[key]) if row[key] else None
        if row["proportion"] not in NAMED:
            row["proportion"] = float(row["proportion"]) if row["proportion"] else None
    return rows
