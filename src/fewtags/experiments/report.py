"""Run folders -> one self-contained HTML page: pictures, found tags, tables, curves, categories, decisions."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2

import fewtags
from fewtags.atomic import atomic_write
from fewtags.data.prepare import RunData
from fewtags.errors import UserError
from fewtags.experiments.comparison import Comparison, compare_runs
from fewtags.experiments.curves import learning_charts, method_detail, proportion_charts
from fewtags.experiments.examples import VERDICTS, Gallery, data_of, test_gallery, training_gallery
from fewtags.experiments.found import FoundTags, can_search, found_tags
from fewtags.experiments.runs import RunRecord, find_runs, groups, label, proportion_label, proportion_place, tidy_rows
from fewtags.experiments.tables import paper_tables, unique
from fewtags.progress import duration
from fewtags.wording import plural

FEW_POSITIVES = 10  # the AP of a category with fewer positives says little
ESTIMATED = ("map", "of1", "cf1", "missing")

Say = Callable[[str], None]


def write_report(
    run_folders: Sequence[Path],
    out: Path,
    title: str = "fewtags report",
    moved_to: Path | None = None,
    warn: Say = lambda _: None,
) -> Path:
    """Write a page about the runs in `run_folders` (run folders, or folders of runs) to the file `out`.

    `moved_to` is where the runs' images are now, if they were moved. `warn` receives a message about anything missing.
    """
    runs = find_runs(run_folders)
    datasets = unique(run.dataset for run in runs)
    if moved_to is not None and len(datasets) > 1:
        raise UserError(f"--data is the location of one dataset, but these runs use {' and '.join(datasets)}.")
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(out) as temporary:
        temporary.write_text(render(runs, title, moved_to, warn), encoding="utf-8")
    return out


def render(runs: Sequence[RunRecord], title: str, moved_to: Path | None = None, warn: Say = lambda _: None) -> str:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("fewtags.experiments"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    rows = tidy_rows(runs)
    shown = [pictures_of(dataset, runs, moved_to, warn) for dataset in unique(run.dataset for run in runs)]
    return environment.get_template("report.html.jinja").render(
        title=title,
        lead=lead(runs),
        summary=summary(runs),
        pictures=[one for one in shown if one.gallery or one.problem],
        found=[one for one in shown if one.found or one.how_to_find],
        decided=[gallery for one in shown for gallery in one.decided],
        marks=VERDICTS,
        tables=paper_tables(rows, "last"),
        best_tables=paper_tables(rows, "best") if any(run.result.get("epochs") for run in runs) else [],
        partly_measured=[run.dataset for run in chosen(runs) if unknown_share(run)],
        estimates=estimate_tables(runs),
        before_after=before_and_after(runs),
        proportion_charts=proportion_charts(rows),
        learning=learning_charts(runs),
        categories=category_tables(runs),
        few=FEW_POSITIVES,
        details=[detail for run in chosen(runs) if (detail := method_detail(run))],
        runs=[run_line(run) for run in runs],
        version=fewtags.__version__,
        written=datetime.now().strftime("%Y-%m-%d %H:%M"),
    )


# --- which runs ---


def chosen(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """The runs shown in detail: the first seed of each method at the lowest proportion of its dataset."""
    first: dict[tuple[str, str], RunRecord] = {}
    for run in runs:
        if run.result:
            first.setdefault((run.dataset, label(run)), run)
    return list(first.values())


def best_first(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """The mAP, estimated if the evaluation labels are partial."""
    return sorted(runs, key=lambda run: -(map_of(run) or 0.0))


def map_of(run: RunRecord) -> float | None:
    estimate = estimates_of(run).get("map")
    return estimate[0] if estimate else (run.scores("last") or {}).get("map")


def estimates_of(run: RunRecord) -> dict[str, Any]:
    """The quality estimates in result.json; empty if all labels were known."""
    return run.result.get("estimates") or {}


def unknown_share(run: RunRecord) -> float:
    """Share of unknown labels in the evaluation; 0 if the run does not say."""
    return run.data.get(run.split or "", {}).get("unknown", 0.0)


# --- sentences ---


def lead(runs: Sequence[RunRecord]) -> list[str]:
    """The summary: one or two sentences per dataset."""
    sentences = {}
    for dataset in unique(run.dataset for run in runs):
        own = best_first([run for run in chosen(runs) if run.dataset == dataset])
        fewest = min((run.proportion for run in own), key=proportion_place, default=None)
        lowest = [run for run in own if run.proportion == fewest]
        if lowest:
            sentences[dataset] = f"{learned(lowest[0])} {quality(lowest[0])}{compared(lowest)}"
    several = len(sentences) > 1
    return [f"{dataset}: {sentence}" for dataset, sentence in sentences.items()] if several else [*sentences.values()]


def learned(run: RunRecord) -> str:
    known = sum(run.data["known_positives"])
    share = f", {100 * run.proportion:g} % of those that apply" if isinstance(run.proportion, float) else ""
    tags = plural(len(run.data["categories"]), "tag")
    images = plural(run.data["train"]["images"], "image")
    return f"{label(run)} learned {tags} from {images} with {known:,} known tags{share}."


def quality(run: RunRecord) -> str:
    estimate, measured = estimates_of(run).get("map"), map_of(run)
    if estimate:
        value, low, high = (100 * number for number in estimate)
        return f"Its mean average precision is estimated at {value:.0f} % ({low:.0f} to {high:.0f} %)"
    if measured is None:
        return "It was not measured"
    images = plural(run.data[str(run.split)]["images"], f"{run.split} image")
    return f"On {images} its mean average precision is {100 * measured:.1f} %"


def compared(runs: Sequence[RunRecord]) -> str:
    """Comparison with the second-best method; `runs` are sorted, best first."""
    values = [map_of(run) for run in runs]
    if len(runs) < 2 or values[0] is None or values[1] is None:
        return "."
    return f", the best of {len(runs)} methods; next is {label(runs[1])} with {100 * values[1]:.1f} %."


def summary(runs: Sequence[RunRecord]) -> list[str]:
    """What the page covers, as sentences."""
    finished = [run for run in runs if run.result]
    sentences = []
    for dataset in unique(run.dataset for run in runs):
        own = [run for run in runs if run.dataset == dataset]
        methods = unique(label(run) for run in own)
        proportions = unique(proportion_label(run.proportion) for run in own)
        images = own[0].data
        sizes = [f"{images[split]['images']:,} {split}" for split in ("train", "val", "test") if split in images]
        what = f"{len(methods)} methods" if len(methods) > 1 else f"the method {methods[0]}"
        sentences.append(
            f"{dataset}: {what}, known tags: {', '.join(proportions)}; "
            f"{plural(len(images['categories']), 'category', 'categories')}, {', '.join(sizes)} images."
        )
    if len(finished) < len(runs):
        sentences.append(f"{len(runs) - len(finished)} of {len(runs)} runs are not finished and not in the tables.")
    return sentences


# --- pictures ---


@dataclass(frozen=True)
class Pictures:
    """The parts that need a dataset's images, or why they are missing."""

    dataset: str
    gallery: Gallery | None = None  # test images for the chosen runs, best first
    found: FoundTags | None = None  # by the best run
    how_to_find: str = ""  # instead of `found`
    decided: list[Gallery] = field(default_factory=list)  # training images, for methods with decisions
    problem: str = ""


def pictures_of(dataset: str, runs: Sequence[RunRecord], moved_to: Path | None, warn: Say) -> Pictures:
    own = best_first([run for run in chosen(runs) if run.dataset == dataset])
    if not own:
        return Pictures(dataset)
    read: dict[str, RunData] = {}  # once for all runs with the same data settings
    try:
        for run in own:
            key = data_key(run)
            read[key] = read[key] if key in read else data_of(run, moved_to)
    except UserError as error:
        warn(f"No pictures on the page: {error}")
        return Pictures(dataset, problem=str(error))
    best, data = own[0], read[data_key(own[0])]
    decided = [training_gallery(run, read[data_key(run)]) for run in own]
    soon = can_search(best, data)
    return Pictures(
        dataset,
        test_gallery(own, data),
        found_tags(best, data) if soon else None,
        "" if soon else f"Run `fewtags discover {best.folder}` to search all images and show its tags here.",
        [gallery for gallery in decided if gallery is not None],
    )


def data_key(run: RunRecord) -> str:
    return json.dumps([run.config["data"], run.seed], sort_keys=True)


# --- tables ---


@dataclass(frozen=True)
class Estimate:
    """A value with its interval, formatted."""

    value: str
    interval: str

    @classmethod
    def of(cls, numbers: Sequence[float] | None, percent: bool) -> Estimate | None:
        if not numbers:
            return None
        value, low, high = (f"{100 * number:.1f}" if percent else f"{round(number):,}" for number in numbers)
        return cls(value, f"{low} to {high}")


@dataclass(frozen=True)
class EstimateTable:
    title: str
    assumption: str
    rows: list[tuple[str, list[Estimate | None]]]  # method; mAP, OF1, CF1 in percent and the number of missing tags


def estimate_tables(runs: Sequence[RunRecord]) -> list[EstimateTable]:
    """Quality of the runs without complete evaluation labels; only the first seed."""
    tables = []
    for title, group in groups([run for run in runs if estimates_of(run)]):
        assumption = str(estimates_of(next(iter(group.values()))).get("assumption", ""))
        rows = [
            (name, [Estimate.of(estimates_of(run).get(key), percent=key != "missing") for key in ESTIMATED])
            for name, run in group.items()
        ]
        tables.append(EstimateTable(title, assumption, rows))
    return tables


def before_and_after(runs: Sequence[RunRecord]) -> list[Comparison]:
    """Of every dataset with a run that learned from a review, all runs on the same images, fewest decisions first."""
    found = []
    for dataset in unique(run.dataset for run in runs):
        group = [run for run in runs if run.dataset == dataset]
        if len(group) < 2 or not any(run.data.get("labels_from") for run in group):
            continue
        group.sort(key=lambda run: (run.data.get("labels_from") or {}).get("decisions", 0))
        with suppress(UserError):  # not finished, or measured on different images
            found.append(compare_runs([run.folder for run in group]))
    return found


@dataclass(frozen=True)
class CategoryRow:
    name: str
    known: int  # training images known to have it
    measured: int | None  # positives among the evaluation images; None if the run does not say
    aps: list[float | None]  # AP of each method in percent
    missing: Estimate | None  # unlabelled positives


@dataclass(frozen=True)
class CategoryTable:
    title: str
    split: str
    methods: list[str]
    rows: list[CategoryRow]

    @property
    def counts_measured(self) -> bool:
        return any(row.measured is not None for row in self.rows)

    @property
    def has_missing(self) -> bool:
        return any(row.missing is not None for row in self.rows)


def category_tables(runs: Sequence[RunRecord]) -> list[CategoryTable]:
    """AP and number of positives of every category, best method first; only the first seed."""
    tables = []
    for title, group in groups([run for run in runs if run.scores("last")]):
        ranked = {label(run): run for run in best_first(list(group.values()))}
        tables.append(CategoryTable(title, str(next(iter(ranked.values())).split), list(ranked), category_rows(ranked)))
    return tables


def category_rows(group: dict[str, RunRecord]) -> list[CategoryRow]:
    """Categories sorted by known positives; `group` has the best run first."""
    one = next(iter(group.values()))
    per_run = [(run.scores("last") or {})["per_category"] for run in group.values()]
    measured = one.data[str(one.split)].get("positives")
    estimated = estimates_of(one).get("categories", {})
    rows = []
    for c, (name, known) in enumerate(zip(one.data["categories"], one.data["known_positives"], strict=True)):
        missing = Estimate.of((estimated.get(name) or {}).get("missing_tags"), percent=False)
        aps = [percent(ap[c]) for ap in per_run]
        rows.append(CategoryRow(name, known, measured[c] if measured else None, aps, missing))
    return sorted(rows, key=lambda row: -row.known)


def percent(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else 100 * value


def run_line(run: RunRecord) -> dict[str, Any]:
    scores = run.scores("last")
    return {
        "dataset": run.dataset,
        "method": label(run),
        "known": proportion_label(run.proportion),
        "seed": run.seed,
        "map": None if scores is None else f"{100 * scores['map']:.1f}",
        "epochs": run.result.get("epochs", len(run.rows_of("train"))),
        "time": duration(run.result["seconds"]) if run.result else "not finished",
        "folder": str(run.folder),
    }
