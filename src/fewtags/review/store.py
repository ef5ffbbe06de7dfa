"""Decisions of reviewers about single labels, in one append-only SQLite file.

A row says that a reviewer set the label of one image and category from `old` to `new`. Rows are never changed: an undo
is a separate row that points to the row it reverts (`undo_of`). Rows written together share a `step`, and a step is
undone as a whole. `append` returns once the rows are durable.

    store = DecisionStore(decisions_file(run))
    store.append([Draft("a.jpg", "dog", old=UNKNOWN, new=PRESENT)], reviewer="ann", queue="missing", run="voc-10")
    store.labels()  # {("a.jpg", "dog"): 1}
    store.undo(store.last_step(), reviewer="ann")

"Unsure" is a decision for UNKNOWN. It is in `labels()`; an undone decision is not.

The `version` of a label is the id of the last row about it, 0 if there is none. Callers pass the version they
saw; if somebody else decided in between, nothing is written and `Conflict` says what they did.

Rows without an image are about a tag itself: added, renamed, merged (`tag_book`). They are no decisions about labels,
and are not in `standing()`; a step may have rows of both kinds.

Rows are sealed and kept twice (`seals.py`): opening the file says which decisions are missing, or puts them back.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from fewtags.engine.run_folder import RunFolder
from fewtags.errors import UserError
from fewtags.review.seals import NO_SEAL, BrokenSeal, Row, SealedLines, check_chain, sealed
from fewtags.wording import plural

SCHEMA = 2
UNSEALED = 1  # the schema before: without seals
PATIENCE = 3.0  # seconds a reader waits for a decision that is being written
SHOWN = 3  # missing decisions named
ABOUT_TAGS = "tag:"  # the queue of a row about a tag itself begins so
Label = tuple[str, str]  # image, category

TABLE = """
CREATE TABLE decisions (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    step INTEGER NOT NULL,
    image TEXT NOT NULL,
    content_hash TEXT NOT NULL,
    category TEXT NOT NULL,
    old INTEGER NOT NULL CHECK (old IN (-1, 0, 1)),
    new INTEGER NOT NULL CHECK (new IN (-1, 0, 1)),
    reviewer TEXT NOT NULL,
    decided_at TEXT NOT NULL,
    queue TEXT NOT NULL,
    run TEXT NOT NULL,
    undo_of INTEGER UNIQUE REFERENCES decisions (id)
);
CREATE INDEX decisions_label ON decisions (image, category);
CREATE INDEX decisions_step ON decisions (step);
CREATE TABLE seals (id INTEGER PRIMARY KEY REFERENCES decisions (id), seal TEXT NOT NULL);
CREATE TRIGGER decisions_stay BEFORE UPDATE ON decisions BEGIN SELECT RAISE(ABORT, 'decisions are never changed'); END;
CREATE TRIGGER decisions_keep BEFORE DELETE ON decisions BEGIN SELECT RAISE(ABORT, 'decisions are never deleted'); END;
"""
# The questions of audits: which labels were chosen, when (after which decision), and with which probability. A table of
# its own, added to files of earlier versions; those versions ignore it.
QUESTIONS = """
CREATE TABLE IF NOT EXISTS questions (
    wave INTEGER NOT NULL,
    place INTEGER NOT NULL,
    image TEXT NOT NULL,
    category TEXT NOT NULL,
    inclusion REAL NOT NULL CHECK (inclusion > 0 AND inclusion <= 1),
    stands_for INTEGER NOT NULL,
    after INTEGER NOT NULL,
    PRIMARY KEY (wave, place)
);
CREATE TRIGGER IF NOT EXISTS questions_stay BEFORE UPDATE ON questions
    BEGIN SELECT RAISE(ABORT, 'questions are never changed'); END;
CREATE TRIGGER IF NOT EXISTS questions_keep BEFORE DELETE ON questions
    BEGIN SELECT RAISE(ABORT, 'questions are never deleted'); END;
"""
# Rows that stand: neither an undo nor undone; the last such row of a label is its state.
STANDING = "undo_of IS NULL AND NOT EXISTS (SELECT 1 FROM decisions u WHERE u.undo_of = d.id)"


@dataclass(frozen=True)
class Draft:
    """A decision to be written."""

    image: str  # as in the annotations
    category: str
    old: int
    new: int
    content_hash: str = ""  # of the file that was shown; of a row about a tag itself, the details
    version: int | None = None  # the one that was seen; None: any
    queue: str | None = None  # None: that of the step


@dataclass(frozen=True)
class Decision:
    """A row of the file."""

    id: int
    step: int
    image: str
    content_hash: str
    category: str
    old: int
    new: int
    reviewer: str
    decided_at: str  # ISO 8601, UTC
    queue: str
    run: str
    undo_of: int | None

    @property
    def label(self) -> Label:
        return self.image, self.category

    @property
    def is_about_tag(self) -> bool:
        return not self.image


NAMES = ", ".join(f"d.{field.name}" for field in fields(Decision))
INSERT = f"INSERT INTO decisions VALUES ({', '.join('?' * len(fields(Decision)))})"


@dataclass(frozen=True)
class Question:
    """A label that an audit asks about; its answer is a decision of the queue "audit"."""

    wave: int  # from 1
    place: int  # from 0
    image: str
    category: str
    inclusion: float  # probability with which it was drawn
    stands_for: int  # labels of nearly identical images
    after: int  # id of the last decision when it was drawn

    @property
    def label(self) -> Label:
        return self.image, self.category


@dataclass(frozen=True)
class Counts:
    """How many labels are decided, and how."""

    present: int = 0
    absent: int = 0
    unsure: int = 0

    @property
    def decided(self) -> int:
        return self.present + self.absent + self.unsure


class Conflict(UserError):
    """Somebody else changed the same label since it was seen; `others` are the last rows about those labels."""

    def __init__(self, others: Sequence[Decision]):
        first = others[0]
        what = f"the tag '{first.category}'" if first.is_about_tag else f"'{first.category}' of {first.image}"
        super().__init__(
            f"{first.reviewer or 'Somebody'} changed {what} at {first.decided_at}, after you saw it; check it again."
        )
        self.others = list(others)


def decisions_file(run: Path) -> Path:
    """The file with a run's decisions."""
    return RunFolder(Path(run)).review / "decisions.sqlite"


def has_decisions(run: Path) -> bool:
    """Has it been reviewed? Also if the file is gone and only its second copy is left."""
    file = decisions_file(run)
    return file.is_file() or SealedLines.beside(file).exists()


def standing_decisions(run: Path) -> dict[tuple[str, str], int]:
    """(image, tag) -> 1 present, 0 unsure, -1 absent, of all reviews of a run."""
    if not has_decisions(run):
        return {}
    with DecisionStore(decisions_file(run), read_only=True) as store:
        return store.labels()


class DecisionStore:
    def __init__(self, file: Path | None, *, read_only: bool = False):
        """Open or create the file; `read_only` requires an existing one and never writes. None: in memory."""
        self.file, self.read_only = file, read_only and file is not None
        self.restored: list[Decision] = []  # what the file had lost, and has again
        self._lines = None if file is None else SealedLines.beside(Path(file))
        self._copy: tempfile.TemporaryDirectory[str] | None = None
        self._lock = threading.RLock()  # one connection for all threads, one transaction at a time
        try:
            self._open(":memory:" if file is None else self._place(Path(file)))
        except (
            sqlite3.DatabaseError,
            BrokenSeal,
            UnicodeDecodeError,
        ) as error:  # the latter of damaged bytes in SQLite's message
            raise self._unusable(str(error)) from error

    def _open(self, place: str) -> None:
        self._connection = sqlite3.connect(place, uri=True, check_same_thread=False, isolation_level=None)
        try:
            self._prepare()
        except sqlite3.OperationalError:
            if (
                self.file is None
                or not self.read_only
                or self._copy is not None
                or os.access(self.file.parent, os.W_OK)
            ):
                raise
            self._open(self._copied(self.file))

    def _copied(self, file: Path) -> str:
        """A copy elsewhere: SQLite needs to write files next to the database to read it, which a read-only disk
        prevents. Without its -wal file the last decisions would be missing."""
        self._copy = tempfile.TemporaryDirectory(prefix="fewtags-decisions-")
        for name in (file.name, f"{file.name}-wal"):
            if file.with_name(name).is_file():
                shutil.copyfile(file.with_name(name), Path(self._copy.name) / name)
        return f"{(Path(self._copy.name) / file.name).as_uri()}?mode=ro"

    def _unusable(self, why: str) -> UserError:
        why = " ".join(why.split())
        found = [] if self._lines is None or not self._lines.exists() else self._lines.after(0, NO_SEAL)
        rescue = (
            f"{plural(len(found), 'decision')} can be read from {self._lines.file}: move {self.file} away, with its "
            "-wal and -shm files, and open the review again"
            if found and self._lines is not None
            else f"Put back a copy of it, or save what can be saved with: sqlite3 {self.file} .recover"
        )
        return UserError(f"{self.file} cannot be used as a file of decisions: {why}. {rescue}")

    def _place(self, file: Path) -> str:
        there = file.is_file()
        if self.read_only and not there:
            if SealedLines.beside(file).exists():
                raise self._unusable("it is missing")
            raise UserError(f"{file} does not exist: this run has not been reviewed yet.")
        if there and file.stat().st_size == 0 and not SealedLines.beside(file).exists():
            raise UserError(f"{file} is empty, and so has lost its decisions; put back a copy of it, or remove it.")
        if not self.read_only:
            file.parent.mkdir(parents=True, exist_ok=True)
        return f"{file.absolute().as_uri()}?mode={'ro' if self.read_only else 'rwc'}"

    def _prepare(self) -> None:
        self._connection.execute("PRAGMA busy_timeout = 10000")
        if self.read_only:
            self._check_complete()
            return
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")  # a commit returns once it is on disk
        with self._transaction():
            if not self._schema():
                self._create()
            elif self._schema() == UNSEALED:
                self._seal_all()
            for statement in QUESTIONS.split(";\n"):
                self._connection.execute(statement)
            self._restore(*self._check())

    def _create(self) -> None:
        if self._lines is not None and not self._lines.exists():
            self._lines.rewrite([])  # before the database: an empty database alone has lost something
        for statement in TABLE.split(";\n"):
            self._connection.execute(statement)
        self._connection.execute(f"PRAGMA user_version = {SCHEMA}")

    def _seal_all(self) -> None:
        """Decisions of an earlier version are sealed as they are."""
        self._connection.execute(next(part for part in TABLE.split(";\n") if "TABLE seals" in part))
        rows = sealed(map(astuple, self))
        self._connection.executemany("INSERT INTO seals VALUES (?, ?)", [(row[0], seal) for row, seal in rows])
        if self._lines is not None:
            self._lines.rewrite(rows)
        self._connection.execute(f"PRAGMA user_version = {SCHEMA}")

    def _check(self) -> tuple[int, str]:
        """The number of decisions and the last seal, if every decision is there and as it was written."""
        if not self._schema():
            raise BrokenSeal("it is empty")
        if self._schema() not in (SCHEMA, UNSEALED):
            raise UserError(f"{self.file} has schema {self._schema()}; this version of fewtags reads {SCHEMA}.")
        found = self._connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if found != "ok":
            raise BrokenSeal(str(found))
        if self._schema() == UNSEALED:
            return len(list(self)), NO_SEAL
        number, last = check_chain(self._rows_and_seals())
        seals = int(self._connection.execute("SELECT COALESCE(MAX(id), 0) FROM seals").fetchone()[0])
        if seals > number:
            raise BrokenSeal(f"decisions {number + 1} to {seals} are missing ({number} before them are there)")
        return number, last

    def _rows_and_seals(self) -> Iterator[tuple[Row, str | None]]:
        seals = self._connection.execute("SELECT id, seal FROM seals ORDER BY id")
        for row in self._connection.execute(f"SELECT {NAMES} FROM decisions d ORDER BY id"):
            number, seal = next(seals, (None, None))
            yield row, seal if number == row[0] else None

    def _restore(self, number: int, last: str) -> None:
        """Put back decisions that only the second copy has."""
        if self._lines is None:
            return
        if not self._lines.exists():
            self._lines.rewrite(sealed(map(astuple, self)))
        elif (wanted := self._lines.last_number()) > number:
            missing = self._lines.after(number, last)
            self._connection.executemany(INSERT, [row for row, _ in missing])
            self._connection.executemany("INSERT INTO seals VALUES (?, ?)", [(row[0], seal) for row, seal in missing])
            self.restored = [Decision(*row) for row, _ in missing]
            if number + len(missing) < wanted:
                raise self._missing(number + len(missing), wanted)

    def _check_complete(self) -> None:
        """For a reader, which cannot put anything back. A decision that is just being written is waited for."""
        until = time.monotonic() + PATIENCE
        while True:
            wanted = self._lines.last_number() if self._lines is not None and self._lines.exists() else 0
            number, _ = self._check()
            if self._schema() == UNSEALED or wanted <= number:
                return
            if time.monotonic() > until:
                raise self._missing(number, wanted)
            time.sleep(0.05)

    def _missing(self, number: int, wanted: int) -> UserError:
        assert self._lines is not None
        rows = [Decision(*row) for row, _ in self._lines.after(0, NO_SEAL)[number:]]
        names = "; ".join(f"'{row.category}' of {row.image}" for row in rows[:SHOWN])
        which = f" ({names}{'; …' if len(rows) > SHOWN else ''})" if rows else ""
        what = (
            "Open the review once without --read-only, which puts them back"
            if len(rows) == wanted - number
            else f"Put back a copy of it, or remove {self._lines.file} to continue without them"
        )
        return UserError(
            f"{self.file} has {plural(number, 'decision')}, but {wanted:,} were saved: number {number + 1:,} to "
            f"{wanted:,} are missing{which}. {what}."
        )

    def _schema(self) -> int:
        return int(self._connection.execute("PRAGMA user_version").fetchone()[0])

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """A transaction: exclusive across threads and processes, all or nothing."""
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            self._appended: tuple[int, int] | None = None
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._appended is not None and self._lines is not None:
                    with suppress(OSError):
                        self._lines.take_back(*self._appended)
                if self._connection.in_transaction:  # a full disk has already ended it
                    self._connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        with self._lock:
            self._connection.close()
        if self._copy is not None:
            self._copy.cleanup()

    def __enter__(self) -> DecisionStore:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # --- writing ---

    def append(self, drafts: Sequence[Draft], *, reviewer: str, queue: str, run: str) -> list[Decision]:
        """Write all of them as one step, or none and raise Conflict."""
        with self._transaction():
            seen = [(d, self._last_about((d.image, d.category))) for d in drafts if d.version is not None]
            others = [last for draft, last in seen if last is not None and last.id != draft.version]
            if others:
                raise Conflict(others)
            for draft, last in seen:
                if last is None and draft.version:
                    raise UserError(f"'{draft.category}' of {draft.image} has no version {draft.version}: it is new.")
            first, now = self._next_id(), _now()
            rows = [
                Decision(
                    first + n,
                    first,
                    d.image,
                    d.content_hash,
                    d.category,
                    d.old,
                    d.new,
                    reviewer,
                    now,
                    queue if d.queue is None else d.queue,
                    run,
                    None,
                )
                for n, d in enumerate(drafts)
            ]
            self._insert(rows)
        return rows

    def ask(self, questions: Sequence[Question]) -> None:
        """Keep the questions of a wave, durably, before the first of them is asked."""
        with self._transaction():
            places = ", ".join("?" * len(fields(Question)))
            self._connection.executemany(f"INSERT INTO questions VALUES ({places})", map(astuple, questions))

    def undo(self, step: int, *, reviewer: str) -> list[Decision]:
        """Undo a whole step. Raises Conflict if one of its labels was changed since."""
        with self._transaction():
            taken_back = list(self._select(f"WHERE step = ? AND {STANDING} ORDER BY id DESC", (step,)))
            if not taken_back:
                raise UserError(f"Step {step} cannot be undone: it does not exist or is already undone.")
            last = {d.label: self._last_about(d.label) for d in taken_back}
            in_step = {d.id for d in taken_back}
            others = [d for d in last.values() if d is not None and not self._rests_on(d, in_step)]
            others += self._later_about_tags(taken_back)
            if others:
                raise Conflict(others)
            first, now = self._next_id(), _now()
            rows = [
                Decision(
                    first + n,
                    first,
                    d.image,
                    d.content_hash,
                    d.category,
                    d.new,
                    d.old,
                    reviewer,
                    now,
                    d.queue,
                    d.run,
                    d.id,
                )
                for n, d in enumerate(taken_back)
            ]
            self._insert(rows)
        return rows

    def _rests_on(self, last: Decision, in_step: set[int]) -> bool:
        """Is the state of this label one of the step's rows? Later ones that were undone do not count."""
        standing = self._select(f"WHERE image = ? AND category = ? AND {STANDING} ORDER BY id DESC LIMIT 1", last.label)
        return any(decision.id in in_step for decision in standing)

    def _later_about_tags(self, rows: Sequence[Decision]) -> list[Decision]:
        """What stands and names a tag as these rows called it: it would be about nothing without them."""
        names = {name for row in rows if row.is_about_tag for name in _names_in(row)}
        if not names:
            return []
        places = ", ".join("?" * len(names))
        last = max(row.id for row in rows)
        return self._select(f"WHERE category IN ({places}) AND id > ? AND {STANDING} LIMIT 1", (*sorted(names), last))

    def _next_id(self) -> int:
        return int(self._connection.execute("SELECT COALESCE(MAX(id), 0) + 1 FROM decisions").fetchone()[0])

    def _insert(self, rows: Sequence[Decision]) -> None:
        before = self._connection.execute("SELECT seal FROM seals ORDER BY id DESC LIMIT 1").fetchone()
        new = sealed(map(astuple, rows), NO_SEAL if before is None else before[0])
        self._connection.executemany(INSERT, [row for row, _ in new])
        self._connection.executemany("INSERT INTO seals VALUES (?, ?)", [(row[0], seal) for row, seal in new])
        if self._lines is not None:
            try:
                self._appended = self._lines.append(new)
            except OSError as error:  # callers need not know that there are two files
                raise sqlite3.OperationalError(f"{self._lines.file}: {error.strerror}") from error

    # --- reading ---

    def __iter__(self) -> Iterator[Decision]:
        """Every row ever written, in order, including undone ones and undos."""
        return iter(self._select("ORDER BY id"))

    def standing(self) -> Iterator[Decision]:
        """The current decision about each decided label, oldest first."""
        yield from self._select(
            f"JOIN (SELECT MAX(id) AS last FROM decisions d WHERE image <> '' AND {STANDING} "
            "GROUP BY image, category) ON d.id = last ORDER BY d.id"
        )

    def step(self, step: int) -> list[Decision]:
        """The rows of a step that stand."""
        return self._select(f"WHERE step = ? AND {STANDING} ORDER BY id", (step,))

    def questions(self) -> list[Question]:
        """Of all audits, in the order they are asked."""
        with self._lock:
            if not self._connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'questions'").fetchone():
                return []  # a file of an earlier version, opened to read
            names = ", ".join(field.name for field in fields(Question))
            rows = self._connection.execute(f"SELECT {names} FROM questions ORDER BY wave, place")
            return [Question(*row) for row in rows]

    def labels(self) -> dict[Label, int]:
        """The current decisions: 1 present, -1 absent, 0 unsure."""
        return {decision.label: decision.new for decision in self.standing()}

    def counts(self, category: str | None = None) -> Counts:
        """Counts of the decided labels, of all categories or of one."""
        return (
            self.counts_by_category().get(category, Counts()) if category is not None else count_labels(self.standing())
        )

    def counts_by_category(self) -> dict[str, Counts]:
        by_category: dict[str, list[Decision]] = {}
        for decision in self.standing():
            by_category.setdefault(decision.category, []).append(decision)
        return {category: count_labels(decisions) for category, decisions in by_category.items()}

    def versions(self) -> dict[Label, int]:
        """The id of the last row about each label, including undos; labels without rows are omitted."""
        with self._lock:
            rows = self._connection.execute("SELECT image, category, MAX(id) FROM decisions GROUP BY image, category")
            return {(image, category): last for image, category, last in rows}

    def last_step(self, reviewer: str | None = None) -> int | None:
        """The last step that can be undone, of one reviewer or of all."""
        mine = "" if reviewer is None else " AND reviewer = ?"
        rows = self._select(f"WHERE {STANDING}{mine} ORDER BY id DESC LIMIT 1", () if reviewer is None else (reviewer,))
        return rows[0].step if rows else None

    def last_id(self) -> int:
        """Increases with every row; pass it to `since` to get newer rows."""
        return self._next_id() - 1

    def since(self, last_id: int) -> list[Decision]:
        """Rows written after the one with this id."""
        return self._select("WHERE id > ? ORDER BY id", (last_id,))

    def _last_about(self, label: Label) -> Decision | None:
        rows = self._select("WHERE image = ? AND category = ? ORDER BY id DESC LIMIT 1", label)
        return rows[0] if rows else None

    def _select(self, rest: str, values: Sequence[object] = ()) -> list[Decision]:
        with self._lock:
            return [
                Decision(*row) for row in self._connection.execute(f"SELECT {NAMES} FROM decisions d {rest}", values)
            ]


def _names_in(row: Decision) -> list[str]:
    """The names that exist only since this row about a tag."""
    details = json.loads(row.content_hash or "{}")
    return [row.category] if row.queue == f"{ABOUT_TAGS}add" else [details["name"]] if "name" in details else []


def count_labels(decisions: Iterable[Decision]) -> Counts:
    number = Counter(decision.new for decision in decisions)
    return Counts(present=number[1], absent=number[-1], unsure=number[0])


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
