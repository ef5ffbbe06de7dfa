"""The paper's own numbers beside measured ones, and the grids that reproduce its tables."""

from pathlib import Path

import pytest

from fewtags.experiments.curves import proportion_charts
from fewtags.experiments.grid import read_grid
from fewtags.experiments.published import published, published_numbers
from fewtags.experiments.tables import paper_tables

CONFIGS = Path(__file__).parents[2] / "configs"


def test_published_numbers_are_all_of_table_1_and_table_2():
    numbers = published_numbers()
    assert len(numbers) == 3 * (9 * 9 + 5)  # the last row of Table 2 is a cell of Table 1
    assert published("coco2014", "caldnr", 0.5) == 74.1
    assert published("voc2007", "caldnr", None) is None


@pytest.mark.parametrize("dataset", ["voc2007", "coco2014", "vg200"])
def test_one_grid_has_both_tables_of_a_dataset(dataset):
    runs = read_grid(CONFIGS / f"paper-{dataset}.yaml")
    assert {(run.dataset, run.method, run.proportion) for run in runs} == {
        cell for cell in published_numbers() if cell[0] == dataset
    }
    assert {run.config.profile for run in runs} == {"paper"}
    assert {run.config.train.precision for run in runs} == {"fp32"}


def row(method, proportion, rule, profile="paper"):
    more = 2.0 if rule == "best" else 0.0
    scores = {"map": 50.0, "map_voc12": 51.0 + more, "of1": 40.0 + more, "cf1": 30.0, "seconds": 1.0}
    cell = {"dataset": "voc2007", "method": method, "profile": profile, "proportion": proportion, "seed": 0}
    return {**cell, "epoch_rule": rule, **scores}


def test_the_published_row_stands_under_ours_where_it_can_be_compared():
    rows = [row(method, p, rule) for method in ("an", "caldnr") for p in (0.1, 0.2) for rule in ("last", "best")]
    labels = {
        (rule, table.title): [label for label, _ in table.rows]
        for rule in ("last", "best")
        for table in paper_tables(rows, rule)
    }
    ours = ["an (paper)", "caldnr (paper)"]
    assert labels["best", "mAP (VOC 2012) on voc2007"] == [ours[0], "an, published", ours[1], "caldnr, published"]
    assert all(names == ours for (rule, title), names in labels.items() if (rule, title[:8]) != ("best", "mAP (VOC"))


def test_a_published_number_is_never_marked_as_the_highest():
    rows = [row(method, p, rule) for method in ("an", "caldnr") for p in (0.1, 0.2) for rule in ("last", "best")]
    table = next(table for table in paper_tables(rows, "best") if table.title.startswith("mAP (VOC"))
    marked = {label: any(best for _, best in cells) for label, cells in table.cells()}
    assert marked == {
        "an (paper)": True, "an, published": False, "caldnr (paper)": True, "caldnr, published": False
    }  # fmt: skip


def test_one_proportion_alone_has_its_published_number_too():
    rows = [row("an", 0.1, rule) for rule in ("last", "best")]
    (table,) = paper_tables(rows, "best")
    assert [label for label, _ in table.rows] == ["an (paper)", "an, published"]
    number = published("voc2007", "an", 0.1)
    assert [text for text, _ in table.cells()[1][1]] == ["–", f"{number:.1f}", "–", "–"]
    assert [label for label, _ in paper_tables(rows, "last")[0].rows] == ["an (paper)"]


def test_the_figure_has_both_epochs_and_what_was_published():
    rows = [row(m, p, rule) for m in ("an", "caldnr") for p in (0.1, 0.2) for rule in ("last", "best")]
    last, best = proportion_charts(rows)
    assert (last.title, best.title) == ("voc2007, last epoch", "voc2007, best epoch")
    assert ["OF1" in chart for chart in last.charts] == [False, True, False]
    assert ["OF1" in chart for chart in best.charts] == [False, True, False, False]
    assert "mAP (VOC 2012) published" in best.charts[-1]
    own = [row("an", p, rule, "default") for p in (0.1, 0.2) for rule in ("last", "best")]
    assert not any("published" in chart for chart in proportion_charts(own)[1].charts)


def test_the_ablation_is_shown_where_all_its_rows_are():
    """Table 1 has the whole method at nine proportions, Table 2 all of its parts at one."""
    rows = [row("caldnr", p, "last") for p in (0.1, 0.5)] + [row(m, 0.5, "last") for m in ("cssl", "cald", "canr")]
    table = next(table for table in paper_tables(rows, "last") if "ablation" in table.title)
    assert table.columns == ["50 %", "average"]
    assert len(table.rows) == 4
