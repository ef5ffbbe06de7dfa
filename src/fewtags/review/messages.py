"""What the review page sends and gets, as JSON. Images are identified by index and tags by name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from fewtags.presence.new_tag import NEXT
from fewtags.review.audit import Audit
from fewtags.review.queues import LiveQueue, QueueName, Status, View
from fewtags.review.search import Hits
from fewtags.review.session import ReviewSession, Summary, Tag
from fewtags.review.store import Decision
from fewtags.review.tag_book import LONGEST_NAME, in_words

Number = Annotated[int, Field(ge=0, lt=2**63)]  # what SQLite and NumPy can count


class Request(BaseModel):
    model_config = ConfigDict(extra="forbid")


# --- requests ---


class AnswerBody(Request):
    image: Number
    tag: str
    label: Literal[-1, 0, 1]
    version: Number | None = None


class DecisionsBody(Request):
    queue: str = Field("", max_length=40)
    answers: list[AnswerBody] = Field(min_length=1)


class UndoBody(Request):
    step: Number | None = None


class NewTagBody(Request):
    name: str = Field(max_length=4 * LONGEST_NAME)
    examples: list[Number] = Field(default=[], max_length=1000)
    text: str = Field("", max_length=200)


class TagChangeBody(Request):
    tag: str
    change: Literal["rename", "merge", "delete", "describe", "pin"]
    value: str = Field("", max_length=2000)
    images: list[Number] = Field(default=[], max_length=100)  # to pin
    version: Number | None = None


class ViewQuery(Request):
    """A `View` from the query string."""

    tag: str
    queue: QueueName = "missing"
    status: Status = "open"
    lowest: float | None = Field(None, ge=0, le=1)
    highest: float = Field(1.0, ge=0, le=1)
    text: str = ""
    together_with: str = ""
    reviewer: str = ""
    stacks: bool = True

    def view(self) -> View:
        return View(self.tag, **self.model_dump(exclude={"tag"}))


# --- responses ---


class SummaryOut(BaseModel):
    name: str
    column: int  # stays when it is renamed
    known: int
    expected: float
    left: int
    next: float
    doubtful: int
    disputed: int
    present: int
    absent: int
    unsure: int
    new: bool
    version: int
    description: str
    pinned: list[int]
    history: list[str]  # who did what to the tag itself

    @classmethod
    def of(cls, session: ReviewSession, summary: Summary) -> SummaryOut:
        tag, decided = session.tag(summary.name), summary.decided
        return cls(
            name=summary.name,
            column=tag.column,
            known=summary.known,
            expected=round(summary.expected, 1),
            left=summary.left,
            next=round(summary.next_right, 3),
            doubtful=summary.doubtful,
            disputed=summary.disputed,
            present=decided.present,
            absent=decided.absent,
            unsure=decided.unsure,
            new=session.state.book.is_new(tag.column),
            version=tag.version,
            description=tag.description,
            pinned=[row for image in tag.pinned if (row := session.state.row(image)) is not None],
            history=[f"{row.reviewer or 'Somebody'}, {row.decided_at[:10]}: {in_words(row)}" for row in tag.history],
        )


class SessionOut(BaseModel):
    model_config = ConfigDict(extra="allow")  # what is known about the run
    read_only: bool
    heat_maps: bool
    images: int
    unreadable: int
    last_id: int
    last_step: int | None
    decided: int
    tags: list[SummaryOut]


class LabelOut(BaseModel):
    image: int
    name: str
    label: int
    version: int
    decided: bool
    reviewer: str | None = None
    decided_at: str | None = None
    tag: str | None = None
    probability: float | None = None
    said: list[str] = []  # of a disputed label, who said what

    @classmethod
    def of(cls, session: ReviewSession, row: int, column: int, **more: Any) -> LabelOut:
        decision = session.decision(row, column)
        if decision is not None:
            more |= {"reviewer": decision.reviewer, "decided_at": decision.decided_at}
        return cls(
            image=row,
            name=session.annotations.images[row],
            label=int(session.labels[row, column]),
            version=session.state.version(row, column),
            decided=decision is not None,
            **more,
        )


def labels_of(session: ReviewSession, rows: Iterable[Decision]) -> list[LabelOut]:
    """The current labels that these rows of the store concern."""
    with session.lock:
        about = (session.place(row) for row in rows if not row.is_about_tag)
        places = dict.fromkeys(place for place in about if place is not None)
        return [LabelOut.of(session, row, column, tag=session.names[column]) for row, column in places]


class StackOut(BaseModel):
    place: int
    images: list[LabelOut]


class ForecastOut(BaseModel):
    """What the next answers will find, what is missing, and whether that is enough."""

    answers: int
    found: float
    missing: tuple[float, float, float]
    enough: bool
    threshold: float | None
    promised: float | None

    @classmethod
    def of(cls, session: ReviewSession, category: str) -> ForecastOut:
        forecast = session.forecast(category)
        known = forecast.threshold is not None and forecast.threshold.probability <= 1
        value, low, high = (round(number, 1) for number in forecast.missing)
        return cls(
            answers=NEXT,
            found=round(forecast.next_found, 1),
            missing=(value, low, high),
            enough=forecast.enough,
            threshold=forecast.threshold.probability if known and forecast.threshold is not None else None,
            promised=forecast.threshold.promised if known and forecast.threshold is not None else None,
        )


class EstimateOut(BaseModel):
    right: int
    seen: int
    unsure: int
    population: int
    share: float | None
    interval: tuple[float, float]
    enough: bool
    still_needed: int


class QueueOut(BaseModel):
    id: str | None = None
    stacks_in_all: int
    images: int
    out_of: int
    summary: SummaryOut
    forecast: ForecastOut
    last_id: int
    decided: int
    estimate: EstimateOut | None = None
    stacks: list[StackOut] | None = None

    @classmethod
    def of(cls, session: ReviewSession, live: LiveQueue, **more: Any) -> QueueOut:
        category = live.view.category
        if live.view.queue == "random":
            found = session.estimate(category)
            more["estimate"] = EstimateOut(
                right=found.right,
                seen=found.seen,
                unsure=found.unsure,
                population=found.population,
                share=found.share,
                interval=found.interval,
                enough=found.enough,
                still_needed=found.still_needed,
            )
        return cls(
            stacks_in_all=len(live.queue),
            images=len(live.queue.order),
            out_of=live.queue.out_of,
            summary=SummaryOut.of(session, session.summary(category)),
            forecast=ForecastOut.of(session, category),
            last_id=session.last_id,
            decided=session.state.number_decided(),
            **more,
        )


def stacks_of(session: ReviewSession, live: LiveQueue, offset: int, limit: int) -> list[StackOut]:
    column = session.column(live.view.category)
    numbers = range(offset, min(offset + limit, len(live.queue)))
    rows = [live.queue.rows(number) for number in numbers]
    chances = session.probabilities(live.view, np.concatenate(rows)) if rows else np.zeros(0)
    found, place = [], 0
    for number, stack in zip(numbers, rows, strict=True):
        images = []
        for row, chance in zip(stack.tolist(), chances[place : place + len(stack)].tolist(), strict=True):
            more = {"said": session.state.said(row, column)} if live.view.queue == "disputed" else {}
            images.append(LabelOut.of(session, row, column, probability=round(chance, 4), **more))
        place += len(stack)
        found.append(StackOut(place=number, images=images))
    return found


class StepOut(BaseModel):
    step: int | None
    tag: str | None  # that the step began with, as it is called now
    labels: list[LabelOut]
    words: str  # what a step about tags did
    last_step: int | None
    last_id: int
    decided: int

    @classmethod
    def of(cls, session: ReviewSession, rows: list[Decision]) -> StepOut:
        book = session.state.book
        column = book.find(rows[0].category) if rows else None
        return cls(
            step=rows[0].step if rows else None,
            tag=None if column is None else book.tags[column].name,
            labels=labels_of(session, rows),
            words=", ".join(in_words(row) for row in rows if row.is_about_tag),
            last_step=session.store.last_step(),
            last_id=session.last_id,
            decided=session.state.number_decided(),
        )


class ChangesOut(BaseModel):
    last_id: int
    labels: list[LabelOut]
    tags: list[SummaryOut] | None  # where a tag itself has changed


class TagOut(BaseModel):
    name: str
    label: int
    given: int
    probability: float
    suggested: bool
    version: int
    decided: bool
    reviewer: str | None = None
    decided_at: str | None = None

    @classmethod
    def of(cls, tag: Tag) -> TagOut:
        decision = tag.decision
        return cls(
            name=tag.category,
            label=tag.label,
            given=tag.given,
            probability=round(tag.probability, 4),
            suggested=tag.suggested,
            version=tag.version,
            decided=decision is not None,
            reviewer=None if decision is None else decision.reviewer,
            decided_at=None if decision is None else decision.decided_at,
        )


class ImageOut(BaseModel):
    image: int
    name: str
    tags: list[TagOut]


class NearOut(BaseModel):
    image: int
    name: str
    similarity: float


class EvidenceOut(BaseModel):
    tag: TagOut
    threshold: float | None
    known: list[str]
    nearest: list[NearOut]


class HitsOut(BaseModel):
    sentence: str
    hits: list[NearOut]

    @classmethod
    def of(cls, session: ReviewSession, hits: Hits) -> HitsOut:
        names = session.annotations.images
        found = zip(hits.rows.tolist(), hits.similarity.tolist(), strict=True)
        return cls(
            sentence=hits.sentence,
            hits=[NearOut(image=row, name=names[row], similarity=round(near, 4)) for row, near in found],
        )


class AboveOut(BaseModel):
    answers: list[dict[str, int]]
    expected_wrong: float
    sample: list[dict[str, float]]


class ReviewedTag(BaseModel):
    """What a review changed about a tag."""

    name: str
    found: int
    removed: int
    rejected: int  # suggestions that were wrong
    known_before: int
    missing: tuple[float, float, float]


class ReviewedOut(BaseModel):
    tags: list[ReviewedTag]
    agreement: str


class AuditOut(BaseModel):
    questions: list[LabelOut]
    wave: int
    done: int
    size: int
    answers: int
    words: str
    missing: tuple[float, float, float]
    known: tuple[float, float, float]
    design: tuple[float, float, float] | None
    gap: str

    @classmethod
    def of(cls, session: ReviewSession, audit: Audit) -> AuditOut:
        with session.lock:
            state, names = audit.state(), session.names
            return cls(
                questions=[
                    LabelOut.of(session, asked.row, asked.column, tag=names[asked.column])
                    for asked in audit.open_questions()
                ],
                wave=state.wave,
                done=state.done,
                size=state.size,
                answers=state.answers,
                words=state.words,
                missing=state.running.missing,
                known=state.running.known,
                design=None if state.design is None else state.design.interval,
                gap=state.gap,
            )
