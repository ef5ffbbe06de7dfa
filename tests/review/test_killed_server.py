"""The server is killed in the middle of 300 decisions, and nothing that it acknowledged is lost."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request

import pytest

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")

from made_server import ProcessServer


def post(server: ProcessServer, path: str, body: dict) -> dict:
    headers = {"x-fewtags-token": server.token, "content-type": "application/json"}
    request = urllib.request.Request(server.origin + path, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=30) as reply:
        return json.load(reply)


def test_no_acknowledged_decision_is_lost_when_the_server_is_killed(tmp_path):
    server = ProcessServer(tmp_path, "320")
    acknowledged: list[tuple[int, int]] = []
    enough = threading.Event()

    def review() -> None:
        for image in range(300):
            label = 1 if image % 3 else -1
            body = {"queue": "missing", "answers": [{"image": image, "tag": "dog", "label": label, "version": 0}]}
            try:
                post(server, "/api/decisions", body)
            except (urllib.error.URLError, ConnectionError):
                return
            acknowledged.append((image, label))
            if len(acknowledged) == 140:
                enough.set()

    reviewer = threading.Thread(target=review)
    reviewer.start()
    assert enough.wait(timeout=120)
    server.stop()  # while requests are under way
    reviewer.join()
    assert 140 <= len(acknowledged) < 300

    again = ProcessServer(tmp_path, "320")
    labels = {image: label for (image, category), label in again.store.labels().items() if category == "dog"}
    for image, label in acknowledged:
        assert labels[f"{image:04d}.jpg"] == label
    assert len(labels) <= len(acknowledged) + 1  # the one that was written and not acknowledged any more
    body = {"queue": "missing", "answers": [{"image": 299, "tag": "dog", "label": 1, "version": 0}]}
    assert post(again, "/api/decisions", body)["labels"][0]["label"] == 1
    again.stop()
