"""Missing tags found by a trained model, and given tags that look wrong. Columns, not objects: there may be millions.

    run = open_run(folder)                                  # its model, its images, and their labels
    found = run.discover(limit=1000)
    found.missing.rows, found.missing.columns               # which images and categories, most certain first
    found.missing.probabilities, found.missing.similar      # how certain, and the most similar known positives
    found.doubtful                                          # the same for given tags, most doubtful first

A label counts as missing if it is unknown and the model predicts the tag. Its probability is not the
model's own: most methods train with unknown as absent, so their outputs are too low by an unknown factor, and they
have memorised the known labels. It comes from the closed form on the pooled features (`engine.left_out`), averaged over
all labels that the model ranks similarly.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fewtags.data.annotations import Annotations
from fewtags.data.prepare import RunData
from fewtags.engine.left_out import LeftOut
from fewtags.engine.model_outputs import ModelOutputs, model_outputs
from fewtags.engine.quality import estimated_proportion
from fewtags.engine.record import load_run_config, load_run_data
from fewtags.engine.run_folder import RunFolder
from fewtags.errors import UserError
from fewtags.estimates import TINY, rank_edges
from fewtags.labels import PRESENT, UNKNOWN
from fewtags.models.saved import SavedModel, load_model

NUM_SIMILAR = 3
SAMPLE = 20_000  # images used to bin the scale of a model's logits
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
        return LabelTable(**values)  # type: ignore[arg-type]

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
    """The `limit` labels of highest worth among all added; never holds much more than twice that many."""

    def __init__(self, limit: int):
        self.limit, self.num_added = limit, 0
        self.columns: list[list[np.ndarray]] = [[], [], [], []]
        self.held = 0

    def add(self, rows: np.ndarray, columns: np.ndarray, probabilities: np.ndarray, worth: np.ndarray) -> None:
        self.num_added += len(rows)
        self.held += len(rows)
        for held, values in zip(self.columns, (rows, columns, probabilities, worth), strict=True):
            held.append(values)
        if self.held > 2 * max(self.limit, 100_000):
            self._shrink()

    def _shrink(self) -> None:
        rows, columns, probabilities, worth = (np.concatenate(held) for held in self.columns)
        # Ties are broken by row and category, so the result does not depend on the chunks.
        order = np.lexsort((columns, rows, -worth))[: self.limit]
        self.columns = [[values[order]] for values in (rows, columns, probabilities, worth)]
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


Decisions = Mapping[tuple[str, str], int]  # (image, category) -> 1 present, 0 unsure, -1 absent


def discover(
    outputs: ModelOutputs,
    labels: np.ndarray,
    thresholds: np.ndarray,
    judge: LeftOut,
    scale: ProbabilityScale,
    *,
    own: bool = True,
    columns: Sequence[int] | None = None,
    min_probability: float | None = None,
    limit: int = 10_000,
) -> Discovery:
    """Missing and doubtful tags of images with partial `labels` [N, C].

    `judge` and `scale` come from the training images; `own` says that these are the same images. `thresholds` [C] are
    the model's own, on its own probabilities; `min_probability` replaces them. `columns` are the categories to
    search (default: all).
    """
    chosen = np.zeros(labels.shape[1], dtype=bool)
    chosen[list(range(labels.shape[1]) if columns is None else columns)] = True
    chosen &= judge.model.category_count.numpy() > 0  # the others have no known positives
    known_share = judge.curves.known_proportion if own else known_proportion(outputs, labels, scale)
    with np.errstate(divide="ignore"):
        limits = np.log(thresholds) - np.log1p(-thresholds)  # as logits
    shown = hidden_from_chance(scale.chance(limits[None])[0], known_share)
    missing, doubtful, expected = BestLabels(limit), BestLabels(limit), 0.0
    for rows in outputs.chunks(np.flatnonzero(outputs.readable)):
        logits, said = outputs.logits[rows], labels[rows]
        unknown = (said == UNKNOWN) & chosen
        chance = hidden_from_chance(scale.chance(logits), known_share)
        expected += float(chance[unknown].sum())
        found = unknown & (logits >= limits if min_probability is None else chance >= min_probability)
        at, column = np.nonzero(found)
        # Ties are broken by the model's own order.
        worth = chance[at, column] + 1e-7 * np.tanh(logits[at, column] / 20)
        missing.add(rows[at], column, chance[at, column].astype(np.float32), worth)
        known = (said == PRESENT) & chosen
        if known.any():
            add_doubtful(doubtful, judge, outputs, rows, known, own)
    return Discovery(
        missing.table(), doubtful.table(), missing.num_added, doubtful.num_added, shown.astype(np.float32), expected
    )


def add_doubtful(
    doubtful: BestLabels, judge: LeftOut, outputs: ModelOutputs, rows: np.ndarray, known: np.ndarray, own: bool
) -> None:
    """Given tags whose leave-one-out probability is much lower than that of a random image."""
    chance = judge.chances(outputs, rows, known if own else np.zeros_like(known))
    prior = (judge.bins.count * judge.curves.chance(judge.bins.score)).sum(0) / judge.bins.num_images
    at, column = np.nonzero(known & (chance < DOUBT * prior))
    doubtful.add(rows[at], column, chance[at, column].astype(np.float32), -chance[at, column])


def hidden_from_chance(chance: np.ndarray, known_proportion: float) -> np.ndarray:
    """P(present | unknown) from P(present), if a share of the present labels is known."""
    return (1 - known_proportion) * chance / np.maximum(1 - known_proportion * chance, TINY)


def chance_from_hidden(hidden: np.ndarray, known_proportion: float) -> np.ndarray:
    """The inverse of `hidden_from_chance`."""
    return hidden / np.maximum(1 - known_proportion + known_proportion * hidden, TINY)


def known_proportion(outputs: ModelOutputs, labels: np.ndarray, scale: ProbabilityScale) -> float:
    """For images other than the training images: their known tags over the expected number of present ones."""
    readable = np.flatnonzero(outputs.readable)
    known = int((labels[readable] == PRESENT).sum())
    expected = sum(float(scale.chance(outputs.logits[rows]).sum()) for rows in outputs.chunks(readable))
    return min(known / max(expected, known, 1), 0.99)


# --- a run ---


@dataclass(frozen=True)
class OpenRun:
    """A run, its partly labelled images, and its model's outputs for them."""

    saved: SavedModel
    annotations: Annotations  # every image of the run with unknown labels, and its given labels
    truth: np.ndarray | None  # [N, C] the complete labels, if the run is an experiment that hides some
    outputs: ModelOutputs
    judge: LeftOut
    scale: ProbabilityScale

    def discover(self, *, decided: Decisions | None = None, **options: Any) -> Discovery:
        """Search the run's own images; for the options see the function `discover`."""
        labels = self.annotations.labels
        found = discover(self.outputs, labels, self.saved.thresholds, self.judge, self.scale, **options)
        return self._complete(found, self.annotations, self.outputs, decided, own=True)

    def discover_in(
        self, images: Annotations, outputs: ModelOutputs, *, decided: Decisions | None = None, **options: Any
    ) -> Discovery:
        """Search other images, labelled with the model's categories."""
        labels, thresholds = images.labels, self.saved.thresholds
        found = discover(outputs, labels, thresholds, self.judge, self.scale, own=False, **options)
        return self._complete(found, images, outputs, decided, own=False)

    def _complete(
        self, found: Discovery, images: Annotations, outputs: ModelOutputs, decided: Decisions | None, own: bool
    ) -> Discovery:
        """Adds the evidence and the decisions."""

        def complete(table: LabelTable) -> LabelTable:
            return replace(
                table,
                similar=similar_positives(table, outputs, self.outputs, self.annotations.labels, own),
                decisions=decisions_about(table, images.images, images.categories, decided or {}),
            )

        return replace(found, missing=complete(found.missing), doubtful=complete(found.doubtful))


def open_run(
    folder: Path,
    *,
    data: RunData | None = None,
    moved_to: Path | None = None,
    device: str = "auto",
    quiet: bool = False,
) -> OpenRun:
    """Run the model on all images of a run. Its outputs are cached in the run's folder.

    `moved_to` is where its images are now, if they were moved.
    """
    saved, config = load_model(folder), load_run_config(folder)
    annotations, truth = images_with_unknown_tags(load_run_data(folder, moved_to) if data is None else data)
    if not (annotations.labels == PRESENT).any():
        raise UserError(
            f"{folder} was trained without any tag, so every tag is missing; `fewtags predict` lists what the names "
            "find, and `fewtags review` asks about it."
        )
    place = RunFolder(folder).outputs
    outputs = model_outputs(saved, annotations, place, config=config, device=device, quiet=quiet)
    judge = LeftOut.of(outputs, annotations.labels, estimated_proportion(RunFolder(folder)))
    scale = ProbabilityScale.of(outputs, annotations.labels, judge)
    return OpenRun(saved, annotations, truth, outputs, judge, scale)


def images_with_unknown_tags(data: RunData) -> tuple[Annotations, np.ndarray | None]:
    """The training images and all others that are partly labelled, and the complete labels if they are known."""
    others = [part for part in (data.val, data.test) if part is not None and not part.complete]
    if not others:
        return data.train, data.truth
    parts = [data.train, *others]
    return (
        replace(
            data.train,
            images=[image for part in parts for image in part.images],
            labels=np.concatenate([part.labels for part in parts]),
            splits=np.concatenate([part.splits for part in parts]),
        ),
        None,
    )


# --- from a model's logits to probabilities ---


@dataclass(frozen=True)
class ProbabilityScale:
    """P(present) as an increasing function of a model's logits, per category: piecewise linear."""

    logits: np.ndarray  # [B, C] from low to high
    chances: np.ndarray  # [B, C]

    @classmethod
    def of(cls, outputs: ModelOutputs, labels: np.ndarray, judge: LeftOut, seed: int = 0) -> ProbabilityScale:
        """The closed form's mean prediction over unknown labels that the model ranks similarly.

        Known labels are excluded, since a model ranks the labels it was trained on higher than similar ones.
        """
        readable = np.flatnonzero(outputs.readable)
        sample = np.sort(np.random.default_rng(seed).permutation(readable)[:SAMPLE])
        ranked = np.sort(outputs.logits[sample], axis=0)[::-1]
        edges = ranked[np.minimum(rank_edges(len(sample))[1:-1], len(sample) - 1)][::-1]  # [B - 1, C] rising
        totals = np.zeros((3, len(edges) + 1, labels.shape[1]))  # of labels, logits, probabilities
        known_share = judge.curves.known_proportion
        for rows in outputs.chunks(readable):
            logits, said = outputs.logits[rows].astype(float), labels[rows]
            hidden = hidden_from_chance(judge.chances(outputs, rows, said == PRESENT), known_share)
            for c in range(labels.shape[1]):
                mine = said[:, c] == UNKNOWN
                place = np.searchsorted(edges[:, c], logits[mine, c], side="right")
                for total, values in zip(totals, (None, logits[mine, c], hidden[mine, c]), strict=True):
                    total[:, c] += np.bincount(place, values, minlength=len(total))
        return cls.fit(totals[0], totals[1], totals[2], known_share)

    @classmethod
    def fit(cls, count: np.ndarray, logits: np.ndarray, hidden: np.ndarray, known_share: float) -> ProbabilityScale:
        """From sums over bins [B, C], lowest bin first."""
        points, chances = np.zeros_like(count), np.zeros_like(count)
        for c in range(count.shape[1]):
            used = count[:, c] > 0
            number = count[used, c]
            if not len(number):
                continue
            steps = rising(hidden[used, c] / number, number)
            x, y = logits[used, c] / number, chance_from_hidden(steps, known_share)
            points[:, c] = np.concatenate([x, np.full((~used).sum(), x[-1])])
            chances[:, c] = np.concatenate([y, np.full((~used).sum(), y[-1])])
        return cls(points, chances)

    def chance(self, logits: np.ndarray) -> np.ndarray:
        """[M, C] of logits [M, C]."""
        columns = range(logits.shape[1])
        return np.stack([np.interp(logits[:, c], self.logits[:, c], self.chances[:, c]) for c in columns], axis=1)


def rising(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The non-decreasing sequence nearest to `values` in weighted squares (pool adjacent violators)."""
    blocks: list[list[float]] = []  # [mean, weight, length]
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        blocks.append([value, weight, 1])
        while len(blocks) > 1 and blocks[-2][0] >= blocks[-1][0]:
            mean, weight, length = blocks.pop()
            last = blocks[-1]
            last[0] = (last[0] * last[1] + mean * weight) / (last[1] + weight)
            last[1] += weight
            last[2] += length
    return np.repeat([block[0] for block in blocks], [int(block[2]) for block in blocks])


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
