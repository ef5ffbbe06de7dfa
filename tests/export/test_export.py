"""A model as one file to deploy: the same probabilities as torch, everything about it inside, no torch to use it."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from fewtags.commands.export import export
from fewtags.engine.onnx_tagger import ExportedTagger
from fewtags.errors import RunFailed, UserError
from fewtags.export import onnx_file
from fewtags.export.onnx_file import export_model
from fewtags.models.names import NameScorer
from fewtags.models.saved import load_model

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

GOLDEN = Path(__file__).parents[1] / "golden"
PICTURES = sorted((GOLDEN / "pictures").glob("*.jpg"))


pytestmark = pytest.mark.usefixtures("traced_once")


@pytest.fixture(scope="module")
def saved():
    return load_model(GOLDEN / "format-2")


@pytest.fixture(scope="module")
def exported(saved, tmp_path_factory, traced_once):
    file = tmp_path_factory.mktemp("export") / "tagger.onnx"
    export_model(saved, file, images=PICTURES)
    return file


@torch.inference_mode()
def torch_probabilities(saved, pixels):
    return saved.classifier(torch.from_numpy(pixels)).logits.sigmoid().numpy()


def test_probabilities_are_those_of_torch_for_any_batch_size(saved, exported):
    tagger = ExportedTagger(exported)
    pixels = np.random.default_rng(0).integers(0, 256, (5, 3, tagger.size, tagger.size), dtype=np.uint8)
    expected = torch_probabilities(saved, pixels)
    for size in (1, 2, 5):
        np.testing.assert_allclose(tagger.probabilities(pixels[:size]), expected[:size], atol=1e-5)


def test_the_file_carries_names_thresholds_and_provenance_and_no_local_path(saved, exported):
    about = ExportedTagger(exported).about
    assert about["categories"] == saved.categories
    np.testing.assert_allclose(about["thresholds"], saved.thresholds, atol=1e-6)
    assert about["method"] == "instant"
    assert "/" not in json.dumps(about["training"].get("data", {}))


def test_a_difference_above_the_tolerance_fails_and_leaves_no_file(saved, tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_file, "compare", lambda *_: onnx_file.Check(2, 0.2, 0.1, 0.9))
    with pytest.raises(RunFailed, match="differs from torch"):
        export_model(saved, tmp_path / "tagger.onnx", images=PICTURES)
    assert not list(tmp_path.iterdir())


def test_files_are_predicted_without_torch(exported):
    files = [str(picture) for picture in PICTURES]
    code = (
        "import sys; from pathlib import Path; from fewtags.engine.onnx_tagger import ExportedTagger\n"
        f"rows = list(ExportedTagger({str(exported)!r}).predict_files([Path(p) for p in {files!r}]))\n"
        "assert 'torch' not in sys.modules\n"
        "print(len(rows), rows[0].probabilities.shape[0])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["2", "16"]


def test_a_broken_picture_says_what_is_wrong_and_the_others_go_on(exported, tmp_path):
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"no picture")
    rows = list(ExportedTagger(exported).predict_files([PICTURES[0], broken, PICTURES[1]], batch_size=2))
    assert [row.probabilities is None for row in rows] == [False, True, False]
    assert "broken.jpg" in rows[1].problem


def test_eight_bits_cost_little_and_say_what(saved, exported, tmp_path):
    file = tmp_path / "small.onnx"
    check = export_model(saved, file, int8=True, images=PICTURES)
    assert file.stat().st_size < exported.stat().st_size
    assert check.mean < 0.1
    with pytest.raises(UserError, match="--int8 needs images"):
        export_model(saved, file, int8=True)


def test_openvino_gives_the_same(saved, tmp_path):
    pytest.importorskip("openvino")
    file = tmp_path / "tagger.xml"
    assert export_model(saved, file, to="openvino", images=PICTURES).largest < 1e-4
    assert ExportedTagger(file).categories == saved.categories


def test_the_layout_of_booru_tools(trained, tmp_path):
    file, _ = export(trained, to="onnx", out=tmp_path / "booru", int8=False, images=PICTURES, layout=True)
    rows = list(csv.DictReader((file.parent / "selected_tags.csv").open()))
    saved = load_model(trained)
    assert [row["name"] for row in rows] == saved.categories
    assert [int(row["count"]) for row in rows] == saved.data["known_positives"]
    np.testing.assert_allclose([float(row["best_threshold"]) for row in rows], saved.thresholds, atol=1e-5)
    stages = json.loads((file.parent / "preprocess.json").read_text())["test"]
    assert stages[1]["size"] == [32, 32]
    with pytest.raises(UserError, match="--layout"):
        export(trained, to="openvino", out=None, int8=False, images=[], layout=True)


def test_what_eight_bits_cost_is_measured_on_held_out_images(trained, tmp_path):
    _, (_, cost) = export(trained, to="onnx", out=tmp_path / "x.onnx", int8=True, images=[], layout=False)
    before = 100 * json.loads((trained / "result.json").read_text())["test"]["map"]
    assert cost.startswith(f"On 12 held-out images: mAP {before:.2f} with torch, ")


@pytest.mark.parametrize("content", [b"", b"not a model"])
def test_what_is_not_an_exported_model_is_said(content, tmp_path):
    file = tmp_path / "x.onnx"
    file.write_bytes(content)
    with pytest.raises(UserError, match=r"x\.onnx"):
        ExportedTagger(file)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"input": {"size": 10**9}}, "its images have a side of 1000000000"),
        ({"input": {"size": 17}}, "its images have a side of 17"),
        ({"input": {"size": float("inf")}}, "metadata is missing"),
        ({"input": {"size": -5}}, "its images have a side of -5"),
        ({"input": 5}, "metadata is missing"),
        ({"categories": ["a", "b"], "thresholds": [0.5, 0.5]}, "outputs for 2 categories"),
        ({"categories": ["a"] * 10**5, "thresholds": [0.5] * 10**5}, "outputs for 100,000 categories"),
        ({"thresholds": [0.5]}, "the number of thresholds"),
        ({"categories": 5}, "metadata is missing"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_metadata_that_disagree_with_the_model_are_one_sentence(changes, sentence, exported, tmp_path):
    model = onnx.load(exported)
    (entry,) = [entry for entry in model.metadata_props if entry.key == "fewtags"]
    entry.value = json.dumps({**json.loads(entry.value), **changes})
    onnx.save(model, tmp_path / "x.onnx")
    with pytest.raises(UserError, match=rf"x\.onnx .*{sentence}"):
        ExportedTagger(tmp_path / "x.onnx")


def test_a_threshold_that_is_no_number_is_said(saved, exported, tmp_path):
    model = onnx.load(exported)
    (entry,) = [entry for entry in model.metadata_props if entry.key == "fewtags"]
    entry.value = json.dumps({**json.loads(entry.value), "thresholds": [float("nan")] * len(saved.categories)})
    onnx.save(model, tmp_path / "x.onnx")
    with pytest.raises(UserError, match="a threshold is not a number"):
        ExportedTagger(tmp_path / "x.onnx")


def test_scores_by_names_can_be_exported(tmp_path):
    """They are part of `instant` where the backbone has ImageNet classes."""
    import onnxruntime

    generator = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(6, 4, generator=generator), torch.randn(6, generator=generator)
    members = torch.tensor([[1, 1, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0], [0, 0, 0, 0, 0, 0]]).bool()
    scorer = NameScorer(weight, bias, members).eval()
    pooled = torch.randn(3, 4, generator=generator)
    batch = {"pooled": {0: torch.export.Dim("batch")}}
    torch.onnx.export(scorer, (pooled,), str(tmp_path / "x.onnx"), dynamic_shapes=batch, dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(str(tmp_path / "x.onnx"))
    (scores,) = session.run(None, {session.get_inputs()[0].name: pooled[:2].numpy()})
    np.testing.assert_allclose(scores, scorer.scores(pooled[:2]).numpy(), atol=1e-5)
