"""A review without its page: labels, a model that learns from every decision, and the queues it ranks.

    session = ReviewSession(annotations, unit_features, store, run="voc-10")
    queue = session.queue(View("dog"))              # stacks of images, most likely first
    session.decide([Answer(row, "dog", PRESENT) for row in queue.rows(0)], queue="missing")
    queue = session.queue(View("dog"))              # the rest, re-ranked by the updated model
    session.undo()
    session.add_tag("lighthouse", examples=[7])     # a tag that nobody had, reviewed like every other one

The store is the authority: what is known (`labels`), how likely the rest is (`ranker`) and what is shown (`queues`)
follow from its rows, so that a session that is opened again is where the last one was.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fewtags.data.agreement import Agreement
from fewtags.data.annotations import Annotations
from fewtags.engine.judge import Judge
from fewtags.errors import UserError
from fewtags.labels import ABSENT, PRESENT, UNKNOWN
from fewtags.presence.answers import Correction
from fewtags.presence.bursts import burst_leaders
from fewtags.presence.estimates import Estimates, estimate
from fewtags.presence.new_tag import Forecast
from fewtags.presence.rows import ClassShares, FeatureRows
from fewtags.review.labels import LabelState, Place
from fewtags.review.queues import QUEUES, STATUSES, LiveQueue, Queue, QueueName, Queues, Status, View
from fewtags.review.ranker import LIKELY, Ranker
from fewtags.review.sampling import Precision
from fewtags.review.store import Conflict, Decision, DecisionStore, Draft
from fewtags.review.tag_book import EXAMPLE, BookedTag
from fewtags.review.tag_counts import SCREEN, Summary, TagCounts

__all__ = [
    "LIKELY", "QUEUES", "SCREEN", "STATUSES", "Answer", "LiveQueue", "Queue", "QueueName", "ReviewSession", "Status",
    "Summary", "Tag", "View",
]  # fmt: skip


@dataclass(frozen=True)
class Answer:
    """A reviewer's answer about a tag of an image, and the version of the label they saw."""

    row: int
    category: str
    label: int  # PRESENT, ABSENT, or UNKNOWN: "unsure"
    version: int | None = None  # None: any


@dataclass(frozen=True)
class Tag:
    """A category of one image."""

    category: str
    label: int
    given: int
    probability: float
    suggested: bool  # unknown, undecided, and predicted by the model
    version: int
    decision: Decision | None


class ReviewSession:
    def __init__(
        self,
        annotations: Annotations,
        unit_features: FeatureRows,
        store: DecisionStore,
        *,
        judge: Judge | None = None,
        run: str = "",
        reviewer: str = "",
        readable: np.ndarray | None = None,
        content_hash: Callable[[int], str] = lambda row: "",
        word: Callable[[str], Tensor | None] = lambda text: None,
        shares: Callable[[], ClassShares | None] = lambda: None,
        leaders: np.ndarray | None = None,
        inputs: Callable[[], Tensor] | None = None,
        seed: int = 0,
    ):
        """`unit_features` [N, D] are those of the images of `annotations`, which `judge` judges; rows that are not
        `readable` are never shown. `content_hash` of a row's file is kept with a decision about it. `word` gives the
        name scores [N] of a phrase, `shares` what a classifier sees in the images. `leaders` and `inputs` are computed
        if they are not given."""
        self.annotations, self.features, self.store = annotations, unit_features, store
        self.run, self.reviewer, self.content_hash, self.seed = run, reviewer, content_hash, seed
        self.readable = np.ones(len(annotations), dtype=bool) if readable is None else readable
        self.lock = threading.RLock()  # requests run in threads; labels, model and counts change together
        if judge is None:
            judge = Judge.of_features(
                lambda rows: unit_features[torch.from_numpy(rows)], self.readable, annotations.labels
            )
        self.judge = judge
        self.leaders = burst_leaders(unit_features).numpy() if leaders is None else leaders
        self.state = LabelState(annotations)
        self.ranker = Ranker(
            self.state, judge, unit_features, self.readable, seed=seed, word=word, shares=shares, inputs=inputs
        )
        self.queues = Queues(self.state, self.ranker, self.leaders, self.readable, lambda column: counts.sample(column))
        self.counts = counts = TagCounts(self.state, self.ranker, self.queues, self.readable, seed=seed)
        self.refresh()

    def __len__(self) -> int:
        """Number of images."""
        return len(self.annotations)

    # --- what is known ---

    @property
    def given(self) -> np.ndarray:
        return self.state.given

    @property
    def labels(self) -> np.ndarray:
        return self.state.labels

    @property
    def names(self) -> list[str]:
        return self.state.names

    @property
    def last_id(self) -> int:
        return self.state.last_id

    @property
    def answers(self) -> Correction:
        """What decisions about unknown labels say about all others."""
        return self.ranker.correction

    def column(self, category: str) -> int:
        return self.state.book.column(category)

    def tag(self, category: str) -> BookedTag:
        return self.state.book.tags[self.column(category)]

    def stamp(self, category: str) -> int:
        """Increases with every label change in the category."""
        return self.state.stamps[self.column(category)]

    def decision(self, row: int, column: int) -> Decision | None:
        """The current decision about a label, if any."""
        return self.state.decided[column].get(row)

    def place(self, decision: Decision) -> Place | None:
        return self.state.place(decision)

    def agreement(self) -> Agreement:
        with self.lock:
            return Agreement.of(said for _, said in self.state.opinions())

    # --- decisions ---

    def decide(self, answers: Sequence[Answer], *, queue: str, reviewer: str | None = None) -> list[Decision]:
        """Write the answers durably as one step, and learn from them.

        Raises Conflict, and writes nothing, if a label has changed since the version that was seen.
        """
        hashes = {answer.row: self.content_hash(answer.row) for answer in answers}  # reads files: before the lock
        with self.lock:
            self.refresh()
            return self._write([self._draft(answer, hashes[answer.row]) for answer in answers], queue, reviewer)

    def _draft(self, answer: Answer, content_hash: str) -> Draft:
        if not 0 <= answer.row < len(self):
            raise UserError(f"There is no image {answer.row}; this run has {len(self)}.")
        if answer.label not in (PRESENT, UNKNOWN, ABSENT):
            raise UserError(f"An answer is 1 (present), -1 (absent) or 0 (unsure), not {answer.label}.")
        column = self.column(answer.category)
        old, name = int(self.labels[answer.row, column]), self.names[column]
        return Draft(self.annotations.images[answer.row], name, old, answer.label, content_hash, answer.version)

    def _write(self, drafts: Sequence[Draft], queue: str, reviewer: str | None) -> list[Decision]:
        who = self.reviewer if reviewer is None else reviewer
        rows = self.store.append(drafts, reviewer=who, queue=queue, run=self.run)
        self.refresh()
        return rows

    def undo(self, step: int | None = None, *, reviewer: str | None = None) -> list[Decision]:
        """Undo a step (default: the last one); returns the rows written, none if there is nothing to undo."""
        with self.lock:
            step = self.store.last_step() if step is None else step
            if step is None:
                return []
            rows = self.store.undo(step, reviewer=self.reviewer if reviewer is None else reviewer)
            self.refresh()
            return rows

    def refresh(self) -> None:
        """Apply what was written to the store since the last call, by this or another process."""
        with self.lock:
            self.state.follow(self.store)
            self.ranker.follow()

    # --- tags ---

    def add_tag(
        self, name: str, *, examples: Sequence[int] = (), text: str = "", reviewer: str | None = None
    ) -> list[Decision]:
        """A tag that nobody had, from images that have it, a phrase, or nothing yet. The first row has its name."""
        hashes = {row: self.content_hash(row) for row in examples}
        with self.lock:
            self.refresh()
            draft = self.state.book.added(name, text)
            images = self.annotations.images
            starts = [
                Draft(images[row], draft.category, UNKNOWN, PRESENT, hashes[row], queue=EXAMPLE) for row in examples
            ]
            return self._write([draft, *starts], EXAMPLE, reviewer)

    def change_tag(
        self, category: str, change: str, value: str | Sequence[str] = "", *, seen: int | None = None
    ) -> list[Decision]:
        """`change` is rename, merge, delete, describe or pin. Raises Conflict if it changed since it was `seen`."""
        with self.lock:
            self.refresh()
            book, text = self.state.book, value if isinstance(value, str) else ""
            tag = book.tags[book.column(category)]
            if seen is not None and seen != tag.version:
                raise Conflict([row for row in self.store.since(tag.version - 1) if row.id == tag.version])
            make: dict[str, Callable[[], Draft]] = {
                "rename": lambda: book.renamed(category, text),
                "merge": lambda: book.merged(category, text),
                "delete": lambda: book.removed(category),
                "describe": lambda: book.described(category, text),
                "pin": lambda: book.pinned(category, [] if isinstance(value, str) else value),
            }
            if change not in make:
                raise UserError(f"A tag can be changed by {', '.join(make)}, not by '{change}'.")
            return self._write([make[change]()], "", None)

    # --- queues ---

    def queue(self, view: View, after: Queue | None = None) -> Queue:
        """What a view shows, ranked by the current model; with `after`, that queue first and then the rest."""
        with self.lock:
            return self.queues.queue(self.column(view.category), view, after)

    def probabilities(self, view: View, rows: np.ndarray) -> np.ndarray:
        """Probabilities of some rows, as shown in this view's queue."""
        with self.lock:
            return self.queues.members(self.column(view.category), view)[1][rows]

    # --- what is shown next to a queue ---

    def summary(self, category: str) -> Summary:
        with self.lock:
            return self.counts.summary(self.column(category))

    def summaries(self) -> list[Summary]:
        with self.lock:
            return [self.summary(tag.name) for tag in self.state.book.shown()]

    def surest(self) -> str:
        """The category of whose next screen of candidates most are expected to be right."""
        return max(self.summaries(), key=lambda summary: summary.next_right).name

    def forecast(self, category: str) -> Forecast:
        """What the next answers will find, how many are missing, and whether that is enough."""
        with self.lock:
            return self.ranker.forecast(self.column(category))

    def threshold(self, category: str) -> float | None:
        with self.lock:
            return self.ranker.threshold(self.column(category))

    def estimates(self) -> Estimates:
        """Of what is missing, by the given labels and all decisions."""
        with self.lock:
            return estimate(self.judge.judged(), self.answers)

    def estimate(self, category: str) -> Precision:
        """The share of right suggestions (before any decision), estimated from those decided in sample order."""
        with self.lock:
            return self.counts.precision(self.column(category))

    def tags(self, row: int, columns: Iterable[int] | None = None) -> list[Tag]:
        """Every category of one image, or those of some columns."""
        with self.lock:
            columns = [tag.column for tag in self.state.book.shown()] if columns is None else columns
            return [self._tag(row, column) for column in columns]

    def _tag(self, row: int, column: int) -> Tag:
        label, given = int(self.labels[row, column]), int(self.given[row, column])
        decision, chance = self.decision(row, column), self.ranker.chance(row, column)
        suggested = label == UNKNOWN and decision is None and chance >= LIKELY
        return Tag(self.names[column], label, given, chance, suggested, self.state.version(row, column), decision)

    def nearest_positives(self, row: int, category: str, number: int = 3) -> list[tuple[int, float]]:
        """Known positives most similar to an image, with their cosine."""
        with self.lock:
            known = (self.labels[:, self.column(category)] == PRESENT) & self.readable
            known[row] = False
            rows = np.flatnonzero(known)
            similarity = (self.features[torch.from_numpy(rows)] @ self.features[row]).numpy()
            best = np.argsort(-similarity, kind="stable")[:number]
            return [(int(rows[place]), float(similarity[place])) for place in best]
