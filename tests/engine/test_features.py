"""Kept features: equal to computing them anew, one row per image and view, never used half-written."""

from __future__ import annotations

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
from fewtags.engine import feature_store, features, prediction
from fewtags.engine.feature_store import FeatureStore
from fewtags.engine.features import CachedBatches, FeatureMaker, cached_batches
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


def batches(data: Annotations, backbone: Backbone, folder: Path, augment: bool = True, **changes) -> CachedBatches:
    settings = {"enabled": True, "views": 2, "dtype": "fp32", "folder": str(folder)} | changes
    maker = FeatureMaker(
        backbone, INPUT, CacheConfig(**settings), torch.device("cpu"), seed=0 if augment else None
    )  # fmt: skip
    return cached_batches(data, maker, shuffle=augment, batch_size=4)


def kept(folder: Path) -> dict[str, list[int]]:
    """Rows of every shelf, by kind."""
    sizes: dict[str, list[int]] = {}
    for shelf in FeatureStore(folder).shelves():
        sizes.setdefault(shelf.kind, []).append(shelf.rows)
    return {kind: sorted(rows) for kind, rows in sizes.items()}


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of the images that are opened to compute features."""
    rows, original = [], features.ImageDataset.views

    def views(self, row, epochs):
        rows.append(row)
        return original(self, row, epochs)

    monkeypatch.setattr(features.ImageDataset, "views", views)
    return rows


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


def test_kept_features_are_used_again(own, backbone, tmp_path, opened):
    before = [one.batch.images for one in batches(own, backbone, tmp_path / "cache").epoch()]
    opened.clear()
    after = [one.batch.images for one in batches(own, backbone, tmp_path / "cache").epoch()]
    assert not opened
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_new_images_are_the_only_ones_computed(own, backbone, tmp_path, opened):
    """Wherever they stand among the others."""
    few = own.take(np.array([1, 3, 4, 8]))
    some = batches(few, backbone, tmp_path / "cache", augment=False).features
    opened.clear()
    every = batches(own, backbone, tmp_path / "cache", augment=False).features
    assert sorted(opened) == [0, 2, 5, 6, 7, 9]
    assert kept(tmp_path / "cache")["maps"] == [10]
    rows = torch.tensor([1, 3, 4, 8])
    assert torch.equal(every.rows(0, rows), some.rows(0, torch.arange(4)))
    whole = batches(own, backbone, tmp_path / "whole", augment=False).features
    torch.testing.assert_close(every.rows(0, torch.arange(10)), whole.rows(0, torch.arange(10)), rtol=1e-4, atol=1e-5)


def test_touched_moved_or_copied_images_find_their_features(own, backbone, tmp_path, opened):
    batches(own, backbone, tmp_path / "cache")
    opened.clear()
    os.utime(own.path(2), (1, 1))
    batches(own, backbone, tmp_path / "cache")
    shutil.copytree(own.root, tmp_path / "copy")
    batches(replace(own, root=tmp_path / "copy"), backbone, tmp_path / "cache")
    own.root.rename(tmp_path / "moved")
    batches(replace(own, root=tmp_path / "moved"), backbone, tmp_path / "cache")
    assert not opened


def test_images_are_read_only_once_to_recognise_them(own, backbone, tmp_path, monkeypatch):
    """Also if they are moved within the disk."""
    batches(own, backbone, tmp_path / "cache")
    monkeypatch.setattr(feature_store, "content_of", lambda _: pytest.fail("read again"))
    batches(own, backbone, tmp_path / "cache")
    own.root.rename(tmp_path / "moved")
    batches(replace(own, root=tmp_path / "moved"), backbone, tmp_path / "cache")


def test_features_that_are_being_computed_hold_up_no_others(own, backbone, tmp_path):
    with features.one_at_a_time(tmp_path / "cache" / "another"), ThreadPoolExecutor(1) as threads:
        threads.submit(batches, own, backbone, tmp_path / "cache").result(timeout=60)


def test_new_labels_need_no_new_features(own, backbone, tmp_path, opened):
    batches(own, backbone, tmp_path / "cache")
    opened.clear()
    batches(replace(own, labels=-own.labels), backbone, tmp_path / "cache")
    assert not opened


def test_a_changed_image_is_computed_anew(own, backbone, tmp_path, opened):
    batches(own, backbone, tmp_path / "cache")
    opened.clear()
    Image.new("RGB", (40, 40)).save(own.path(3))
    changed = batches(own, backbone, tmp_path / "cache", augment=True)
    assert opened == [3]
    black = backbone.forward_frozen(torch.zeros(1, 3, 32, 32, dtype=torch.uint8))
    torch.testing.assert_close(changed.features.rows(0, torch.tensor([3])), black, rtol=1e-3, atol=1e-4)


def test_another_view_is_added_to_those_that_are_there(own, backbone, tmp_path):
    batches(own, backbone, tmp_path / "cache")
    batches(own, backbone, tmp_path / "cache", views=3)
    assert kept(tmp_path / "cache") == {"maps": [30], "pooled": [30]}


def test_other_settings_or_weights_make_other_features(own, backbone, tmp_path):
    folder = tmp_path / "cache"
    batches(own, backbone, folder)
    for number, changes in enumerate([{"dtype": "fp16"}, {"augment": False}, {"runtime": "torch-bf16"}], start=2):
        batches(own, backbone, folder, **changes)
        assert len(kept(folder)["maps"]) == number, changes
    torch.manual_seed(1)
    other = create_backbone("test_resnet", pretrained=False)
    other.freeze_before("head")
    batches(own, other, folder)
    torch.manual_seed(1)
    finer = create_backbone("test_resnet", pretrained=False, output_stride=16)  # the same weights, another map
    finer.freeze_before("head")
    batches(own, finer, folder)
    assert len(kept(folder)["maps"]) == 6


def test_what_was_written_before_an_interruption_is_not_computed_again(own, backbone, tmp_path, monkeypatch):
    """And the result is the same, bit for bit."""
    monkeypatch.setattr(features, "SAVE_EVERY", 2)
    choose = features.choose_runtime
    monkeypatch.setattr(features, "choose_runtime", lambda *args: replace(choose(*args), batch=2))
    whole = batches(own, backbone, tmp_path / "whole").features.maps
    read, original = [], features.ImageDataset.views

    def stop_at_the_eighth(self, row, epochs):
        read.append(row)
        if len(read) == 8:
            raise KeyboardInterrupt
        return original(self, row, epochs)

    monkeypatch.setattr(features.ImageDataset, "views", stop_at_the_eighth)
    with pytest.raises(KeyboardInterrupt):
        batches(own, backbone, tmp_path / "cache")
    done = len(read)
    maps = batches(own, backbone, tmp_path / "cache").features.maps
    assert min(read[done:]) >= 4
    assert torch.equal(maps, whole)


def test_runs_that_start_together_compute_features_once(own, backbone, tmp_path, monkeypatch):
    computed, original = [], features.Wanted._compute

    def slowly(*args):
        computed.append(args)
        time.sleep(0.2)
        return original(*args)

    monkeypatch.setattr(features.Wanted, "_compute", slowly)
    with ThreadPoolExecutor(2) as threads:
        both = list(threads.map(lambda _: batches(own, backbone, tmp_path / "cache"), range(2)))
    assert len(computed) == 1
    assert torch.equal(both[0].features.maps, both[1].features.maps)


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


def shelves(folder: Path) -> list[feature_store.Shelf]:
    store = FeatureStore(folder)
    return [feature_store.Shelf(store, size.spec, size.kind) for size in store.shelves()]


FROZEN = ("model.train_from=head", "cache.runtime=torch", "data.val_share=0")


@pytest.mark.parametrize(("method", "shape"), [("instant", (96, 1, 1)), ("an", (96, 1, 1)), ("refined", (96, 2, 2))])
def test_a_frozen_backbone_sees_each_view_of_an_image_once(method, shape, patches, tmp_path, monkeypatch):
    """Over the start, all epochs and all evaluations, and no more is kept of it than the head looks at."""
    config = TinyConfig.make(f"method={method}", *FROZEN, f"cache.folder={tmp_path / 'cache'}", "input.size=64")
    calls = counted(monkeypatch)
    train(config, tmp_path / "run", data=split_data(patches, config.data, config.seed), quiet=True)
    views = config.cache.views if config.input.augment else 1
    assert sum(calls) - 1 == 36 * views + 12  # the one tells how large a map is
    assert set(kept(tmp_path / "cache")) == ({"pooled"} if shape[1] == 1 else {"maps", "pooled"})
    rows = [36 * views, 12] if views > 1 else [36 + 12]
    assert all(sorted(found) == sorted(rows) for found in kept(tmp_path / "cache").values())
    assert {tuple(each.shape) for each in shelves(tmp_path / "cache")} == {shape, (96, 1, 1)}


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
    monkeypatch.setattr(features, "free_space", lambda _: 1000)
    config = TinyConfig.make("method=refined", *FROZEN, f"cache.folder={tmp_path / 'cache'}")
    train(config, tmp_path / "run", data=split_data(patches, config.data, config.seed), quiet=True)
    assert not (tmp_path / "cache").exists()


def test_an_unwritable_home_is_no_obstacle(patches, tmp_path, monkeypatch):
    (tmp_path / "home").write_text("a file where a folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    config = TinyConfig.make("method=instant", *FROZEN)
    train(config, tmp_path / "run", data=split_data(patches, config.data, config.seed), quiet=True)
    assert kept(features.temporary_root())["pooled"]


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
    monkeypatch.setattr(features, "WORTH_SAYING", 100)
    log = RunLog(tmp_path / "run")
    maker = FeatureMaker(backbone, INPUT, CacheConfig(folder=str(tmp_path / "cache")), torch.device("cpu"))
    cached_batches(own, maker, shuffle=False, batch_size=4, log=log)
    assert f"Feature maps of all images are cached in {tmp_path / 'cache'}" in capsys.readouterr().err


# --- prediction ---


def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that `predict` decodes."""
    names, original = [], prediction.plain_sample

    def plain_sample(picture, row, side):
        names.append(picture.name)
        return original(picture, row, side)

    monkeypatch.setattr(prediction, "plain_sample", plain_sample)
    return names


def test_predict_computes_what_is_new_and_keeps_it(cli, patches, tags_file, tmp_path, monkeypatch):
    """The images of the run are known already; the second time all are."""
    settings = (*FROZEN[:2], "model.backbone=test_resnet", "model.pretrained=false", "input.size=32")
    data = (
        patches.root,
        "--tags",
        tags_file,
        f"cache.folder={tmp_path / 'cache'}",
        *settings,
        "--out",
        tmp_path / "run",
    )
    assert cli("train", *data, "-q", "-o", "complete=true").code == 0
    new = tmp_path / "new"
    new.mkdir()
    Image.new("RGB", (40, 40), (200, 30, 30)).save(new / "red.png")
    (new / "broken.jpg").write_bytes(b"no picture")
    seen = decoded(monkeypatch)
    first = cli("predict", tmp_path / "run", patches.root, new, "--all-scores", "-q")
    assert first.code == 0, first.err
    assert sorted(seen) == ["broken.jpg", "red.png"]
    assert kept(tmp_path / "cache")["pooled"] == [49]
    seen.clear()
    assert cli("predict", tmp_path / "run", patches.root, new, "--all-scores", "-q").out == first.out
    assert seen == ["broken.jpg"]
    monkeypatch.setattr("fewtags.commands.models.SavedFolder.cache", lambda _: CacheConfig(enabled=False))
    plain = cli("predict", tmp_path / "run", patches.root, new, "--all-scores", "-q").out
    rows = [[line.split(",")[4:] for line in text.splitlines()[1:]] for text in (first.out, plain)]
    for kept_row, plain_row in zip(*rows, strict=True):
        np.testing.assert_allclose(*([float(x or 0) for x in row] for row in (kept_row, plain_row)), atol=2e-3)


def test_damaged_features_are_computed_again_by_predict(cli, patches, tags_file, tmp_path, monkeypatch):
    settings = (*FROZEN[:2], "model.backbone=test_resnet", "model.pretrained=false", "input.size=32")
    data = (
        patches.root,
        "--tags",
        tags_file,
        f"cache.folder={tmp_path / 'cache'}",
        *settings,
        "--out",
        tmp_path / "run",
    )
    assert cli("train", *data, "-q", "-o", "complete=true").code == 0
    before = cli("predict", tmp_path / "run", patches.root, "-q").out
    (file,) = (tmp_path / "cache").glob("*/0.bin")
    content = bytearray(file.read_bytes())
    content[1000] ^= 255
    file.write_bytes(content)
    seen = decoded(monkeypatch)
    assert cli("predict", tmp_path / "run", patches.root, "-q").out == before
    assert len(seen) == 48
