"""Backbones of open_clip and the names their text towers know, with tiny random models of the real class."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from fewtags.errors import MissingExtra, UserError
from fewtags.models import clip
from fewtags.models.backbones import create_backbone
from fewtags.models.names import PROMPTS, NameScorer, find_names
from fewtags.models.quick_timm import ImageNetInfo

open_clip = pytest.importorskip("open_clip")

CONFIG = {
    "embed_dim": 12,
    "vision_cfg": {"image_size": 32, "layers": 1, "width": 32, "patch_size": 16, "head_width": 16},
    "text_cfg": {"context_length": 16, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
}


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> Path:
    """The weights of a random model of open_clip's own class, whose configuration is made known as "tiny-clip"."""
    folder = tmp_path_factory.mktemp("clip")
    (folder / "tiny-clip.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    open_clip.add_model_config(folder / "tiny-clip.json")
    torch.manual_seed(0)
    torch.save(open_clip.create_model("tiny-clip").state_dict(), folder / "tiny.pt")
    return folder / "tiny.pt"


def original(weights: Path) -> torch.nn.Module:
    return open_clip.create_model("tiny-clip", pretrained=str(weights)).eval()


def test_the_backbone_gives_open_clips_image_features(weights):
    backbone = create_backbone("open_clip/tiny-clip", weights=weights).eval()
    images = torch.randint(0, 255, (3, 3, 32, 32), dtype=torch.uint8)
    mean, std = (torch.tensor(value).view(3, 1, 1) for value in (backbone.mean, backbone.std))
    with torch.no_grad():
        maps = backbone(images)
        expected = original(weights).encode_image((images / 255 - mean) / std)
    assert maps.shape == (3, backbone.num_channels, 1, 1)
    torch.testing.assert_close(maps[:, :, 0, 0], expected)
    assert backbone.mean == open_clip.OPENAI_DATASET_MEAN
    assert not any("token_embedding" in key for key in backbone.state_dict())  # the text tower is not part of it


def test_the_backbone_is_refitted_to_the_input_size(weights):
    backbone = create_backbone("open_clip/tiny-clip", weights=weights, input_size=64)
    assert backbone(torch.rand(1, 3, 64, 64)).shape == (1, 12, 1, 1)


def named(weights: Path, categories: list[str], overrides: dict | None = None) -> NameScorer:
    backbone = create_backbone("open_clip/tiny-clip", weights=weights, keep_classifier=True)
    return find_names(backbone.class_head, categories, overrides)


def test_the_score_is_the_share_of_a_name_and_the_nouns_below_it_in_clips_softmax(weights):
    """Text by text, with open_clip's own functions."""
    scorer = named(weights, ["sheep", "sunset"])
    model, tokenizer = original(weights), open_clip.get_tokenizer("tiny-clip")
    synsets = ImageNetInfo("imagenet-1k").label_names()
    words = ImageNetInfo("imagenet-1k").label_descriptions()
    features = torch.randn(4, 12)
    with torch.no_grad():
        rows = []
        for name in ("sheep", "sunset"):
            prompts = [model.encode_text(tokenizer([prompt.format(name)]))[0] for prompt in PROMPTS]
            rows.append(torch.stack([vector / vector.norm() for vector in prompts]).mean(0))
        rows += [model.encode_text(tokenizer([PROMPTS[0].format(text.split(",")[0].lower())]))[0] for text in words]
        logits = F.normalize(features, dim=1) @ F.normalize(torch.stack(rows), dim=1).T * model.logit_scale.exp()
    ram = 2 + synsets.index("n02412080")
    everything = logits.logsumexp(1)
    expected = torch.stack([logits[:, [0, ram]].logsumexp(1), logits[:, 1]], dim=1) - everything[:, None]
    torch.testing.assert_close(scorer.scores(features), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(scorer.scores(7 * features), expected, rtol=1e-4, atol=1e-4)
    assert scorer.sentences == ["sheep: its text and 1 class at or below 'sheep' (ram)", "sunset: its text"]


def test_a_saved_scorer_keeps_that_features_are_of_length_one(weights):
    scorer = named(weights, ["dog"])
    again = NameScorer.from_state_dict(scorer.state_dict())
    features = torch.randn(2, 12)
    assert torch.equal(again.scores(features), scorer.scores(features))


def test_a_users_file_counts_here_too(weights):
    told = {"cow": {"synonym": "ox"}, "kite": "none"}
    scorer = named(weights, ["cow", "kite", "ox"], told)
    assert scorer.known.tolist() == [True, False, True]
    torch.testing.assert_close(scorer.weight[0], scorer.weight[2])
    assert named(weights, ["kite"], {"kite": None}) is None


def test_random_weights_know_no_names(weights):
    assert create_backbone("open_clip/tiny-clip", pretrained=False, keep_classifier=True).class_head is None


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("open_clip/ViT-B-33", {}, "There is no open_clip model 'ViT-B-33'; did you mean 'ViT-B-32'"),
        ("open_clip/ViT-B-32/openia", {}, "no weights 'openia' for ViT-B-32; did you mean 'openai'"),
        ("open_clip/ViT-B-32", {}, "Say which weights of ViT-B-32 to download, as in open_clip/ViT-B-32/openai, or"),
        ("open_clip/ViT-B-32", {"weights": "nowhere.pt"}, "nowhere.pt does not exist"),
    ],
)
def test_wrong_names_are_refused(name, settings, message):
    with pytest.raises(UserError, match=re.escape(message)):
        create_backbone(name, **settings)


def test_a_damaged_file_is_refused(weights, tmp_path):
    (tmp_path / "w.pt").write_bytes(b"no tensors")
    with pytest.raises(UserError, match=r"w\.pt' of open_clip/tiny-clip could not be loaded"):
        create_backbone("open_clip/tiny-clip", weights=tmp_path / "w.pt")


def test_without_the_extra_it_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(clip.importlib, "import_module", lambda name: (_ for _ in ()).throw(ImportError(name)))
    with pytest.raises(MissingExtra, match=r"fewtags\[clip\]"):
        create_backbone("open_clip/ViT-B-32")
