"""The report: one file that needs nothing else, and shows what the runs wrote down."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from conftest import TinyConfig
from fewtags.cli import app
from fewtags.data.annotations import Annotations
from fewtags.engine.training import train
from fewtags.errors import UserError
from fewtags.experiments.charts import Series, line_chart, nice_ticks, spread_out
from fewtags.experiments.examples import judge
from fewtags.experiments.report import state_lines, write_report
from fewtags.experiments.runs import find_runs, tidy_rows


@pytest.fixture(scope="module")
def runs(patches: Annotations, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods at two proportions, from data on disk."""
    folder = tmp_path_factory.mktemp("report")
    patches.save(folder / "patches.jsonl")
    for method in ("an", "caldnr"):
        for known in (0.3, 0.8):
            source = f"data.source={folder / 'patches.jsonl'}"
            more = ["method.profile=relative", "method.discover_from_epoch=0"] if method == "caldnr" else []
            config = TinyConfig.make(source, f"method={method}", f"data.known={known}", *more)
            train(config, folder / "runs" / f"{method}-{known}", quiet=True)
    return folder / "runs"


@pytest.fixture(scope="module")
def page(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("page") / "report.html"
    return write_report([runs], out, title="Patches & colours").read_text(encoding="utf-8")


def test_the_page_needs_nothing_else(page):
    addresses = re.findall(r"""(?:src|href)=["']([^"']*)""", page)
    assert addresses
    assert all(address.startswith(("#", "data:")) for address in addresses)
    assert "url(" not in page
    assert "@import" not in page


def test_the_title_is_escaped(page):
    assert "<title>Patches &amp; colours</title>" in page


def test_it_shows_the_numbers_of_the_runs(page, runs):
    for row in tidy_rows(find_runs([runs])):
        if row["epoch_rule"] == "last":
            assert f">{row['map']:.1f}</td>" in page
    for section in ("tables", "proportions", "learning", "categories", "decisions", "images", "runs"):
        assert f'<section id="{section}">' in page


def test_categories_stand_beside_their_known_positives(page, runs):
    run = find_runs([runs])[0]
    known = dict(zip(run.data["categories"], run.data["known_positives"], strict=True))
    for name, count in known.items():
        assert re.search(rf'<th scope="row">{name}</th><td>{count}</td>', page)


def test_thresholds_of_each_category_are_drawn(page):
    assert all(f"thresholds of {name}" in page for name in ("red", "green", "blue"))
    assert "theta_pos" in page
    assert "theta_neg" in page


def test_the_legend_names_only_the_lines_that_a_method_has():
    """CALDNR's default profile has no theta_neg; what it has keeps the style that it has everywhere."""
    assert state_lines([{"epoch": 1, "theta_pos": [0.5], "s_neg": [0.1]}]) == {"theta_pos": 0, "s_neg": 3}


def test_images_and_attention_are_embedded(page):
    assert page.count("data:image/jpeg;base64,") >= 8 * 3  # eight test images, each with two maps
    assert "Where caldnr looked" in page or "where caldnr looked" in page


def test_it_works_without_the_images(runs, tmp_path):
    """Moved or deleted data takes the pictures away, nothing else."""
    (tmp_path / "run").mkdir()
    for file in (runs / "an-0.3").iterdir():
        if file.is_file():
            text = file.read_bytes().replace(b"patches.jsonl", b"gone.jsonl")
            (tmp_path / "run" / file.name).write_bytes(text)
    page = write_report([tmp_path / "run"], tmp_path / "report.html").read_text()
    assert "data:image" not in page
    assert '<section id="categories">' in page


def test_a_run_under_way_is_shown_as_not_finished(runs, tmp_path):
    (tmp_path / "run").mkdir()
    for name in ("config.yaml", "data.json", "metrics.jsonl"):
        (tmp_path / "run" / name).write_bytes((runs / "an-0.3" / name).read_bytes())
    page = write_report([tmp_path / "run"], tmp_path / "report.html").read_text()
    assert "not finished" in page
    assert '<section id="learning">' in page


def test_the_command_writes_page_and_tables(runs, tmp_path):
    command = ["report", str(runs / "an-0.3"), "--out", str(tmp_path / "r.html"), "--tables", str(tmp_path / "tables")]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert result.stdout.strip().endswith("r.html")
    assert {file.suffix for file in (tmp_path / "tables").iterdir()} == {".md", ".csv", ".tex"}


def test_a_folder_without_runs_is_explained(tmp_path):
    with pytest.raises(UserError, match="holds no run"):
        write_report([tmp_path], tmp_path / "report.html")


# --- charts ---


def test_ticks_are_round_and_span_the_data():
    assert nice_ticks(0.3, 9.6) == [0, 2, 4, 6, 8, 10]
    assert nice_ticks(76.2, 84.6) == [76, 78, 80, 82, 84, 86]


def test_a_constant_line_and_a_single_point_can_be_drawn():
    for points in ([(1, 5.0), (2, 5.0)], [(1, 5.0)]):
        assert "nan" not in line_chart([Series("a", points, 0)], title="t", x_label="x", y_label="y")


def test_names_at_line_ends_never_overlap():
    placed = spread_out([10, 11, 12, 90, 91], top=10, bottom=100)
    assert all(b - a >= 13.9 for a, b in pairwise(placed))
    assert placed[-1] <= 100


def test_a_line_is_told_by_more_than_its_colour():
    """Colours repeat after eight lines; then the dash pattern differs."""
    series = [Series(f"method {k}", [(1, k), (2, k)], k) for k in range(9)]
    chart = line_chart(series, title="t", x_label="x", y_label="y")
    first, ninth = (re.search(rf'data-series="method {k}">(<polyline[^>]*>)', chart).group(1) for k in (0, 8))
    assert "dasharray" not in first
    assert "dasharray" in ninth
    assert chart.count("method 8</text>") == 1


def test_tags_are_judged():
    tags = judge(np.array([0.9, 0.7, 0.2, 0.1]), np.array([1, -1, 1, -1]), ["a", "b", "c", "d"])
    assert [(tag.name, tag.verdict) for tag in tags] == [("a", "right"), ("b", "wrong"), ("c", "missed")]
