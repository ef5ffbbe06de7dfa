"""Backbones as chains of stages: what timm computes, frozen where it should be, with weights of any origin."""

from __future__ import annotations

import socket
import threading
import time

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from fewtags.data.images import open_image
from fewtags.errors import RunFailed, UserError
from fewtags.models.backbones import create_backbone, load_weights, move_stride_to_1x1, num_features, stages_of
from fewtags.models.build import ModelConfig
from fewtags.models.hub import unreachable
from fewtags.models.quick_timm import timm
from fewtags.tagger import Tagger

CHAINS = {
    "test_resnet": ["layer1", "layer4"],
    "resnet18": ["conv1", "layer1", "layer4"],
    "test_efficientnet": ["conv_stem", "blocks.0"],
    "efficientnet_lite0": ["conv_stem", "blocks.6", "conv_head"],
    "test_convnext": ["stem", "stages.0", "stages.3"],
    "regnetx_002": ["stem", "s1", "s4"],
    "mobilenetv2_035": ["blocks.0", "conv_head"],
}


@pytest.mark.parametrize("name", CHAINS)
def test_stages_compose_to_what_timm_computes(name):
    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False).eval()
    stages = stages_of(model)
    assert set(CHAINS[name]) <= set(stages), list(stages)
    images = torch.rand(2, 3, 64, 96)
    maps = images
    for stage in stages.values():
        maps = stage(maps)
    with torch.no_grad():
        torch.testing.assert_close(maps, model.forward_features(images), rtol=0, atol=0)
    assert maps.shape[1] == num_features(model)


@pytest.mark.parametrize("name", ["test_vit", "test_vit2", "swin_s3_tiny_224"])
def test_a_transformer_is_one_stage_and_gives_a_map(name):
    backbone = create_backbone(name, pretrained=False).eval()
    assert backbone.stage_names == ["features"]
    side = 224 if "224" in name else 160
    with torch.no_grad():
        maps = backbone(torch.rand(1, 3, side, side))
    assert maps.ndim == 4
    assert maps.shape[1] == backbone.num_channels
    assert maps.shape[2] == maps.shape[3] > 1


@pytest.mark.parametrize("size", [96, 160, 192])
def test_a_transformer_is_refitted_to_the_input_size(size):
    backbone = create_backbone("test_vit", pretrained=False, input_size=size).eval()
    with torch.no_grad():
        assert backbone(torch.rand(1, 3, size, size)).shape[2:] == (size // 16, size // 16)


def test_tokens_keep_their_places_in_the_map():
    """Row-major patches, without the class token."""
    backbone = create_backbone("test_vit", pretrained=False).eval()
    model = backbone.stages["features"].model
    images = torch.rand(1, 3, 160, 160)
    with torch.no_grad():
        tokens = model.forward_features(images)[:, model.num_prefix_tokens :]
        maps = backbone(images)
    side = maps.shape[-1]
    torch.testing.assert_close(maps[0, :, 2, 3], tokens[0, 2 * side + 3])


# --- freezing ---


def test_the_frozen_part_stays_in_eval_mode_and_gets_no_gradient():
    backbone = create_backbone("test_resnet", pretrained=False)
    backbone.freeze_before("layer4")
    backbone.train()
    frozen = [backbone.stages[name] for name in backbone.stage_names if name != "layer4"]
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    backbone(torch.randint(0, 255, (4, 3, 32, 32), dtype=torch.uint8)).sum().backward()
    for stage in frozen:
        assert not any(module.training for module in stage.modules())
        assert not any(parameter.requires_grad or parameter.grad is not None for parameter in stage.parameters())
    assert all(parameter.grad is not None for parameter in backbone.stages["layer4"].parameters())
    moved = {name for name, value in backbone.state_dict().items() if not torch.equal(value, before[name])}
    assert moved
    assert all(name.startswith("stages.layer4.") for name in moved)


@pytest.mark.parametrize(("train_from", "share"), [("all", 1.0), ("head", 0.0)])
def test_all_and_head(train_from, share):
    backbone = create_backbone("test_resnet", pretrained=False)
    backbone.freeze_before(train_from)
    trainable = [parameter.requires_grad for parameter in backbone.parameters()]
    assert sum(trainable) / len(trainable) == share


def test_the_chain_can_be_cut_where_it_is_frozen():
    backbone = create_backbone("test_resnet", pretrained=False).eval()
    backbone.freeze_before("layer3")
    images = torch.randint(0, 255, (2, 3, 32, 32), dtype=torch.uint8)
    torch.testing.assert_close(backbone.forward_trainable(backbone.forward_frozen(images)), backbone(images))


def test_an_unknown_stage_is_named():
    with pytest.raises(UserError, match=r"model\.train_from is 'layr4'; did you mean 'layer4'"):
        create_backbone("test_resnet", pretrained=False).freeze_before("layr4")


# --- pixels and weights ---


def test_bytes_are_normalised_with_the_models_own_mean_and_std():
    backbone = create_backbone("test_resnet", pretrained=False).eval()
    images = torch.randint(0, 255, (2, 3, 32, 32), dtype=torch.uint8)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (backbone.mean, backbone.std))
    with torch.no_grad():
        torch.testing.assert_close(backbone(images), backbone((images / 255 - mean) / std))


def bottleneck_by_hand(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Keras' and Caffe's block: the first 1x1 convolution has the stride."""
    y = F.relu(block.bn1(F.conv2d(x, block.conv1.weight, stride=2)))
    y = F.relu(block.bn2(F.conv2d(y, block.conv2.weight, padding=1)))
    y = block.bn3(F.conv2d(y, block.conv3.weight))
    shortcut = block.downsample[1](F.conv2d(x, block.downsample[0].weight, stride=2))
    return F.relu(y + shortcut)


def test_stride_in_the_first_1x1_convolution():
    torch.manual_seed(0)
    model = timm.create_model("resnet26", pretrained=False).eval()
    nn.init.uniform_(model.layer2[0].bn3.weight)  # timm starts it at 0, which would hide the convolutions
    x = torch.rand(1, 256, 8, 8)
    with torch.no_grad():
        before = model.layer2[0](x)
        move_stride_to_1x1(model, "resnet26")
        after = model.layer2[0](x)
        torch.testing.assert_close(after, bottleneck_by_hand(model.layer2[0], x))
    assert after.shape == before.shape
    assert not torch.allclose(after, before)


def test_no_bottleneck_no_stride_to_move():
    with pytest.raises(UserError, match="stride_in_1x1"):
        create_backbone("resnet18", pretrained=False, stride_in_1x1=True)


@pytest.mark.parametrize("name", ["test_resnet", "test_efficientnet"])
def test_a_finer_map_from_the_same_weights(name, tmp_path):
    source = timm.create_model(name, pretrained=False)
    save_file(source.state_dict(), tmp_path / "w.safetensors")
    usual = create_backbone(name, weights=tmp_path / "w.safetensors").eval()
    finer = create_backbone(name, weights=tmp_path / "w.safetensors", output_stride=16).eval()
    assert usual(torch.rand(1, 3, 96, 96)).shape[2:] == (3, 3)
    assert finer(torch.rand(1, 3, 96, 96)).shape[2:] == (6, 6)
    assert finer.stage_names == usual.stage_names


def test_not_every_model_has_a_finer_map():
    with pytest.raises(UserError, match="output_stride=16; remove it"):
        create_backbone("test_vit", pretrained=False, output_stride=16)


def test_half_precision_weights_without_classifier_are_enough(tmp_path):
    source = timm.create_model("test_resnet", pretrained=False)
    state = {key: value.half() for key, value in source.state_dict().items() if not key.startswith("fc.")}
    save_file(state, tmp_path / "w.safetensors")
    torch.save({"state_dict": {f"module.{key}": value for key, value in state.items()}}, tmp_path / "w.pth")
    for name in ("w.safetensors", "w.pth"):
        model = timm.create_model("test_resnet", pretrained=False)
        load_weights(model, tmp_path / name)
        for key, value in state.items():
            if value.ndim:
                assert torch.equal(model.state_dict()[key], value.float()), key


def test_weights_of_another_shape_are_refused(tmp_path):
    state = timm.create_model("test_resnet", pretrained=False).state_dict()
    state["layer1.0.conv1.weight"] = torch.zeros(1)
    save_file(state, tmp_path / "w.safetensors")
    with pytest.raises(UserError, match=r"a different shape for 'layer1\.0\.conv1\.weight' \(1 such"):
        create_backbone("test_resnet", weights=tmp_path / "w.safetensors")


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("tf_efficientnet_lite0", "tf_efficientnet_lite0_fp16.safetensors"),
        ("resnet50", "resnet50_stride1x1_fp16.safetensors"),
    ],
)
def test_real_weights_see_what_is_in_real_photographs(name, file, shared):
    """A frozen pretrained backbone tells photographs of one VOC category from another much better than chance."""
    folder = shared / "data/VOCdevkit/VOC2007"
    backbone = create_backbone(name, weights=shared / "weights" / file, stride_in_1x1="stride1x1" in file)
    backbone.eval()
    features = {name: pooled(backbone, folder, name) for name in ("aeroplane", "cat")}
    centres = {name: F.normalize(rows[:12].mean(0), dim=0) for name, rows in features.items()}
    right = sum(
        int((rows[12:] @ centres[name] > rows[12:] @ centres[other]).sum())
        for (name, rows), other in zip(features.items(), ("cat", "aeroplane"), strict=True)
    )
    assert right >= 14  # of 16; chance is 8


def pooled(backbone: nn.Module, folder, name: str) -> torch.Tensor:
    """[20, D] unit features of the first images with a clear object of this category."""
    lines = (folder / f"ImageSets/Main/{name}_trainval.txt").read_text().split("\n")
    names = [line.split()[0] for line in lines if line.endswith(" 1")][:20]
    images = [open_image(folder / f"JPEGImages/{n}.jpg").resize((128, 128), Image.Resampling.BICUBIC) for n in names]
    pixels = torch.stack(
        [torch.frombuffer(bytearray(i.tobytes()), dtype=torch.uint8).view(128, 128, 3) for i in images]
    )
    with torch.no_grad():
        return F.normalize(backbone(pixels.permute(0, 3, 1, 2)).mean((2, 3)), dim=1)


# --- the default, and no network ---


def test_the_default_backbone_is_one_word_everywhere():
    assert Tagger().backbone == ModelConfig().backbone == "tf_efficientnet_lite0"


def test_without_a_network_the_ways_out_come_in_order(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    file = tmp_path / "models--timm--resnet18.a1_in1k" / "snapshots" / "1" / "model.safetensors"
    file.parent.mkdir(parents=True)
    file.touch()

    def offline(name, **_):
        raise OSError("Name or service not known\nand a long trace")

    monkeypatch.setattr("timm.create_model", offline)
    monkeypatch.setattr("fewtags.models.hub.unreachable", lambda endpoint=None: "")
    with pytest.raises(RunFailed) as caught:
        create_backbone("tf_efficientnet_lite0")
    message = str(caught.value)
    assert "Name or service not known" in message
    assert "long trace" not in message
    ways = ["timm/tf_efficientnet_lite0.in1k", "--weights FILE", "HF_HOME", "--backbone", "resnet18.a1_in1k",
            "model.pretrained=false", "fewtags demo"]  # fmt: skip
    assert sorted(ways, key=message.index) == ways


def test_without_a_network_a_run_fails_soon_with_the_whole_message(cli, monkeypatch, tmp_path, patches, tags_file):
    """Looking up the name hangs, and the client of the hub would try again and again."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("fewtags.models.hub.getproxies", dict)
    monkeypatch.setattr("fewtags.models.hub.PATIENCE", 0.2)
    over = threading.Event()
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: over.wait(600) and [])
    monkeypatch.delattr("fewtags.engine.training.read_data")  # is not reached: of a million photos it takes minutes
    started = time.monotonic()
    answer = cli("train", patches.root, "--tags", tags_file, "--out", tmp_path / "run")
    over.set()
    assert time.monotonic() - started < 60  # and not for as long as the name is looked up, once or several times
    assert answer.code == 1
    began, refused = answer.err.splitlines()
    assert began == f"Reading the labels of {patches.root}."
    assert "could not be fetched (huggingface.co did not answer within 0.2 s). Ways out" in refused
    assert refused.endswith("without any download: `fewtags demo`.")


def test_without_a_network_weights_in_the_cache_are_used_at_once(monkeypatch):
    from huggingface_hub import constants

    seen = []
    monkeypatch.setattr("fewtags.models.hub.unreachable", lambda endpoint=None: "no network")
    monkeypatch.setattr("timm.create_model", lambda *_, **__: seen.append(constants.HF_HUB_OFFLINE))
    with pytest.raises(AttributeError):  # None is no model
        create_backbone("test_resnet")
    assert (seen, constants.HF_HUB_OFFLINE) == ([True], False)


def test_a_network_that_is_there_is_found(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setattr("fewtags.models.hub.getproxies", dict)
        assert unreachable(f"http://127.0.0.1:{port}") == ""
        monkeypatch.setattr("fewtags.models.hub.getproxies", lambda: {"https": f"127.0.0.1:{port}"})
        assert unreachable("https://hub.invalid") == "", "a proxy looks up the name itself"
    assert "127.0.0.1 cannot be reached" in unreachable("https://hub.invalid")
