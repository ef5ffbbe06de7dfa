"""A grid file: which runs it plans, where they go, and which setting wins."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import PROJECT
from fewtags.errors import UserError
from fewtags.experiments.grid import read_grid
from fewtags.methods import METHODS

GRID = """
settings: {model: {pretrained: false}, train: {epochs: 3, lr: 0.01}}
datasets:
  photos: {data: {source: photos}}
methods:
  linear:
  an:
  asl: {train: {lr: 0.02}}
  asl-paper: {method: {name: asl, profile: paper}}
parts:
  - {proportions: [0.1, 0.5], seeds: [0]}
  - {methods: [an], proportions: [0.1, null], seeds: [0, 1]}
"""


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    (tmp_path / "grid.yaml").write_text(GRID)
    return tmp_path / "grid.yaml"


def planned(file: Path, *overrides: str):
    return {run.name: run for run in read_grid(file, overrides)}


def test_every_run_is_planned_once_under_a_stable_name(grid):
    names = list(planned(grid))
    assert len(names) == 4 * 2 + 3  # the second part adds another seed, and the labels as they come
    assert names[:3] == [
        "photos/linear/known-10/seed-0", "photos/linear/known-50/seed-0", "photos/an/known-10/seed-0",
    ]  # fmt: skip
    assert names[-3:] == [
        "photos/an/known-10/seed-1", "photos/an/known-given/seed-0", "photos/an/known-given/seed-1",
    ]  # fmt: skip


def test_later_settings_win(grid):
    runs = planned(grid, "train.batch_size=7")
    asl = runs["photos/asl/known-10/seed-0"].config
    assert (asl.train.lr, asl.train.epochs, asl.train.batch_size) == (0.02, 3, 7)
    assert runs["photos/an/known-10/seed-0"].config.train.lr == 0.01
    assert planned(grid, "train.lr=0.5")["photos/asl/known-10/seed-0"].config.train.lr == 0.5


def test_a_method_may_have_another_name_and_a_profile(grid):
    run = planned(grid)["photos/asl-paper/known-10/seed-0"]
    assert (run.config.method_name, run.config.profile) == ("asl", "paper")
    assert run.cell["method"] == "asl-paper"


def test_a_seed_draws_other_known_labels_too(grid):
    config = planned(grid)["photos/an/known-10/seed-1"].config
    assert (config.seed, config.data.mask_seed, config.data.known) == (1, 1, 0.1)


def test_only_the_settings_under_vary_take_the_seed(grid):
    grid.write_text(GRID + "vary: [data.mask_seed]\n")
    config = planned(grid)["photos/an/known-10/seed-1"].config
    assert (config.seed, config.data.mask_seed) == (0, 1)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("methods: {an: }\ndatasets: {a: }\nparts: [{methods: [am]}]", "has an unknown method 'am'; choose from: an"),
        ("methods: {am: }\ndatasets: {a: }\nparts: [{}]", "'am'"),
        ("method: {an: }\ndatasets: {a: }\nparts: [{}]", "did you mean 'methods'"),
        ("methods: {an: {train: {lrr: 1}}}\ndatasets: {a: }\nparts: [{}]", "'lrr'; did you mean 'lr'"),
        ("methods: {an: }\ndatasets: {a: }\nparts: []", "defines no runs"),
        ("methods: {an: }\ndatasets: {a: }\nparts: [{settings: {am: {}}}]", "has an unknown method 'am'"),
    ],
)
def test_a_wrong_grid_is_explained(wrong, message, tmp_path):
    (tmp_path / "grid.yaml").write_text(wrong)
    with pytest.raises(UserError, match=message):
        read_grid(tmp_path / "grid.yaml")


def test_a_part_has_settings_of_its_own_for_a_method(tmp_path):
    (tmp_path / "grid.yaml").write_text(
        "datasets: {a: }\nmethods: {an: {train: {lr: 0.5, epochs: 3}}, asl: }\nparts:\n"
        "  - {proportions: [0.1], settings: {an: {train: {lr: 0.25}}}}\n  - {proportions: [0.1, 0.5]}\n"
    )
    runs = {(run.method, run.proportion): run.config.train for run in read_grid(tmp_path / "grid.yaml")}
    assert (runs["an", 0.1].lr, runs["an", 0.1].epochs) == (0.25, 3)
    assert (runs["an", 0.5].lr, runs["asl", 0.1].lr) == (0.5, 1e-4)


def test_the_measured_table_covers_what_it_must():
    """All nine methods, the ablation rows, `instant` and the yardstick at five proportions; three seeds at 10, 30 %."""
    runs = read_grid(PROJECT / "configs/bench-voc2007-256.yaml")
    cells = {(run.method, run.proportion, run.seed) for run in runs}
    compared = ["linear", "instant", "an", "focal", "asl", "ssgrl", "kggr", "cst", "ll-r", "role"]
    parts = [name for name in METHODS if name.startswith("refined")]
    methods = [*compared, *parts, "instant-refined"]
    ours = ("instant", "instant-no-names", "refined", "refined-no-names")
    paper = ("cssl", "cald-no-catu", "cald", "canr-no-catu", "canr", "caldnr", "caldnr-paper-head")
    assert {method for method, *_ in cells} >= {*methods, *ours, *paper, "names", "instant-windows"}
    assert {(m, 0.1, s) for m in METHODS for s in (0, 1, 2)} <= cells  # under its own name
    assert {(m, p, 0) for m in ("caldnr", "caldnr-paper-head") for p in (0.1, 0.3, 0.5, 0.7, 0.9)} <= cells
    assert {cell for cell in cells if cell[0] == "names"} == {
        ("names", 0, 0)
    }  # without labels there is nothing to draw
    assert {(m, p / 10, s) for m in ours for p in range(1, 10) for s in (0, 1, 2)} <= cells
    knowing = {run.method for run in runs if getattr(run.config.head, "names", "none") == "auto"}
    assert knowing == {"instant", "refined", "names", "instant-windows"}
    assert {(m, p, 0) for m in methods for p in (0.1, 0.3, 0.5, 0.7, 0.9)} <= cells
    assert {(m, p, s) for m in methods for p in (0.1, 0.3) for s in (0, 1, 2)} <= cells
    judged = ("linear", "instant", "refined")
    assert {(m, p, s) for m in judged for p in (0.1, 0.3, 0.5, 0.9) for s in (0, 1, 2)} <= cells
    assert {run.config.seed for run in runs} == {0}  # one feature cache serves all
