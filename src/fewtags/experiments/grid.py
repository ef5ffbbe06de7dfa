"""A grid of runs from a YAML file: datasets x methods x known proportions x seeds.

    settings: {train: {epochs: 20}}                      # of every run, as in a config file
    datasets:
      voc2007: {data: {source: VOCdevkit}}               # a name, and settings
    methods:
      linear:                                            # of `fewtags methods`
      an:
      caldnr: {train: {lr: 2.0e-4}}                      # settings of this method's runs
      caldnr-paper: {method: {name: caldnr, profile: paper}}
    parts:                                               # which combinations are run
      - {proportions: [0.1, 0.5, 0.9], seeds: [0]}
      - {methods: [an, caldnr], proportions: [0.1], seeds: [1, 2], settings: {an: {train: {lr: 3.0e-5}}}}
    vary: [seed, data.mask_seed]                         # the settings that are set to the seed

Precedence: settings < dataset < method < the part's settings of the method < command-line overrides < proportion
and seed. A run listed in two parts uses the settings of the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from fewtags.config import RunConfig, merge, nest, parse_override, read_yaml, resolve, validate
from fewtags.data.partial_labels import TaggerName
from fewtags.errors import UserError, did_you_mean
from fewtags.experiments.runs import Proportion
from fewtags.settings import Settings


class Part(Settings):
    datasets: list[str] | None = None
    """Names of datasets; default: all."""
    methods: list[str] | None = None
    """Names of methods; default: all."""
    proportions: tuple[float | TaggerName | Literal["single"] | None, ...] = (None,)
    """Shares of positives that stay known, "single", or a tagger as in data.known; default: the labels as given."""
    seeds: tuple[int, ...] = (0,)
    settings: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Settings of a method's runs in this part only, by method name."""


class GridFile(Settings):
    settings: dict[str, Any] | None = None
    datasets: dict[str, dict[str, Any] | None]
    methods: dict[str, dict[str, Any] | None]
    parts: list[Part]
    vary: tuple[str, ...] = ("seed", "data.mask_seed")


@dataclass(frozen=True)
class PlannedRun:
    dataset: str
    method: str  # the grid's name for it
    proportion: Proportion
    seed: int
    config: RunConfig

    @property
    def name(self) -> str:
        """Its folder within the bench's folder; independent of the rest of the grid."""
        known = "given" if self.proportion is None else self.proportion
        known = f"{100 * known:g}" if isinstance(known, float) else known
        return f"{self.dataset}/{self.method}/known-{known}/seed-{self.seed}"

    @property
    def cell(self) -> dict[str, Any]:
        """Its name in the tables."""
        return {
            "dataset": self.dataset,
            "method": self.method,
            "profile": self.config.profile,
            "proportion": self.proportion,
            "seed": self.seed,
        }

    def __str__(self) -> str:
        return self.name.replace("/", " ")


def read_grid(file: Path, overrides: Iterable[str] = ()) -> list[PlannedRun]:
    """The runs of a grid file, each once, in the file's order."""
    grid = _parse(file)
    top: dict[str, Any] = {}
    for override in overrides:
        top = merge(top, parse_override(override))
    runs: dict[str, PlannedRun] = {}
    for part in grid.parts:
        for run in _runs_of(grid, part, top, file):
            runs.setdefault(run.name, run)
    return list(runs.values())


def named_like(runs: Sequence[PlannedRun], texts: Sequence[str]) -> list[PlannedRun]:
    """Those with any of the texts in their name; all without texts."""
    for text in texts:
        if not any(text in run.name for run in runs):
            raise UserError(f"No run of the grid has '{text}' in its name; the first one is {runs[0].name}.")
    return [run for run in runs if not texts or any(text in run.name for text in texts)]


def _parse(file: Path) -> GridFile:
    content = read_yaml(file)
    for key in content:
        if key not in GridFile.model_fields:
            raise UserError(f"{file} has an unknown entry '{key}'; {did_you_mean(key, GridFile.model_fields)}")
    for key in ("datasets", "methods", "parts"):
        if not content.get(key):
            raise UserError(f"{file} defines no runs: it has no {key}.")
    grid = validate(GridFile, content, "grid")
    assert isinstance(grid, GridFile)
    return grid


def _runs_of(grid: GridFile, part: Part, overrides: Mapping[str, Any], file: Path) -> Iterable[PlannedRun]:
    _named(list(part.settings), grid.methods, "method", file)
    for dataset in _named(part.datasets, grid.datasets, "dataset", file):
        for method in _named(part.methods, grid.methods, "method", file):
            for proportion in part.proportions:
                for seed in part.seeds:
                    yield _plan(grid, part, overrides, dataset, method, proportion, seed)


def _named(names: list[str] | None, table: Mapping[str, Any], kind: str, file: Path) -> list[str]:
    for name in names or ():
        if name not in table:
            raise UserError(f"A part of {file} has an unknown {kind} '{name}'; {did_you_mean(name, table)}")
    return list(table) if names is None else names


def _plan(
    grid: GridFile,
    part: Part,
    overrides: Mapping[str, Any],
    dataset: str,
    method: str,
    proportion: Proportion,
    seed: int,
) -> PlannedRun:
    values = merge({"method": {"name": method}}, grid.settings or {})
    own = (grid.methods[method], part.settings.get(method))
    for layer in (grid.datasets[dataset], *own, overrides, nest("data.known", proportion)):
        values = merge(values, layer or {})
    for setting in grid.vary:
        values = merge(values, nest(setting, seed))
    return PlannedRun(dataset, method, proportion, seed, resolve(values))
