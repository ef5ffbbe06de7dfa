"""A review without its page: labels, a model that learns from every decision, and the queues it ranks.

    session = ReviewSession(annotations, unit_features, store, run="voc-10")
    queue = session.queue(View("dog"))              # stacks of images, most likely first
    session.decide([Answer(row, "dog", PRESENT) for row in queue.rows(0)], queue="missing")
    queue = session.queue(View("dog"))              # the rest, re-ranked by the updated model
    session.undo()

The store is the authority. The presence of tags is judged by the given labels once (`engine.judge`); what the decisions
teach beyond it follows from the labels as they are now, so that a session that is opened again is where the last one
was: how likely unknown labels are present (`presence.answers`), and what a tag looks like (`presence.decisions`).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from fewtags.data.annotations import Annotations
from fewtags.engine.judge import Judge
from fewtags.errors import UserError, did_you_mean
from fewtags.labels import ABSENT, PRESENT, UNKNOWN
from fewtags.presence.answers import Correction
from fewtags.presence.bursts import burst_leaders
from fewtags.presence.decisions import Lesson
from fewtags.presence.estimates import Estimates, estimate
from fewtags.review.sampling import Precision
from fewtags.review.store import Counts, Decision, DecisionStore, Draft, count_labels

QueueName = Literal["missing", "doubtful", "random", "uncertain"]
Status = Literal["open", "decided", "present", "absent", "unsure", "all"]
QUEUES: tuple[QueueName, ...] = get_args(QueueName)
STATUSES: tuple[Status, ...] = get_args(Status)
SCREEN = 20  # candidates; by how many of the next ones are probably right a tag is chosen
_CATEGORIES_KEPT = 4  # whose chances are cached: one per window
_ROWS_AT_ONCE = 8192
LIKELY = 0.5  # what is more likely right than wrong is a suggestion


@dataclass(frozen=True)
class Answer:
    """A reviewer's answer about a tag of an image, and the version of the label they saw."""

    row: int
    category: str
    label: int  # PRESENT, ABSENT, or UNKNOWN: "unsure"
    version: int | None = None  # None: any


@dataclass(frozen=True)
class View:
    """Which labels to show, and in which order."""

    category: str
    queue: QueueName = "missing"
    status: Status = "open"
    lowest: float | None = None  # probability; None: the queue's default
    highest: float = 1.0
    text: str = ""  # substring of the image name
    together_with: str = ""  # another tag the image must be known to have
    reviewer: str = ""  # who decided
    stacks: bool = True


@dataclass(frozen=True)
class Queue:
    """Stacks of images in order. A stack is one image, or a burst that is decided together."""

    order: np.ndarray  # [M] rows; those of a stack are adjacent
    starts: np.ndarray  # [S + 1] start of each stack in `order`, and the end
    out_of: int  # number of images without the filters

    def __len__(self) -> int:
        """Number of stacks."""
        return len(self.starts) - 1

    def rows(self, stack: int) -> np.ndarray:
        return self.order[self.starts[stack] : self.starts[stack + 1]]

    def first(self, number: int) -> Queue:
        """The first `number` stacks."""
        starts = self.starts[: number + 1]
        return Queue(self.order[: starts[-1]], starts, self.out_of)

    def followed_by(self, other: Queue) -> Queue:
        starts = np.concatenate([self.starts, other.starts[1:] + self.starts[-1]])
        return Queue(np.concatenate([self.order, other.order]), starts, other.out_of)


@dataclass(frozen=True)
class Summary:
    """A category in the list."""

    name: str
    known: int  # present according to the given labels
    expected: float  # tags still missing, estimated from the probabilities of the undecided ones
    left: int  # undecided suggestions
    next_right: float  # share of the next screen of candidates that is expected to be right
    decided: Counts


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


@dataclass(frozen=True)
class Chances:
    """Probabilities of one category for all images."""

    present: np.ndarray  # [N] probability of presence, whatever the label
    missing: np.ndarray  # [N] probability of presence if the label is unknown


@dataclass
class _Category:
    """The state of a category in a session."""

    sample: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # see `estimate`
    expected: float = 0.0
    left: int = 0
    next_right: float = 0.0
    counted: int = 0  # the stamp at which these three were counted
    stamp: int = 0  # increases with every label change
    lesson: Lesson | None = None  # what the decisions teach,
    learned: int = 0  # and the stamp at which they did
    decided: dict[int, Decision] = field(default_factory=dict)  # row -> current decision


class ReviewSession:
    def __init__(
        self,
        annotations: Annotations,
        unit_features: Tensor,
        store: DecisionStore,
        *,
        judge: Judge | None = None,
        run: str = "",
        reviewer: str = "",
        readable: np.ndarray | None = None,
        content_hash: Callable[[int], str] = lambda row: "",
        seed: int = 0,
    ):
        """`unit_features` [N, D] are those of the images of `annotations`, which `judge` judges; rows that are not
        `readable` are never shown. `content_hash` of a row's file is kept with a decision about it."""
        self.annotations, self.features, self.store = annotations, unit_features, store
        self.run, self.reviewer, self.content_hash, self.seed = run, reviewer, content_hash, seed
        self.readable = np.ones(len(annotations), dtype=bool) if readable is None else readable
        self.given = annotations.labels
        self.labels = annotations.labels.copy()
        self._known = annotations.known_positives
        self.lock = threading.RLock()  # requests run in threads; labels, model and counts change together
        self.last_id = 0  # of the last row of the store that was applied
        self._row = {image: row for row, image in enumerate(annotations.images)}
        self._column = {name: column for column, name in enumerate(annotations.categories)}
        self._versions: dict[tuple[int, int], int] = {}
        self._history: dict[tuple[int, int], list[Decision]] = {}  # decisions about a label that stand
        self._categories = [_Category() for _ in annotations.categories]
        self.leaders = burst_leaders(unit_features).numpy()
        if judge is None:
            judge = Judge.of_features(lambda rows: unit_features[torch.from_numpy(rows)], self.readable, self.given)
        self.judge, self.model = judge, judge.model
        self.kept = self.model.kept()
        parts = unit_features.split(_ROWS_AT_ONCE)
        self.inputs = torch.cat([self.model.inputs(part) for part in parts])  # [N, K], what lessons are about
        self._sample_odds: Tensor | None = None  # [S, C] of the images that lessons keep in place
        self.answers: Correction = judge.learn([], [], [])
        self._answered = 0  # number of decisions it was learned from
        self._chances: OrderedDict[int, tuple[tuple[int, int], Chances]] = OrderedDict()  # by column, with their stamps
        self._rank_all()
        self.refresh()

    def _rank_all(self) -> None:
        """Rank every category once, before any decision: for the counts, and to draw random samples from."""
        for column, category in enumerate(self._categories):
            chances = self._chances_of(column, None)
            self._count(column, chances)
            suggested = np.flatnonzero(self._suggested(column, chances))
            category.sample = np.random.default_rng((self.seed, column)).permutation(suggested)

    def __len__(self) -> int:
        """Number of images."""
        return len(self.annotations)

    def column(self, category: str) -> int:
        if category not in self._column:
            raise UserError(f"This run has no category '{category}'; {did_you_mean(category, self._column)}")
        return self._column[category]

    # --- decisions ---

    def decide(self, answers: Sequence[Answer], *, queue: str, reviewer: str | None = None) -> list[Decision]:
        """Write the answers durably as one step, and learn from them.

        Raises Conflict, and writes nothing, if a label has changed since the version that was seen.
        """
        hashes = {answer.row: self.content_hash(answer.row) for answer in answers}  # reads files: before the lock
        with self.lock:
            self.refresh()
            drafts = [self._draft(answer, hashes[answer.row]) for answer in answers]
            who = self.reviewer if reviewer is None else reviewer
            decisions = self.store.append(drafts, reviewer=who, queue=queue, run=self.run)
            self.refresh()
            return decisions

    def _draft(self, answer: Answer, content_hash: str) -> Draft:
        if not 0 <= answer.row < len(self):
            raise UserError(f"There is no image {answer.row}; this run has {len(self)}.")
        if answer.label not in (PRESENT, UNKNOWN, ABSENT):
            raise UserError(f"An answer is 1 (present), -1 (absent) or 0 (unsure), not {answer.label}.")
        old = int(self.labels[answer.row, self.column(answer.category)])
        return Draft(
            self.annotations.images[answer.row], answer.category, old, answer.label, content_hash, answer.version
        )

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
            self._learn({label for decision in self.store.since(self.last_id) if (label := self._remember(decision))})

    def _remember(self, decision: Decision) -> tuple[int, int] | None:
        self.last_id = decision.id
        place = self.place(decision)
        if place is not None:
            history = self._history.setdefault(place, [])
            if decision.undo_of is None:
                history.append(decision)
            else:
                history[:] = [other for other in history if other.id != decision.undo_of]
            self._versions[place] = decision.id
        return place

    def place(self, decision: Decision) -> tuple[int, int] | None:
        """Row and column of the label; None if this run does not have the image or the category."""
        return self.locate(*decision.label)

    def locate(self, image: str, category: str) -> tuple[int, int] | None:
        row, column = self._row.get(image), self._column.get(category)
        return None if row is None or column is None else (row, column)

    def _learn(self, labels: Iterable[tuple[int, int]]) -> None:
        """Set these labels (row, column) to what the history says. Corrections are computed on demand."""
        for row, column in labels:
            category, history = self._categories[column], self._history[row, column]
            category.decided.pop(row, None)
            self.labels[row, column] = self.given[row, column]
            if history:
                category.decided[row] = history[-1]
                self.labels[row, column] = history[-1].new
            category.stamp += 1
        self._take_answers()

    def _take_answers(self) -> None:
        """What decisions about unknown labels say about all others; again when there are a few per cent more of
        them."""
        number = sum(len(category.decided) for category in self._categories)
        if abs(number - self._answered) <= self._answered // 50 and number:
            return
        said = [(row, column, d.new) for column, c in enumerate(self._categories) for row, d in c.decided.items()]
        rows, columns, labels = zip(*said, strict=True) if said else ((), (), ())
        self.answers, self._answered = self.judge.learn(rows, columns, labels), number

    def estimates(self) -> Estimates:
        """Of what is missing, by the given labels and all decisions."""
        with self.lock:
            return estimate(self.judge.judged(), self.answers)

    def version(self, row: int, column: int) -> int:
        return self._versions.get((row, column), 0)

    def decision(self, row: int, column: int) -> Decision | None:
        """The current decision about a label, if any."""
        return self._categories[column].decided.get(row)

    def stamp(self, category: str) -> int:
        """Increases with every label change in the category."""
        return self._categories[self.column(category)].stamp

    # --- probabilities ---

    def chances(self, column: int) -> Chances:
        """Chances from all that is known now. Those of the most recent categories are cached until a decision."""
        category = self._categories[column]
        stamp = (category.stamp, self._answered)
        before, found = self._chances.get(column, (None, None))
        if found is None or before != stamp:
            found = self._chances_of(column, self.lesson(column))
            self._chances[column] = (stamp, found)
            self._count(column, found)
        _keep_last(self._chances, column)
        return found

    def _chances_of(self, column: int, lesson: Lesson | None) -> Chances:
        base, answers = torch.from_numpy(self.judge.odds[:, column]), self.model.answers
        more = torch.zeros(()) if lesson is None else lesson(self.inputs)
        present, missing = answers.present(base, column) + more, answers.if_unknown(base, column) + more
        return Chances(present.sigmoid().numpy(), missing.sigmoid().numpy())

    def lesson(self, column: int) -> Lesson | None:
        """What a category's decisions teach; None if there are none."""
        about = self._categories[column]
        if about.learned != about.stamp:
            rows = np.array(sorted(about.decided), dtype=np.int64)
            rows = rows[self.readable[rows] & (self.labels[rows, column] != UNKNOWN)]
            about.lesson = self._taught(column, rows, about.lesson) if len(rows) else None
            about.learned = about.stamp
        return about.lesson

    def _taught(self, column: int, rows: np.ndarray, start: Lesson | None) -> Lesson:
        base, answers = torch.from_numpy(self.judge.odds[rows, column]), self.model.answers
        unknown = torch.from_numpy(self.given[rows, column] == UNKNOWN)
        odds = torch.where(unknown, answers.if_unknown(base, column), answers.present(base, column))
        return self.kept.learn(
            self.inputs[torch.from_numpy(rows)],
            torch.from_numpy(self.labels[rows, column] == PRESENT),
            odds,
            answers.if_unknown(self._odds_of_sample(column), column),
            start,
        )

    def _odds_of_sample(self, column: int) -> Tensor:
        if self._sample_odds is None:
            sample = self.model.sample.float()
            names = None if self.judge.name_scorer is None else self.judge.name_scorer(sample)
            self._sample_odds = self.model.base_odds(self.model.scores(sample, names))
        return self._sample_odds[:, column]

    def threshold(self, column: int, *, given: int = UNKNOWN) -> float:
        """The threshold on the chance for an image with this given label."""
        return LIKELY if given == UNKNOWN else float(self.model.thresholds[column])

    # --- queues ---

    def queue(self, view: View, after: Queue | None = None) -> Queue:
        """What a view shows, ranked by the current model; with `after`, that queue first and then the rest."""
        with self.lock:
            column = self.column(view.category)
            member, worth = self._members(column, view)
            chosen = member & self._filter(column, view, worth)
            if after is not None:
                chosen[after.order] = False
            rows = np.flatnonzero(chosen)
            rows = rows[np.argsort(self._rank(column, view, rows, worth), kind="stable")]
            queue = self._stacked(rows, int(member.sum()), view.stacks)
            return queue if after is None else after.followed_by(queue)

    def _members(self, column: int, view: View) -> tuple[np.ndarray, np.ndarray]:
        """[N] which images are in the queue, with the requested status, and their probabilities."""
        given = PRESENT if view.queue == "doubtful" else UNKNOWN
        member = (self.given[:, column] == given) & self.readable & self._has_status(column, view.status)
        chances = self.chances(column)
        worth = chances.present if view.queue == "doubtful" else chances.missing
        if view.queue == "random":
            drawn = np.zeros(len(self), dtype=bool)
            drawn[self._categories[column].sample] = True
            member &= drawn
        return member, worth

    def _has_status(self, column: int, status: Status) -> np.ndarray:
        decided = self.decided(column)
        if status in ("open", "decided"):
            return decided if status == "decided" else ~decided
        if status == "all":
            return np.ones(len(self), dtype=bool)
        return decided & (self.labels[:, column] == {"present": PRESENT, "absent": ABSENT, "unsure": UNKNOWN}[status])

    def decided(self, column: int) -> np.ndarray:
        """[N] mask of the decided images."""
        mask = np.zeros(len(self), dtype=bool)
        mask[list(self._categories[column].decided)] = True
        return mask

    def _filter(self, column: int, view: View, worth: np.ndarray) -> np.ndarray:
        low, high = view.lowest, view.highest
        if view.lowest is None and view.status == "open" and view.queue == "missing":
            low = self.threshold(column)
        if view.lowest is None and view.status == "open" and view.queue == "doubtful":
            high = min(high, float(self.model.thresholds[column]))  # tags the model does not predict
        chosen = (worth >= (low or 0.0)) & (worth <= high)
        if view.text:
            text = view.text.lower()
            chosen &= np.fromiter((text in image.lower() for image in self.annotations.images), bool, len(self))
        if view.together_with:
            chosen &= self.labels[:, self.column(view.together_with)] == PRESENT
        if view.reviewer:
            theirs = [row for row, d in self._categories[column].decided.items() if d.reviewer == view.reviewer]
            chosen &= np.isin(np.arange(len(self)), theirs)
        return chosen

    def _rank(self, column: int, view: View, rows: np.ndarray, worth: np.ndarray) -> np.ndarray:
        """[M] sort key; the smallest comes first."""
        if view.queue == "random":
            place = np.empty(len(self), dtype=np.int64)
            sample = self._categories[column].sample
            place[sample] = np.arange(len(sample))
            return place[rows]
        if view.queue == "doubtful":
            return worth[rows]
        return np.abs(worth[rows] - 0.5) if view.queue == "uncertain" else -worth[rows]

    def _stacked(self, rows: np.ndarray, out_of: int, stacks: bool) -> Queue:
        """Images of a burst are placed after its first one."""
        place = np.arange(len(rows))
        if stacks:
            leader = self.leaders[rows]
            first = np.empty(len(self), dtype=np.int64)
            first[leader[::-1]] = place[::-1]  # the last assignment wins: the smallest position
            place = first[leader]
            by_stack = np.argsort(place, kind="stable")
            rows, place = rows[by_stack], place[by_stack]
        starts = np.flatnonzero(np.diff(place, prepend=-1, append=-1)) if len(rows) else np.zeros(1, dtype=np.int64)
        return Queue(rows, starts, out_of)

    def probabilities(self, view: View, rows: np.ndarray) -> np.ndarray:
        """Probabilities of some rows, as shown in this view's queue."""
        with self.lock:
            _, worth = self._members(self.column(view.category), view)
            return worth[rows]

    # --- what is shown next to a queue ---

    def _suggested(self, column: int, chances: Chances) -> np.ndarray:
        return self._undecided(column) & (chances.missing >= LIKELY)

    def _undecided(self, column: int) -> np.ndarray:
        return (self.given[:, column] == UNKNOWN) & self.readable & ~self.decided(column)

    def _count(self, column: int, chances: Chances) -> None:
        category, open_ones = self._categories[column], chances.missing[self._undecided(column)]
        category.expected = float(open_ones.sum())
        best = -np.partition(-open_ones, SCREEN)[:SCREEN] if len(open_ones) > SCREEN else open_ones
        category.next_right = float(best.mean()) if len(best) else 0.0
        category.left = int(self._suggested(column, chances).sum())
        category.counted = category.stamp

    def summary(self, category: str) -> Summary:
        with self.lock:
            about = self._counted(self.column(category))
            decided = count_labels(about.decided.values())
            known = int(self._known[self.column(category)])
            return Summary(category, known, about.expected, about.left, about.next_right, decided)

    def _counted(self, column: int) -> _Category:
        about = self._categories[column]
        if about.counted != about.stamp:
            self.chances(column)
        return about

    def surest(self) -> str:
        """The category of whose next screen of candidates most are expected to be right."""
        with self.lock:
            shares = [self._counted(column).next_right for column in range(len(self._categories))]
            return self.annotations.categories[int(np.argmax(shares))]

    def summaries(self) -> list[Summary]:
        return [self.summary(name) for name in self.annotations.categories]

    def estimate(self, category: str) -> Precision:
        """The share of right suggestions (before any decision), estimated from those decided in sample order.

        Only answers up to the first undecided one count: picking the easy ones from the sample would
        bias the estimate. It does not matter in which queue the answer was given.
        """
        with self.lock:
            about = self._categories[self.column(category)]
            labels = []
            for row in about.sample.tolist():
                if row not in about.decided:
                    break
                labels.append(about.decided[row].new)
            right, wrong = labels.count(PRESENT), labels.count(ABSENT)
            return Precision(right, right + wrong, len(about.sample), labels.count(UNKNOWN))

    def tags(self, row: int, columns: Iterable[int] | None = None) -> list[Tag]:
        """Every category of one image, or those of some columns."""
        with self.lock:
            columns = range(len(self._categories)) if columns is None else columns
            return [self._tag(row, column) for column in columns]

    def _tag(self, row: int, column: int) -> Tag:
        label, given = int(self.labels[row, column]), int(self.given[row, column])
        decision, lesson = self._categories[column].decided.get(row), self.lesson(column)
        base, answers = torch.tensor(float(self.judge.odds[row, column])), self.model.answers
        odds = answers.if_unknown(base, column) if given == UNKNOWN else answers.present(base, column)
        if lesson is not None:
            odds = odds + lesson(self.inputs[row])
        chance = float(odds.sigmoid())
        suggested = label == UNKNOWN and decision is None and chance >= self.threshold(column, given=given)
        name, version = self.annotations.categories[column], self.version(row, column)
        return Tag(name, label, given, chance, suggested, version, decision)

    def nearest_positives(self, row: int, category: str, number: int = 3) -> list[tuple[int, float]]:
        """Known positives most similar to an image, with their cosine."""
        with self.lock:
            known = (self.labels[:, self.column(category)] == PRESENT) & self.readable
            known[row] = False
            rows = np.flatnonzero(known)
            similarity = (self.features[torch.from_numpy(rows)] @ self.features[row]).numpy()
            best = np.argsort(-similarity, kind="stable")[:number]
            return [(int(rows[place]), float(similarity[place])) for place in best]


def _keep_last(kept: OrderedDict[int, Any], column: int) -> None:
    """The recently viewed categories, this one last."""
    kept.move_to_end(column)
    while len(kept) > _CATEGORIES_KEPT:
        kept.popitem(last=False)


class LiveQueue:
    """A queue on screen: what was seen keeps its position, the rest is re-ranked by the model."""

    def __init__(self, session: ReviewSession, view: View):
        self.session, self.view = session, view
        self._stamp = session.stamp(view.category)
        self.queue = session.queue(view)

    def follow(self, seen: int) -> Queue:
        """Re-rank everything after the first `seen` stacks, if labels of the category have changed."""
        with self.session.lock:
            self.session.refresh()
            stamp = self.session.stamp(self.view.category)
            if stamp != self._stamp:
                self.queue = self.session.queue(self.view, after=self.queue.first(min(seen, len(self.queue))))
                self._stamp = stamp
            return self.queue
