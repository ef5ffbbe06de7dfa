"""The store of `fewtags prepare`: what a run reads from it is what it would read from the files, whatever happened."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from conftest import TinyConfig
from fewtags.data import store
from fewtags.data.annotations import Annotations
from fewtags.data.loaders import image_batches
from fewtags.data.prepare import split_data
from fewtags.data.preprocess import InputConfig, read_square
from fewtags.data.store import ImageStore, make_store, part_of
from fewtags.engine.run_log import read_rows
from fewtags.engine.training import train
from fewtags.errors import DataError, UserError

CONFIG = InputConfig(size=56)  # training images are kept at 64


@pytest.fixture
def photos(tmp_path: Path) -> Annotations:
    """Ten photos of several sizes, four of them for testing; number 3 is not an image."""
    rng = np.random.default_rng(0)
    names = [f"{number}.jpg" for number in range(10)]
    (tmp_path / "photos").mkdir()
    for number, name in enumerate(names):
        pixels = rng.integers(0, 256, (300 + 20 * number, 200, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / name)
    (tmp_path / "photos" / "3.jpg").write_bytes(b"no image")
    return Annotations.from_tags(
        names, [["a"] if n % 2 else ["b"] for n in range(10)], root=tmp_path / "photos", categories=["a", "b"],
        splits=["train"] * 6 + ["test"] * 4, complete=True,
    )  # fmt: skip


def epochs(annotations: Annotations, folder: Path | None, *, augment: bool):
    """Two epochs of batches, pixels and what was broken."""
    batches = image_batches(
        annotations, CONFIG, batch_size=4, augment=augment, seed=3, store=None if folder is None else str(folder)
    )
    for number in range(2):
        for loaded in batches.epoch(number):
            yield None if loaded.batch is None else loaded.batch.images.numpy(), loaded.broken


def files_of(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


@pytest.mark.parametrize("split", ["train", "test"])
def test_batches_are_those_of_the_files(photos, tmp_path, monkeypatch, split):
    make_store(photos, CONFIG, tmp_path / "store")
    part, augment = photos.split(split), split == "train"
    expected = list(epochs(part, None, augment=augment))
    monkeypatch.setattr("fewtags.data.dataset.read_square", lambda *_: pytest.fail("a file was read"))
    found = list(epochs(part, tmp_path / "store", augment=augment))
    for (pixels, broken), (wanted, problems) in zip(found, expected, strict=True):
        np.testing.assert_array_equal(pixels, wanted)
        assert broken == problems
    assert bool(problems := [b for _, b in expected if b]) == (split == "train"), problems


def test_an_interrupted_one_is_continued(photos, tmp_path, monkeypatch):
    make_store(photos, CONFIG, tmp_path / "whole")
    read = []

    def stop_after_four() -> None:
        if len(read) >= 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(store, "read_square", lambda path, side: read.append(path) or read_square(path, side))
    with pytest.raises(KeyboardInterrupt):
        make_store(photos, CONFIG, tmp_path / "store", workers=0, on_step=stop_after_four)
    assert not (tmp_path / "store").exists()
    with pytest.raises(UserError, match="not finished"):
        ImageStore.open(tmp_path / "store")
    # a line and a row that were cut off in the middle, as by a power cut
    with (part_of(tmp_path / "store") / "train.jsonl").open("ab") as lines:
        lines.write(b'{"image": "4.jp')
    with (part_of(tmp_path / "store") / "train.bin").open("ab") as pixels:
        pixels.write(b"half a row")
    read.clear()
    there: list[int] = []
    make_store(photos, CONFIG, tmp_path / "store", workers=0, on_start=there.append)
    assert there == [4]
    assert [path.name for path in read] == ["4.jpg", "5.jpg", "6.jpg", "7.jpg", "8.jpg", "9.jpg"]
    assert files_of(tmp_path / "store") == files_of(tmp_path / "whole")


def test_rows_that_did_not_reach_the_disk_or_changed_since_are_made_again(photos, tmp_path):
    make_store(photos, CONFIG, tmp_path / "whole")
    for spoil in ("pixels", "file"):
        shutil.copytree(tmp_path / "whole", part_of(tmp_path / spoil))
        (part_of(tmp_path / spoil) / "about.json").unlink()
        if spoil == "pixels":
            with (part_of(tmp_path / spoil) / "train.bin").open("r+b") as pixels:
                pixels.seek(2 * 64 * 64 * 3 + 5)
                pixels.write(bytes(50))
        else:
            Image.new("RGB", (90, 90), "red").save(photos.path(2))
        there: list[int] = []
        made = make_store(photos, CONFIG, tmp_path / spoil, on_start=there.append)
        assert there == [2 + 4]  # rows 0 and 1 of the training images, all of the others
        np.testing.assert_array_equal(made.parts["train"].pixels[2], np.asarray(read_square(photos.path(2), 64)))


def test_a_file_that_changed_is_read_and_one_that_was_touched_is_not(photos, tmp_path):
    prepared = make_store(photos, CONFIG, tmp_path / "store").parts["train"]
    Image.new("RGB", (90, 90), "red").save(photos.path(0))
    assert prepared.find("0.jpg", photos.path(0)) is None
    os.utime(photos.path(1), ns=(1, 1))
    np.testing.assert_array_equal(prepared.find("1.jpg", photos.path(1)), np.asarray(read_square(photos.path(1), 64)))
    assert prepared.find("7.jpg", photos.path(7)) is None  # a test image: the store has it at another size


def test_it_works_where_the_files_are_not(photos, tmp_path):
    make_store(photos, CONFIG, tmp_path / "store")
    expected = list(epochs(photos.split("train"), None, augment=True))
    shutil.rmtree(tmp_path / "photos")
    for (pixels, _), (wanted, _) in zip(
        epochs(photos.split("train"), tmp_path / "store", augment=True), expected, strict=True
    ):
        np.testing.assert_array_equal(pixels, wanted)


def test_damage_is_noticed(photos, tmp_path):
    make_store(photos, CONFIG, tmp_path / "store")
    file = tmp_path / "store" / "train.bin"
    content = bytearray(file.read_bytes())
    content[64 * 64 * 3 + 7] ^= 1
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"damaged in row 1 \(1.jpg\)"):
        ImageStore.open(tmp_path / "store").parts["train"].find("1.jpg", photos.path(1))
    file.write_bytes(content[:-1])
    with pytest.raises(DataError, match="create the store again"):
        ImageStore.open(tmp_path / "store")


def test_a_run_gives_the_same_numbers(photos, tmp_path):
    make_store(photos, CONFIG, tmp_path / "store")
    rows = []
    for more in ([], [f"data.store={tmp_path / 'store'}"]):
        config = TinyConfig.make("method=an", "model.train_from=all", "input.size=56", "input.augment=true",
                                 "train.epochs=2", *more)  # fmt: skip
        folder = tmp_path / f"run{len(more)}"
        train(config, folder, data=split_data(photos, config.data, config.seed), quiet=True)
        rows.append([{**row, "seconds": 0} for row in read_rows(folder / "metrics.jsonl")])
    assert rows[0] == rows[1]


def test_the_command(photos, tmp_path, cli):
    photos.save(tmp_path / "photos" / "annotations.jsonl")
    call = ("prepare", tmp_path / "photos" / "annotations.jsonl", "--size", 56, "--out", tmp_path / "store", "-q")
    answer = cli(*call)
    assert answer.code == 0
    for part in ("6 training images of 64 px", "4 others of 56 px", "1 unreadable", "data.store=", "input.size=56"):
        assert part in answer.out
    assert "already" in cli(*call).out
    assert "--size 56" in cli("prepare", call[1], "--out", tmp_path / "store").err
    Image.new("RGB", (90, 90), "red").save(photos.path(5))
    assert "1 images are new or changed (5.jpg" in cli(*call).err


def test_a_store_of_another_size_is_refused(photos, tmp_path):
    make_store(photos, CONFIG, tmp_path / "store")
    with pytest.raises(UserError, match=r"has images of 56 and 64 px, and this run takes crops of 256 px.*--size 224"):
        image_batches(photos, InputConfig(), augment=True, store=str(tmp_path / "store"))
    with pytest.raises(UserError, match="not a store"):
        image_batches(photos, CONFIG, augment=True, store=str(tmp_path / "photos"))
