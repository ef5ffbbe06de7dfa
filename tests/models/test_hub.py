"""A tagger goes to a hub and comes back the same. The hub is a stand-in on loopback."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hub_stand_in import HubStandIn
from huggingface_hub import ModelCard
from safetensors.torch import save_file

from fewtags import Tagger
from fewtags.engine.onnx_tagger import ExportedTagger
from fewtags.errors import UserError
from fewtags.models.quick_timm import timm

GOLDEN = Path(__file__).parents[1] / "golden"
PICTURES = sorted((GOLDEN / "pictures").glob("*.jpg"))


@pytest.fixture
def hub(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    at_once = SimpleNamespace(**{**vars(time), "sleep": lambda seconds: None})
    monkeypatch.setattr("huggingface_hub.file_download.time", at_once)  # it waits a second before each of five tries
    with HubStandIn() as made:
        yield made


def test_there_and_back(hub, tmp_path):
    tagger = Tagger.load(GOLDEN / "format-2")
    address = tagger.push_to_hub("me/photos", token="hf_x", endpoint=hub.address, onnx=False)
    assert address == f"{hub.address}/me/photos"
    assert set(hub.repositories["me/photos"]) >= {"config.json", "labels.json", "model.safetensors", "README.md"}
    assert hub.private["me/photos"]  # until somebody says otherwise
    back = Tagger.from_hub("me/photos", endpoint=hub.address, cache_dir=tmp_path, token=False)
    assert back.classes_.tolist() == tagger.classes_.tolist()
    np.testing.assert_array_equal(back.thresholds_, tagger.thresholds_)
    np.testing.assert_array_equal(back.predict_proba(PICTURES), tagger.predict_proba(PICTURES))


def test_the_onnx_file_goes_up_and_is_not_needed_to_come_back(hub, tmp_path):
    pytest.importorskip("onnxscript")
    tagger = Tagger.load(GOLDEN / "format-2")
    tagger.push_to_hub("me/photos", token="hf_x", endpoint=hub.address)
    (tmp_path / "model.onnx").write_bytes(hub.repositories["me/photos"]["model.onnx"])
    exported = ExportedTagger(tmp_path / "model.onnx")
    found = [prediction.probabilities for prediction in exported.predict_files(PICTURES)]
    np.testing.assert_allclose(found, tagger.predict_proba(PICTURES), atol=1e-4)
    Tagger.from_hub("me/photos", endpoint=hub.address, cache_dir=tmp_path, token=False)
    assert "model.onnx" not in hub.downloads
    tagger.push_to_hub("me/small", token="hf_x", endpoint=hub.address, onnx=False)
    assert "model.onnx" not in hub.repositories["me/small"]


def test_the_card_says_what_the_hub_reads(hub):
    """As huggingface_hub itself reads it."""
    tagger = Tagger.load(GOLDEN / "format-2")
    tagger.push_to_hub("me/photos", token="hf_x", endpoint=hub.address, license="cc-by-4.0", onnx=False)
    data = ModelCard(hub.repositories["me/photos"]["README.md"].decode()).data
    assert (data.license, data.library_name, data.pipeline_tag) == ("cc-by-4.0", "fewtags", "image-classification")


def test_only_the_files_of_a_model_come_down(hub, tmp_path):
    tagger = Tagger.load(GOLDEN / "format-2")
    tagger.push_to_hub("me/photos", token="hf_x", endpoint=hub.address, private=False, onnx=False)
    assert not hub.private["me/photos"]
    hub.repositories["me/photos"]["evil.py"] = b"raise SystemExit"
    Tagger.from_hub("me/photos", endpoint=hub.address, cache_dir=tmp_path, token=False)
    assert "model.safetensors" in hub.downloads
    assert "evil.py" not in hub.downloads


@pytest.mark.parametrize(
    ("repo", "sentence"), [("me/none", "does not exist or is private"), ("a b/c", "is not a repository name")]
)
def test_mistakes_are_one_sentence(hub, tmp_path, repo, sentence):
    with pytest.raises(UserError, match=sentence):
        Tagger.from_hub(repo, endpoint=hub.address, cache_dir=tmp_path, token=False)


def test_a_hub_that_does_not_answer(tmp_path):
    with pytest.raises(UserError, match="could not be reached"):
        Tagger.from_hub("me/x", endpoint="http://127.0.0.1:9", cache_dir=tmp_path, token=False)


def breaking_off(hub: HubStandIn, repository: str, name: str, share: float):
    """As `hub.get`, but the connection ends after that share of one file."""
    whole = hub.get

    def get(request, path):
        if request.command != "GET" or not path.endswith(f"/{name}"):
            return whole(request, path)
        content = hub.repositories[repository][name]
        request.send_response(200)
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        request.wfile.write(content[: int(share * len(content))])
        request.close_connection = True

    return get


@pytest.mark.parametrize("name", ["config.json", "labels.json", "model.safetensors"])
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_download_that_breaks_off_is_said_and_done_again(hub, tmp_path, name, share, monkeypatch):
    Tagger.load(GOLDEN / "format-2").push_to_hub("me/photos", token="hf_x", endpoint=hub.address, onnx=False)
    monkeypatch.setattr(hub, "get", breaking_off(hub, "me/photos", name, share))
    with pytest.raises(UserError, match="The connection to the hub broke off at me/photos") as said:
        Tagger.from_hub("me/photos", endpoint=hub.address, cache_dir=tmp_path, token=False)
    assert "\n" not in str(said.value)
    monkeypatch.undo()
    again = Tagger.from_hub("me/photos", endpoint=hub.address, cache_dir=tmp_path, token=False)
    assert again.classes_.tolist() == Tagger.load(GOLDEN / "format-2").classes_.tolist()


def test_weights_that_break_off_are_said_leave_no_run_and_are_fetched_again(
    hub, cli, patches, tags_file, tmp_path, monkeypatch
):
    """`train` fetches the backbone's weights from the hub."""
    torch.manual_seed(0)
    save_file(timm.create_model("test_resnet", pretrained=False).state_dict(), tmp_path / "w.safetensors")
    repository = "timm/test_resnet.r160_in1k"
    hub.repositories[repository] = {"model.safetensors": (tmp_path / "w.safetensors").read_bytes()}
    hub.is_huggingfaces(monkeypatch, tmp_path / "hub")
    train = ("train", patches.root, "--tags", tags_file, "--backbone", "test_resnet", "input.size=32")
    train = (*train, "--method", "instant", "--out", tmp_path / "run")
    with monkeypatch.context() as broken:
        broken.setattr(hub, "get", breaking_off(hub, repository, "model.safetensors", 0.5))
        answer = cli(*train, "-q")
    assert answer.code == 1
    assert "could not be fetched" in answer.err.splitlines()[-1]
    assert "with a network, run the same command" in answer.err
    assert not (tmp_path / "run").exists()
    assert not list((tmp_path / "hub").rglob("*.safetensors"))  # nothing that could be taken for the weights
    answer = cli(*train)
    assert answer.code == 0, answer.err
    assert "from timm's pretrained weights" in answer.err
