"""An audit of a run: questions about unknown labels, whose answers say how complete the tags are.

    audit = Audit(session)
    while question := audit.question():
        audit.answer(question, PRESENT)         # on disk when it returns
        audit.state().running.missing           # with its interval, narrower with every answer

A wave of questions is written to the store before the first is asked, and answers are decisions like others, so an
audit that is interrupted goes on where it was, here or on the page. `presence.audit` chooses and estimates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from fewtags.labels import PRESENT, UNKNOWN
from fewtags.presence.audit import (
    WAVE,
    Answered,
    Candidates,
    Designed,
    Running,
    by_design,
    by_model,
    choose,
    disagreement,
    one_of_each_burst,
)
from fewtags.review.session import Answer, ReviewSession
from fewtags.review.store import Decision, Label, Question

QUEUE = "audit"


@dataclass(frozen=True)
class Asked:
    """A question of the current wave."""

    question: Question
    row: int
    column: int
    probability: float
    version: int


@dataclass(frozen=True)
class State:
    """How far an audit is, and what it says."""

    wave: int  # 0: none yet
    done: int  # questions of the wave that were answered
    size: int
    answers: int  # yes or no, in all waves
    running: Running  # by the model, from all decisions
    design: Designed | None  # by the audit's answers alone

    @property
    def gap(self) -> str:
        """A sentence, if the two estimates disagree."""
        return disagreement(self.design, self.running)

    @property
    def words(self) -> str:
        """The estimate as one sentence."""
        (missing, least, most), known = self.running.missing, self.running.known
        share, low, high = (100 * part for part in known)
        return (
            f"{share:.0f} % of the tags that apply are known ({low:.0f} to {high:.0f} %); about {missing:,.0f} are "
            f"missing ({least:,.0f} to {most:,.0f})"
        )


class Audit:
    def __init__(self, session: ReviewSession, size: int = WAVE):
        self.session, self.size = session, size

    def question(self) -> Asked | None:
        """The next one; None when those of the current wave are answered, or before the first wave."""
        open_ones = self.open_questions()
        return open_ones[0] if open_ones else None

    def open_questions(self) -> list[Asked]:
        """Of the current wave, in the order to ask."""
        with self.session.lock:
            self.session.refresh()
            decided = self._decided()
            wave = self._waves()[-1:]
            return [
                asked
                for question in (wave[0] if wave else [])
                if question.label not in decided and (asked := self._asked(question)) is not None
            ]

    def new_wave(self) -> int:
        """Choose questions and write them down; gives their number, 0 if nothing is left to ask about."""
        session, store = self.session, self.session.store
        with session.lock:
            session.refresh()
            number = len(self._waves()) + 1
            chosen = choose(self._candidates(), self.size, (session.seed, number))
            images, names = session.annotations.images, session.names
            parts = (chosen.rows, chosen.columns, chosen.inclusion, chosen.stands_for)
            listed = zip(*(part.tolist() for part in parts), strict=True)
            store.ask(
                [
                    Question(number, place, images[row], names[column], min(pi, 1.0), stands_for, session.last_id)
                    for place, (row, column, pi, stands_for) in enumerate(listed)
                ]
            )
            return len(chosen)

    def answer(self, asked: Asked, label: int, *, reviewer: str | None = None) -> list[Decision]:
        answer = Answer(asked.row, asked.question.category, label, asked.version)
        return self.session.decide([answer], queue=QUEUE, reviewer=reviewer)

    def undo(self) -> list[Decision]:
        """Take back the last answer of an audit; nothing if there is none."""
        steps = [decision.step for decision in self.session.store.standing() if decision.queue == QUEUE]
        return self.session.undo(max(steps)) if steps else []

    def state(self) -> State:
        session = self.session
        with session.lock:
            session.refresh()
            waves, decided = self._waves(), self._decided()
            answered = [self._answered(wave, decided) for wave in waves]
            last = waves[-1] if waves else []
            return State(
                wave=len(waves),
                done=sum(question.label in decided for question in last),
                size=len(last) or self.size,
                answers=sum(len(wave.present) for wave in answered),
                running=by_model(session.judge.judged(), session.answers),
                design=by_design(answered),
            )

    # --- parts ---

    def _waves(self) -> list[list[Question]]:
        waves: dict[int, list[Question]] = {}
        for question in self.session.store.questions():
            waves.setdefault(question.wave, []).append(question)
        return list(waves.values())

    def _decided(self) -> dict[Label, Decision]:
        """Current decisions about labels that were unknown, in any queue."""
        session, found = self.session, {}
        for decision in session.store.standing():
            place = session.place(decision)
            if place is not None and session.given[place] == UNKNOWN:
                found[decision.label] = decision
        return found

    def _asked(self, question: Question) -> Asked | None:
        """None if the image or the category is gone since."""
        session = self.session
        place = session.state.locate(*question.label)
        if place is None or not session.readable[place[0]]:
            return None
        row, column = place
        return Asked(
            question, row, column, float(session.tags(row, [column])[0].probability), session.state.version(*place)
        )

    def _answered(self, wave: list[Question], decided: dict[Label, Decision]) -> Answered:
        said = [(q, decided[q.label].new) for q in wave if q.label in decided and decided[q.label].new != UNKNOWN]
        after = wave[0].after
        return Answered(
            present=np.array([label == PRESENT for _, label in said], dtype=bool),
            inclusion=np.array([question.inclusion for question, _ in said]),
            stands_for=np.array([question.stands_for for question, _ in said]),
            asked=len(wave),
            found=sum(decision.new == PRESENT and decision.id <= after for decision in decided.values()),
        )

    def _candidates(self) -> Candidates:
        """Every label of the run's own tags that is unknown, undecided and readable; of a burst one."""
        session, state = self.session, self.session.state
        own = state.book.own
        unknown = (session.given[:, :own] == UNKNOWN) & session.readable[:, None]
        parts = [
            np.flatnonzero(unknown[:, c] & ~state.is_decided(c) & (not state.book.tags[c].gone)) for c in range(own)
        ]
        rows = np.concatenate(parts)
        columns = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        first, stands_for = one_of_each_burst(columns, rows, session.leaders)
        rows, columns = rows[first], columns[first]
        base = torch.from_numpy(session.judge.odds[rows, columns])
        odds = session.ranker.answers.if_unknown(base, torch.from_numpy(columns)).numpy()
        return Candidates(rows, columns, odds, stands_for)
