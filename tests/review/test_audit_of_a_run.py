"""An audit of a run: in the terminal, as a file, interrupted and continued."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
from made_review import made_data

from fewtags.commands.audit import converse, read_answers, summary, write_questions
from fewtags.errors import UserError
from fewtags.review.audit import Audit
from fewtags.review.session import Answer, ReviewSession
from fewtags.review.store import DecisionStore, decisions_file


def made_audit(folder: Path | None = None, size: int = 20, known: float = 0.3) -> Audit:
    annotations, features = made_data(400, known=known)
    store = DecisionStore(None if folder is None else decisions_file(folder))
    return Audit(ReviewSession(annotations, features, store, run="made", reviewer="ann"), size)


def truth() -> np.ndarray:
    return made_data(400, known=1.1)[0].labels == 1


def by_the_truth(audit: Audit) -> int:
    asked = audit.question()
    assert asked is not None
    return 1 if truth()[asked.row, asked.column] else -1


def answer_all(audit: Audit, number: int) -> None:
    for _ in range(number):
        asked = audit.question()
        if asked is None:
            audit.new_wave()
            asked = audit.question()
        audit.answer(asked, 1 if truth()[asked.row, asked.column] else -1)


def test_answers_narrow_the_interval_and_both_estimates_find_the_truth():
    audit = made_audit(size=50)
    before = audit.state()
    assert (before.wave, before.answers, before.design) == (0, 0, None)
    assert audit.question() is None
    answer_all(audit, 200)
    after = audit.state()
    assert (after.wave, after.done, after.size, after.answers) == (4, 50, 50, 200)
    assert after.running.width < 0.6 * before.running.width
    session = audit.session
    missing = int((truth() & (session.given == 0)).sum())
    assert after.running.missing.low <= missing <= after.running.missing.high
    assert abs(after.design.missing - missing) < 3 * after.design.error
    assert after.design.error < missing / 3


def test_a_killed_audit_goes_on_with_the_same_questions(tmp_path):
    audit = made_audit(tmp_path)
    audit.new_wave()
    planned = [asked.question for asked in audit.open_questions()]
    answer_all(audit, 7)
    state = audit.state()
    again = made_audit(tmp_path)  # the first was never closed
    assert [asked.question for asked in again.open_questions()] == planned[7:]
    assert again.state() == state
    rows = list(again.session.store)
    assert [row.queue for row in rows] == ["audit"] * 7


def test_unsure_and_undone_answers_do_not_count_and_are_not_asked_again_or_are():
    audit = made_audit()
    audit.new_wave()
    first = audit.question()
    audit.answer(first, 0)
    assert (audit.state().done, audit.state().answers) == (1, 0)
    second = audit.question()
    assert second.question != first.question
    audit.answer(second, 1)
    audit.undo()
    assert audit.question().question == second.question
    assert len(audit.undo()) == 1
    assert audit.undo() == []


def test_what_was_decided_before_is_not_asked_and_counts_as_found():
    audit = made_audit(size=400)
    session = audit.session
    for column, name in enumerate(session.annotations.categories):
        rows = np.flatnonzero(session.given[:, column] == 0)
        session.decide([Answer(int(row), name, 1 if truth()[row, column] else -1) for row in rows[:-20]], queue="x")
    assert audit.new_wave()
    decided = session.store.labels()
    assert not any(asked.question.label in decided for asked in audit.open_questions())
    while (asked := audit.question()) is not None:
        audit.answer(asked, 1 if truth()[asked.row, asked.column] else -1)
    missing = int((truth() & (session.given == 0)).sum())
    assert audit.state().design.missing == pytest.approx(missing)  # all of them were asked about or decided
    assert audit.new_wave() == 0


def test_the_terminal_asks_saves_and_estimates():
    audit = made_audit()
    keys = iter(["y", "n", "z", "what?", "u", "q"])
    said = list(converse(audit, 20, None, lambda prompt: next(keys)))
    assert sum("Does it show" in line for line in said) == 5
    assert "0000" not in said[0] or ".jpg" in said[0]
    assert sum("of the tags that apply are known" in line for line in said) == 3
    assert sorted(audit.session.store.labels().values()) == [0, 1]
    (first, *rest) = summary(audit.state())
    assert first.strip().startswith("1 audited label:")
    assert "by the model" in rest[0]
    assert "by the answers alone" in rest[1]


def test_the_terminal_stops_when_the_interval_is_narrow_and_at_the_end_of_the_input():
    audit = made_audit()
    assert "as narrow as asked for" in list(converse(audit, 20, 1.0, lambda prompt: "n"))[-1]
    assert len(audit.session.store.labels()) == 1

    def ended(prompt: str) -> str:
        raise EOFError

    list(converse(audit, 20, None, ended))
    assert len(audit.session.store.labels()) == 1


def test_questions_as_a_file_and_back(tmp_path):
    audit, file = made_audit(size=10), tmp_path / "questions.csv"
    assert "10 questions" in write_questions(audit, file)
    with file.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert all(0 < float(row["inclusion"]) <= 1 for row in rows)
    write_questions(audit, tmp_path / "again.csv")
    assert (tmp_path / "again.csv").read_text() == file.read_text()  # the wave is the same until it is answered
    for row, answer in zip(rows, ["yes", "no", "unsure", "Y", " n ", "", "", "", "", ""], strict=True):
        row["answer"] = answer
    with file.open("w", newline="") as out:
        writer = csv.DictWriter(out, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    assert read_answers(audit, file).startswith("5 answers")
    assert read_answers(audit, file).startswith("0 answers")
    assert (audit.state().done, audit.state().answers) == (5, 4)
    for answer, why in (("perhaps", "line 2: an answer is yes, no or unsure, not 'perhaps'"),):
        file.write_text(f"image,tag,answer\n0001.jpg,dog,{answer}\n")
        with pytest.raises(UserError, match=why):
            read_answers(audit, file)
    file.write_text("image,tag,answer\nelsewhere.jpg,dog,yes\n")
    with pytest.raises(UserError, match="line 2: no question about 'dog' of elsewhere"):
        read_answers(audit, file)
    file.write_text("image,tag\n")
    with pytest.raises(UserError, match="no column 'answer'"):
        read_answers(audit, file)


def test_the_command(partly_tagged, tmp_path, cli):
    run, file = Path(shutil.copytree(partly_tagged, tmp_path / "run")), tmp_path / "questions.csv"
    answer = cli("audit", str(run), "--questions", "5", "--csv", str(file))
    assert answer.code == 0, answer.err
    assert answer.err.startswith(f"Opening {run} for an audit.\n")
    lines = file.read_text().splitlines()
    file.write_text("\n".join([lines[0], *(line + "no" for line in lines[1:])]) + "\n")
    answer = cli("audit", str(run), "--answers", str(file), "--quiet")
    assert answer.code == 0, answer.err
    assert f"{len(lines) - 1} audited labels" in answer.out
    assert "by the answers alone" in answer.out
