"""Missing tags found by a trained model, and given tags that look wrong. Columns, not objects: there may be millions.

    run = open_run(folder)                                  # its model, its images, and their labels
    found = run.discover(limit=1000)
    found.missing.rows, found.missing.columns               # which images and categories, most certain first
    found.missing.probabilities, found.missing.similar      # how certain, and the most similar known positives
    found.doubtful                                          # the same for given tags, most doubtful first

A label counts as missing if it is unknown and more likely present than not. Its probability is not the model's own:
most methods train with unknown as absent, so their outputs are too low by an unknown factor, and they have memorised
the known labels. It comes from the closed form on the pooled features (`engine.judge`), as everywhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fewtags.data.annotations import Annotations
from fewtags.data.decisions import decided as decided_labels
from fewtags.data.prepare import RunData
from fewtags.engine.judge import Judge
from fewtags.engine.model_outputs import ModelOutputs
from fewtags.engine.own_images import Decisions, OwnImages
from fewtags.engine.record import load_run_config, load_run_data
from fewtags.engine.run_folder import RunFolder
from fewtags.errors import UserError
from fewtags.labels import PRESENT, UNKNOWN
from fewtags.models.saved import SavedModel, load_model, read_object
from fewtags.presence.answers import Correction
from fewtags.presence.estimates import estimate

NUM_SIMILAR = 3
DEPTHS = (10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
_ENTRIES_AT_ONCE = 2**24  # similarities in memory at a time
DOUBT = 1 / 3  # with a twentieth of the tags of VOC 2007 made wrong, three quarters of them and as many right ones
UNDECIDED = 2  # in `decisions`: no decision


# --- tables of labels ---


@dataclass(frozen=True)
class LabelTable:
    """Labels as columns [M]; label m is row `rows[m]` and category `columns[m]` of the searched images."""

    rows: np.ndarray
    columns: np.ndarray
    probabilities: np.ndarray  # of presence
    similar: np.ndarray | None = None  # [M, 3] rows of the most similar known positives; -1 if there are fewer
    decisions: np.ndarray | None = None  # 1, 0, -1, or UNDECIDED

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, places: np.ndarray) -> LabelTable:
        """Some rows of the table, in that order."""
        values = {name: None if value is None else value[places] for name, value in vars(self).items()}
        return LabelTable(**values)  # pyrefly: ignore[bad-argument-type]

    def expected_precision(self, depth: int) -> float:
        """Share of the first `depth` labels that are expected to be present: an estimate."""
        return float(self.probabilities[:depth].mean())

    def precision(self, truth: np.ndarray, depth: int) -> float:
        """Share of the first `depth` labels that are present in the complete labels [N, C]."""
        return float((truth[self.rows[:depth], self.columns[:depth]] == PRESENT).mean())

    def depths(self) -> list[int]:
        """Depths at which precision is reported, ending with the whole table."""
        return [*(depth for depth in DEPTHS if depth < len(self)), len(self)] if len(self) else []


class BestLabels:
    """The `limit` labels of highest score among all added; never holds much more than twice that many."""

    def __init__(self, limit: int):
        self.limit, self.num_added = limit, 0
        self.columns: list[list[np.ndarray]] = [[], [], [], []]
        self.held = 0

    def add(self, rows: np.ndarray, columns: np.ndarray, probabilities: np.ndarray, score: np.ndarray) -> None:
        self.num_added += len(rows)
        self.held += len(rows)
        for held, values in zip(self.columns, (rows, columns, probabilities, score), strict=True):
            held.append(values)
        if self.held > 2 * max(self.limit, 100_000):
            self._shrink()

    def _shrink(self) -> None:
        rows, columns, probabilities, score = (np.concatenate(held) for held in self.columns)
        # Ties are broken by row and category, so the result does not depend on the chunks.
        order = np.lexsort((columns, rows, -score))[: self.limit]
        self.columns = [[values[order]] for values in (rows, columns, probabilities, score)]
        self.held = len(order)

    def table(self) -> LabelTable:
        if not self.num_added:
            nothing = np.zeros(0, dtype=np.int64)
            return LabelTable(nothing, nothing, np.zeros(0, dtype=np.float32))
        self._shrink()
        rows, columns, probabilities, _ = (held[0] for held in self.columns)
        return LabelTable(rows, columns, probabilities)


# --- discovering ---


@dataclass(frozen=True)
class Discovery:
    missing: LabelTable
    doubtful: LabelTable
    num_missing: int  # found; the table holds the most certain ones
    num_doubtful: int
    thresholds: np.ndarray  # [C] by the probabilities shown
    expected: float  # present labels among all unknown ones: an estimate


LIKELY = 0.5  # what is more likely right than wrong is a suggestion


def discover(
    outputs: ModelOutputs,
    labels: np.ndarray,
    judge: Judge,
    *,
    own: bool = True,
    columns: Sequence[int] | None = None,
    min_probability: float | None = None,
    limit: int = 10_000,
    consistent: Callable[[np.ndarray, np.ndarray], np.ndarray] = lambda chances, rows: chances,
) -> Discovery:
    """Missing and doubtful tags of images with partial `labels` [N, C].

    `judge` comes from the training images; `own` says that these are the same images. `columns` are the categories to
    search (default: all). `consistent` makes the chances of some rows follow the tree of tags.
    """
    chosen = np.zeros(labels.shape[1], dtype=bool)
    chosen[list(range(labels.shape[1]) if columns is None else columns)] = True
    least = LIKELY if min_probability is None else min_probability
    missing, doubtful, expected = BestLabels(limit), BestLabels(limit), 0.0
    usual = judge.present(np.flatnonzero(judge.readable)).mean(0)
    for rows in outputs.chunks(np.flatnonzero(outputs.readable)):
        said = labels[rows]
        hidden, present = chances(judge, outputs, rows, own)
        hidden, unknown = consistent(hidden, rows), (said == UNKNOWN) & chosen
        expected += float(hidden[unknown].sum())
        at, column = np.nonzero(unknown & (hidden >= least))
        missing.add(rows[at], column, hidden[at, column].astype(np.float32), hidden[at, column])
        # Given tags whose probability, judged without them, is much lower than that of a random image.
        at, column = np.nonzero((said == PRESENT) & chosen & (present < DOUBT * usual))
        doubtful.add(rows[at], column, present[at, column].astype(np.float32), -present[at, column])
    thresholds = np.full(labels.shape[1], least, dtype=np.float32)
    return Discovery(missing.table(), doubtful.table(), missing.num_added, doubtful.num_added, thresholds, expected)


def chances(judge: Judge, outputs: ModelOutputs, rows: np.ndarray, own: bool) -> tuple[np.ndarray, np.ndarray]:
    """[M, C] P(present | unknown) and P(present) of some images."""
    if own:
        return judge.hidden(rows), judge.present(rows)
    return judge.elsewhere(outputs.unit_features(rows))


# --- a run ---


@dataclass(frozen=True)
class OpenRun:
    """A run, its partly labelled images, and its model's outputs for them."""

    saved: SavedModel
    annotations: Annotations  # every image of the run with unknown labels, and its given labels
    truth: np.ndarray | None  # [N, C] the complete labels, if the run is an experiment that hides some
    outputs: ModelOutputs
    judge: Judge
    answers: Correction  # of decisions
    folder: Path

    def estimates(self) -> dict[str, Any]:
        """Of what is missing, as in result.json: the run's own where nothing was decided since."""
        result = RunFolder(self.folder).result
        record = (read_object(result).get("estimates") if result.is_file() else None) or {}
        if record.get("missing") and not self.answers.number:
            return {key: record[key] for key in ("missing", "known_proportion", "assumption")}
        now = estimate(self.judge.judged(), self.answers).as_json(self.annotations.categories)
        return {key: now[key] for key in ("missing", "known_proportion", "assumption")}

    def discover(self, *, decided: Decisions | None = None, **options: Any) -> Discovery:
        """Search the run's own images; for the options see the function `discover`."""
        return self._discover(self.annotations, self.outputs, decided, own=True, **options)

    def discover_in(
        self, images: Annotations, outputs: ModelOutputs, *, decided: Decisions | None = None, **options: Any
    ) -> Discovery:
        """Search other images, labelled with the model's categories."""
        return self._discover(images, outputs, decided, own=False, **options)

    def _discover(
        self, images: Annotations, outputs: ModelOutputs, decided: Decisions | None, own: bool, **options: Any
    ) -> Discovery:
        """With the evidence and the decisions."""
        known = images.labels if not decided else decided_labels(images, decided).labels

        def consistent(chances: np.ndarray, rows: np.ndarray) -> np.ndarray:
            return self.saved.tree.raised_beside(chances, known[rows], self.saved.categories)

        def complete(table: LabelTable) -> LabelTable:
            return replace(
                table,
                similar=similar_positives(table, outputs, self.outputs, self.annotations.labels, own),
                decisions=decisions_about(table, images.images, images.categories, decided or {}),
            )

        found = discover(outputs, images.labels, self.judge, own=own, consistent=consistent, **options)
        return replace(found, missing=complete(found.missing), doubtful=complete(found.doubtful))


def open_run(
    folder: Path,
    *,
    data: RunData | None = None,
    moved_to: Path | None = None,
    decided: Decisions | None = None,
    device: str = "auto",
    quiet: bool = False,
) -> OpenRun:
    """A run's images, judged by their labels and by what was `decided` in a review of it.

    `moved_to` is where its images are now, if they were moved.
    """
    saved, config = load_model(folder), load_run_config(folder)
    own = OwnImages.of(load_run_data(folder, moved_to) if data is None else data)
    if not (own.annotations.labels == PRESENT).any():
        raise UserError(
            f"{folder} was trained without any tag, so every tag is missing; `fewtags predict` lists what the names "
            "find, and `fewtags review` asks about it."
        )
    kept_in = folder if data is None and moved_to is None else None
    outputs, judge = own.judge(lambda: saved, config, run=kept_in, device=device, quiet=quiet)
    answers = own.take(judge, decided or {})
    return OpenRun(saved, own.annotations, own.truth, outputs, judge, answers, folder)


# --- evidence ---


def similar_positives(
    table: LabelTable, outputs: ModelOutputs, known: ModelOutputs, known_labels: np.ndarray, own: bool = True
) -> np.ndarray:
    """[M, 3] rows of `known` that have the tag and are most similar to the image, by cosine; -1 if there are fewer.

    If both are the same images (`own`), an image is not evidence for itself.
    """
    similar = np.full((len(table), NUM_SIMILAR), -1, dtype=np.int64)
    readable = known.readable
    for column, places in by_category(table.columns):
        positives = np.flatnonzero((known_labels[:, column] == PRESENT) & readable)
        if not len(positives):
            continue
        for some in pieces(places, _ENTRIES_AT_ONCE // max(len(positives), 1) + 1):
            similar[some] = nearest(table.rows[some], outputs, positives, known, own)
    return similar


def nearest(
    rows: np.ndarray, outputs: ModelOutputs, positives: np.ndarray, known: ModelOutputs, own: bool
) -> np.ndarray:
    """[m, 3] the `positives` most similar to each of `rows`."""
    mine = outputs.unit_features(rows)
    cosines = torch.cat([mine @ known.unit_features(some).T for some in known.chunks(positives)], dim=1)
    if own:
        cosines[torch.from_numpy(rows[:, None] == positives)] = -torch.inf
    best, place = cosines.topk(min(NUM_SIMILAR, len(positives)), dim=1)
    found = np.where(best.isfinite().numpy(), positives[place.numpy()], -1)
    return np.pad(found, ((0, 0), (0, NUM_SIMILAR - found.shape[1])), constant_values=-1)


def by_category(columns: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Every category that occurs, and its positions."""
    order = np.argsort(columns, kind="stable")
    starts = np.flatnonzero(np.diff(columns[order], prepend=-1))
    for places in np.split(order, starts[1:]) if len(order) else ():
        yield int(columns[places[0]]), places


def pieces(places: np.ndarray, size: int) -> Iterable[np.ndarray]:
    return (places[first : first + size] for first in range(0, len(places), size))


def decisions_about(
    table: LabelTable, images: Sequence[str], categories: Sequence[str], decided: Decisions
) -> np.ndarray:
    """[M] the decision about each label, UNDECIDED if there is none."""
    if not decided:
        return np.full(len(table), UNDECIDED, dtype=np.int8)
    pairs = zip(table.rows.tolist(), table.columns.tolist(), strict=True)
    found = (decided.get((images[row], categories[column]), UNDECIDED) for row, column in pairs)
    return np.fromiter(found, dtype=np.int8, count=len(table))
