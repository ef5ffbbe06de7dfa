"""imgutils (dghs-imgutils) itself reads what `fewtags export --layout` writes, from a hub, and finds our tags."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
from hub_stand_in import HubStandIn

from fewtags.commands.export import export
from fewtags.engine.onnx_tagger import ExportedTagger

GOLDEN = Path(__file__).parents[1] / "golden"
PICTURES = sorted((GOLDEN / "pictures").glob("*.jpg"))

PREDICT = """
import json, sys
from imgutils.generic import MultiLabelTIMMModel, multilabel_timm_predict
found = []
for picture in sys.argv[1:]:
    (general,) = multilabel_timm_predict(picture, repo_id="me/photos")
    wanted = ("tag", "prediction", "logits", "embedding")
    tag, prediction, logits, embedding = multilabel_timm_predict(picture, repo_id="me/photos", fmt=wanted)
    assert tag == general
    numbers = {"prediction": prediction.tolist(), "logits": logits.tolist(), "embedding": embedding.shape}
    loose = multilabel_timm_predict(picture, repo_id="me/photos", thresholds=0.0, fmt="tag")
    found.append({"tags": general, "all": list(loose), **numbers})
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.parametrize("int8", [False, True])
def test_imgutils_gives_our_tags(other_side, tmp_path, int8):
    file, _ = export(GOLDEN / "format-2", to="onnx", out=tmp_path / "export", int8=int8, images=PICTURES, layout=True)
    tagger = ExportedTagger(file)
    with HubStandIn() as hub:
        hub.repositories["me/photos"] = {path.name: path.read_bytes() for path in file.parent.iterdir()}
        told = other_side("imgutils", PREDICT, *PICTURES, HF_ENDPOINT=hub.address, HF_HOME=str(tmp_path / "hf"))
    for ours, theirs in zip(tagger.predict_files(PICTURES), json.loads(told), strict=True):
        np.testing.assert_allclose(theirs["prediction"], ours.probabilities, atol=1e-4)
        np.testing.assert_allclose(1 / (1 + np.exp(-np.array(theirs["logits"]))), theirs["prediction"], atol=1e-5)
        expected = ours.tags(tagger.categories, tagger.thresholds)
        assert list(theirs["tags"]) == list(expected)
        assert sorted(theirs["all"]) == sorted(tagger.categories)
        assert len(theirs["embedding"]) == 1


def test_the_names_inside_are_those_imgutils_feeds_and_reads(tmp_path):
    import onnxruntime

    file, _ = export(GOLDEN / "format-2", to="onnx", out=tmp_path, int8=False, images=PICTURES, layout=True)
    session = onnxruntime.InferenceSession(str(file))
    assert [value.name for value in session.get_inputs()] == ["input"]
    assert [value.name for value in session.get_outputs()] == ["prediction", "logits", "embedding"]
    assert json.loads((tmp_path / "categories.json").read_text()) == [{"category": 0, "name": "general"}]
