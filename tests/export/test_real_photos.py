"""An exported model against torch on 500 real photos: the same tags, probabilities within 1e-4."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fewtags import Tagger
from fewtags.data.formats import read_annotations
from fewtags.engine.onnx_tagger import ExportedTagger
from fewtags.engine.prediction import predict_files
from fewtags.export.onnx_file import export_model
from fewtags.models.saved import load_model

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def voc(shared):
    return read_annotations(shared / "data" / "VOCdevkit")


@pytest.fixture(scope="module")
def saved(voc, shared, tmp_path_factory):
    """`instant` on 300 photos, with ImageNet features."""
    weights = shared / "weights" / "tf_efficientnet_lite0_fp16.safetensors"
    train = voc.split("train")
    train = train.take(np.arange(300))
    tagger = Tagger(
        "instant", "tf_efficientnet_lite0", weights=weights, settings=["data.known=0.5", "data.val_share=0"]
    )
    folder = tmp_path_factory.mktemp("real") / "tagger"
    tagger.fit(train).save(folder)
    return load_model(folder)


def test_the_same_tags_and_probabilities(voc, saved, tmp_path):
    test = voc.split("test")
    files: list[Path] = [test.path(row) for row in range(500)]
    export_model(saved, tmp_path / "model.onnx", images=files[:8])
    ours = np.stack([p.probabilities for p in predict_files(saved, files, runtime="torch", device="cpu")])
    theirs = np.stack([p.probabilities for p in ExportedTagger(tmp_path / "model.onnx").predict_files(files)])
    assert np.abs(ours - theirs).max() < 1e-4
    np.testing.assert_array_equal(ours >= saved.thresholds, theirs >= saved.thresholds)
    assert (ours >= saved.thresholds).sum() > 300  # there were tags to agree about
