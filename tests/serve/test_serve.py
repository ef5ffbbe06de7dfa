"""Tags over HTTP: what it answers, what it refuses, and that requests share batches."""

import asyncio
import http.client
import io
import re
import socket
import threading
import time
from contextlib import closing, contextmanager
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
from fewtags.data.tag_tree import TagTree
from fewtags.serve.app import Limits, create_app
from fewtags.serve.batching import Batcher, QueueFull


class Brightness:
    """A model whose probabilities can be told from the picture: its red, green and blue."""

    categories = ["red", "green", "blue"]  # noqa: RUF012
    thresholds = np.array([0.5, 0.5, 0.5])
    tree = TagTree()
    size = 8
    on_one_core = None

    def __init__(self, seconds=0.0):
        self.seconds = seconds

    def probabilities(self, pixels):
        time.sleep(self.seconds)
        return pixels.mean((2, 3)) / 255


class Held(Brightness):
    """Answers its first batch, which is that of the start, and every other one once it may."""

    def __init__(self):
        super().__init__()
        self.started, self.may_go_on = False, threading.Event()

    def probabilities(self, pixels):
        assert not self.started or self.may_go_on.wait(60)
        self.started = True
        return super().probabilities(pixels)


def picture(colour, side=20, form="PNG"):
    out = io.BytesIO()
    Image.new("RGB", (side, side), colour).save(out, form)
    return out.getvalue()


@pytest.fixture
def client():
    with TestClient(create_app(Brightness(), Limits(bytes=20_000, images=3))) as made:
        yield made


def test_the_page_about_the_api_needs_no_network(client):
    """Everything it loads comes from the server itself."""
    pytest.importorskip("fastapi_offline")
    page = client.get("/docs")
    assert page.status_code == 200
    loaded = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(loaded) >= 3
    assert [address for address in loaded if not address.startswith("/docs-files/")] == []
    assert all(client.get(address).status_code == 200 for address in loaded)
    assert "'/openapi.json'" in page.text or '"/openapi.json"' in page.text


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


@contextmanager
def running(app):
    """The app in a server of its own, as `fewtags serve` runs it; yields its port."""
    uvicorn = pytest.importorskip("uvicorn")
    with listen("127.0.0.1", 0) as bound:
        server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        thread = threading.Thread(target=lambda: server.run(sockets=[bound]))
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield bound.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


def connected(port):
    return http.client.HTTPConnection("127.0.0.1", port, timeout=120)


def test_a_kept_connection_does_not_wait_for_acknowledgements():
    """They are delayed by 40 ms once a connection is no longer new; every response is two packets."""

    def seconds(connection):
        started = time.monotonic()
        connection.request("POST", "/v1/tags", picture("red"))
        connection.getresponse().read()
        return time.monotonic() - started

    with running(create_app(Brightness())) as port:
        kept = connected(port)
        on_kept = [seconds(kept) for _ in range(60)][40:]
        kept.close()
        on_new = []
        for _ in range(20):
            with closing(connected(port)) as connection:
                on_new.append(seconds(connection))
    assert min(on_kept) < min(on_new) + 0.03  # the computing takes as long as the machine needs for it


def test_beyond_the_queue_a_request_is_refused_before_its_upload_is_read():
    app = create_app(Brightness(), Limits(queue=1))
    with running(app) as port:
        app.state.server.waiting = 1
        with socket.create_connection(("127.0.0.1", port), timeout=120) as client:
            client.sendall(b"POST /v1/tags HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n")  # and no body
            assert status(client) == 429
            app.state.server.waiting = 0
            client.sendall(b"x" * 5000 + b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")  # the connection is still good
            assert status(client) == 200


def status(client):
    response = http.client.HTTPResponse(client)
    response.begin()
    response.read()
    return response.status


def test_stopping_answers_what_is_under_way_and_takes_nothing_new():
    answers, model = [], Held()
    app = create_app(model)
    with running(app) as port:

        def post():
            with closing(connected(port)) as connection:
                connection.request("POST", "/v1/tags", picture("red"))
                answers.append(connection.getresponse().status)

        clients = [threading.Thread(target=post) for _ in range(4)]
        for client in clients:
            client.start()
        while app.state.server.waiting < 4:
            time.sleep(0.01)
        threading.Timer(0.3, model.may_go_on.set).start()  # while it is stopping
    for client in clients:
        client.join()
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
    model = Held()
    with TestClient(create_app(model, Limits(queue=4, batch=2, seconds=120))) as client:
        statuses = []

        def post():
            statuses.append(client.post("/v1/tags", content=picture("red")).status_code)

        threads = [threading.Thread(target=post) for _ in range(16)]
        for thread in threads:
            thread.start()
        while len(statuses) < 12:
            time.sleep(0.01)
        model.may_go_on.set()
        for thread in threads:
            thread.join()
    assert statuses == [429] * 12 + [200] * 4


def test_a_request_that_takes_too_long_is_ended():
    with TestClient(create_app(Brightness(seconds=0.5), Limits(seconds=0.1))) as client:
        assert client.post("/v1/tags", content=picture("red")).status_code == 504


def test_what_waits_together_goes_through_the_model_together():
    release, sizes = threading.Event(), []

    def model(pixels):
        sizes.append(len(pixels))
        release.wait(60)
        return pixels.reshape(len(pixels), -1)[:, :1]

    batcher = Batcher(model, max_batch=4, max_queue=10)
    first = batcher.submit(np.full((3, 1, 1), 7))
    while not sizes:
        time.sleep(0.001)
    others = [batcher.submit(np.full((3, 1, 1), n)) for n in range(6)]
    release.set()
    assert first.result() == [7]
    assert [int(other.result()[0]) for other in others] == list(range(6))
    assert sizes == [1, 4, 2]
    batcher.stop()


def test_one_image_is_computed_on_all_cores_and_what_comes_meanwhile_on_one_each():
    release, calls = threading.Event(), []

    def model(how):
        def run(pixels):
            calls.append((how, len(pixels)))
            release.wait(60)
            return pixels.reshape(len(pixels), -1)[:, :1]

        return run

    batcher = Batcher(model("all cores"), model("one core"), num_threads=2, max_batch=4)
    answers = [batcher.submit(np.full((3, 1, 1), 0))]
    while not calls:
        time.sleep(0.001)
    answers += [batcher.submit(np.full((3, 1, 1), 1))]
    while len(calls) < 2:
        time.sleep(0.001)
    answers += [batcher.submit(np.full((3, 1, 1), n)) for n in range(2, 8)]
    release.set()
    assert [int(answer.result()[0]) for answer in answers] == list(range(8))
    assert calls[:2] == [("all cores", 1), ("one core", 1)]
    assert sum(number for _, number in calls) == 8
    assert max(number for _, number in calls) == 3, "a thread takes its half of the six that wait"
    batcher.stop()


def test_a_saved_model_says_the_same_on_one_core_and_on_all():
    from fewtags.commands.serve import load_tagger

    tagger = load_tagger(Path(__file__).parents[1] / "golden" / "format-2", "cpu")
    pixels = np.random.default_rng(0).integers(0, 256, (3, 3, tagger.size, tagger.size), dtype=np.uint8)
    np.testing.assert_allclose(tagger.on_one_core(pixels), tagger.probabilities(pixels), atol=1e-5)


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
    batcher = Batcher(lambda pixels: [block.wait(60)] * len(pixels), max_batch=1, max_queue=2)
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


# --- memory, and what the schema promises ---


def post_slowly(app, size: int | None, statuses: list, *, form: bool = False):
    """A request that declares its size and sends nothing; gives the answer's status once there is one."""
    headers = [(b"content-type", b"multipart/form-data; boundary=x" if form else b"image/png")]
    headers += [] if size is None else [(b"content-length", str(size).encode())]
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "path": "/v1/tags",
        "raw_path": b"/v1/tags", "query_string": b"", "root_path": "", "scheme": "http", "headers": headers,
        "server": ("127.0.0.1", 80), "client": ("127.0.0.1", 1),
    }  # fmt: skip

    async def receive():
        await asyncio.sleep(600)

    async def send(message):
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    return app(scope, receive, send)


@pytest.mark.parametrize(
    ("size", "form", "taken"), [(19_000_000, False, 5), (19_000_000, True, 2), (None, False, 5), (1000, False, 30)]
)
def test_room_is_reserved_before_a_body_is_read(size, form, taken):
    """60 slow bodies of 19 MB took a gigabyte."""
    limits = Limits(bytes=20_000_000, memory=100_000_000, queue=30, seconds=600)
    app = create_app(Brightness(), limits)

    async def many() -> list[int]:
        statuses: list[int] = []
        tasks = [asyncio.create_task(post_slowly(app, size, statuses, form=form)) for _ in range(60)]
        while len(statuses) < 60 - taken:
            await asyncio.sleep(0.01)
        for _ in range(10):  # would another one be refused?
            await asyncio.sleep(0.01)
        assert app.state.server.held <= limits.memory
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return statuses

    with TestClient(app) as client:
        assert asyncio.run(many()) == [429] * (60 - taken)
        assert (app.state.server.held, app.state.server.waiting) == (0, 0)
        assert client.post("/v1/tags", content=picture("red")).status_code == 200


def test_one_request_of_the_largest_size_always_fits():
    with TestClient(create_app(Brightness(), Limits(bytes=20_000, memory=1))) as client:
        assert client.post("/v1/tags", content=picture("red")).status_code == 200
        assert client.post("/v1/tags", files=[("images", ("a.png", picture("red"), "image/png"))]).status_code == 200


def test_a_form_is_one_in_capitals_too(client):
    boundary = "xyz"
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="images"; filename="a.png"\r\n\r\n'
    body = head.encode() + picture("red") + f"\r\n--{boundary}--\r\n".encode()
    answer = client.post(
        "/v1/tags", content=body, headers={"Content-Type": f"Multipart/Form-Data; boundary={boundary}"}
    )
    assert answer.json() == {"images": [{"name": "a.png", "tags": {"red": 1.0}, "error": None}]}


def test_the_schema_has_the_limits_and_the_problems(client):
    schema = client.get("/openapi.json").json()
    post = schema["paths"]["/v1/tags"]["post"]
    threshold, top = (item["schema"]["anyOf"][0] for item in post["parameters"])
    assert (threshold["minimum"], threshold["maximum"], top["minimum"]) == (0, 1, 1)
    for status in ("401", "413", "422", "429", "504"):
        reference = post["responses"][status]["content"]["application/json"]["schema"]["$ref"]
        assert reference == "#/components/schemas/Problem"


@pytest.mark.parametrize("query", ["threshold=2", "threshold=nan", "threshold=x", "top=0", "top=-1", "top=1.5", "top="])
def test_problems_have_the_form_of_the_schema(client, query):
    answer = client.post(f"/v1/tags?{query}", content=picture("red"))
    assert answer.status_code == 422
    assert isinstance(answer.json()["detail"], str)


@pytest.mark.slow
def test_every_answer_is_one_that_the_schema_promises():
    """Random requests by schemathesis, which is no dependency: pip install schemathesis."""
    schemathesis = pytest.importorskip("schemathesis")
    import hypothesis

    app = create_app(Brightness(), Limits(bytes=20_000, images=3))
    with TestClient(app):
        schema = schemathesis.openapi.from_asgi("/openapi.json", app)

        for operation in schema.get_all_operations():

            @hypothesis.settings(max_examples=200, deadline=None)
            @hypothesis.given(case=operation.ok().as_strategy())
            def check(case):
                case.call_and_validate()

            check()
