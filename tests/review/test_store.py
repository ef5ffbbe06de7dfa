"""What people decided stays, is undone in whole steps, and is never overwritten unseen."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from fewtags.errors import UserError
from fewtags.review.store import Conflict, Counts, DecisionStore, Draft, Question, decisions_file

PRESENT, UNKNOWN, ABSENT = 1, 0, -1


@pytest.fixture
def store(tmp_path: Path) -> DecisionStore:
    return DecisionStore(decisions_file(tmp_path))


def decide(store: DecisionStore, *labels: tuple[str, str, int], version: int | None = None, who: str = "ann") -> int:
    """One step of decisions (image, category, new); gives its number."""
    known = store.labels()
    drafts = [
        Draft(image, category, known.get((image, category), UNKNOWN), new, version=version)
        for image, category, new in labels
    ]
    return store.append(drafts, reviewer=who, queue="missing", run="r")[0].step


def test_the_last_decision_about_a_label_holds(store):
    decide(store, ("a.jpg", "dog", PRESENT), ("b.jpg", "dog", ABSENT))
    decide(store, ("a.jpg", "dog", ABSENT))
    decide(store, ("a.jpg", "cat", UNKNOWN))  # "unsure" is a decision too
    assert store.labels() == {("a.jpg", "dog"): -1, ("b.jpg", "dog"): -1, ("a.jpg", "cat"): 0}
    assert store.counts() == Counts(absent=2, unsure=1)
    assert store.counts("dog") == Counts(absent=2)
    assert store.counts("cow").decided == 0


def test_a_step_is_undone_as_a_whole_and_undo_goes_on_to_the_first(store):
    decide(store, ("a.jpg", "dog", PRESENT))
    decide(store, ("a.jpg", "dog", ABSENT), ("b.jpg", "dog", PRESENT), ("c.jpg", "dog", PRESENT))
    store.undo(store.last_step(), reviewer="ann")
    assert store.labels() == {("a.jpg", "dog"): 1}
    store.undo(store.last_step(), reviewer="ann")
    assert store.labels() == {}
    assert store.last_step() is None


def test_what_was_undone_can_be_decided_again(store):
    decide(store, ("a.jpg", "dog", PRESENT))
    store.undo(store.last_step(), reviewer="ann")
    again = decide(store, ("a.jpg", "dog", ABSENT))
    assert store.labels() == {("a.jpg", "dog"): -1}
    assert store.last_step() == again


def test_nothing_is_ever_changed_or_deleted(store):
    decide(store, ("a.jpg", "dog", PRESENT))
    store.undo(store.last_step(), reviewer="bob")
    rows = list(store)
    assert [(row.old, row.new, row.reviewer, row.undo_of) for row in rows] == [(0, 1, "ann", None), (1, 0, "bob", 1)]
    other = sqlite3.connect(store.file)
    for statement in ("UPDATE decisions SET new = 1", "DELETE FROM decisions"):
        with pytest.raises(sqlite3.DatabaseError, match="never"):
            other.execute(statement)


def test_a_step_cannot_be_undone_twice(store):
    step = decide(store, ("a.jpg", "dog", PRESENT))
    store.undo(step, reviewer="ann")
    with pytest.raises(UserError, match="already undone"):
        store.undo(step, reviewer="ann")


def test_a_decision_about_a_label_that_changed_unseen_is_refused_and_tells_who_was_there(store):
    decide(store, ("a.jpg", "dog", PRESENT), version=0, who="ann")
    with pytest.raises(Conflict, match="ann") as conflict:
        decide(store, ("b.jpg", "dog", ABSENT), ("a.jpg", "dog", ABSENT), version=0, who="bob")
    assert [other.label for other in conflict.value.others] == [("a.jpg", "dog")]
    assert store.labels() == {("a.jpg", "dog"): 1}  # nothing of the refused step is there
    decide(store, ("a.jpg", "dog", ABSENT), version=store.versions()["a.jpg", "dog"], who="bob")
    assert store.labels() == {("a.jpg", "dog"): -1}


def test_an_undo_changes_the_version_too(store):
    step = decide(store, ("a.jpg", "dog", PRESENT))
    seen = store.versions()["a.jpg", "dog"]
    store.undo(step, reviewer="ann")
    with pytest.raises(Conflict):
        decide(store, ("a.jpg", "dog", ABSENT), version=seen)


def test_a_step_that_others_decided_over_is_not_undone(store):
    mine = decide(store, ("a.jpg", "dog", PRESENT), ("b.jpg", "dog", PRESENT), who="ann")
    decide(store, ("b.jpg", "dog", ABSENT), who="bob")
    assert store.last_step(reviewer="ann") == mine
    with pytest.raises(Conflict, match="bob"):
        store.undo(mine, reviewer="ann")
    assert store.labels() == {("a.jpg", "dog"): 1, ("b.jpg", "dog"): -1}


def test_another_reader_sees_what_came_since(store):
    decide(store, ("a.jpg", "dog", PRESENT))
    with DecisionStore(store.file, read_only=True) as reader:
        seen = reader.last_id()
        decide(store, ("b.jpg", "dog", PRESENT))
        assert [row.image for row in reader.since(seen)] == ["b.jpg"]
        with pytest.raises(sqlite3.OperationalError):
            decide(reader, ("c.jpg", "dog", PRESENT))


def test_a_missing_foreign_or_newer_file_is_named(tmp_path, store):
    with pytest.raises(UserError, match="has not been reviewed yet"):
        DecisionStore(tmp_path / "none.sqlite", read_only=True)
    (tmp_path / "text.sqlite").write_text("these are no decisions, but some text" * 50)
    with pytest.raises(UserError, match="cannot be used"):
        DecisionStore(tmp_path / "text.sqlite")
    store.close()
    newer = sqlite3.connect(store.file)
    newer.execute("PRAGMA user_version = 99")
    newer.close()
    with pytest.raises(UserError, match="schema 99"):
        DecisionStore(store.file)


WRITER = """
import sys
from pathlib import Path
from fewtags.review.store import DecisionStore, Draft
store = DecisionStore(Path(sys.argv[1]))
for number in range(10_000):
    both = [Draft(f"{number}.jpg", "dog", 0, 1), Draft(f"{number}.jpg", "cat", 0, -1)]
    store.append(both, reviewer="", queue="", run="")
    print(number, flush=True)
"""


def test_what_was_acknowledged_survives_kill_9(tmp_path):
    file = decisions_file(tmp_path)
    writer = subprocess.Popen([sys.executable, "-c", WRITER, file], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    for _ in range(50):
        acknowledged = int(writer.stdout.readline())
    writer.kill()
    acknowledged = max([acknowledged, *map(int, writer.stdout.read().split())])
    writer.wait()
    labels = DecisionStore(file).labels()
    assert all(labels[f"{number}.jpg", "dog"] == 1 for number in range(acknowledged + 1))
    assert len(labels) % 2 == 0  # a step is there with both of its decisions or not at all


# --- questions of audits ---


def test_questions_of_an_audit_are_kept_and_never_changed(tmp_path):
    file = tmp_path / "decisions.sqlite"
    questions = [Question(1, 0, "a.jpg", "dog", 0.25, 1, 0), Question(1, 1, "b.jpg", "cat", 0.01, 3, 0)]
    with DecisionStore(file) as store:
        store.ask(questions)
    with DecisionStore(file) as store:
        assert store.questions() == questions
        with pytest.raises(sqlite3.IntegrityError, match="never changed"):
            store._connection.execute("UPDATE questions SET inclusion = 0.5")
        with pytest.raises(sqlite3.IntegrityError):
            store.ask(questions)  # a wave is drawn once
        assert store.questions() == questions


def test_a_file_without_questions_is_read_and_gets_them(tmp_path):
    file = tmp_path / "decisions.sqlite"
    with DecisionStore(file) as store:
        store.append([Draft("a.jpg", "dog", 0, 1)], reviewer="ann", queue="missing", run="")
        for trigger in ("questions_stay", "questions_keep"):
            store._connection.execute(f"DROP TRIGGER {trigger}")
        store._connection.execute("DROP TABLE questions")
    with DecisionStore(file, read_only=True) as store:
        assert store.questions() == []
    with DecisionStore(file) as store:
        store.ask([Question(1, 0, "b.jpg", "dog", 0.5, 1, 1)])
        assert len(store.questions()) == len(store.labels()) == 1
