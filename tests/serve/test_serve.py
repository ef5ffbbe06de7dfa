"""Tags over HTTP: what it answers, what it refuses, and that requests share batches."""

import http.client
import io
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("fastapi")
pytest.importorskip("multipart")
pytest.importorskip("prometheus_client")
from fastapi.testclient import TestClient
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from conftest import Cli
from fewtags.commands.review import listen
from fewtags.serve.app import Limits, create_app
from fewtags.serve.batching import Batcher, QueueFull


class Brightness:
    """A model whose probabilities can be told from the picture: its red, green and blue."""

    categories = ["red", "green", "blue"]  # noqa: RUF012
    thresholds = np.array([0.5, 0.5, 0.5])
    size = 8

    def __init__(self, seconds=0.0):
        self.seconds = seconds

    def probabilities(self, pixels):
        time.sleep(self.seconds)
        return pixels.mean((2, 3)) / 255


def picture(colour, side=20, form="PNG"):
    out = io.BytesIO()
    Image.new("RGB", (side, side), colour).save(out, form)
    return out.getvalue()


@pytest.fixture
def client():
    with TestClient(create_app(Brightness(), Limits(bytes=20_000, images=3))) as made:
        yield made


def test_an_image_in_the_body_gets_its_tags(client):
    answer = client.post("/v1/tags", content=picture("red"), headers={"Content-Type": "image/png"})
    assert answer.status_code == 200
    assert answer.json() == {"images": [{"name": None, "tags": {"red": 1.0}, "error": None}]}


def test_several_images_in_a_form_are_answered_in_order_and_a_broken_one_says_why(client):
    files = [
        ("images", ("a.png", picture("blue"), "image/png")),
        ("images", ("b.png", b"no picture", "image/png")),
        ("images", ("c.png", picture("yellow"), "image/png")),
    ]
    rows = client.post("/v1/tags", files=files).json()["images"]
    assert [row["name"] for row in rows] == ["a.png", "b.png", "c.png"]
    assert [list(row["tags"]) for row in rows] == [["blue"], [], ["red", "green"]]
    assert "image format" in rows[1]["error"]


def test_threshold_and_top_choose_tags(client):
    def tags(**query):
        return list(client.post("/v1/tags", params=query, content=picture((250, 200, 20))).json()["images"][0]["tags"])

    assert tags() == ["red", "green"]
    assert tags(threshold=0.9) == ["red"]
    assert tags(threshold=0.0, top=2) == ["red", "green"]
    assert client.post("/v1/tags", params={"threshold": 2}, content=b"").status_code == 422


def test_too_large_and_too_many_are_refused(client):
    assert client.post("/v1/tags", content=b"x" * 30_000).status_code == 413
    assert client.post("/v1/tags", content=(b"x" * 9_000 for _ in range(4))).status_code == 413  # no declared length
    many = [("images", (f"{n}.png", picture("red"), "image/png")) for n in range(4)]
    assert client.post("/v1/tags", files=many).status_code == 422


def test_paths_and_addresses_of_a_client_are_never_read(client, tmp_path):
    secret = tmp_path / "secret.png"
    secret.write_bytes(picture("red"))
    for content in (str(secret).encode(), f"file://{secret}".encode(), b"http://127.0.0.1/x.png"):
        row = client.post("/v1/tags", content=content).json()["images"][0]
        assert row["tags"] == {}
    assert client.post("/v1/tags", data={"images": str(secret)}, files={}).json()["images"][0]["tags"] == {}


def test_a_bomb_is_refused_and_the_server_goes_on(client, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    row = client.post("/v1/tags", content=picture("red", side=100)).json()["images"][0]
    assert "million pixels" in row["error"]
    assert client.get("/healthz").status_code == 200


def test_an_image_of_too_many_pixels_is_refused_by_its_header():
    with TestClient(create_app(Brightness(), Limits(pixels=1000))) as client:
        row = client.post("/v1/tags", content=picture("red", side=40)).json()["images"][0]
        assert row["error"] == "it has 1,600 pixels, and this server takes 1,000."
        assert client.post("/v1/tags", content=picture("red", side=30)).json()["images"][0]["error"] is None


def test_stopping_answers_what_is_under_way_and_takes_nothing_new():
    uvicorn = pytest.importorskip("uvicorn")
    with listen("127.0.0.1", 0) as bound:
        port = bound.getsockname()[1]
        server = uvicorn.Server(uvicorn.Config(create_app(Brightness(seconds=0.3)), log_level="error"))
        thread = threading.Thread(target=lambda: server.run(sockets=[bound]))
        thread.start()
        while not server.started:
            time.sleep(0.01)
        answers = []

        def post():
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
            connection.request("POST", "/v1/tags", picture("red"))
            answers.append(connection.getresponse().status)

        clients = [threading.Thread(target=post) for _ in range(4)]
        for client in clients:
            client.start()
        time.sleep(0.2)
        server.should_exit = True
        for waiting in (*clients, thread):
            waiting.join(20)
    assert answers == [200] * 4
    with pytest.raises(OSError):
        http.client.HTTPConnection("127.0.0.1", port, timeout=2).request("GET", "/healthz")


def test_a_port_that_is_taken_is_said_before_the_model_is_loaded(cli: Cli, tmp_path):
    with listen("127.0.0.1", 0) as bound:
        bound.listen()
        answer = cli("serve", tmp_path, "--port", bound.getsockname()[1])
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "Cannot listen on" in answer.err


def test_the_api_key_is_asked_for():
    with TestClient(create_app(Brightness(), api_key="secret")) as client:
        assert client.post("/v1/tags", content=picture("red")).status_code == 401
        assert client.post("/v1/tags", content=picture("red"), headers={"X-API-Key": "wrong"}).status_code == 401
        for header in ({"X-API-Key": "secret"}, {"Authorization": "Bearer secret"}):
            assert client.post("/v1/tags", content=picture("red"), headers=header).status_code == 200
        assert client.get("/healthz").status_code == 200


def test_ready_only_while_the_model_answers():
    app = create_app(Brightness())
    server = app.state.server
    assert not server.ready
    with TestClient(app) as client:
        assert client.get("/readyz").status_code == 200
    assert not server.ready


def read_metrics(client, parser, accept):
    """/metrics as Prometheus itself reads it."""
    answer = client.get("/metrics", headers={"Accept": accept})
    assert answer.headers["content-type"].startswith(accept.split(",")[0])
    return {family.name: family for family in parser(answer.text)}


@pytest.mark.parametrize(
    ("parser", "accept"),
    [(text_string_to_metric_families, "text/plain"), (openmetrics, "application/openmetrics-text")],
)
def test_metrics_count_requests_images_and_batches(client, parser, accept):
    client.post("/v1/tags", content=picture("red"))
    client.post("/v1/tags", content=b"x" * 30_000)
    families = read_metrics(client, parser, accept)
    samples = {(s.name, *s.labels.values()): s.value for family in families.values() for s in family.samples}
    assert samples["fewtags_requests_total", "200"] == samples["fewtags_requests_total", "413"] == 1
    assert samples["fewtags_images_total",] == 1
    assert samples["fewtags_images_waiting",] == 0
    assert samples["fewtags_batches_total", "1"] == 2  # the blank one of the start, and one
    assert samples["fewtags_request_seconds_count",] == samples["fewtags_request_seconds_bucket", "+Inf"] == 2


def test_every_metric_has_a_type_and_a_help_line(client):
    families = read_metrics(client, text_string_to_metric_families, "text/plain")
    types = {name: family.type for name, family in families.items() if name.startswith("fewtags_")}
    made_for = {name for name in types if name.endswith("_created")}
    assert {name: types[name] for name in types.keys() - made_for} == {
        "fewtags_requests": "counter", "fewtags_images": "counter", "fewtags_batches": "counter",
        "fewtags_images_waiting": "gauge", "fewtags_request_seconds": "histogram",
    }  # fmt: skip
    assert all(family.documentation for family in families.values())


def test_two_servers_in_one_process_count_apart(client):
    client.post("/v1/tags", content=picture("red"))
    with TestClient(create_app(Brightness())) as other:
        assert "fewtags_images_total 0.0" in other.get("/metrics").text


def test_beyond_the_queue_clients_get_429_and_all_others_are_answered():
    with TestClient(create_app(Brightness(seconds=0.2), Limits(queue=4, batch=2))) as client:
        statuses = []

        def post():
            statuses.append(client.post("/v1/tags", content=picture("red")).status_code)

        threads = [threading.Thread(target=post) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert set(statuses) == {200, 429}
    assert statuses.count(200) >= 4


def test_a_request_that_takes_too_long_is_ended():
    with TestClient(create_app(Brightness(seconds=0.5), Limits(seconds=0.1))) as client:
        assert client.post("/v1/tags", content=picture("red")).status_code == 504


def test_what_waits_together_goes_through_the_model_together():
    release, sizes = threading.Event(), []

    def model(pixels):
        sizes.append(len(pixels))
        release.wait(5)
        return pixels.reshape(len(pixels), -1)[:, :1]

    batcher = Batcher(model, max_batch=4, max_wait=0.01, max_queue=10)
    first = batcher.submit(np.full((3, 1, 1), 7))
    while not sizes:
        time.sleep(0.001)
    others = [batcher.submit(np.full((3, 1, 1), n)) for n in range(6)]
    release.set()
    assert first.result() == [7]
    assert [int(other.result()[0]) for other in others] == list(range(6))
    assert sizes == [1, 4, 2]
    batcher.stop()


def test_a_failing_batch_fails_its_requests_and_no_other():
    def model(pixels):
        if pixels.max() > 5:
            raise ValueError("bad batch")
        return pixels.reshape(len(pixels), -1)

    batcher = Batcher(model, max_batch=1)
    bad, good = batcher.submit(np.full((3, 1, 1), 9)), batcher.submit(np.zeros((3, 1, 1)))
    with pytest.raises(ValueError, match="bad batch"):
        bad.result()
    assert good.result().tolist() == [0, 0, 0]
    batcher.stop()


def test_the_queue_is_bounded():
    block = threading.Event()
    batcher = Batcher(lambda pixels: [block.wait(5)] * len(pixels), max_batch=1, max_queue=2)
    with pytest.raises(QueueFull):
        for _ in range(5):
            batcher.submit(np.zeros(1))
    block.set()
    batcher.stop()


def test_a_saved_model_is_served():
    from fewtags.commands.serve import load_tagger

    golden = Path(__file__).parents[1] / "golden"
    tagger = load_tagger(golden / "format-2", "cpu")
    with TestClient(create_app(tagger)) as client:
        content = next((golden / "pictures").glob("*.jpg")).read_bytes()
        assert client.post("/v1/tags", content=content).json()["images"][0]["error"] is None
