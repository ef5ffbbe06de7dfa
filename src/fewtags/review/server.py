"""The review page's server: the page, its API (`api`), and what errors say to it. Everything is guarded (`guard`)."""

from __future__ import annotations

import sqlite3
from importlib.resources import files
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from fewtags.data.images import BadImage
from fewtags.errors import UserError
from fewtags.review.api import Api, router
from fewtags.review.guard import Address, Guard
from fewtags.review.heat_maps import HeatMaps
from fewtags.review.messages import labels_of
from fewtags.review.pictures import NotShown, Pictures
from fewtags.review.search import Search
from fewtags.review.session import ReviewSession
from fewtags.review.store import Conflict

STATIC = Path(str(files("fewtags.review") / "static"))


def make_app(
    session: ReviewSession,
    pictures: Pictures,
    heat_maps: HeatMaps | None,
    *,
    about: dict[str, Any],
    address: Address,
    token: str,
    read_only: bool = False,
    search: Search | None = None,
) -> FastAPI:
    """The whole application. `about` is passed to the page unchanged: the run, its method, the reviewer."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    search = search or Search(session.features, session.readable)
    app.include_router(router(Api(session, pictures, heat_maps, search, about, read_only)))
    add_error_handlers(app, session)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")

    @app.get("/")
    def get_page() -> Response:
        return FileResponse(STATIC / "index.html", media_type="text/html; charset=utf-8")

    app.add_middleware(Background, pictures=pictures)
    app.add_middleware(Guard, address=address, token=token, read_only=read_only)
    return app


class Background:
    """Middleware by which thumbnails that nobody has asked for wait until nobody waits for an answer."""

    def __init__(self, app: ASGIApp, *, pictures: Pictures):
        self.app, self.pictures = app, pictures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self.pictures.answering():
            await self.app(scope, receive, send)


def add_error_handlers(app: FastAPI, session: ReviewSession) -> None:
    @app.exception_handler(Conflict)
    def on_conflict(request: Request, error: Conflict) -> Response:
        session.refresh()
        labels = [label.model_dump() for label in labels_of(session, error.others)]
        return JSONResponse({"error": sendable(str(error)), "labels": labels}, 409)

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


def sendable(text: str) -> str:
    """Text that can be encoded: a request may contain half of a character."""
    return text.encode("utf-8", errors="replace").decode()
