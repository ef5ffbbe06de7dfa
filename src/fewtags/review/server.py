"""The review page's server: the page's API, as JSON and pictures. The work is done by `session`.

    GET  /api/session                           the run, who reviews, the categories with their counts
    GET  /api/queues?tag=dog&queue=missing...   opens a queue; it has an id
    GET  /api/queues/ID?offset=0&limit=60&seen=24   some of its stacks; those after the first `seen` are re-ranked
    GET  /api/above?tag=dog&lowest=0.9          everything a bulk decision would cover, and a sample to inspect
    POST /api/decisions                         {"queue": "missing", "answers": [{"image", "tag", "label", "version"}]}
    POST /api/undo                              {"step": 12}, or null for the last one
    GET  /api/changes?since=120                 decisions since then, in any window
    GET  /api/audit                             its open questions and estimates; POST /api/audit/waves asks more
    GET  /api/images/7                          all its tags
    GET  /api/images/7/evidence?tag=dog         why one is suggested
    GET  /api/images/7/thumbnail, /large, /heat?tag=dog

Images are identified by index and categories by name. A response to POST means that the data is on disk.
"""

from __future__ import annotations

import secrets
import sqlite3
import threading
from collections import OrderedDict
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.staticfiles import StaticFiles

from fewtags.data.images import BadImage
from fewtags.errors import UserError
from fewtags.labels import PRESENT
from fewtags.review.audit import Audit
from fewtags.review.guard import Address, Guard
from fewtags.review.heat_maps import HeatMaps
from fewtags.review.pictures import NotShown, Pictures
from fewtags.review.session import Answer, LiveQueue, QueueName, ReviewSession, Status, Summary, Tag, View
from fewtags.review.store import Conflict, Decision

STATIC = Path(str(files("fewtags.review") / "static"))
MOST_QUEUES = 64  # one per window; the least recently used is dropped
SAMPLE = 24  # images shown before a bulk decision
KEEP_PICTURE = {"cache-control": "private, max-age=3600"}


Number = Annotated[int, Field(ge=0, lt=2**63)]  # what SQLite and NumPy can count


class AnswerBody(BaseModel):
    model_config = ConfigDict(extra="forbid")
    image: Number
    tag: str
    label: Literal[-1, 0, 1]
    version: Number | None = None


class DecisionsBody(BaseModel):
    model_config = ConfigDict(extra="forbid")
    queue: str = Field("", max_length=40)
    answers: list[AnswerBody] = Field(min_length=1)


class UndoBody(BaseModel):
    model_config = ConfigDict(extra="forbid")
    step: Number | None = None


class ViewQuery(BaseModel):
    """A `View` from the query string."""

    model_config = ConfigDict(extra="forbid")
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


class OpenQueues:
    """The open queues, by id."""

    def __init__(self) -> None:
        self._queues: OrderedDict[str, LiveQueue] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, queue: LiveQueue) -> str:
        with self._lock:
            name = secrets.token_urlsafe(8)
            self._queues[name] = queue
            while len(self._queues) > MOST_QUEUES:
                self._queues.popitem(last=False)
            return name

    def get(self, name: str) -> LiveQueue | None:
        with self._lock:
            if name in self._queues:
                self._queues.move_to_end(name)
            return self._queues.get(name)


def make_app(
    session: ReviewSession,
    pictures: Pictures,
    heat_maps: HeatMaps | None,
    *,
    about: dict[str, Any],
    address: Address,
    token: str,
    read_only: bool = False,
) -> FastAPI:
    """The whole application, guarded. `about` is passed to the page unchanged: the run, its method, the reviewer."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    queues, audit = OpenQueues(), Audit(session)

    @app.get("/api/session")
    def get_session() -> dict[str, Any]:
        session.refresh()
        return {
            **about,
            "read_only": read_only,
            "heat_maps": heat_maps is not None,
            "images": len(session),
            "unreadable": int((~session.readable).sum()),
            "last_id": session.last_id,
            "last_step": session.store.last_step(),
            "tags": [summary_json(summary) for summary in session.summaries()],
        }

    @app.get("/api/queues")
    def open_queue(query: Annotated[ViewQuery, Query()]) -> dict[str, Any]:
        session.refresh()
        live = LiveQueue(session, query.view())
        return {"id": queues.add(live), **queue_json(session, live)}

    @app.get("/api/queues/{name}")
    def get_window(
        name: str,
        offset: Annotated[Number, Query()] = 0,
        limit: Annotated[int, Query(ge=0, le=500)] = 60,
        seen: Annotated[Number, Query()] = 0,
    ) -> Response:
        live = queues.get(name)
        if live is None:
            return JSONResponse({"error": "This queue is no longer open; open it again."}, 404)
        with session.lock:
            live.follow(seen)
            return JSONResponse({**queue_json(session, live), "stacks": stacks_json(session, live, offset, limit)})

    @app.get("/api/above")
    def get_above(query: Annotated[ViewQuery, Query()]) -> dict[str, Any]:
        with session.lock:
            session.refresh()
            view = query.view()
            rows = session.queue(view).order
            column, chances = session.column(view.category), session.probabilities(view, rows)
            sample = np.random.default_rng(len(rows)).permutation(len(rows))[:SAMPLE]
            return {
                "answers": [{"image": int(row), "version": session.version(int(row), column)} for row in rows],
                "expected_wrong": float((1 - chances).sum()),
                "sample": [
                    {"image": int(rows[place]), "probability": float(chances[place])}
                    for place in sample[np.argsort(chances[sample])]
                ],
            }

    @app.post("/api/decisions")
    def post_decisions(body: DecisionsBody) -> dict[str, Any]:
        answers = [Answer(answer.image, answer.tag, answer.label, answer.version) for answer in body.answers]
        return step_json(session, session.decide(answers, queue=body.queue))

    @app.post("/api/undo")
    def post_undo(body: UndoBody) -> dict[str, Any]:
        return step_json(session, session.undo(body.step))

    @app.get("/api/changes")
    def get_changes(since: Annotated[Number, Query()]) -> dict[str, Any]:
        session.refresh()
        return {"last_id": session.last_id, "labels": labels_json(session, session.store.since(since))}

    @app.get("/api/audit")
    def get_audit() -> dict[str, Any]:
        return audit_json(session, audit)

    @app.post("/api/audit/waves")
    def post_wave() -> dict[str, Any]:
        with session.lock:  # two windows do not ask twice
            return {"chosen": len(audit.open_questions()) or audit.new_wave()}

    @app.get("/api/images/{image}")
    def get_image(image: int) -> dict[str, Any]:
        check_row(session, image)
        with session.lock:
            session.refresh()
            tags = [tag_json(tag) for tag in session.tags(image)]
            return {"image": image, "name": session.annotations.images[image], "tags": tags}

    @app.get("/api/images/{image}/evidence")
    def get_evidence(image: int, tag: str) -> dict[str, Any]:
        check_row(session, image)
        with session.lock:
            session.refresh()
            column, names = session.column(tag), session.annotations.categories
            return {
                "tag": tag_json(session.tags(image, [column])[0]),
                "threshold": session.threshold(column, given=int(session.given[image, column])),
                "known": [
                    names[other] for other in np.flatnonzero(session.labels[image] == PRESENT) if other != column
                ],
                "nearest": [
                    {"image": row, "name": session.annotations.images[row], "similarity": similarity}
                    for row, similarity in session.nearest_positives(image, tag)
                ],
            }

    @app.get("/api/images/{image}/thumbnail")
    def get_thumbnail(image: int) -> Response:
        return Response(pictures.thumbnail(image), media_type="image/jpeg", headers=KEEP_PICTURE)

    @app.get("/api/images/{image}/large")
    def get_large(image: int) -> Response:
        return Response(pictures.large(image), media_type="image/jpeg", headers=KEEP_PICTURE)

    @app.get("/api/images/{image}/heat")
    def get_heat(image: int, tag: str) -> Response:
        if heat_maps is None:
            raise NotShown("This run has no heat maps.")
        check_row(session, image)
        session.column(tag)  # raises if there is no such tag
        return Response(heat_maps.picture(image, tag), media_type="image/jpeg")

    @app.exception_handler(Conflict)
    def on_conflict(request: Request, error: Conflict) -> Response:
        session.refresh()
        return JSONResponse({"error": str(error), "labels": labels_json(session, error.others)}, 409)

    @app.exception_handler(UserError)
    def on_mistake(request: Request, error: UserError) -> Response:
        status = 404 if isinstance(error, NotShown | BadImage) else 400
        message = error.reason if isinstance(error, BadImage) else str(error)  # do not reveal the path
        return JSONResponse({"error": sendable(message)}, status)

    @app.exception_handler(RequestValidationError)
    def on_malformed(request: Request, error: RequestValidationError) -> Response:
        """What was sent is not sent back: JSON has no NaN, and UTF-8 no halves of characters."""
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        return JSONResponse({"error": sendable(f"{place}: {first['msg']}.")}, 422)

    @app.exception_handler(sqlite3.Error)
    def on_unwritten(request: Request, error: sqlite3.Error) -> Response:
        return JSONResponse({"error": f"The decision could not be written: {error}. Nothing was saved."}, 507)

    app.mount("/static", StaticFiles(directory=STATIC), name="static")

    @app.get("/")
    def get_page() -> Response:
        return FileResponse(STATIC / "index.html", media_type="text/html; charset=utf-8")

    app.add_middleware(Guard, address=address, token=token, read_only=read_only)
    return app


def sendable(text: str) -> str:
    """Text that can be encoded: a request may contain half of a character."""
    return text.encode("utf-8", errors="replace").decode()


def check_row(session: ReviewSession, row: int) -> None:
    if not 0 <= row < len(session):
        raise NotShown(f"There is no image {row}.")


# --- as JSON ---


def summary_json(summary: Summary) -> dict[str, Any]:
    return {
        "name": summary.name,
        "known": summary.known,
        "expected": round(summary.expected, 1),
        "left": summary.left,
        "next": round(summary.next_right, 3),
        "present": summary.decided.present,
        "absent": summary.decided.absent,
        "unsure": summary.decided.unsure,
    }


def queue_json(session: ReviewSession, live: LiveQueue) -> dict[str, Any]:
    category = live.view.category
    found: dict[str, Any] = {
        "stacks_in_all": len(live.queue),
        "images": len(live.queue.order),
        "out_of": live.queue.out_of,
        "threshold": session.threshold(session.column(category)),
        "summary": summary_json(session.summary(category)),
        "last_id": session.last_id,
    }
    if live.view.queue == "random":
        estimate = session.estimate(category)
        found["estimate"] = {
            "right": estimate.right,
            "seen": estimate.seen,
            "unsure": estimate.unsure,
            "population": estimate.population,
            "share": estimate.share,
            "interval": estimate.interval,
            "enough": estimate.enough,
            "still_needed": estimate.still_needed,
        }
    return found


def stacks_json(session: ReviewSession, live: LiveQueue, offset: int, limit: int) -> list[dict[str, Any]]:
    column = session.column(live.view.category)
    numbers = range(offset, min(offset + limit, len(live.queue)))
    rows = [live.queue.rows(number) for number in numbers]
    chances = session.probabilities(live.view, np.concatenate(rows)) if rows else np.zeros(0)
    found, place = [], 0
    for number, stack in zip(numbers, rows, strict=True):
        images = []
        for row, chance in zip(stack.tolist(), chances[place : place + len(stack)].tolist(), strict=True):
            images.append({**label_json(session, row, column), "probability": round(chance, 4)})
        place += len(stack)
        found.append({"place": number, "images": images})
    return found


def label_json(session: ReviewSession, row: int, column: int) -> dict[str, Any]:
    decision = session.decision(row, column)
    found: dict[str, Any] = {
        "image": row,
        "name": session.annotations.images[row],
        "label": int(session.labels[row, column]),
        "version": session.version(row, column),
        "decided": decision is not None,
    }
    if decision is not None:
        found.update(reviewer=decision.reviewer, decided_at=decision.decided_at)
    return found


def labels_json(session: ReviewSession, rows: list[Decision]) -> list[dict[str, Any]]:
    """The current labels that these rows of the store concern."""
    with session.lock:
        places = dict.fromkeys(place for row in rows if (place := session.place(row)) is not None)
        names = session.annotations.categories
        return [{**label_json(session, row, column), "tag": names[column]} for row, column in places]


def audit_json(session: ReviewSession, audit: Audit) -> dict[str, Any]:
    with session.lock:
        state = audit.state()
        names = session.annotations.categories
        return {
            "questions": [
                {**label_json(session, asked.row, asked.column), "tag": names[asked.column]}
                for asked in audit.open_questions()
            ],
            "wave": state.wave,
            "done": state.done,
            "size": state.size,
            "answers": state.answers,
            "words": state.words,
            "missing": state.running.missing,
            "known": state.running.known,
            "design": None if state.design is None else state.design.interval,
            "gap": state.gap,
        }


def step_json(session: ReviewSession, rows: list[Decision]) -> dict[str, Any]:
    return {
        "step": rows[0].step if rows else None,
        "labels": labels_json(session, rows),
        "last_step": session.store.last_step(),
        "last_id": session.last_id,
    }


def tag_json(tag: Tag) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": tag.category,
        "label": tag.label,
        "given": tag.given,
        "probability": round(tag.probability, 4),
        "suggested": tag.suggested,
        "version": tag.version,
        "decided": tag.decision is not None,
    }
    if tag.decision is not None:
        found.update(reviewer=tag.decision.reviewer, decided_at=tag.decision.decided_at)
    return found
