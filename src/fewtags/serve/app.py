"""The HTTP side: POST /v1/tags with an image as the body, or with several as a form.

    GET  /healthz      the process answers
    GET  /readyz       the model answered its first batch; 503 until then, and while stopping
    GET  /metrics      Prometheus
    GET  /openapi.json the API schema

Images come only from the request: no path or URL given by a client is ever read.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

import numpy as np
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from pydantic import BaseModel
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fewtags import __version__
from fewtags.data.images import UPLOAD, BadImage, num_pixels, open_resized
from fewtags.data.prefetch import default_workers
from fewtags.data.tag_tree import TagTree
from fewtags.engine.predictions import given_tags
from fewtags.serve.api_page import add_api_page
from fewtags.serve.batching import Batcher, Model, QueueFull
from fewtags.serve.measures import Measures


class ServedModel(Protocol):
    """What is served: a run's model or an exported file."""

    categories: list[str]
    thresholds: np.ndarray
    size: int
    tree: TagTree

    def probabilities(self, pixels: np.ndarray) -> np.ndarray: ...

    @property
    def on_one_core(self) -> Model | None:
        """As `probabilities`, but on one core and from several threads at the same time; None: not possible."""


@dataclass(frozen=True)
class Limits:
    bytes: int = 20 * 1024**2  # of one request
    pixels: int = 50_000_000  # of one image
    images: int = 16  # in one request
    seconds: float = 30.0  # per request
    queue: int = 96  # images that may wait: at most half as long again as behind 64 clients
    batch: int = 16
    memory: int = 256 * 1024**2  # bytes of all requests that are being read or answered


class ImageTags(BaseModel):
    name: str | None
    """The file name in the form; null for an image in the body."""
    tags: dict[str, float]
    """Predicted tags with probabilities, most probable first."""
    error: str | None = None
    """Why this image could not be read."""


class TagsResponse(BaseModel):
    images: list[ImageTags]


class Problem(BaseModel):
    detail: str
    """What is wrong with the request, or why it is not answered now."""


PROBLEMS: dict[int | str, dict[str, Any]] = {
    401: {"model": Problem, "description": "The API key is missing or wrong."},
    413: {"model": Problem, "description": "The request is too large."},
    422: {"model": Problem, "description": "The request cannot be understood."},
    429: {"model": Problem, "description": "Too much is waiting; try again later."},
    504: {"model": Problem, "description": "Not answered in time."},
}


def create_app(tagger: ServedModel, limits: Limits | None = None, api_key: str | None = None) -> FastAPI:
    limits = limits or Limits()
    server = Server(tagger, limits, api_key)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await asyncio.to_thread(server.start)
        yield
        await asyncio.to_thread(server.stop)

    # FastAPI's own interactive pages load scripts from a CDN.
    app = FastAPI(title="fewtags", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    add_api_page(app)
    app.state.server = server

    app.add_middleware(Counting, measures=server.measures)

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/readyz")
    async def readyz() -> JSONResponse:
        return JSONResponse({"ready": server.ready}, 200 if server.ready else 503)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics(request: Request) -> Response:
        text, media_type = server.metrics(request.headers.get("accept", ""))
        return Response(text, headers={"Content-Type": media_type})

    @app.exception_handler(RequestValidationError)
    async def malformed(_: Request, error: RequestValidationError) -> JSONResponse:
        """In the form of every other problem; what was sent is not sent back."""
        first = error.errors()[0]
        return JSONResponse({"detail": f"{first['loc'][-1]}: {first['msg']}"}, 422)

    @app.get("/v1/categories", responses={401: PROBLEMS[401]})
    async def categories(request: Request) -> dict[str, Any]:
        server.authorise(request)
        return {"categories": tagger.categories, "thresholds": [float(t) for t in tagger.thresholds]}

    files = {"type": "array", "items": {"type": "string", "format": "binary"}, "minItems": 1, "maxItems": limits.images}
    body = {
        "required": True,
        "content": {
            "image/*": {"schema": {"type": "string", "format": "binary"}},
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {"images": files},
                    "required": ["images"],
                    "additionalProperties": False,
                }
            },
        },
    }

    @app.post("/v1/tags", response_model=TagsResponse, openapi_extra={"requestBody": body}, responses=PROBLEMS)
    async def tags(
        request: Request,
        threshold: Annotated[float | None, Query(ge=0, le=1, description="The model's own by default.")] = None,
        top: Annotated[int | None, Query(ge=1, description="At most this many tags per image.")] = None,
    ) -> Response:
        """Tags of an image (the body) or of several (a form). An unreadable image has an error instead."""
        server.authorise(request)
        return JSONResponse({"images": await server.answer(request, threshold, top)})

    return app


class Counting:
    """Middleware that counts the requests to /v1/ and their seconds. FastAPI's own kind costs 0.3 ms a request."""

    def __init__(self, app: ASGIApp, measures: Measures):
        self.app, self.measures = app, measures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith("/v1/"):
            return await self.app(scope, receive, send)
        started = time.monotonic()

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.measures.add_request(message["status"], time.monotonic() - started)
            await send(message)

        await self.app(scope, receive, counted)


class Server:
    """The model with its queue, the decoding threads, and the limits."""

    def __init__(self, tagger: ServedModel, limits: Limits, api_key: str | None):
        self.tagger, self.limits, self.api_key = tagger, limits, api_key
        self.measures = Measures()
        self.ready = False
        self.waiting = 0  # images accepted but not answered yet
        self.held = 0  # bytes of requests, declared or read, that are not answered yet

    def start(self) -> None:
        self.batcher = Batcher(
            self.tagger.probabilities,
            self.tagger.on_one_core,
            num_threads=default_workers(),
            max_batch=self.limits.batch,
            max_queue=self.limits.queue,
            on_batch=self.measures.add_batch,
        )
        self.openers = ThreadPoolExecutor(default_workers(), thread_name_prefix="fewtags-open")
        blank = np.zeros((3, self.tagger.size, self.tagger.size), np.uint8)
        self.batcher.submit(blank).result()  # the first batch is slow
        self.ready = True

    def stop(self) -> None:
        self.ready = False
        self.openers.shutdown()
        self.batcher.stop()

    def authorise(self, request: Request) -> None:
        if self.api_key is None:
            return
        given = request.headers.get("x-api-key") or request.headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), self.api_key.encode()):
            raise HTTPException(401, "the API key is missing or wrong")

    async def answer(self, request: Request, threshold: float | None, top: int | None) -> list[dict[str, Any]]:
        """What `TagsResponse` describes, as it goes into JSON."""
        try:
            async with asyncio.timeout(self.limits.seconds):
                with self.room_for(request), self.places(1):  # before anything is read
                    images = await self.images_of(request)
                    with self.places(len(images) - 1):
                        rows = await asyncio.gather(*(self.predict(content) for _, content in images))
        except TimeoutError:
            raise HTTPException(504, f"not answered within {self.limits.seconds:g} seconds") from None
        self.measures.images.inc(len(images))
        return [self.tags(name, row, threshold, top) for (name, _), row in zip(images, rows, strict=True)]

    @contextmanager
    def places(self, number: int) -> Iterator[None]:
        """Reject immediately what would only wait: undecoded pictures count too, so memory stays bounded."""
        if self.waiting + number > self.limits.queue:
            raise busy()
        self.waiting += number
        try:
            yield
        finally:
            self.waiting -= number

    @contextmanager
    def room_for(self, request: Request) -> Iterator[None]:
        """Of slow clients, too: what they may send is reserved when they start. A form is in memory twice, as it came
        and as its files. Without a declared length it may be as long as any."""
        declared, most = request.headers.get("content-length", ""), self.limits.bytes
        size = int(declared) if declared.isdecimal() else most
        if size > most:
            raise HTTPException(413, f"the request exceeds {most:,} bytes")
        size *= 2 if is_form(request) else 1
        if self.held + size > max(self.limits.memory, 2 * most):  # one request of any allowed size always fits
            raise busy()
        self.held += size
        try:
            yield
        finally:
            self.held -= size

    async def images_of(self, request: Request) -> list[tuple[str | None, bytes]]:
        content = await read_body(request, self.limits.bytes)
        if not is_form(request):
            return [(None, content)]
        uploads = await form_files(request, content, self.limits.images)
        if not uploads:
            raise HTTPException(422, "the form contains no file")
        return uploads

    async def predict(self, content: bytes) -> np.ndarray | str:
        """Probabilities [C], or why the image cannot be read."""
        loop = asyncio.get_running_loop()
        try:
            pixels = await loop.run_in_executor(self.openers, self.open, content)
            return await asyncio.wrap_future(self.batcher.submit(pixels))
        except BadImage as error:
            return error.reason
        except QueueFull:
            raise busy() from None

    def open(self, content: bytes) -> np.ndarray:
        if (pixels := num_pixels(content)) > self.limits.pixels:
            reason = f"it has {pixels:,} pixels, and this server takes {self.limits.pixels:,}."
            raise BadImage(UPLOAD, "oversized image", reason)
        return np.asarray(open_resized(content, (self.tagger.size, self.tagger.size))).transpose(2, 0, 1)

    def tags(self, name: str | None, row: np.ndarray | str, threshold: float | None, top: int | None) -> dict[str, Any]:
        if isinstance(row, str):
            return {"name": name, "tags": {}, "error": row}
        thresholds = self.tagger.thresholds if threshold is None else np.full(len(row), threshold)
        tree, categories = self.tagger.tree, self.tagger.categories
        given = given_tags(tree.raised(row, categories), categories, thresholds, tree)
        return {"name": name, "tags": {tag: round(value, 6) for tag, value in list(given.items())[:top]}, "error": None}

    def metrics(self, accept: str) -> tuple[bytes, str]:
        self.measures.waiting.set(self.waiting)
        return self.measures.text(accept)


def busy() -> HTTPException:
    return HTTPException(429, "too many images are waiting; try again later", {"Retry-After": "1"})


def is_form(request: Request) -> bool:
    return request.headers.get("content-type", "").strip().lower().startswith("multipart/form-data")


async def read_body(request: Request, most: int) -> bytes:
    """The body; never more than `most` bytes are kept."""
    content = bytearray()
    async for part in request.stream():
        if len(content) + len(part) > most:
            raise HTTPException(413, f"the request exceeds {most:,} bytes")
        content += part
    return bytes(content)


def with_plain_type(scope: Scope) -> Scope:
    """`Multipart/Form-Data` in small letters, the only ones that earlier versions of Starlette know a form by."""

    def plain(name: bytes, value: bytes) -> bytes:
        kind, mark, rest = value.partition(b";")
        return kind.lower() + mark + rest if name == b"content-type" else value

    return {**scope, "headers": [(name, plain(name, value)) for name, value in scope["headers"]]}


async def form_files(request: Request, content: bytes, most: int) -> list[tuple[str | None, bytes]]:
    """The files of a multipart form that was already read."""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": content, "more_body": False}

    try:
        form = await Request(with_plain_type(request.scope), receive).form(max_files=most, max_fields=16)
    except (MultiPartException, HTTPException) as error:
        raise HTTPException(422, f"the form cannot be read: {getattr(error, 'detail', error)}") from None
    return [(part.filename, await part.read()) for _, part in form.multi_items() if isinstance(part, UploadFile)]
