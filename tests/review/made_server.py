"""Serves the review page of made images, in a thread of the tests or in a process of its own that can be killed.

Images 3, 50 and 51 are nearly the same. Everything is kept in the server's folder, so that it can be started again.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
import uvicorn
from made_review import made_data, save_pictures

from fewtags.commands.review import listen
from fewtags.models.phrases import Found
from fewtags.review.guard import Address
from fewtags.review.pictures import Pictures
from fewtags.review.search import Search
from fewtags.review.server import make_app
from fewtags.review.session import ReviewSession
from fewtags.review.store import DecisionStore, decisions_file
from made_processes import processes


def made_session(folder: Path, number: int) -> tuple[ReviewSession, Pictures]:
    annotations, features = made_data(number, root=folder / "photos")
    rng = np.random.default_rng(5)
    for copy in (50, 51):
        noise = 0.002 * torch.from_numpy(rng.normal(size=features.shape[1])).float()
        features[copy] = torch.nn.functional.normalize(features[3] + noise, dim=0)
    annotations.labels[[3, 50, 51]] = 0
    if not annotations.root.exists():
        save_pictures(annotations)
    pictures = Pictures(annotations, folder / "thumbnails")
    store = DecisionStore(decisions_file(folder))
    session = ReviewSession(
        annotations, features, store, run="made", reviewer="ann", content_hash=pictures.content_hash
    )
    return session, pictures


def made_search(session: ReviewSession) -> Search:
    """Knows one word, "harbour", by what is known of the sea, and recognises the made pictures."""
    features, known = session.features, torch.from_numpy(session.given[:, 2] == 1)

    def phrase(text: str) -> Found:
        if text != "harbour":
            return Found(None, f"nothing is known of '{text}'")
        return Found((features @ features[known].mean(0)).log(), "harbour: 1 class, sea")

    def features_of(contents: Sequence[bytes]) -> torch.Tensor:
        rows = {session.annotations.path(row).read_bytes(): row for row in range(len(session))}
        return features[[rows[content] for content in contents]]

    return Search(features, session.readable, phrase=phrase, features_of=features_of)


class Served:
    """What a test has to know of a server."""

    def __init__(self, folder: Path, url: str):
        self.folder, self.url = folder, url
        self.token = url.rpartition("=")[2]
        self.origin = url.partition("/?")[0]
        self.port = self.origin.rpartition(":")[2]

    @property
    def store(self) -> DecisionStore:
        """Opened anew, as another program would."""
        return DecisionStore(decisions_file(self.folder), read_only=True)


class ThreadServer(Served):
    def __init__(self, folder: Path, number: int = 120, *, port: int = 0, read_only: bool = False):
        session, pictures = made_session(folder, number)
        listening = listen("127.0.0.1", port)
        listening.listen(128)  # who comes before the server has started waits
        address = Address("127.0.0.1", listening.getsockname()[1])
        token = secrets.token_urlsafe(24)
        about = {"run": "made", "folder": "made", "method": "instant", "reviewer": "ann"}
        app = make_app(
            session, pictures, None, about=about, address=address, token=token, read_only=read_only,
            search=made_search(session),
        )  # fmt: skip
        self.server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [listening]}, daemon=True)
        self.thread.start()
        super().__init__(folder, f"{address.origin}/?token={token}")

    def stop(self) -> None:
        self.server.should_exit = self.server.force_exit = True
        self.thread.join(timeout=10)


class ProcessServer(Served):
    def __init__(self, folder: Path, number: int = 120, *, port: int = 0):
        heard, told = processes().Pipe(duplex=False)
        self.process = processes().Process(target=serve, args=(told, folder, number, port), daemon=True)
        self.process.start()
        told.close()
        super().__init__(folder, heard.recv())  # waits until it is ready

    def stop(self) -> None:
        self.process.kill()  # SIGKILL
        self.process.join()


def serve(told: Connection, folder: Path, number: int, port: int) -> None:
    served = ThreadServer(folder, number, port=port)
    told.send(served.url)
    served.thread.join()
