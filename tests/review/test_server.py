"""What the page can ask for, and who may ask."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from made_review import made_data, save_pictures
from PIL import Image

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")

from starlette.testclient import TestClient

from fewtags.review.guard import Address
from fewtags.review.pictures import Pictures
from fewtags.review.server import Background, make_app
from fewtags.review.session import LiveQueue, ReviewSession
from fewtags.review.store import DecisionStore, decisions_file

TOKEN = "a-long-random-token"
ORIGIN = "http://127.0.0.1:8321"
Open = Callable[..., TestClient]


@pytest.fixture
def served(tmp_path: Path) -> Open:
    """Open the page's server on 40 made pictures; the client has the token in a header unless it says otherwise."""
    annotations, features = made_data(40, root=tmp_path / "photos")
    save_pictures(annotations)

    def open_client(
        headers: dict[str, str] | None = None, host: str = "127.0.0.1", origin: str = ORIGIN, **options: bool
    ) -> TestClient:
        store = DecisionStore(decisions_file(tmp_path))
        pictures = Pictures(annotations, tmp_path / "thumbnails")
        session = ReviewSession(
            annotations, features, store, run="r", reviewer="ann", content_hash=pictures.content_hash
        )
        address = Address(host, 8321)
        app = make_app(session, pictures, None, about={"run": "r"}, address=address, token=TOKEN, **options)
        headers = {"x-fewtags-token": TOKEN} if headers is None else headers
        client = TestClient(app, base_url=origin, headers=headers, client=("127.0.0.1", 50000))
        client.store = store
        return client

    return open_client


@pytest.fixture
def client(served: Open) -> TestClient:
    return served()


def window(client: TestClient, seen: int = 0, **view) -> dict:
    opened = client.get("/api/queues", params={"tag": "dog", "lowest": 0, **view}).json()
    return client.get(f"/api/queues/{opened['id']}", params={"limit": 100, "seen": seen}).json()


def answer(image: int, label: int, tag: str = "dog", **more) -> dict:
    return {"image": image, "tag": tag, "label": label, **more}


def decide(client: TestClient, *answers: dict):
    return client.post("/api/decisions", json={"queue": "missing", "answers": list(answers)})


# --- what it answers ---


def test_the_session_lists_the_categories_with_counts(client):
    session = client.get("/api/session").json()
    assert [tag["name"] for tag in session["tags"]] == ["cat", "dog", "sea"]
    assert session["images"] == 40
    assert all(tag["expected"] >= 0 and tag["left"] >= 0 for tag in session["tags"])


def test_a_decision_is_written_shown_and_undone(client):
    first = window(client)["stacks"][0]["images"][0]
    assert not first["decided"]
    done = decide(client, answer(first["image"], 1, version=first["version"]))
    assert done.status_code == 200
    assert done.json()["labels"][0]["label"] == 1
    assert first["image"] not in [stack["images"][0]["image"] for stack in window(client)["stacks"]]
    decided = window(client, status="decided")["stacks"]
    assert [stack["images"][0]["reviewer"] for stack in decided] == ["ann"]
    undone = client.post("/api/undo", json={"step": done.json()["step"]})
    assert undone.json()["labels"][0]["decided"] is False
    assert undone.json()["last_step"] is None
    assert client.post("/api/undo", json={"step": None}).json()["labels"] == []


def test_the_content_of_the_file_is_kept_with_the_decision(client, tmp_path):
    decide(client, answer(3, -1))
    (row,) = DecisionStore(decisions_file(tmp_path), read_only=True)
    assert (row.image, row.old, row.new, row.queue, row.run) == ("0003.jpg", 0, -1, "missing", "r")
    assert len(row.content_hash) == 64


def test_two_windows_do_not_overwrite_each_other(client):
    decide(client, answer(5, 1, version=0), answer(6, 1, version=0))
    refused = decide(client, answer(7, -1, version=0), answer(5, -1, version=0))
    assert refused.status_code == 409
    (other,) = refused.json()["labels"]
    assert (other["image"], other["label"], other["reviewer"]) == (5, 1, "ann")
    labels = {label["image"]: label for label in client.get("/api/changes", params={"since": 0}).json()["labels"]}
    assert {image: label["label"] for image, label in labels.items()} == {5: 1, 6: 1}
    assert decide(client, answer(5, -1, version=other["version"])).status_code == 200


def test_seen_stacks_keep_their_place_while_the_rest_is_ranked_anew(client):
    opened = client.get("/api/queues", params={"tag": "dog", "lowest": 0}).json()
    path = f"/api/queues/{opened['id']}"
    before = [stack["images"][0]["image"] for stack in client.get(path, params={"limit": 100}).json()["stacks"]]
    decide(client, answer(before[1], 1), answer(before[2], -1), answer(before[30], 1))
    after = client.get(path, params={"limit": 100, "seen": 5}).json()["stacks"]
    assert [stack["images"][0]["image"] for stack in after[:5]] == before[:5]
    assert [stack["images"][0]["decided"] for stack in after[:5]] == [False, True, True, False, False]
    assert before[30] not in [stack["images"][0]["image"] for stack in after]


def test_everything_above_a_probability_comes_with_a_sample_and_is_one_step(client):
    above = client.get("/api/above", params={"tag": "dog", "lowest": 0.2}).json()
    assert above["answers"]
    assert {entry["image"] for entry in above["sample"]} <= {entry["image"] for entry in above["answers"]}
    assert all(entry["probability"] >= 0.2 for entry in above["sample"])
    done = decide(client, *[answer(entry["image"], 1, version=entry["version"]) for entry in above["answers"]])
    assert window(client, status="present")["images"] == len(above["answers"])
    assert len(client.post("/api/undo", json={"step": done.json()["step"]}).json()["labels"]) == len(above["answers"])


def test_a_full_disk_is_said_and_nothing_is_half_written(client, tmp_path):
    client.store._connection.execute("PRAGMA max_page_count = 1")  # no more pages than it has already
    answers = [answer(image, 1) for image in range(40)]
    replies = [decide(client, *answers) for _ in range(30)]
    refused = next(reply for reply in replies if reply.status_code != 200)
    assert refused.status_code == 507
    assert "could not be written" in refused.json()["error"]
    assert len(list(DecisionStore(decisions_file(tmp_path), read_only=True))) % 40 == 0
    client.store._connection.execute("PRAGMA max_page_count = 1000000")
    assert decide(client, answer(1, -1)).status_code == 200


def test_a_second_copy_that_cannot_be_written_is_said_and_nothing_is_saved(client, tmp_path):
    lines = tmp_path / "review" / "decisions.sqlite-sealed.jsonl"
    lines.unlink()
    lines.mkdir()
    response = decide(client, answer(5, 1))
    assert (response.status_code, "Nothing was saved" in response.json()["error"]) == (507, True)
    assert list(client.store) == []


def test_an_image_has_its_tags_and_the_evidence_for_one(client):
    found = client.get("/api/images/4").json()
    assert [tag["name"] for tag in found["tags"]] == ["cat", "dog", "sea"]
    assert found["name"] == "0004.jpg"
    evidence = client.get("/api/images/4/evidence", params={"tag": "dog"}).json()
    assert evidence["tag"] == found["tags"][1]
    assert len(evidence["nearest"]) == 3
    assert evidence["nearest"][0]["similarity"] >= evidence["nearest"][1]["similarity"]
    assert 0 < evidence["threshold"] < 1


def test_a_forgotten_queue_and_wrong_requests_are_told_apart(client):
    assert client.get("/api/queues/nonsense").status_code == 404
    assert client.get("/api/queues", params={"tag": "dogs"}).json()["error"].endswith("did you mean 'dog'?")
    assert client.get("/api/queues", params={"tag": "dog", "queue": "any"}).status_code == 422
    assert decide(client, answer(5, 2)).status_code == 422
    assert decide(client, answer(500, 1)).status_code == 400
    assert decide(client).status_code == 422


BAD_BODIES = (
    '{"queue": "missing", "answers": [{"image": NaN, "tag": "dog", "label": 1}]}',
    '{"queue": "missing", "answers": [{"image": Infinity, "tag": "dog", "label": 1}]}',
    '{"queue": "missing", "answers": [{"image": 1e999, "tag": "dog", "label": 1}]}',
    '{"queue": "missing", "answers": [{"image": 1, "tag": "dog", "label": NaN}]}',
    '{"queue": "missing", "answers": [{"image": 1, "tag": "\\ud800", "label": 1}]}',
    '{"queue": "\\udfff", "answers": [{"image": 1, "tag": "dog", "label": 1}]}',
    '{"queue": "missing", "answers": [{"image": 1, "tag": "dog", "label": 1, "version": 9223372036854775808}]}',
    '{"queue": "missing", "answers": [{"image": 1, "tag": "dog", "label": 1, "\\ud800": 1}]}',
    '{"queue": "missing", "answers": ' + "[" * 500 + "]" * 500 + "}",
    "[" * 100_000,
    "NaN",
    "",
)


@pytest.mark.parametrize("path", ["/api/decisions", "/api/undo"])
@pytest.mark.parametrize("body", BAD_BODIES)
def test_a_malformed_body_is_a_mistake_of_the_sender(client, path, body):
    response = client.post(path, content=body, headers={"content-type": "application/json"})
    assert response.status_code in (400, 422), response.text
    assert list(client.store) == []


@pytest.mark.parametrize("number", [2**63, 2**64, 10**30, -1, "NaN", "1e3"])
def test_a_number_out_of_range_is_a_mistake_of_the_sender(client, number):
    assert client.get("/api/changes", params={"since": number}).status_code == 422
    opened = client.get("/api/queues", params={"tag": "dog", "lowest": 0}).json()
    assert client.get(f"/api/queues/{opened['id']}", params={"seen": number}).status_code == 422
    assert client.get(f"/api/queues/{opened['id']}", params={"offset": number}).status_code == 422
    assert client.get(f"/api/images/{number}").status_code in (404, 422)
    for body in ({"step": number}, {"step": f"{number}"}):
        assert client.post("/api/undo", json=body).status_code in (400, 422)


@pytest.mark.parametrize("number", [2**63 - 1, 2**62, 10**6])
def test_a_large_number_finds_nothing(client, number):
    assert client.get("/api/changes", params={"since": number}).json()["labels"] == []
    assert client.post("/api/undo", json={"step": number}).status_code == 400
    opened = client.get("/api/queues", params={"tag": "dog", "lowest": 0}).json()
    for params in ({"seen": number}, {"offset": number}):
        assert client.get(f"/api/queues/{opened['id']}", params=params).status_code == 200


def test_a_version_of_a_label_that_nobody_decided_is_refused(client):
    response = decide(client, answer(5, 1, version=3))
    assert (response.status_code, "has no version 3" in response.json()["error"]) == (400, True)
    assert decide(client, answer(5, 1, version=0)).status_code == 200


# --- pictures ---


def test_thumbnails_are_upright_small_and_made_once(served, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # lies on its side
    Image.new("RGB", (1200, 600), "red").save(tmp_path / "photos" / "0007.jpg", exif=exif)
    client = served()
    content = client.get("/api/images/7/thumbnail").content
    assert Image.open(io.BytesIO(content)).size == (160, 320)
    (file,) = (tmp_path / "thumbnails").rglob("*.jpg")
    made = file.stat().st_mtime_ns
    client.get("/api/images/7/thumbnail")
    assert file.stat().st_mtime_ns == made
    assert Image.open(io.BytesIO(client.get("/api/images/7/large").content)).size == (600, 1200)


def test_a_missing_or_broken_file_is_said_not_crashed(client, tmp_path):
    (tmp_path / "photos" / "0002.jpg").unlink()
    (tmp_path / "photos" / "0004.jpg").write_bytes(b"not a picture")
    missing, broken = client.get("/api/images/2/thumbnail"), client.get("/api/images/4/large")
    assert (missing.status_code, broken.status_code) == (404, 404)
    assert "missing" in missing.json()["error"]
    assert str(tmp_path) not in missing.text + broken.text


def test_the_background_makes_all_thumbnails(served, tmp_path):
    annotations, _ = made_data(40, root=tmp_path / "photos")
    (tmp_path / "photos" / "0009.jpg").unlink()
    pictures = Pictures(annotations, tmp_path / "all")
    pictures._make_all()
    assert len(list((tmp_path / "all").rglob("*.jpg"))) == 39


def test_the_background_waits_until_nobody_waits_for_an_answer(tmp_path, monkeypatch):
    annotations, _ = made_data(4, root=tmp_path / "photos")
    save_pictures(annotations)
    monkeypatch.setattr("fewtags.review.pictures.IDLE", 0.01)
    pictures = Pictures(annotations, tmp_path / "all")
    with pictures.answering():
        pictures.start()
        time.sleep(0.1)
        assert pictures.made == 0
    wait_until = time.monotonic() + 20
    while pictures.made < 4 and time.monotonic() < wait_until:
        time.sleep(0.01)
    pictures.stop()
    assert pictures.made == 4


def test_every_request_is_answered_before_the_background_goes_on(served, monkeypatch):
    seen = []
    monkeypatch.setattr(LiveQueue, "follow", lambda self, number: seen.append(of.pictures._idle()) or self.queue)
    client = served()
    of = next(cell for cell in all_layers(client.app) if isinstance(cell, Background))
    of.pictures._last_request = -1e9
    assert of.pictures._idle()
    window(client)
    assert seen == [False]


def all_layers(app):
    """The middleware that a request goes through."""
    layer = app.middleware_stack or app.build_middleware_stack()
    while layer is not None:
        yield layer
        layer = getattr(layer, "app", None)


# --- who may ask ---


def test_without_the_token_nothing_is_answered(served):
    for headers in ({}, {"x-fewtags-token": "wrong"}, {"cookie": "fewtags-review-8321=wrong"}):
        stranger = served(headers)
        for path in ("/", "/static/app.js", "/api/session", "/api/images/1/thumbnail", "/?token=wrong"):
            assert stranger.get(path).status_code == 401, path
        assert decide(stranger, answer(1, 1)).status_code == 401


def test_the_address_with_the_token_gives_a_cookie_that_scripts_cannot_read(served):
    browser = served({})
    page = browser.get(f"/?token={TOKEN}")
    assert page.status_code == 200
    cookie = page.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert browser.get("/api/session").status_code == 200
    assert served({}).get(f"/api/session?token={TOKEN}").status_code == 401  # only the page itself takes it there


@pytest.mark.parametrize("origin", ["https://evil.example", "http://127.0.0.1:9999", "null", "http://localhost:8321"])
def test_requests_from_other_pages_are_refused(client, origin):
    for ask in (
        lambda: client.post("/api/decisions", json={"answers": [answer(1, 1)]}, headers={"origin": origin}),
        lambda: client.get("/api/session", headers={"origin": origin}),
    ):
        assert ask().status_code == 403
    assert not client.get("/api/changes", params={"since": 0}).json()["labels"]


def test_a_cookie_alone_does_not_decide_without_an_origin(served):
    browser = served({})
    browser.get(f"/?token={TOKEN}")
    assert decide(browser, answer(1, 1)).status_code == 403
    browser.headers["origin"] = ORIGIN
    assert decide(browser, answer(1, 1)).status_code == 200
    browser.headers["sec-fetch-site"] = "cross-site"
    assert decide(browser, answer(2, 1)).status_code == 403


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8321", "127.0.0.1", "127.0.0.1:80", "10.0.0.5:8321"])
def test_a_foreign_host_name_is_refused(client, host):
    assert client.get("/api/session", headers={"host": host}).status_code == 421


@pytest.mark.parametrize("host", ["127.0.0.1:8321", "localhost:8321", "[::1]:8321"])
def test_the_names_of_this_machine_are_taken(client, host):
    assert client.get("/api/session", headers={"host": host}).status_code == 200


def test_addresses_are_printed_so_that_a_browser_opens_them():
    assert Address("0.0.0.0", 8321).origin == "http://127.0.0.1:8321"
    assert Address("::1", 8321).origin == "http://[::1]:8321"
    assert Address("localhost", 80).answers_to("localhost")
    assert not Address("localhost", 81).answers_to("localhost")


def test_listening_to_all_takes_any_number_but_no_foreign_name(served):
    client = served(host="0.0.0.0")
    assert client.get("/api/session", headers={"host": "192.168.1.7:8321"}).status_code == 200
    assert client.get("/api/session", headers={"host": "rebound.example:8321"}).status_code == 421
    assert not Address("0.0.0.0", 1).loopback
    assert Address("localhost", 1).loopback


@pytest.mark.parametrize(
    "path",
    [
        "/api/images/../../etc/passwd/large",
        "/api/images/..%2f..%2fetc%2fpasswd/large",
        "/api/images/-1/large",
        "/api/images/40/large",
        "/api/images/1e3/thumbnail",
        "/static/../server.py",
        "/static/..%2fserver.py",
        "/static/%2e%2e/server.py",
        "/static//etc/passwd",
    ],
)
def test_nothing_but_the_images_of_the_dataset_is_served(client, path):
    reply = client.get(path)
    assert reply.status_code in (400, 404, 422)
    assert "root:" not in reply.text
    assert "FastAPI" not in reply.text


def test_a_symbolic_link_out_of_the_dataset_is_not_followed(served, tmp_path):
    secret = tmp_path / "secret.jpg"
    Image.new("RGB", (30, 30), "white").save(secret)
    link = tmp_path / "photos" / "0011.jpg"
    link.unlink()
    link.symlink_to(secret)
    inside = tmp_path / "photos" / "0012.jpg"
    inside.unlink()
    inside.symlink_to(tmp_path / "photos" / "0013.jpg")
    client = served()
    for view in ("thumbnail", "large"):
        assert client.get(f"/api/images/11/{view}").status_code == 404
        assert client.get(f"/api/images/12/{view}").status_code == 200


def test_an_image_path_out_of_the_dataset_is_not_served(tmp_path):
    annotations, _ = made_data(40, root=tmp_path / "photos")
    save_pictures(annotations)
    Image.new("RGB", (30, 30)).save(tmp_path / "outside.jpg")
    annotations.images[0] = "../outside.jpg"
    with pytest.raises(Exception, match="outside the dataset"):
        Pictures(annotations, tmp_path / "t").thumbnail(0)


def test_every_answer_has_a_strict_policy_and_is_not_stored(client):
    for path in ("/", "/api/session", "/static/app.js", "/nowhere"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "no-store"


def test_the_page_has_no_inline_script_and_loads_nothing_from_elsewhere():
    static = Path(__file__).parents[2] / "src" / "fewtags" / "review" / "static"
    page = (static / "index.html").read_text(encoding="utf-8")
    assert "<script>" not in page
    assert " style=" not in page
    assert " onclick=" not in page
    for file in static.iterdir():
        text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "://" not in text, file.name
        assert "innerHTML" not in text, file.name


def test_read_only_shows_and_does_not_write(served):
    decide(served(), answer(1, 1))
    reader = served(read_only=True)
    assert reader.get("/api/session").json()["read_only"]
    assert window(reader, status="decided")["images"] == 1
    assert decide(reader, answer(2, 1)).status_code == 403
    assert reader.post("/api/undo", json={}).status_code == 403


def test_no_api_pages_of_the_framework_are_open(client):
    assert [client.get(path).status_code for path in ("/docs", "/redoc", "/openapi.json")] == [404] * 3


def test_probabilities_are_numbers_the_page_can_show(client):
    chances = [image["probability"] for stack in window(client)["stacks"] for image in stack["images"]]
    assert np.isfinite(chances).all()
    assert all(0 <= chance <= 1 for chance in chances)
