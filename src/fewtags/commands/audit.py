"""`fewtags audit`: questions about labels that nobody knows, until the numbers about them can be trusted."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from fewtags.commands.discover import atomic_text
from fewtags.commands.review import user_name
from fewtags.data.csv_cells import protected, unprotected
from fewtags.errors import UserError
from fewtags.labels import ABSENT, PRESENT, UNKNOWN
from fewtags.presence.audit import WAVE
from fewtags.progress import working
from fewtags.review.audit import QUEUE, Asked, Audit, State
from fewtags.review.opening import open_review
from fewtags.review.session import Answer
from fewtags.wording import plural

MOST = 1000  # questions of one sitting, when they end by the width of the interval
KEYS = {"y": PRESENT, "n": ABSENT, "u": UNKNOWN}
WORDS = {**KEYS, "yes": PRESENT, "no": ABSENT, "unsure": UNKNOWN, "1": PRESENT, "-1": ABSENT, "0": UNKNOWN}
COLUMNS = ("wave", "image", "tag", "inclusion", "stands_for", "answer")
PROMPT = "y yes, n no, u unsure, z undo, q stop: "


def audit(
    run: Path,
    *,
    questions: int | None = None,
    until: float | None = None,
    csv_file: Path | None = None,
    answers: Path | None = None,
    reviewer: str | None = None,
    quiet: bool = False,
    ask: Callable[[str], str] = input,
) -> Iterator[str]:
    """Lines to print, as they come: with terminal questions, or questions written to or read from a CSV file."""
    with working("Opening the run", quiet=quiet):
        opened = open_review(run, reviewer=reviewer or user_name(), quiet=quiet)
    most = questions if questions is not None else WAVE if until is None else MOST
    session = Audit(opened.session, min(most, WAVE) if csv_file is None else most)
    try:
        if answers is not None:
            yield read_answers(session, answers)
        if csv_file is not None:
            yield write_questions(session, csv_file)
            return
        if answers is None:
            if not quiet:
                yield f"Questions can also be answered on a page with pictures: fewtags audit {run} --open"
            yield from converse(session, most, until, ask)
        yield from summary(session.state())
    finally:
        opened.session.store.close()


# --- on the terminal ---


def converse(audit: Audit, most: int, until: float | None, ask: Callable[[str], str]) -> Iterator[str]:
    """Question by question. Every answer is on disk before the next question."""
    answered = 0
    while answered < most:
        asked = next_question(audit)
        if asked is None:
            yield "There is nothing left to ask about."
            return
        state = audit.state()
        path = audit.session.annotations.path(asked.row)
        yield f"\n{state.done + 1} of {state.size}   {path}\nDoes it show: {asked.question.category}?"
        label = choice(ask)
        if label is None:
            return
        if label == "undo":
            taken_back = audit.undo()
            answered -= len(taken_back)
            yield (
                f"Taken back: {taken_back[0].category} of {taken_back[0].image}." if taken_back else "Nothing to undo."
            )
            continue
        audit.answer(asked, KEYS[label])
        answered += 1
        state = audit.state()
        yield state.words
        if until is not None and state.running.width <= until:
            yield f"The interval is {100 * state.running.width:.0f} points wide: as narrow as asked for."
            return


def next_question(audit: Audit) -> Asked | None:
    """Of a new wave, when the one before is answered."""
    asked = audit.question()
    return asked if asked is not None or not audit.new_wave() else audit.question()


def choice(ask: Callable[[str], str]) -> str | None:
    """A key of KEYS or "undo"; None to stop, as at the end of the input."""
    while True:
        try:
            key = ask(PROMPT).strip().lower()[:1]
        except (EOFError, KeyboardInterrupt):
            return None
        if key in KEYS:
            return key
        if key in ("z", "q"):
            return "undo" if key == "z" else None
        print("Please answer y, n, u, z or q.", file=sys.stderr)


def summary(state: State) -> Iterator[str]:
    """The two estimates side by side."""
    if not state.answers:
        yield f"Not audited yet: {state.words}."
        return
    yield f"\n{plural(state.answers, 'audited label')}: {state.words}."
    model, design = state.running.missing, state.design
    assert design is not None
    for name, (value, low, high) in (("by the model", model), ("by the answers alone", design.interval)):
        yield f"  {name:<21} {value:>9,.0f} missing tags ({low:,.0f} to {high:,.0f})"
    if state.gap:
        yield state.gap


# --- as files ---


def write_questions(audit: Audit, file: Path) -> str:
    """Those of the open wave, or of a new one."""
    if audit.question() is None and not audit.new_wave():
        raise UserError("There is nothing left to ask about: no label is unknown and undecided.")
    open_ones = audit.open_questions()
    with atomic_text(file) as out:
        writer = csv.writer(out)
        writer.writerow(COLUMNS)
        for asked in open_ones:
            q = asked.question
            cells = (q.wave, q.image, q.category, f"{q.inclusion:.6g}", q.stands_for, "")
            writer.writerow(map(protected, cells))
    return (
        f"{plural(len(open_ones), 'question')} in {file}: fill in the column `answer` with yes, no or unsure, and pass "
        "the file with --answers."
    )


def read_answers(audit: Audit, file: Path) -> str:
    """Write the answers of a file as decisions, all or none."""
    session = audit.session
    known = {question.label for question in session.store.questions()}
    new: dict[tuple[str, str], Answer] = {}
    for number, image, tag, label in answered_lines(file):
        if (image, tag) not in known:
            raise UserError(f"{file}, line {number}: no question about '{tag}' of {image} was asked in this run.")
        place = session.state.locate(image, tag)
        if place is None:
            raise UserError(f"{file}, line {number}: the run has no image {image} with the tag '{tag}'.")
        before = session.decision(*place)
        if before is None or before.new != label:
            new[image, tag] = Answer(place[0], tag, label)
    if new:
        session.decide(list(new.values()), queue=QUEUE)
    return f"{plural(len(new), 'answer')} read from {file}."


def answered_lines(file: Path) -> Iterator[tuple[int, str, str, int]]:
    """Line number, image, tag and label of every line with an answer."""
    if not file.is_file():
        raise UserError(f"{file} does not exist; write questions with --csv, and answer them in it.")
    with file.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.DictReader(lines)
        if missing := {"image", "tag", "answer"} - set(reader.fieldnames or ()):
            raise UserError(f"{file} has no column '{min(missing)}'; it should be a file written by --csv.")
        for line in reader:
            said = (line["answer"] or "").strip().lower()
            if not said:
                continue
            if said not in WORDS:
                raise UserError(f"{file}, line {reader.line_num}: an answer is yes, no or unsure, not '{said}'.")
            yield reader.line_num, unprotected(line["image"]), unprotected(line["tag"]), WORDS[said]
