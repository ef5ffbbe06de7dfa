"""`fewtags review RUN`, as it is started from a terminal."""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import signal
import socket
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")

from fewtags.commands import review as command
from fewtags.review.opening import open_review
from fewtags.review.session import Answer, View
from fewtags.review.store import decisions_file
from fewtags.train_settings import CacheConfig
from made_processes import Command


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A finished run of the method `an`, of one's own."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def get(url: str, token: str) -> bytes:
    with urllib.request.urlopen(urllib.request.Request(url, headers={"x-fewtags-token": token}), timeout=60) as reply:
        return reply.read()


def test_the_address_is_printed_the_page_served_and_ctrl_c_ends_it(run, tmp_path):
    options = ("--no-browser", "--port", "0", "--reviewer", "bob", "--quiet")
    started = Command(tmp_path / "said", "review", run, *options)
    while "\n" not in started.out and not started.ended:
        time.sleep(0.05)
    url = started.out.strip()
    origin, token = url.split("/?token=")
    assert origin.startswith("http://127.0.0.1:")
    assert len(token) >= 24
    session = json.loads(get(f"{origin}/api/session", token))
    assert (session["run"], session["method"], session["reviewer"]) == ("run", "an", "bob")
    heat = get(f"{origin}/api/images/0/heat?tag=red", token)
    assert Image.open(io.BytesIO(heat)).size == (40, 40)
    os.kill(started.pid, signal.SIGINT)
    assert started.wait() == 0
    assert started.out.strip() == url


def test_features_are_computed_once_and_anew_when_an_image_changes(run, monkeypatch):
    from fewtags.engine import features

    shutil.rmtree(features.cache_root(CacheConfig()), ignore_errors=True)  # `train` has looked at them already
    computed = []
    original = features.Wanted._compute
    monkeypatch.setattr(
        features.Wanted, "_compute", lambda *args: computed.append(int(args[1].sum())) or original(*args)
    )
    first = open_review(run, quiet=True).session
    again = open_review(run, quiet=True).session
    assert computed == [len(first)]
    np.testing.assert_array_equal(first.features, again.features)
    image = first.annotations.path(0)
    content = image.read_bytes()
    try:
        image.write_bytes(b"broken since")
        session = open_review(run, quiet=True).session
        assert computed == [len(first), 1]
        assert not session.readable[0]
        assert session.readable[1:].all()
    finally:
        image.write_bytes(content)


def test_decisions_are_beside_the_run_and_there_again(run):
    opened = open_review(run, reviewer="ann", quiet=True)
    row = int(opened.session.queue(View("red", "doubtful", lowest=0.0)).order[0])
    opened.session.decide([Answer(row, "red", -1)], queue="doubtful")
    assert decisions_file(run).is_file()
    again = open_review(run, read_only=True, quiet=True).session
    assert again.labels[row, again.column("red")] == -1


def test_read_only_leaves_no_file(run):
    open_review(run, read_only=True, quiet=True)
    assert not decisions_file(run).exists()


def test_a_folder_that_is_no_run_is_named(cli, tmp_path):
    answer = cli("review", tmp_path, "--no-browser")
    assert answer.code == 2
    assert "not a run folder" in answer.err


def test_a_port_in_use_is_named_and_otherwise_the_next_one_is_taken():
    taken = command.listen("127.0.0.1", None)
    port = taken.getsockname()[1]
    taken.listen()
    other = command.listen("127.0.0.1", None)
    assert other.getsockname()[1] != port
    with pytest.raises(Exception, match=f"port {port}"):
        command.listen("127.0.0.1", port)
    taken.close()
    other.close()


def test_a_response_does_not_wait_for_an_acknowledgement():
    """Of its headers, which clients delay by 40 ms: asyncio sends at once on connections of a socket that names TCP."""

    async def sends_at_once() -> int:
        option = asyncio.get_running_loop().create_future()

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            option.set_result(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        with command.listen("127.0.0.1", 0) as bound:
            async with await asyncio.start_server(connected, sock=bound):
                _, client = await asyncio.open_connection(*bound.getsockname())
                client.close()
                return await option

    assert asyncio.run(sends_at_once())


def test_the_missing_extra_is_named(cli, run, monkeypatch):
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    answer = cli("review", run)
    assert answer.code == 5
    assert "fewtags[review]" in answer.err
