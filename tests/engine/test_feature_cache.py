"""The cache of frozen feature maps: equal to computing them anew, renewed by any change, never used half-written."""

from __future__ import annotations

import json
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import TinyConfig
from fewtags.data.annotations import Annotations
from fewtags.data.prepare import split_data
from fewtags.data.preprocess import InputConfig
from fewtags.engine import feature_cache
from fewtags.engine.feature_cache import cached_batches
from fewtags.engine.run_log import RunLog, read_rows
from fewtags.engine.training import train
from fewtags.models.backbones import Backbone, create_backbone
from fewtags.train_settings import CacheConfig

INPUT = InputConfig(size=32)


@pytest.fixture
def own(patches: Annotations, tmp_path: Path) -> Annotations:
    """Ten images that a test may change."""
    (tmp_path / "images").mkdir()
    few = patches.take(np.arange(10))
    for row in range(len(few)):
        (tmp_path / "images" / few.images[row]).write_bytes(few.path(row).read_bytes())
    return replace(few, root=tmp_path / "images")


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    torch.manual_seed(0)
    backbone = create_backbone("test_resnet", pretrained=False)
    backbone.freeze_before("head")
    return backbone


def batches(data: Annotations, backbone: Backbone, folder: Path, augment: bool = True, **changes):
    settings = {"enabled": True, "views": 2, "dtype": "fp32", "folder": str(folder)} | changes
    return cached_batches(
        data, backbone, INPUT, CacheConfig(**settings), augment=augment, batch_size=4,
        device=torch.device("cpu"),
    )  # fmt: skip


def caches(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))


@pytest.mark.parametrize(
    ("backbone_name", "train_from"),
    [("test_resnet", "layer3"), ("test_resnet", "head"), ("test_efficientnet", "blocks.2")],
)
def test_cached_and_uncached_training_agree(backbone_name, train_from, patches, tmp_path):
    """The same views in the same order: the same losses, cut at any stage of the backbone."""
    losses = {}
    for cached in ("true", "false"):
        config = TinyConfig.make(
            f"model.backbone={backbone_name}", f"model.train_from={train_from}", f"cache.enabled={cached}",
            "cache.dtype=fp32", f"cache.folder={tmp_path}", "cache.views=2",
        )  # fmt: skip
        data = split_data(patches, config.data, config.seed)
        train(config, tmp_path / cached, data=data, quiet=True)
        losses[cached] = [
            row["loss"] for row in read_rows(tmp_path / cached / "metrics.jsonl") if row["kind"] == "train"
        ]
    assert len(losses["true"]) == 2
    np.testing.assert_allclose(losses["true"], losses["false"], rtol=1e-4)


def test_an_epoch_trains_on_its_own_view(own, backbone, tmp_path):
    cached = batches(own, backbone, tmp_path / "cache")
    first, second, third = (
        {
            int(row): maps
            for one in cached.epoch(number)
            for row, maps in zip(one.batch.index, one.batch.images, strict=True)
        }
        for number in range(3)
    )
    assert len(first) == len(own)
    assert not torch.equal(first[0], second[0])
    assert all(torch.equal(first[row], third[row]) for row in first)  # epoch 2 is view 0 again


def test_an_equal_cache_is_used_again(own, backbone, tmp_path, monkeypatch):
    before = [one.batch.images for one in batches(own, backbone, tmp_path / "cache").epoch()]
    monkeypatch.setattr(feature_cache, "compute", lambda *_: pytest.fail("computed twice"))
    after = [one.batch.images for one in batches(own, backbone, tmp_path / "cache").epoch()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_touched_or_copied_images_find_their_features(own, backbone, tmp_path):
    batches(own, backbone, tmp_path / "cache")
    os.utime(own.path(2), (1, 1))
    batches(own, backbone, tmp_path / "cache")
    shutil.copytree(own.root, tmp_path / "copy")
    batches(replace(own, root=tmp_path / "copy"), backbone, tmp_path / "cache")
    assert len(caches(tmp_path / "cache")) == 1


def test_images_are_read_only_once_to_recognise_them(own, backbone, tmp_path, monkeypatch):
    batches(own, backbone, tmp_path / "cache")
    monkeypatch.setattr(feature_cache, "file_hash", lambda _: pytest.fail("read again"))
    batches(own, backbone, tmp_path / "cache")


def test_a_cache_that_is_being_computed_holds_up_no_other(own, backbone, tmp_path):
    with feature_cache.one_at_a_time(tmp_path / "cache" / "another"), ThreadPoolExecutor(1) as threads:
        threads.submit(batches, own, backbone, tmp_path / "cache").result(timeout=60)


def test_new_labels_need_no_new_cache(own, backbone, tmp_path):
    batches(own, backbone, tmp_path / "cache")
    batches(replace(own, labels=-own.labels), backbone, tmp_path / "cache")
    assert len(caches(tmp_path / "cache")) == 1


def test_a_changed_image_makes_a_new_cache(own, backbone, tmp_path):
    batches(own, backbone, tmp_path / "cache")
    Image.new("RGB", (40, 40)).save(own.path(3))
    changed = batches(own, backbone, tmp_path / "cache", augment=True)
    assert len(caches(tmp_path / "cache")) == 2
    black = backbone.forward_frozen(torch.zeros(1, 3, 32, 32, dtype=torch.uint8))
    torch.testing.assert_close(changed.cache.maps[0, 3], black[0], rtol=1e-3, atol=1e-4)


def test_changed_settings_or_weights_make_a_new_cache(own, backbone, tmp_path):
    folder = tmp_path / "cache"
    batches(own, backbone, folder)
    for changes in ({"views": 3}, {"dtype": "fp16"}, {"augment": False}):
        number = len(caches(folder))
        batches(own, backbone, folder, **changes)
        assert len(caches(folder)) == number + 1, changes
    torch.manual_seed(1)
    other = create_backbone("test_resnet", pretrained=False)
    other.freeze_before("head")
    batches(own, other, folder)
    assert len(caches(folder)) == 5
    torch.manual_seed(1)
    finer = create_backbone("test_resnet", pretrained=False, output_stride=16)  # the same weights, another map
    finer.freeze_before("head")
    batches(own, finer, folder)
    assert len(caches(folder)) == 6


def test_a_half_written_cache_is_completed_and_never_used(own, backbone, tmp_path, monkeypatch):
    """Broken off in the middle: what exists is named .part, and going on reads the rest and ends in the same maps."""
    whole = batches(own, backbone, tmp_path / "whole").cache.maps.clone()
    monkeypatch.setattr(feature_cache, "SAVE_EVERY", 2)
    choose = feature_cache.choose_runtime
    monkeypatch.setattr(feature_cache, "choose_runtime", lambda *args: replace(choose(*args), batch=2))
    read, original = [], feature_cache.ImageDataset.views

    def stop_at_the_eighth(self, row, epochs):
        read.append(row)
        if len(read) == 8:
            raise KeyboardInterrupt
        return original(self, row, epochs)

    monkeypatch.setattr(feature_cache.ImageDataset, "views", stop_at_the_eighth)
    with pytest.raises(KeyboardInterrupt):
        batches(own, backbone, tmp_path / "cache")
    assert [name.endswith(".part") for name in caches(tmp_path / "cache")] == [True]
    done = len(read)
    maps = batches(own, backbone, tmp_path / "cache").cache.maps
    assert [name.endswith(".part") for name in caches(tmp_path / "cache")] == [False]
    assert min(read[done:]) >= 4  # what was written is not read again
    torch.testing.assert_close(maps, whole, rtol=1e-4, atol=1e-5)


def test_runs_that_start_together_compute_a_cache_once(own, backbone, tmp_path, monkeypatch):
    computed, original = [], feature_cache.compute

    def slowly(*args):
        computed.append(args)
        time.sleep(0.2)
        original(*args)

    monkeypatch.setattr(feature_cache, "compute", slowly)
    with ThreadPoolExecutor(2) as threads:
        both = list(threads.map(lambda _: batches(own, backbone, tmp_path / "cache"), range(2)))
    assert len(computed) == 1
    assert torch.equal(both[0].cache.maps, both[1].cache.maps)


def test_an_unreadable_image_is_left_out_by_name(own, backbone, tmp_path):
    own.path(4).write_bytes(b"not an image")
    os.remove(own.path(7))
    loaded = list(batches(own, backbone, tmp_path / "cache").epoch())
    broken = {row: reason for one in loaded for row, reason in one.broken.items()}
    assert broken.keys() == {4, 7}
    assert own.images[4] in broken[4]
    assert sorted(int(row) for one in loaded for row in one.batch.index) == [0, 1, 2, 3, 5, 6, 8, 9]


def test_a_folder_that_begins_with_unreadable_images(own, backbone, tmp_path):
    """As those of a Mac do: `._a.jpg` sorts first and is no picture."""
    for row in range(9):
        own.path(row).write_bytes(b"not an image")
    loaded = list(batches(own, backbone, tmp_path / "cache").epoch())
    assert [int(row) for one in loaded if one.batch for row in one.batch.index] == [9]


# --- what is kept when nobody says anything ---


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images go through the frozen stages, call by call."""
    calls, original = [], Backbone.forward_frozen

    def forward_frozen(self, images):
        calls.append(len(images))
        return original(self, images)

    monkeypatch.setattr(Backbone, "forward_frozen", forward_frozen)
    return calls


def kept(folder: Path) -> list[tuple[int, ...]]:
    abouts = (json.loads((folder / name / "about.json").read_text()) for name in caches(folder))
    return sorted(tuple(about["shape"]) for about in abouts)


FROZEN = ("model.train_from=head", "cache.runtime=torch", "data.val_share=0")


@pytest.mark.parametrize(("method", "shape"), [("instant", (96, 1, 1)), ("an", (96, 1, 1)), ("refined", (96, 2, 2))])
def test_a_frozen_backbone_sees_each_view_of_an_image_once(method, shape, patches, tmp_path, monkeypatch):
    """Over the start, all epochs and all evaluations, and no more is kept of it than the head looks at."""
    config = TinyConfig.make(f"method={method}", *FROZEN, f"cache.folder={tmp_path / 'cache'}", "input.size=64")
    calls = counted(monkeypatch)
    train(config, tmp_path / "run", data=split_data(patches, config.data, config.seed), quiet=True)
    views = config.cache.views if config.input.augment else 1
    assert sum(calls) - 1 == 36 * views + 12  # the one tells how large a map is
    assert kept(tmp_path / "cache") == sorted([(views, 36, *shape), (1, 12, *shape)])


def test_averages_are_taken_from_maps_that_are_there(patches, tmp_path, monkeypatch):
    """`instant` behind `refined` computes nothing."""
    calls = counted(monkeypatch)
    for method in ("refined", "instant"):
        calls.clear()
        config = TinyConfig.make(f"method={method}", *FROZEN, f"cache.folder={tmp_path / 'cache'}")
        train(config, tmp_path / method, data=split_data(patches, config.data, config.seed), quiet=True)
    assert sum(calls) == 1


@pytest.mark.parametrize("settings", [["cache.enabled=false"], ["model.train_from=layer4"], ["model.train_from=all"]])
def test_nothing_is_kept_of_what_is_trained_or_not_wanted(settings, patches, tmp_path):
    config = TinyConfig.make("method=an", *FROZEN, f"cache.folder={tmp_path / 'cache'}", *settings)
    train(config, tmp_path / "run", data=split_data(patches, config.data, config.seed), quiet=True)
    assert not (tmp_path / "cache").exists()


def test_where_the_disk_is_too_small_features_are_computed_in_every_epoch(patches, tmp_path, monkeypatch):
    monkeypatch.setattr(feature_cache, "free_space", lambda _: 1000)
    config = TinyConfig.make("method=refined", *FROZEN, f"cache.folder={tmp_path / 'cache'}")
    train(config, tmp_path / "run", data=split_data(patches, config.data, config.seed), quiet=True)
    assert not (tmp_path / "cache").exists()


def test_an_unwritable_home_is_no_obstacle(patches, tmp_path, monkeypatch):
    (tmp_path / "home").write_text("a file where a folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    config = TinyConfig.make("method=instant", *FROZEN)
    train(config, tmp_path / "run", data=split_data(patches, config.data, config.seed), quiet=True)
    assert len(caches(feature_cache.temporary_root())) == 2


def test_averages_give_what_maps_give(patches, tmp_path):
    """The same tagger, up to the rounding of what is kept."""
    results = {}
    for enabled in ("auto", "true"):
        settings = [f"cache.enabled={enabled}", f"cache.folder={tmp_path / enabled}", "cache.dtype=fp32"]
        config = TinyConfig.make("method=instant", *FROZEN, *settings)
        train(config, tmp_path / f"run-{enabled}", data=split_data(patches, config.data, config.seed), quiet=True)
        results[enabled] = np.load(tmp_path / f"run-{enabled}" / "predictions-test.npz")["probabilities"]
    np.testing.assert_allclose(results["auto"], results["true"], atol=1e-4)


def test_much_is_announced_before_it_is_written(own, backbone, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(feature_cache, "WORTH_SAYING", 100)
    log = RunLog(tmp_path / "run")
    cached_batches(
        own, backbone, INPUT, CacheConfig(folder=str(tmp_path / "cache")), augment=True, batch_size=4,
        device=torch.device("cpu"), log=log,
    )  # fmt: skip
    assert f"Feature maps of all images are cached in {tmp_path / 'cache'}" in capsys.readouterr().err
