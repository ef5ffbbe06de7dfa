"""Which labels a reviewer sees, in which order: views of a tag, and queues of stacks of nearly identical images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from fewtags.data.agreement import is_disputed
from fewtags.labels import PRESENT, UNKNOWN
from fewtags.review.labels import LabelState
from fewtags.review.ranker import LIKELY, Ranker

if TYPE_CHECKING:
    from fewtags.review.session import ReviewSession

QueueName = Literal["missing", "doubtful", "random", "uncertain", "disputed"]
Status = Literal["open", "decided", "present", "absent", "unsure", "all"]
QUEUES: tuple[QueueName, ...] = get_args(QueueName)
STATUSES: tuple[Status, ...] = get_args(Status)


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


class Queues:
    """Makes the queues of a session."""

    def __init__(
        self,
        state: LabelState,
        ranker: Ranker,
        leaders: np.ndarray,
        readable: np.ndarray,
        sample: Callable[[int], np.ndarray],
    ):
        """`leaders` [N] are the first images of each image's burst, `sample` a column's random sample."""
        self.state, self.ranker, self.leaders, self.readable, self.sample = state, ranker, leaders, readable, sample

    def queue(self, column: int, view: View, after: Queue | None = None) -> Queue:
        member, chance = self.members(column, view)
        chosen = member & self._filter(column, view, chance)
        if after is not None:
            chosen[after.order] = False
        rows = self._ordered(column, view, np.flatnonzero(chosen), chance)
        queue = self._stacked(rows, int(member.sum()), view.stacks)
        return queue if after is None else after.followed_by(queue)

    def members(self, column: int, view: View) -> tuple[np.ndarray, np.ndarray]:
        """[N] which images are in the queue, with the requested status, and their probabilities."""
        chances = self.ranker.chances(column)
        if view.queue == "disputed":
            mask = np.zeros(len(self.readable), dtype=bool)
            mask[self.disputed(column)] = True
            return mask & self.readable, chances.missing
        given = PRESENT if view.queue == "doubtful" else UNKNOWN
        member = (self.state.given[:, column] == given) & self.readable & self.state.has_status(column, view.status)
        if view.queue == "random":
            drawn = np.zeros(len(member), dtype=bool)
            drawn[self.sample(column)] = True
            member &= drawn
        return member, chances.evidence if view.queue == "doubtful" else chances.missing

    def disputed(self, column: int) -> list[int]:
        """The rows about which two reviewers disagree and no third has decided."""
        return [row for (row, of), said in self.state.opinions() if of == column and is_disputed(said)]

    def _filter(self, column: int, view: View, chance: np.ndarray) -> np.ndarray:
        low, high = view.lowest, view.highest
        if view.lowest is None and view.status == "open":
            if view.queue == "missing" and not self.ranker.is_new(column):
                low = LIKELY
            if view.queue == "doubtful":
                high = min(high, LIKELY)  # the picture speaks against the tag
        chosen = (chance >= (low or 0.0)) & (chance <= high)
        if view.text:
            text, images = view.text.lower(), self.state.annotations.images
            chosen &= np.fromiter((text in image.lower() for image in images), bool, len(images))
        if view.together_with:
            chosen &= self.state.labels[:, self.state.book.column(view.together_with)] == PRESENT
        if view.reviewer:
            theirs = [row for row, d in self.state.decided[column].items() if d.reviewer == view.reviewer]
            chosen &= np.isin(np.arange(len(chosen)), theirs)
        return chosen

    def _ordered(self, column: int, view: View, rows: np.ndarray, chance: np.ndarray) -> np.ndarray:
        if view.queue == "random":
            place = np.empty(len(chance), dtype=np.int64)
            sample = self.sample(column)
            place[sample] = np.arange(len(sample))
            return rows[np.argsort(place[rows], kind="stable")]
        if view.queue == "missing" and self.ranker.is_new(column):
            return self.ranker.order(column, rows)
        key = {"doubtful": chance, "uncertain": np.abs(chance - 0.5)}.get(view.queue, -chance)
        return rows[np.argsort(key[rows], kind="stable")]

    def _stacked(self, rows: np.ndarray, out_of: int, stacks: bool) -> Queue:
        """Images of a burst are placed after its first one."""
        place = np.arange(len(rows))
        if stacks:
            leader = self.leaders[rows]
            first = np.empty(len(self.leaders), dtype=np.int64)
            first[leader[::-1]] = place[::-1]  # the last assignment wins: the smallest position
            place = first[leader]
            by_stack = np.argsort(place, kind="stable")
            rows, place = rows[by_stack], place[by_stack]
        starts = np.flatnonzero(np.diff(place, prepend=-1, append=-1)) if len(rows) else np.zeros(1, dtype=np.int64)
        return Queue(rows, starts, out_of)


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
