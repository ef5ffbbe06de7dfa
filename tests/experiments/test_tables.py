"""The paper's tables: means and deviations over seeds, averages, and which epoch they are about."""

from __future__ import annotations

import csv
import io
import statistics

import pytest

from fewtags.experiments.runs import COLUMNS, read_csv, write_csv
from fewtags.experiments.tables import paper_tables, to_csv, to_latex, to_markdown, write_tables


def row(
    method: str, proportion: float | None, seed: int, score: float, rule: str = "last", dataset: str = "voc"
) -> dict:
    scores = (score, score + 1, score + 2, score + 3)
    return dict(zip(COLUMNS, (dataset, method, "default", proportion, seed, rule, *scores, 60.0), strict=True))


ROWS = [
    row("caldnr", 0.1, 0, 40.0), row("caldnr", 0.1, 1, 44.0), row("caldnr", 0.5, 0, 70.0),
    row("an", 0.1, 0, 30.0), row("an", 0.1, 1, 31.0), row("an", 0.5, 0, 72.0),
    row("linear", 0.1, 0, 35.0),
]  # fmt: skip


def tables(rows, rule="last"):
    return {table.title: table for table in paper_tables(rows, rule)}


def test_mean_and_deviation_over_seeds():
    table = tables(ROWS)["mAP on voc"]
    cells = dict(table.rows)["caldnr"]
    assert cells[0].mean == statistics.fmean([40, 44])
    assert cells[0].std == pytest.approx(statistics.stdev([40, 44]))
    assert cells[1].std is None  # one seed has no deviation
    assert "1 to 2 seeds" in table.note


def test_the_average_is_over_all_proportions_or_absent():
    table = tables(ROWS)["mAP on voc"]
    assert table.columns == ["10 %", "50 %", "average"]
    assert dict(table.rows)["caldnr"][-1].mean == (42 + 70) / 2
    assert dict(table.rows)["linear"][-1] is None


def test_rows_come_in_the_papers_order():
    assert [label for label, _ in tables(ROWS)["mAP on voc"].rows] == ["linear", "an", "caldnr"]


def test_every_metric_has_its_table():
    assert list(tables(ROWS)) == ["mAP on voc", "mAP (VOC 2012) on voc", "OF1 on voc", "CF1 on voc"]
    assert dict(tables(ROWS)["CF1 on voc"].rows)["linear"][0].mean == 38.0


def test_the_ablation_is_a_table_of_its_own():
    parts = [row(method, p, 0, 50.0) for method in ("cssl", "cald", "canr") for p in (0.1, 0.5)]
    both = tables([*ROWS, *parts])
    assert [label for label, _ in both["mAP on voc, ablation of caldnr"].rows] == ["cssl", "cald", "canr", "caldnr"]
    assert "cald" not in dict(both["mAP on voc"].rows)


def test_one_proportion_puts_the_metrics_across():
    table = tables([row("an", 0.15, 0, 30.0), row("asl", 0.15, 0, 32.0)])["Scores on voc, 15 % known"]
    assert table.columns == ["mAP", "mAP (VOC 2012)", "OF1", "CF1"]


def test_the_best_epoch_is_labelled_as_chosen_on_the_measured_images():
    rows = [*ROWS, row("an", 0.1, 0, 50.0, rule="best"), row("an", 0.5, 0, 80.0, rule="best")]
    table = tables(rows, "best")["mAP on voc"]
    assert dict(table.rows)["an"][0].mean == 50.0
    assert "as in the paper" in table.note
    assert "after the last epoch" in tables(rows)["mAP on voc"].note


def test_the_three_forms():
    table = tables(ROWS)["mAP on voc"]
    markdown = to_markdown(table).splitlines()
    assert markdown[2] == "| method | 10 % | 50 % | average |"
    assert "| caldnr | **42.0 ± 2.8** | 70.0 | **56.0** |" in markdown
    assert "| linear | 35.0 | – | – |" in markdown
    assert r"caldnr & \textbf{42.0 $\pm$ 2.8} & 70.0 & \textbf{56.0} \\" in to_latex(table)
    assert r"10 \%" in to_latex(table)
    assert next(csv.reader(io.StringIO(to_csv(table)))) == ["table", "method", "10 %", "50 %", "average"]


def test_tidy_rows_survive_the_file(tmp_path):
    rows = [*ROWS, row("an", None, 0, 1.0)]
    write_csv(rows, tmp_path / "runs.csv")
    assert read_csv(tmp_path / "runs.csv") == rows
    write_tables(rows, tmp_path)
    assert "mAP on voc" in (tmp_path / "tables.md").read_text()


def test_a_bench_of_ablation_rows_alone_has_an_ablation_table_alone():
    parts = [row(method, p, 0, 50.0) for method in ("cssl", "cald", "canr") for p in (0.1, 0.5)]
    assert list(tables(parts)) == ["mAP on voc, ablation of caldnr"]


def test_names_of_data_sets_are_text_in_every_form():
    """No HTML in Markdown, no commands in LaTeX, no formula in a spreadsheet."""
    table = next(t for t in paper_tables([row("an", 0.1, 0, 30.0, dataset="=<img src=x> & \\input{x}")], "last"))
    assert "<img" not in to_markdown(table)
    assert "\\input" not in to_latex(table)
    assert r"\& \textbackslash{}input\{x\}" in to_latex(table)
    assert not any(cell.startswith("=") for line in csv.reader(io.StringIO(to_csv(table))) for cell in line)
