"""What `fewtags serve` carries: answers/s and latency at 1, 8 and 64 clients and at twice its load, beside `predict`.

    .venv/bin/python benchmarks/serve_load.py MODEL [--images FOLDER] [--seconds 2] [--rounds 5] [--out FOLDER]

MODEL is a run, a saved tagger or a file of `fewtags export`. The server is its own process on loopback. All clients are
one thread with a connection each and requests made beforehand, as their work would be done on other machines.
Beside every row, alternating with it: `predict_per_s`, images/s of `predict` on the same photos as files, and
`compute_ms`, the median time to open one photo and run the model on it, without a server. Every round measures every
row, so what else the machine does in the meantime reaches all of them. Without --images a picture is drawn.
"""

from __future__ import annotations

import argparse
import csv
import http.client
import io
import os
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path

import numpy as np
from PIL import Image

from fewtags.commands.models import Inference, open_model
from fewtags.commands.serve import load_tagger
from fewtags.data.images import open_resized
from fewtags.engine.predictions import Prediction

CROWD = 256  # clients, more than the images that may wait in the server's queue


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--images", type=Path)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each row in each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    contents = (
        [file.read_bytes() for file in sorted(options.images.rglob("*.jpg"))[:200]] if options.images else [drawn()]
    )
    requests = [request(content) for content in contents]
    alone = Alone(options.model, contents)
    rounds: list[list[Row]] = []
    with Server(options.model) as port:
        for _ in range(options.rounds):
            rows = [load(port, requests, clients, options.seconds, alone) for clients in (1, 8, 64)]
            twice = 2 * rows[-1].answers_per_s
            longer = max(options.seconds, 3 * CROWD / twice)  # the queue has to fill first
            rounds.append([*rows, load(port, requests, CROWD, longer, alone, rate=twice)])
            print(verdict([row.numbers() for row in rounds[-1]]), flush=True)
    alone.close()
    table = [row.numbers() for row in map(joined, zip(*rounds, strict=True))]
    print("\n".join(map(str, table)), verdict(table), sep="\n")
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        write_rows(options.out / "runs.csv", table)


def drawn() -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).resize((640, 480), Image.Resampling.BICUBIC).save(out, "JPEG", quality=85)
    return out.getvalue()


def request(content: bytes) -> bytes:
    head = f"POST /v1/tags HTTP/1.1\r\nHost: x\r\nContent-Type: image/jpeg\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


# --- without a server ---


class Alone:
    """The same photos through the same model without HTTP."""

    def __init__(self, model: Path, contents: list[bytes]):
        self.folder, self.contents = tempfile.TemporaryDirectory(), contents
        files = [Path(self.folder.name) / f"{number}.jpg" for number in range(len(contents))]
        for file, content in zip(files, contents, strict=True):
            file.write_bytes(content)
        self.tagger = load_tagger(model, "cpu")
        self.predictions: Iterator[Prediction] = open_model(model).predict(cycle(files), Inference(device="cpu"))

    def predict(self, seconds: float) -> tuple[int, float]:
        """Inference many images `fewtags predict` tags in how many seconds, without its start."""
        for _ in range(64):
            next(self.predictions)
        done, started = 0, time.monotonic()
        while time.monotonic() - started < seconds:
            next(self.predictions)
            done += 1
        return done, time.monotonic() - started

    def one_by_one(self, seconds: float) -> list[float]:
        """Seconds of one photo after another, from its bytes to its probabilities."""
        times, side, until = [], self.tagger.size, time.monotonic() + seconds
        for content in cycle(self.contents):
            started = time.monotonic()
            pixels = np.asarray(open_resized(content, (side, side))).transpose(2, 0, 1)
            self.tagger.probabilities(pixels[None])
            times.append(time.monotonic() - started)
            if time.monotonic() > until:
                break
        return times

    def close(self) -> None:
        self.predictions.close()  # type: ignore[attr-defined]
        self.folder.cleanup()


# --- with one ---


class Server:
    def __init__(self, model: Path, port: int = 8731):
        self.model, self.port = model, port

    def __enter__(self) -> int:
        options = ["--port", str(self.port), "--device", "cpu"]
        command = [sys.executable, "-m", "fewtags", "serve", str(self.model), *options]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=os.environ)
        for _ in range(600):
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
                connection.request("GET", "/readyz")
                if connection.getresponse().status == 200:
                    return self.port
            except OSError:
                time.sleep(0.1)
        raise SystemExit("The server did not start.")

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(60)


class Client:
    """One kept connection, opened anew if the server closes it between two requests."""

    def __init__(self, port: int, selector: selectors.BaseSelector):
        self.port, self.selector = port, selector
        self.begun, self.got, self.waits = 0.0, b"", False
        self.connect()

    def connect(self) -> None:
        self.socket = socket.create_connection(("127.0.0.1", self.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.selector.register(self.socket, selectors.EVENT_READ, self)

    def send(self, message: bytes) -> None:
        self.begun, self.got, self.waits = time.monotonic(), b"", True
        self.socket.sendall(message)

    def status(self) -> int | None:
        """Reads what has come; the status once the whole response is here."""
        part = self.socket.recv(65536)
        if not part and self.waits:
            raise SystemExit("The server closed a connection without an answer.")
        if not part:
            self.selector.unregister(self.socket)
            self.socket.close()
            self.connect()
            return None
        self.got += part
        head, found, body = self.got.partition(b"\r\n\r\n")
        if not found:
            return None
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        self.waits = len(body) < length
        return None if self.waits else int(head[9:12])


@dataclass
class Row:
    clients: int
    times: list[float] = field(default_factory=list)  # of the answers
    seconds: float = 0.0
    begun: int = 0
    refused: int = 0
    failed: int = 0
    predicted: int = 0
    predict_seconds: float = 0.0
    compute: list[float] = field(default_factory=list)

    @property
    def answers_per_s(self) -> float:
        return len(self.times) / self.seconds

    def numbers(self) -> dict[str, float]:
        p50, p99 = np.percentile(self.times, (50, 99))
        values = {
            "clients": self.clients, "answers_per_s": self.answers_per_s, "p50_ms": 1000 * p50, "p99_ms": 1000 * p99,
            "predict_per_s": self.predicted / self.predict_seconds, "compute_ms": 1000 * np.median(self.compute),
            "requests_per_s": self.begun / self.seconds, "refused": self.refused, "failed": self.failed,
        }  # fmt: skip
        return {name: round(float(value), 1) if isinstance(value, float) else value for name, value in values.items()}


def load(
    port: int, requests: list[bytes], clients: int, seconds: float, alone: Alone, rate: float | None = None
) -> Row:
    """`clients` at once for so many seconds; with a `rate`, requests are begun at that rate whatever is answered."""
    selector, row = selectors.DefaultSelector(), Row(clients)
    idle = deque(Client(port, selector) for _ in range(clients))
    started = time.monotonic()
    while len(idle) < clients or time.monotonic() - started < seconds:
        elapsed = time.monotonic() - started
        due = row.begun + len(idle) if rate is None else int(rate * elapsed)
        while idle and row.begun < due and elapsed < seconds:
            idle.popleft().send(requests[row.begun % len(requests)])
            row.begun += 1
        for key, _ in selector.select(timeout=0.1 if rate is None else 0.002):
            status = key.data.status()
            if status is None:
                continue
            idle.append(key.data)
            row.refused += status == 429
            row.failed += status not in (200, 429)
            if status == 200:
                row.times.append(time.monotonic() - key.data.begun)
    row.seconds = time.monotonic() - started  # to the last answer, not to the last second
    for client in idle:
        client.socket.close()
    row.predicted, row.predict_seconds = alone.predict(seconds)
    row.compute = alone.one_by_one(seconds / 2)
    return row


def joined(rows: tuple[Row, ...]) -> Row:
    """The same row of every round as one."""
    total = Row(rows[0].clients)
    for row in rows:
        for name in vars(total).keys() - {"clients"}:
            setattr(total, name, getattr(total, name) + getattr(row, name))
    return total


# --- results ---


def write_rows(file: Path, rows: list[dict]) -> None:
    with file.open("w", newline="") as out:
        writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def verdict(rows: list[dict]) -> str:
    one, _, many, twice = rows
    return (
        f"One client: p50 {one['p50_ms'] / one['compute_ms']:.2f} x the computing of one photo. 64 clients: "
        f"{many['answers_per_s'] / many['predict_per_s']:.0%} of predict. Twice the load: p50 "
        f"{twice['p50_ms'] / many['p50_ms']:.2f} x that of 64 clients."
    )


if __name__ == "__main__":
    main()
