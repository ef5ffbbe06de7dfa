"""An ML backend of Label Studio: it predicts, learns from annotations at once, and opens no file it should not."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("fastapi")
from fastapi.testclient import TestClient

from conftest import PROJECT, TINY
from fewtags import Annotations, Tagger
from fewtags.serve.label_studio import Backend, Images, create_backend

SETTINGS = [setting for setting in TINY if not setting.startswith(("method", "model.backbone", "model.pretrained"))]
CONFIG = """
<View>
  <Image name="photo" value="$picture"/>
  <Choices name="seen" toName="photo" choice="multiple">
    <Choice value="red"/> <Choice value="green"/> <Choice value="zebra"/>
  </Choices>
</View>
"""


@pytest.fixture(scope="module")
def saved(patches, tmp_path_factory) -> Path:
    """`instant`, fitted to two thirds of the training images."""
    folder = tmp_path_factory.mktemp("saved") / "run"
    part = patches.split("train").take(np.arange(24))
    Tagger("instant", "test_resnet", pretrained=False, settings=SETTINGS).fit(part).save(folder)
    return folder


@pytest.fixture
def run(saved, tmp_path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "run"))


def backend(run: Path, patches, **options) -> Backend:
    return Backend(run, Tagger.load(run), Images(patches.root, None, None), **options)


def task(patches, row: int, number: int = 7) -> dict:
    return {"id": number, "data": {"picture": f"/data/local-files/?d={patches.images[row]}"}}


def event(action: str, task: dict, *choices: str) -> dict:
    result = [{"from_name": "seen", "to_name": "photo", "type": "choices", "value": {"choices": list(choices)}}]
    made = {"id": 1, "task": task["id"], "result": result, "completed_by": {"id": 3, "email": "ann@example.org"}}
    return {"action": action, "task": task, "annotation": made, "project": {"id": 1, "label_config": CONFIG}}


@pytest.fixture
def client(run, patches):
    made = backend(run, patches)
    with TestClient(create_backend(made)) as client:
        client.backend = made
        yield client


def test_setup_and_health_say_what_label_studio_asks(client):
    assert client.get("/health").json()["status"] == "UP"
    answer = client.post("/setup", json={"project": "1.1700000000", "schema": CONFIG})
    assert answer.json() == {"model_version": "fewtags-run-0"}
    assert client.post("/setup", json={"project": "1", "schema": "<View/>"}).status_code == 422
    assert client.post("/setup", json={"project": "1", "schema": "<View"}).status_code == 422


def test_predictions_are_the_taggers_tags_that_the_interface_has(client, run, patches):
    tasks = [task(patches, row, row) for row in range(6)]
    body = {"tasks": tasks, "project": "1.17", "label_config": CONFIG}
    results = client.post("/predict", json=body).json()["results"]
    tagger = Tagger.load(run)
    for row, prediction in enumerate(results):
        expected = [tag for tag in tagger.predict([patches.path(row)])[0] if tag in ("red", "green")]
        found = [tag for item in prediction["result"] for tag in item["value"]["choices"]]
        assert found == expected
        assert all((item["from_name"], item["to_name"]) == ("seen", "photo") for item in prediction["result"])
        assert 0 <= prediction["score"] <= 1
    assert any(prediction["result"] for prediction in results)


def test_an_annotation_is_learned_at_once(client, patches):
    """A chosen tag becomes more probable there; the model is the one that `Tagger.relabel` makes."""
    row = 30
    before = client.backend.tagger.predict_proba([patches.path(row)])[0]
    reference = Tagger.load(client.backend.run)
    reference.relabel(reference.features([patches.path(row)])[0], "green", 1)
    answer = client.post("/webhook", json=event("ANNOTATION_CREATED", task(patches, row), "green", "zebra")).json()
    assert answer == {"learned": 1, "model_version": "fewtags-run-1"}  # zebra is no tag of the model
    after = client.backend.tagger.predict_proba([patches.path(row)])[0]
    green = client.backend.tagger.classes_.tolist().index("green")
    assert after[green] > before[green]
    np.testing.assert_allclose(after, reference.predict_proba([patches.path(row)])[0], atol=1e-5)


def test_a_removed_prediction_is_absent_and_the_rest_unknown(client, patches):
    client.backend.predicted[patches.images[30]] = {"red"}
    client.post("/webhook", json=event("ANNOTATION_CREATED", task(patches, 30), "green"))
    assert client.backend.labels == {(patches.images[30], "green"): 1, (patches.images[30], "red"): -1}


def test_of_complete_annotations_the_rest_is_absent(run, patches):
    with TestClient(create_backend(backend(run, patches, complete=True))) as client:
        client.post("/webhook", json=event("ANNOTATION_CREATED", task(patches, 30), "green"))
    kept = [json.loads(line) for line in (run / "label_studio.jsonl").read_text().splitlines()]
    assert {line["tag"]: line["label"] for line in kept} == {"green": 1, "red": -1}  # blue is not in the interface
    assert {line["reviewer"] for line in kept} == {"ann@example.org"}


def test_changing_and_deleting_an_annotation_is_learned_too(client, patches):
    image = [patches.path(30)]
    before = client.backend.tagger.predict_proba(image)
    client.post("/webhook", json=event("ANNOTATION_CREATED", task(patches, 30), "green"))
    client.post("/webhook", json=event("ANNOTATION_UPDATED", task(patches, 30), "red"))
    assert client.backend.labels == {(patches.images[30], "green"): 0, (patches.images[30], "red"): 1}
    gone = {
        "action": "ANNOTATIONS_DELETED",
        "annotations": [{"id": 1}],
        "tasks": [task(patches, 30)],
        "project": {"id": 1},
    }
    assert client.post("/webhook", json=gone).json()["learned"] == 1
    np.testing.assert_allclose(client.backend.tagger.predict_proba(image), before, atol=1e-4)


def test_what_was_learned_outlives_the_process(client, run, patches):
    client.post("/webhook", json=event("ANNOTATION_CREATED", task(patches, 30), "green"))
    again = backend(run, patches)
    expected = client.backend.tagger.predict_proba([patches.path(30)])
    np.testing.assert_allclose(again.tagger.predict_proba([patches.path(30)]), expected, atol=1e-5)
    assert again.version == "fewtags-run-1"


def test_other_events_teach_nothing(client):
    for action in ("PROJECT_UPDATED", "TASKS_CREATED", "START_TRAINING", "LABEL_LINK_CREATED"):
        assert client.post("/webhook", json={"action": action, "project": {"id": 1}}).json() == {"learned": 0}


@pytest.mark.parametrize(
    "place",
    [
        "../secret.png",
        "/etc/passwd.png",
        "/data/local-files/?d=../secret.png",
        "http://elsewhere.example/a.png",
        "a:b.png",
    ],
)
def test_a_task_cannot_name_a_file_elsewhere(run, patches, tmp_path, place):
    """Neither for a folder of images nor for a Label Studio that the server was given."""
    inside = tmp_path / "images"
    inside.mkdir()
    (tmp_path / "secret.png").write_bytes(patches.path(0).read_bytes())
    for images in (Images(inside, None, None), Images(None, "http://127.0.0.1:9", "token")):
        made = Backend(run, Tagger.load(run), images)
        with TestClient(create_backend(made)) as client:
            body = {"tasks": [{"id": 1, "data": {"picture": place}}], "project": "1", "label_config": CONFIG}
            (prediction,) = client.post("/predict", json=body).json()["results"]
            assert prediction["result"] == []
            answer = client.post("/webhook", json=event("ANNOTATION_CREATED", body["tasks"][0], "red")).json()
            assert answer["learned"] == 0
            assert answer["problem"]


def test_with_a_key_only_those_who_have_it_are_served(run, patches):
    with TestClient(create_backend(backend(run, patches, api_key="k3y"))) as client:
        assert client.get("/health").status_code == 200
        for headers, status in (({}, 401), ({"X-API-Key": "k3y"}, 200), ({"X-API-Key": "no"}, 401)):
            assert client.post("/webhook", json={"action": "x"}, headers=headers).status_code == status
        assert client.post("/webhook", json={"action": "x"}, auth=("label-studio", "k3y")).status_code == 200


def test_a_model_that_cannot_learn_says_so_and_predicts(patches, tmp_path):
    Tagger("an", "test_resnet", pretrained=False, settings=SETTINGS).fit(patches).save(tmp_path / "an")
    with TestClient(create_backend(backend(tmp_path / "an", patches))) as client:
        answer = client.post("/webhook", json=event("ANNOTATION_CREATED", task(patches, 30), "green")).json()
        assert "Only the method 'instant'" in answer["problem"]


def test_the_command_asks_where_the_images_are(run, cli, monkeypatch):
    monkeypatch.delenv("LABEL_STUDIO_URL", raising=False)
    answer = cli("serve", run, "--label-studio")
    assert answer.code == 2
    assert "--images FOLDER" in answer.err
    assert cli("serve", run, "--images", run).code == 2


# --- the real one ---

TOKEN = "0123456789abcdef0123456789abcdef01234567"
WHOLE = CONFIG.replace("zebra", "blue")
PATIENCE = 1200  # seconds: Label Studio's first start makes its database, which is slow on a busy machine


class Api:
    """Label Studio's own HTTP API."""

    def __init__(self, address: str):
        self.address = address

    def __call__(self, method: str, path: str, body: object = None) -> object:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Token {TOKEN}", "Content-Type": "application/json"}
        request = urllib.request.Request(self.address + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=120) as answer:
            content = answer.read()
        return json.loads(content) if content else None


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextmanager
def started(words: list[object], address: str, **environment: str) -> Iterator[None]:
    process = subprocess.Popen(
        [str(word) for word in words],
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(PATIENCE):
            assert process.poll() is None, "it ended"
            with suppress(OSError), urllib.request.urlopen(f"{address}/health", timeout=5):
                break
            time.sleep(1)
        else:
            pytest.fail(f"{words[0]} does not answer after {PATIENCE} s")
        yield
    finally:
        process.terminate()
        process.wait()


@pytest.fixture
def studio(tmp_path) -> Iterator[Api]:
    """A Label Studio with its database in a file, on loopback."""
    program = PROJECT / ".venv-others" / "label-studio" / "bin" / "label-studio"
    if not program.is_file():
        pytest.skip("label-studio is not installed in .venv-others; `make others` installs it")
    port = free_port()
    settings = {
        "HOME": str(tmp_path), "LABEL_STUDIO_BASE_DATA_DIR": str(tmp_path / "studio"), "COLLECT_ANALYTICS": "false",
        "LATEST_VERSION_CHECK": "false", "SENTRY_DSN": "", "FRONTEND_SENTRY_DSN": "",
        "LABEL_STUDIO_ENABLE_LEGACY_API_TOKEN": "true",
        "SSRF_PROTECTION_ENABLED": "false", "ML_BLOCK_LOCAL_IP": "false",  # the backend is on this machine
    }  # fmt: skip
    words = [
        program,
        "start",
        "--no-browser",
        "--port",
        port,
        "--username",
        "ann@example.org",
        "--password",
        "long-enough",
    ]
    with started([*words, "--user-token", TOKEN], f"http://127.0.0.1:{port}", **settings):
        yield Api(f"http://127.0.0.1:{port}")


@pytest.mark.slow
def test_label_studio_itself_gets_predictions_and_teaches(studio, run, patches: Annotations):
    port = free_port()
    backend = f"http://127.0.0.1:{port}"
    words = [sys.executable, "-m", "fewtags", "serve", run, "--label-studio", "--images", patches.root, "--port", port]
    with started(words, backend):
        project = studio("POST", "/api/projects", {"title": "photos", "label_config": WHOLE})["id"]
        tasks = [{"picture": f"/data/local-files/?d={patches.images[row]}"} for row in range(30, 36)]
        ids = studio("POST", f"/api/projects/{project}/import?return_task_ids=1", tasks)["task_ids"]
        assert studio("POST", "/api/ml", {"url": backend, "project": project, "title": "fewtags"})["state"] == "CO"

        action = f"/api/dm/actions?id=retrieve_tasks_predictions&project={project}"
        studio("POST", action, {"selectedItems": {"all": True, "excluded": []}})
        predictions = {one["task"]: one for one in studio("GET", f"/api/predictions?project={project}")}
        tagger = Tagger.load(run)
        for number, row in zip(ids, range(30, 36), strict=True):
            found = [tag for item in predictions[number]["result"] for tag in item["value"]["choices"]]
            assert found == tagger.predict([patches.path(row)])[0]
            assert predictions[number]["model_version"] == "fewtags-run-0"

        chosen = {"from_name": "seen", "to_name": "photo", "type": "choices", "value": {"choices": ["green", "blue"]}}
        made = studio("POST", f"/api/tasks/{ids[0]}/annotations", {"result": [chosen]})["id"]
        labels = wait_for(run / "label_studio.jsonl")
        assert (labels["green"], labels["blue"]) == (1, 1)
        assert json.load(urllib.request.urlopen(f"{backend}/health"))["model_version"] == "fewtags-run-1"
        studio("DELETE", f"/api/annotations/{made}")
        labels = wait_for(run / "label_studio.jsonl", lines=len(labels) + 1)
        assert set(labels.values()) == {0}


def wait_for(file: Path, lines: int = 1) -> dict[str, int]:
    """What was learned last about each tag, once the file has so many lines: the webhook may come a little later."""
    for _ in range(240):
        if file.is_file() and len(file.read_text().splitlines()) >= lines:
            time.sleep(1)
            break
        time.sleep(0.25)
    return {row["tag"]: row["label"] for row in map(json.loads, file.read_text().splitlines())}
