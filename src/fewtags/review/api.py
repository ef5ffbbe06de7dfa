"""The review page's API: requests to what the session, the search and the audit do.

    GET  /api/session                           the run, who reviews, the tags with their counts
    GET  /api/queues?tag=dog&queue=missing...   opens a queue; it has an id
    GET  /api/queues/ID?offset=0&limit=60&seen=24   some of its stacks; those after the first `seen` are re-ranked
    GET  /api/above?tag=dog&lowest=0.9          everything a bulk decision would cover, and a sample to inspect
    POST /api/decisions                         {"queue": "missing", "answers": [{"image", "tag", "label", "version"}]}
    GET  /api/undo, POST /api/undo              what would be undone; {"step": 12}, or null for the last one
    POST /api/tags, /api/tags/change            a new tag; rename, merge, delete, describe, pin
    GET  /api/search?text=lighthouse, ?like=7   images; POST /api/search with a picture
    GET  /api/changes?since=120                 decisions since then, in any window
    GET  /api/reviewed                          what the review changed
    GET  /api/audit                             its open questions and estimates; POST /api/audit/waves asks more
    GET  /api/images/7                          all its tags
    GET  /api/images/7/evidence?tag=dog         why one is suggested
    GET  /api/images/7/thumbnail, /large, /heat?tag=dog

A response to POST means that the data is on disk.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool

from fewtags.errors import UserError
from fewtags.labels import ABSENT, PRESENT, UNKNOWN
from fewtags.review import messages as m
from fewtags.review.audit import Audit
from fewtags.review.heat_maps import HeatMaps
from fewtags.review.pictures import NotShown, Pictures
from fewtags.review.search import Search
from fewtags.review.session import Answer, LiveQueue, ReviewSession

MOST_QUEUES = 64  # one per window; the least recently used is dropped
SAMPLE = 24  # images shown before a bulk decision
LARGEST_PICTURE = 64 * 2**20  # bytes, of one that is dropped on the page
KEEP_PICTURE = {"cache-control": "private, max-age=3600"}


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


@dataclass
class Api:
    """A method for each address; see `router`."""

    session: ReviewSession
    pictures: Pictures
    heat_maps: HeatMaps | None
    search: Search
    about: dict[str, Any]  # passed to the page unchanged: the run, its method, the reviewer
    read_only: bool = False
    queues: OpenQueues = field(default_factory=OpenQueues)

    # --- queues ---

    def get_session(self) -> m.SessionOut:
        session = self.session
        session.refresh()
        return m.SessionOut(
            **self.about,
            read_only=self.read_only,
            heat_maps=self.heat_maps is not None,
            images=len(session),
            unreadable=int((~session.readable).sum()),
            last_id=session.last_id,
            last_step=session.store.last_step(),
            decided=session.state.number_decided(),
            tags=self._summaries(),
        )

    def _summaries(self) -> list[m.SummaryOut]:
        with self.session.lock:
            return [m.SummaryOut.of(self.session, summary) for summary in self.session.summaries()]

    def open_queue(self, query: Annotated[m.ViewQuery, Query()]) -> m.QueueOut:
        with self.session.lock:
            self.session.refresh()
            live = LiveQueue(self.session, query.view())
            return m.QueueOut.of(self.session, live, id=self.queues.add(live))

    def get_window(
        self,
        name: str,
        offset: Annotated[m.Number, Query()] = 0,
        limit: Annotated[int, Query(ge=0, le=500)] = 60,
        seen: Annotated[m.Number, Query()] = 0,
    ) -> m.QueueOut:
        live = self.queues.get(name)
        if live is None:
            raise NotShown("This queue is no longer open; open it again.")
        with self.session.lock:
            live.follow(seen)
            stacks = m.stacks_of(self.session, live, offset, limit)
            return m.QueueOut.of(self.session, live, stacks=stacks)

    def get_above(self, query: Annotated[m.ViewQuery, Query()]) -> m.AboveOut:
        session = self.session
        with session.lock:
            session.refresh()
            view = query.view()
            rows = session.queue(view).order
            column, chances = session.column(view.category), session.probabilities(view, rows)
            sample = np.random.default_rng(len(rows)).permutation(len(rows))[:SAMPLE]
            return m.AboveOut(
                answers=[{"image": row, "version": session.state.version(row, column)} for row in rows.tolist()],
                expected_wrong=float((1 - chances).sum()),
                sample=[
                    {"image": int(rows[place]), "probability": float(chances[place])}
                    for place in sample[np.argsort(chances[sample])]
                ],
            )

    # --- decisions ---

    def post_decisions(self, body: m.DecisionsBody) -> m.StepOut:
        answers = [Answer(answer.image, answer.tag, answer.label, answer.version) for answer in body.answers]
        return m.StepOut.of(self.session, self.session.decide(answers, queue=body.queue))

    def get_undo(self, step: Annotated[m.Number | None, Query()] = None) -> m.StepOut:
        """What undoing would take back."""
        with self.session.lock:
            self.session.refresh()
            step = self.session.store.last_step() if step is None else step
            return m.StepOut.of(self.session, [] if step is None else self.session.store.step(step))

    def post_undo(self, body: m.UndoBody) -> m.StepOut:
        return m.StepOut.of(self.session, self.session.undo(body.step))

    def get_changes(self, since: Annotated[m.Number, Query()]) -> m.ChangesOut:
        with self.session.lock:
            self.session.refresh()
            rows = self.session.store.since(since)
            tags = self._summaries() if any(row.is_about_tag for row in rows) else None
            return m.ChangesOut(last_id=self.session.last_id, labels=m.labels_of(self.session, rows), tags=tags)

    def get_reviewed(self) -> m.ReviewedOut:
        """What the review changed, tag by tag."""
        session = self.session
        with session.lock:
            session.refresh()
            tags = []
            for tag in session.state.book.shown():
                rows = np.array(sorted(session.state.decided[tag.column]), dtype=np.int64)
                if not len(rows):
                    continue
                given, now = session.given[rows, tag.column], session.labels[rows, tag.column]
                tags.append(
                    m.ReviewedTag(
                        name=tag.name,
                        found=int(((given != PRESENT) & (now == PRESENT)).sum()),
                        removed=int(((given == PRESENT) & (now != PRESENT)).sum()),
                        rejected=int(((given == UNKNOWN) & (now == ABSENT)).sum()),
                        known_before=int((session.given[:, tag.column] == PRESENT).sum()),
                        missing=session.forecast(tag.name).missing,
                    )
                )
            return m.ReviewedOut(tags=tags, agreement=session.agreement().words)

    # --- tags ---

    def post_tag(self, body: m.NewTagBody) -> m.StepOut:
        for row in body.examples:
            self._check(row)
        return m.StepOut.of(self.session, self.session.add_tag(body.name, examples=body.examples, text=body.text))

    def post_tag_change(self, body: m.TagChangeBody) -> m.StepOut:
        for row in body.images:
            self._check(row)
        images = [self.session.annotations.images[row] for row in body.images]
        value = images if body.change == "pin" else body.value
        return m.StepOut.of(self.session, self.session.change_tag(body.tag, body.change, value, seen=body.version))

    # --- search ---

    def get_search(
        self,
        text: Annotated[str, Query(max_length=200)] = "",
        like: Annotated[list[m.Number], Query(max_length=100)] = [],  # noqa: B006 -- pydantic copies it
        number: Annotated[int, Query(ge=1, le=500)] = 120,
    ) -> m.HitsOut:
        for row in like:
            self._check(row)
        hits = self.search.like(like, number=number) if like else self.search.text(text, number)
        return m.HitsOut.of(self.session, hits)

    async def post_search(self, request: Request, number: Annotated[int, Query(ge=1, le=500)] = 120) -> m.HitsOut:
        """With a picture as the body."""
        content = b""
        async for part in request.stream():
            content += part
            if len(content) > LARGEST_PICTURE:
                raise UserError(f"The picture is larger than {LARGEST_PICTURE // 2**20} MB.")
        hits = await run_in_threadpool(self.search.like, pictures=[content], number=number)
        return m.HitsOut.of(self.session, hits)

    # --- audit ---

    def get_audit(self) -> m.AuditOut:
        return m.AuditOut.of(self.session, Audit(self.session))

    def post_wave(self) -> dict[str, int]:
        audit = Audit(self.session)
        with self.session.lock:  # two windows do not ask twice
            return {"chosen": len(audit.open_questions()) or audit.new_wave()}

    # --- images ---

    def get_image(self, image: int) -> m.ImageOut:
        self._check(image)
        with self.session.lock:
            self.session.refresh()
            tags = [m.TagOut.of(tag) for tag in self.session.tags(image)]
            return m.ImageOut(image=image, name=self.session.annotations.images[image], tags=tags)

    def get_evidence(self, image: int, tag: str) -> m.EvidenceOut:
        self._check(image)
        session = self.session
        with session.lock:
            session.refresh()
            column, images = session.column(tag), session.annotations.images
            known = [other for other in session.state.book.shown() if session.labels[image, other.column] == PRESENT]
            near = session.nearest_positives(image, tag)
            return m.EvidenceOut(
                tag=m.TagOut.of(session.tags(image, [column])[0]),
                threshold=session.threshold(tag),
                known=[other.name for other in known if other.column != column],
                nearest=[m.NearOut(image=row, name=images[row], similarity=cosine) for row, cosine in near],
            )

    def get_thumbnail(self, image: int) -> Response:
        return Response(self.pictures.thumbnail(image), media_type="image/jpeg", headers=KEEP_PICTURE)

    def get_large(self, image: int) -> Response:
        return Response(self.pictures.large(image), media_type="image/jpeg", headers=KEEP_PICTURE)

    def get_heat(self, image: int, tag: str) -> Response:
        if self.heat_maps is None:
            raise NotShown("This run has no heat maps.")
        self._check(image)
        if self.session.state.book.is_new(self.session.column(tag)):
            raise NotShown("A tag that was added in the review has no heat map before `fewtags train --reviewed`.")
        return Response(self.heat_maps.picture(image, tag), media_type="image/jpeg")

    def _check(self, row: int) -> None:
        if not 0 <= row < len(self.session):
            raise NotShown(f"There is no image {row}.")


def router(api: Api) -> APIRouter:
    routes = APIRouter(prefix="/api", default_response_class=JSONResponse)
    get: dict[str, Callable[..., Any]] = {
        "/session": api.get_session,
        "/queues": api.open_queue,
        "/queues/{name}": api.get_window,
        "/above": api.get_above,
        "/undo": api.get_undo,
        "/changes": api.get_changes,
        "/reviewed": api.get_reviewed,
        "/search": api.get_search,
        "/audit": api.get_audit,
        "/images/{image}": api.get_image,
        "/images/{image}/evidence": api.get_evidence,
        "/images/{image}/thumbnail": api.get_thumbnail,
        "/images/{image}/large": api.get_large,
        "/images/{image}/heat": api.get_heat,
    }
    post: dict[str, Callable[..., Any]] = {
        "/decisions": api.post_decisions,
        "/undo": api.post_undo,
        "/tags": api.post_tag,
        "/tags/change": api.post_tag_change,
        "/search": api.post_search,
        "/audit/waves": api.post_wave,
    }
    for method, table in (("GET", get), ("POST", post)):
        for path, answer in table.items():
            routes.add_api_route(path, answer, methods=[method], response_model_exclude_none=False)
    return routes
