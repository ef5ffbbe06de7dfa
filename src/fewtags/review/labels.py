"""The labels of a review as they are now: given, decided by whom, and which tags there are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from fewtags.data.annotations import Annotations
from fewtags.labels import ABSENT, PRESENT, UNKNOWN
from fewtags.review.store import Decision, DecisionStore
from fewtags.review.tag_book import TagBook

Place = tuple[int, int]  # row and column


class LabelState:
    """Follows the rows of a store. Columns are the run's categories, then the tags that reviewers added."""

    def __init__(self, annotations: Annotations):
        self.annotations = annotations
        self.last_id = 0  # of the last row of the store that was applied
        self.age = 0  # increases when the tags themselves change: columns may mean something else
        self._row = {image: row for row, image in enumerate(annotations.images)}
        self._start([])

    def _start(self, rows: Sequence[Decision]) -> None:
        """From the given labels, with the tags after all `rows`."""
        self.book = TagBook.of(self.annotations.categories, rows)
        number, before = len(self.book.tags), self.annotations.labels
        self.given = np.zeros((len(before), number), dtype=np.int8)
        self.given[:, : before.shape[1]] = before
        for tag in self.book.tags:
            if tag.merged_into is not None:
                into = self.book.final(tag.column)
                mine, other = self.given[:, tag.column], self.given[:, into]
                self.given[:, into] = np.where(other == UNKNOWN, mine, other)
        self.labels = self.given.copy()
        self.decided: list[dict[int, Decision]] = [{} for _ in range(number)]  # row -> current decision, by column
        self.stamps = [0] * number  # increases with every label change
        self._versions: dict[Place, int] = {}
        self._history: dict[Place, list[Decision]] = {}  # decisions about a label that stand

    def follow(self, store: DecisionStore) -> set[Place]:
        """Apply what was written since the last call, by this or another process; gives the labels that changed."""
        rows = store.since(self.last_id)
        if any(row.is_about_tag for row in rows):  # names of earlier rows may mean something else now
            rows, stamps = list(store), max(self.stamps, default=0)
            self._start(rows)
            self.age += 1
            self.stamps = [stamps + 1] * len(self.book.tags)
        changed = {place for row in rows if (place := self._remember(row)) is not None}
        for place in changed:
            self._set(place)
        return changed

    def _remember(self, row: Decision) -> Place | None:
        self.last_id = row.id
        place = None if row.is_about_tag else self.place(row)
        if place is not None:
            history = self._history.setdefault(place, [])
            if row.undo_of is None:
                history.append(row)
            else:
                history[:] = [other for other in history if other.id != row.undo_of]
            self._versions[place] = row.id
        return place

    def _set(self, place: Place) -> None:
        row, column = place
        history = self._history[place]
        self.decided[column].pop(row, None)
        self.labels[place] = self.given[place]
        if history:
            self.decided[column][row] = history[-1]
            self.labels[place] = history[-1].new
        self.stamps[column] += 1

    def place(self, decision: Decision) -> Place | None:
        """Row and column of the label; None if this run does not have the image or the tag."""
        column = self.book.decided.get(decision.id)
        row = self._row.get(decision.image)
        column = self.book.find(decision.category) if column is None else self.book.final(column)
        return None if row is None or column is None else (row, column)

    def locate(self, image: str, category: str) -> Place | None:
        row, column = self._row.get(image), self.book.find(category)
        return None if row is None or column is None else (row, column)

    # --- asking ---

    @property
    def names(self) -> list[str]:
        """[C'] of all columns, also of tags that are gone."""
        return [tag.name for tag in self.book.tags]

    def version(self, row: int, column: int) -> int:
        return self._versions.get((row, column), 0)

    def opinions(self) -> Iterable[tuple[Place, list[tuple[str, int]]]]:
        """Every decided label with who said what about it, oldest first."""
        return ((place, [(d.reviewer, d.new) for d in found]) for place, found in self._history.items() if found)

    def row(self, image: str) -> int | None:
        return self._row.get(image)

    def number_decided(self) -> int:
        """Labels of tags that are still there."""
        return sum(len(self.decided[tag.column]) for tag in self.book.shown())

    def said(self, row: int, column: int) -> list[str]:
        """Who said what about a label, oldest first."""
        words = {PRESENT: "yes", ABSENT: "no", UNKNOWN: "unsure"}
        decisions = self._history.get((row, column), [])
        return [f"{decision.reviewer or 'somebody'}: {words[decision.new]}" for decision in decisions]

    def is_decided(self, column: int) -> np.ndarray:
        """[N]"""
        mask = np.zeros(len(self.labels), dtype=bool)
        mask[list(self.decided[column])] = True
        return mask

    def has_status(self, column: int, status: str) -> np.ndarray:
        """[N] open, decided, present, absent, unsure or all."""
        decided = self.is_decided(column)
        if status in ("open", "decided"):
            return decided if status == "decided" else ~decided
        if status == "all":
            return np.ones(len(decided), dtype=bool)
        return decided & (self.labels[:, column] == {"present": PRESENT, "absent": ABSENT, "unsure": UNKNOWN}[status])

    def answers(self, column: int) -> tuple[np.ndarray, np.ndarray]:
        """The rows decided yes or no, ascending, and which of them are yes."""
        rows = np.array(sorted(self.decided[column]), dtype=np.int64)
        rows = rows[self.labels[rows, column] != UNKNOWN]
        return rows, self.labels[rows, column] == PRESENT
