"""timm itself loads what `fewtags export --to timm` writes, and gives our probabilities."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
from hub_stand_in import HubStandIn

from conftest import TINY
from fewtags import Tagger
from fewtags.errors import UserError
from fewtags.export.timm_folder import export_to_timm
from fewtags.models.quick_timm import timm
from fewtags.models.saved import load_model

SETTINGS = [setting for setting in TINY if not setting.startswith(("method", "model.backbone", "model.pretrained"))]


def fitted(patches, *settings: str, backbone: str = "test_resnet", method: str = "an") -> Tagger:
    tagger = Tagger(method, backbone, pretrained=False, settings=[*SETTINGS, "head.standardise=false", *settings])
    return tagger.fit(patches)


@torch.inference_mode()
def by_timm(model, images) -> np.ndarray:
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
    return model.eval()(torch.stack([transform(Image.open(path).convert("RGB")) for path in images])).sigmoid().numpy()


@pytest.mark.parametrize(
    ("backbone", "settings"),
    [("test_resnet", ()), ("test_efficientnet", ()), ("resnet18", ("model.output_stride=16",))],
)
def test_timm_loads_a_linear_head_as_its_own_classifier(backbone, settings, patches, tmp_path):
    tagger = fitted(patches, *settings, backbone=backbone)
    assert export_to_timm(tagger._fitted(), tmp_path) < 1e-5
    model = timm.create_model(f"local-dir:{tmp_path}", pretrained=True)
    images = [patches.path(row) for row in range(8)]
    np.testing.assert_allclose(by_timm(model, images), tagger.predict_proba(images), atol=1e-5)
    about = json.loads((tmp_path / "config.json").read_text())
    assert about["label_names"] == patches.categories == list(tagger.classes_)
    np.testing.assert_allclose(about["thresholds"], tagger.thresholds_, atol=1e-6)
    assert {file.name for file in tmp_path.iterdir()} == {"config.json", "model.safetensors"}


def test_timm_loads_it_from_a_hub(patches, tmp_path, monkeypatch):
    saved = fitted(patches)._fitted()
    export_to_timm(saved, tmp_path / "model")
    images = torch.rand(2, 3, 32, 32)
    with HubStandIn() as hub:
        hub.repositories["me/photos"] = {file.name: file.read_bytes() for file in (tmp_path / "model").iterdir()}
        hub.is_huggingfaces(monkeypatch, tmp_path / "hf")
        model = timm.create_model("hf_hub:me/photos", pretrained=True).eval()
    with torch.inference_mode():
        torch.testing.assert_close(model(images), saved.classifier.eval()(images).logits)


def test_a_command_writes_it(patches, tmp_path, cli):
    fitted(patches).save(tmp_path / "saved")
    answer = cli("export", tmp_path / "saved", "--to", "timm", "--out", tmp_path / "timm")
    assert answer.code == 0
    assert answer.out.splitlines()[-1] == str(tmp_path / "timm")
    assert timm.create_model(f"local-dir:{tmp_path / 'timm'}", pretrained=True).num_classes == 3
    assert cli("export", tmp_path / "saved", "--to", "timm", "--int8").code == 2


@pytest.mark.parametrize(
    ("settings", "method", "reason"),
    [
        (["head.standardise=true"], "an", r"unit length \(train with head.standardise=false\)"),
        (["head.hidden=8"], "an", "hidden layer"),
        (["model.width=16"], "an", "between backbone and head"),
    ],
)
def test_what_timm_cannot_express_is_refused(settings, method, reason, patches, tmp_path):
    with pytest.raises(UserError, match=reason):
        export_to_timm(fitted(patches, *settings, method=method)._fitted(), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_another_head_is_refused(tmp_path):
    with pytest.raises(UserError, match="its head is 'closed_form'"):
        export_to_timm(load_model(Path(__file__).parents[1] / "golden" / "format-2"), tmp_path / "out")


def test_a_backbone_with_more_before_its_classifier_is_refused(patches, tmp_path):
    """timm's ViT classifies the class token or a norm of the average; ours averages the map."""
    with pytest.raises(UserError, match="average-pool"):
        export_to_timm(fitted(patches, "input.size=160", backbone="test_vit")._fitted(), tmp_path / "out")
