"""The report: one file that needs nothing else, and shows what the runs wrote down."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
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
from fewtags.experiments.curves import decision_charts, learning_charts, state_lines
from fewtags.experiments.examples import judge, what_is_done
from fewtags.experiments.report import write_report
from fewtags.experiments.runs import RunRecord, find_runs, tidy_rows


@pytest.fixture(scope="module")
def runs(patches: Annotations, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods at two proportions, from data on disk; one that does not train at one of them."""
    folder = tmp_path_factory.mktemp("report")
    patches.save(folder / "patches.jsonl")
    fine = "model.output_stride=16"  # 32 px: a map of 2x2
    config = TinyConfig.make(f"data.source={folder / 'patches.jsonl'}", "method=instant", "data.known=0.3", fine)
    train(config, folder / "runs" / "instant-0.3", quiet=True)
    for method in ("an", "caldnr"):
        for known in (0.3, 0.8):
            source = f"data.source={folder / 'patches.jsonl'}"
            more = ["method.discover_from_epoch=0"] if method == "caldnr" else []
            config = TinyConfig.make(source, f"method={method}", f"data.known={known}", fine, *more)
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
    for name in ("images", "found", "tables", "proportions", "learning", "categories", "decisions", "runs"):
        assert section(page, name)


def test_categories_stand_beside_their_numbers_of_positives(page, runs, patches):
    """Of those known in training, and of those measured on: an AP over few images says little."""
    run = find_runs([runs])[0]
    measured = patches.split("test").known_positives
    for name, count, number in zip(run.data["categories"], run.data["known_positives"], measured, strict=True):
        assert re.search(rf'<th scope="row">{name}</th><td>{count}</td>\s*<td>{number}</td>', page)


def test_it_leads_with_a_sentence_and_pictures(page, runs):
    """In words, before any table: what was learned, from what, and how good it is."""
    main = page.index("<main>")
    lead = re.search(r'<p class="lead">(.*?)</p>', page[:main]).group(1)
    best = max((run for run in find_runs([runs]) if run.proportion == 0.3), key=lambda run: run.result["test"]["map"])
    known = sum(best.data["known_positives"])
    assert lead.startswith(f"{best.method}")
    assert f"learned 3 tags from 36 images with {known} known tags, 30 % of those that apply." in lead
    assert f"On 12 test images its mean average precision is {100 * best.result['test']['map']:.1f} %" in lead
    assert "the best of 3 methods" in lead
    assert page.index('<section id="images">') < page.index("<table")


def test_what_the_acronyms_mean_stands_beside_them(page):
    scores, decisions = (section(page, name) for name in ("tables", "decisions"))
    for term, words in {
        "mAP": "mean average precision",
        "OF1": "overall F1",
        "CF1": "averaged over the categories",
    }.items():
        assert re.search(rf"<dt>{term}</dt><dd>[^<]*{words}", scores)
    assert re.search(r"<dt>theta_pos</dt><dd>the threshold θ⁺: [^<]*treated as present", decisions)


def section(page: str, name: str) -> str:
    return page[page.index(f'<section id="{name}">') :].split("</section>")[0]


def test_thresholds_are_there_for_who_opens_them(page):
    """Not open by default: they are many and for few readers."""
    before = section(page, "decisions").split("Thresholds of each category")[0]
    assert before.rstrip().endswith("<details>\n      <summary>")


def test_thresholds_of_each_category_are_drawn(page):
    assert all(f"thresholds of {name}" in page for name in ("red", "green", "blue"))
    assert "theta_pos" in page
    assert "theta_neg" in page


def test_the_legend_names_only_the_lines_that_a_method_has():
    """CST, for one, has no theta_neg; what it has keeps the style that it has everywhere."""
    assert state_lines([{"epoch": 1, "theta_pos": [0.5], "s_neg": [0.1]}]) == {"theta_pos": 0, "s_neg": 3}


def test_images_and_heat_maps_are_embedded(page):
    """Of each of eight test images, and of up to two of its tags."""
    text = section(page, "images")
    assert "The heat maps show the evidence for a tag." in text
    maps = text.count('alt="Heat map')
    assert text.count("data:image/jpeg;base64,") == 8 + maps
    assert 8 <= maps <= 16


def test_a_map_of_one_place_is_not_shown(patches, tmp_path):
    """It would be an evenly dark picture under "where it looked"."""
    patches.save(tmp_path / "patches.jsonl")
    config = TinyConfig.make(f"data.source={tmp_path / 'patches.jsonl'}", "method=refined", "train.epochs=1")
    train(config, tmp_path / "run", quiet=True)
    page = write_report([tmp_path / "run"], tmp_path / "report.html").read_text()
    assert page.count("data:image/jpeg") >= 8
    assert "heat maps" not in page
    assert '<section id="learning">' not in page  # one epoch is a dot, not a curve
    assert "<svg" not in section(page, "images")


def decided(runs: Path, **logged: list[float]) -> RunRecord:
    """A run that logged these numbers, one an epoch."""
    epochs = range(len(logged["found_labels"]))
    rows = [{"kind": "train", "epoch": e + 1, **{key: values[e] for key, values in logged.items()}} for e in epochs]
    return replace(find_runs([runs])[0], rows=rows)


def test_what_is_found_and_rejected_alike_is_one_thing(runs):
    """`refined` stops training as absent exactly what it trains as present."""
    right = {f"{kind}_{what}": [0.5, 0.6] for kind in ("found", "rejected") for what in ("precision", "recall")}
    counts, quality = decision_charts(decided(runs, found_labels=[5, 7], rejected_labels=[5, 7], **right))
    assert re.findall('data-series="(.*?)"', counts) == ["found"]
    assert re.findall('data-series="(.*?)"', quality) == ["precision", "recall"]
    same = np.eye(3, dtype=bool)
    assert what_is_done({"found": same, "rejected": same}) == {
        "found": "trained as present and no longer trained as absent"
    }


def test_both_decisions_are_drawn_where_they_differ(runs):
    right = {f"{kind}_{what}": [0.5, 0.6] for kind in ("found", "rejected") for what in ("precision", "recall")}
    for rejected in ([5, 8], [0, 0]):
        found = [5, 7] if any(rejected) else [0, 0]
        counts, quality = decision_charts(decided(runs, found_labels=found, rejected_labels=rejected, **right))
        assert re.findall('data-series="(.*?)"', counts) == ["found", "rejected"]
        assert len(re.findall("data-series", quality)) == 4
    same = np.eye(3, dtype=bool)
    assert list(what_is_done({"found": same, "rejected": ~same})) == ["found", "rejected"]
    assert what_is_done({"rejected": same}) == {"rejected": "no longer trained as absent"}


def test_a_method_without_epochs_is_a_line_in_the_learning_curves(runs):
    run = next(run for run in find_runs([runs]) if run.method == "instant")
    chart = next(group for group in learning_charts(find_runs([runs])) if "30 %" in group.title).charts[0]
    drawn = re.search(r'data-series="instant"><polyline[^>]*points="([\d.]+),([\d.]+) ([\d.]+),([\d.]+)"/></g>', chart)
    left, y, right, same = map(float, drawn.groups())
    assert right > left
    assert y == same
    assert learning_charts([run]) == []  # alone it is no curve


def test_it_works_without_the_images(runs, tmp_path):
    """Moved or deleted data takes the pictures away, nothing else."""
    (tmp_path / "run").mkdir()
    for file in (runs / "an-0.3").iterdir():
        if file.is_file():
            text = file.read_bytes().replace(b"patches.jsonl", b"gone.jsonl")
            (tmp_path / "run" / file.name).write_bytes(text)
    said: list[str] = []
    page = write_report([tmp_path / "run"], tmp_path / "report.html", warn=said.append).read_text()
    assert "data:image" not in page
    assert '<section id="categories">' in page
    assert len(said) == 1
    assert re.search(r"No pictures: .*gone\.jsonl does not exist\..*pass its new location with --data\.", page)


# --- tags found ---


def test_found_tags_are_counted_and_shown(page, runs):
    """Per category, against the truth that was hidden, with the pictures of the most certain ones."""
    text = section(page, "found")
    counts = re.search(r"found ([\d,]+) missing tags?\. ([\d,]+) of them .* ([\d,]+) were hidden", text)
    found, right, hidden = (int(number.replace(",", "")) for number in counts.groups())
    rows = re.findall(r'<th scope="row">(\w+)</th><td>(\d+)</td><td>(\d+)</td>\s*<td>(\d+)</td><td>(\d+)</td>', text)
    assert {row[0] for row in rows} == {"red", "green", "blue"}
    assert [sum(int(row[k]) for row in rows) for k in (2, 3, 4)] == [found, right, hidden]
    assert right <= found
    assert "data:image/jpeg" in text


def test_many_images_are_not_looked_through_for_the_page(runs, tmp_path, monkeypatch):
    """Unless `fewtags discover` did so before: then it takes no time."""
    monkeypatch.setattr("fewtags.experiments.found.FEW_IMAGES", 10)
    shutil.copytree(runs / "instant-0.3", tmp_path / "run", ignore=shutil.ignore_patterns("outputs"))
    page = write_report([tmp_path / "run"], tmp_path / "report.html").read_text()
    assert f"`fewtags discover {tmp_path / 'run'}` to search all images" in section(page, "found")
    (tmp_path / "run/outputs/kept").mkdir(parents=True)
    (tmp_path / "run/outputs/kept/about.json").write_text("{}")
    assert "<table" in section(write_report([tmp_path / "run"], tmp_path / "report.html").read_text(), "found")


def test_pictures_that_moved_can_be_named(patches, tmp_path, cli):
    shutil.copytree(patches.root, tmp_path / "photos")
    replace(patches, root=tmp_path / "photos").save(tmp_path / "patches.jsonl")
    train(TinyConfig.make(f"data.source={tmp_path / 'patches.jsonl'}"), tmp_path / "run", quiet=True)
    (tmp_path / "photos").rename(tmp_path / "archive")
    page = tmp_path / "report.html"
    answer = cli("report", tmp_path / "run", "--out", page)
    assert answer.code == 0
    assert "No pictures on the page: " in answer.err
    answer = cli("report", tmp_path / "run", "--out", page, "--data", tmp_path / "archive")
    assert (answer.code, answer.err) == (0, "")
    assert "data:image/jpeg" in page.read_text()


# --- runs whose labels to measure with are partial ---


@pytest.fixture
def partial(patches, tmp_path) -> Path:
    """A run measured on labels of which most are unknown, with estimates as result.json has them."""
    labels = np.where(patches.labels == -1, 0, patches.labels).astype(np.int8)
    labels[::3] = 0  # so that tags are missing
    replace(patches, labels=labels).save(tmp_path / "patches.jsonl")
    made = f"data.source={tmp_path / 'patches.jsonl'}"
    config = TinyConfig.make("method=instant", made, "data.known=null", "head.known_proportion=0.5")
    train(config, tmp_path / "run", quiet=True)
    result = json.loads((tmp_path / "run/result.json").read_text())
    result["estimates"] = {
        "num_images": 12, "map": [0.712, 0.65, 0.774], "of1": [0.6, 0.5, 0.7], "cf1": [0.55, 0.45, 0.65],
        "missing": [1234.4, 1000.0, 1500.0], "assumption": "Estimated, not measured.",
        "categories": {"red": {"missing_tags": [7.6, 5.0, 10.0]}, "green": {"missing_tags": None}},
    }  # fmt: skip
    (tmp_path / "run/result.json").write_text(json.dumps(result))
    return tmp_path / "run"


def test_estimates_are_shown_as_estimates(partial, tmp_path):
    page = write_report([partial], tmp_path / "report.html").read_text()
    assert "Its mean average precision is estimated at 71 % (65 to 77 %)." in page
    scores = section(page, "tables")
    assert "≈ 71.2 <small>65.0 to 77.4</small>" in scores
    assert "≈ 1,234 <small>1,000 to 1,500</small>" in scores
    assert "Estimated, not measured." in scores
    assert "these scores are too low" in scores
    assert "≈ 8 <small>5 to 10</small>" in section(page, "categories")


def test_a_tag_that_nobody_spoke_of_is_not_wrong_on_the_page(partial, tmp_path):
    page = write_report([partial], tmp_path / "report.html").read_text()
    assert 'class="tag wrong"' not in page
    assert "✗" not in page
    assert 'class="tag unknown"' in page
    assert "not known whether it applies" in page


def test_finds_are_expected_to_be_right_where_nobody_knows(partial, tmp_path):
    text = section(write_report([partial], tmp_path / "report.html").read_text(), "found")
    assert "of them are right (an estimate)." in text
    assert '<th scope="col">expected right</th>' in text
    assert '<th scope="col">right</th>' not in text


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
    with pytest.raises(UserError, match="contains no run"):
        write_report([tmp_path], tmp_path / "report.html")


# --- charts ---


def test_ticks_are_round_and_span_the_data():
    assert nice_ticks(0.3, 9.6) == [0, 2, 4, 6, 8, 10]
    assert nice_ticks(76.2, 84.6) == [76, 78, 80, 82, 84, 86]


def test_a_constant_line_can_be_drawn_and_a_dot_alone_is_no_chart():
    constant, dot = Series("a", [(1, 5.0), (2, 5.0)], 0), Series("b", [(1, 5.0)], 1)
    assert "nan" not in line_chart([constant], title="t", x_label="x", y_label="y")
    assert not line_chart([dot, dot], title="t", x_label="x", y_label="y")
    assert 'data-series="b"' in line_chart([constant, dot], title="t", x_label="x", y_label="y")


def test_a_level_goes_along_the_whole_axis():
    series = [Series("trained", [(2, 1.0), (8, 3.0)], 0), Series("level", [(0, 2.0)], 1, level=True)]
    chart = line_chart(series, title="t", x_label="x", y_label="y")
    lines = dict(re.findall(r'data-series="(\w+)"><polyline[^>]*points="([^"]*)"', chart))
    xs = {name: [point.split(",")[0] for point in points.split()] for name, points in lines.items()}
    assert xs["level"] == xs["trained"]
    assert not line_chart(series[1:], title="t", x_label="x", y_label="y")


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


def test_tags_are_judged_by_what_is_known():
    """Given and there, given and known not to be there, given and unknown; not given although known to be there."""
    probabilities, labels = np.array([0.9, 0.7, 0.6, 0.2, 0.1]), np.array([1, -1, 0, 1, 0])
    tags = judge(probabilities, labels, list("abcde"), np.full(5, 0.5))
    assert [(tag.name, tag.verdict) for tag in tags] == [
        ("a", "right"), ("b", "wrong"), ("c", "unknown"), ("d", "missed"),
    ]  # fmt: skip


def test_a_tag_is_given_from_its_own_threshold_on():
    tags = judge(np.array([0.4, 0.4]), np.array([0, 0]), ["a", "b"], np.array([0.3, 0.5]))
    assert [tag.name for tag in tags] == ["a"]
