"""The server is killed in the middle of decisions, and nothing that it acknowledged is lost."""

from __future__ import annotations

import itertools
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
    server = ProcessServer(tmp_path, 320)
    acknowledged: list[tuple[int, int]] = []
    enough = threading.Event()

    def review() -> None:
        """Every image in turn, and again the other way round, until the server is gone."""
        for number in itertools.count():
            image, turn = number % 300, number // 300
            label = 1 if (image % 3 > 0) == (turn % 2 == 0) else -1
            answer = {"image": image, "tag": "dog", "label": label, "version": versions.get(image, 0)}
            try:
                done = post(server, "/api/decisions", {"queue": "missing", "answers": [answer]})
            except (urllib.error.URLError, ConnectionError):
                return
            versions[image] = done["labels"][0]["version"]
            acknowledged.append((image, label))
            if len(acknowledged) == 140:
                enough.set()

    versions: dict[int, int] = {}

    reviewer = threading.Thread(target=review)
    reviewer.start()
    assert enough.wait(timeout=300)
    server.stop()  # while requests are under way
    reviewer.join()
    assert len(acknowledged) >= 140

    again = ProcessServer(tmp_path, 320)
    kept = [(int(row.image[:4]), row.new) for row in again.store]
    assert kept[: len(acknowledged)] == acknowledged
    assert len(kept) <= len(acknowledged) + 1  # the one that was written and not acknowledged any more
    body = {"queue": "missing", "answers": [{"image": 319, "tag": "dog", "label": 1, "version": 0}]}
    assert post(again, "/api/decisions", body)["labels"][0]["label"] == 1
    again.stop()
