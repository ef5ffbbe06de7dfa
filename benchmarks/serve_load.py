"""What `fewtags serve` carries: requests/s and latency at 1, 8 and 64 clients, beside `predict`, and at twice its load.

    .venv/bin/python benchmarks/serve_load.py MODEL [--images FOLDER] [--seconds 10] [--out results/serve-load]

MODEL is a run, a saved tagger or a file of `fewtags export`. The server is a process of its own on loopback; clients
are threads with one connection each. Without --images a picture is drawn.
"""

from __future__ import annotations

import argparse
import http.client
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from itertools import cycle
from pathlib import Path

import numpy as np
from PIL import Image

from fewtags.commands.models import How, open_model

CROWD = 256  # clients, more than the 128 images that may wait in the server's queue


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--images", type=Path)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    contents = (
        [file.read_bytes() for file in sorted(options.images.rglob("*.jpg"))[:200]] if options.images else [drawn()]
    )
    alone = throughput_of_predict(options.model, contents, options.seconds)
    rows = []
    with Server(options.model) as port:
        for clients in (1, 8, 64):
            rows.append(load(port, contents, clients, options.seconds))
        carried = max(row["answered_per_second"] for row in rows)
        overload = load(port, contents, CROWD, options.seconds, rate=2 * carried)
        rows.append(overload | {"what": f"{2 * carried:.0f} requests/s, twice what it carries"})
    report = table(rows, alone, options)
    print(report)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "table.md").write_text(report)
    print(json.dumps({"predict_per_second": round(alone, 1), "rows": rows}))


def drawn() -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).resize((640, 480), Image.Resampling.BICUBIC).save(out, "JPEG", quality=85)
    return out.getvalue()


def throughput_of_predict(model: Path, contents: list[bytes], seconds: float) -> float:
    """Images/s of `fewtags predict` on files, without its start."""
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for number, content in enumerate(contents):
            files.append(Path(folder) / f"{number}.jpg")
            files[-1].write_bytes(content)
        predictions = open_model(model).predict(cycle(files), How(device="cpu"))
        for _ in range(32):
            next(predictions)
        done, started = 0, time.monotonic()
        while time.monotonic() - started < seconds:
            next(predictions)
            done += 1
        elapsed = time.monotonic() - started
        predictions.close()
    return done / elapsed


class Server:
    def __init__(self, model: Path, port: int = 8731):
        self.model, self.port = model, port

    def __enter__(self) -> int:
        command = [
            sys.executable,
            "-m",
            "fewtags",
            "serve",
            str(self.model),
            "--port",
            str(self.port),
            "--device",
            "cpu",
        ]
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


def load(port: int, contents: list[bytes], clients: int, seconds: float, rate: float | None = None) -> dict:
    """`clients` at once for so many seconds; with a `rate`, requests are begun at that rate whatever is answered."""
    stop, lock = time.monotonic() + seconds, threading.Lock()
    times: list[float] = []
    statuses: dict[int, int] = {}
    begun = 0

    def client() -> None:
        nonlocal begun
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        while time.monotonic() < stop:
            with lock:
                number, begun = begun, begun + 1
            if rate is not None:
                time.sleep(max(0.0, stop - seconds + number / rate - time.monotonic()))
            started = time.monotonic()
            connection.request("POST", "/v1/tags", contents[number % len(contents)], {"Content-Type": "image/jpeg"})
            response = connection.getresponse()
            response.read()
            with lock:
                statuses[response.status] = statuses.get(response.status, 0) + 1
                if response.status == 200:
                    times.append(time.monotonic() - started)

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    p50, p99 = (float(np.percentile(times, q)) if times else float("nan") for q in (50, 99))
    per_second = len(times) / (time.monotonic() - stop + seconds)  # to the last answer, not to the last second
    return {
        "clients": clients, "answered_per_second": round(per_second, 1), "refused": statuses.get(429, 0),
        "failed": sum(n for s, n in statuses.items() if s not in (200, 429)),
        "p50_ms": round(1000 * p50, 1), "p99_ms": round(1000 * p99, 1),
    }  # fmt: skip


def table(rows: list[dict], alone: float, options: argparse.Namespace) -> str:
    lines = [
        "# Load test of `fewtags serve`",
        "",
        f"    .venv/bin/python benchmarks/serve_load.py {options.model.name}",
        "",
    ]
    lines += [f"`fewtags predict` on the same images, in the same run: {alone:.1f} images/s.", ""]
    lines += ["| clients | answered/s | of `predict` | p50 ms | p99 ms | refused (429) | failed |"]
    lines += ["|---|---:|---:|---:|---:|---:|---:|"]
    for row in rows:
        name = f"{row['clients']}" + (f" ({row['what']})" if "what" in row else "")
        share = row["answered_per_second"] / alone
        lines.append(
            f"| {name} | {row['answered_per_second']} | {share:.0%} | {row['p50_ms']} | {row['p99_ms']} "
            f"| {row['refused']} | {row['failed']} |"
        )
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
