"""Which rows come when, and how they are augmented: functions of seed, epoch and row alone."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import TinyConfig
from fewtags.data import dataset, loaders
from fewtags.data.dataset import Collate, ImageDataset, Sample, random_crop_flip
from fewtags.data.loaders import EpochBatches, image_batches
from fewtags.data.preprocess import InputConfig


def rows_of(sampler: EpochBatches, epoch: int, step: int = 0) -> list[list[int]]:
    sampler.start(epoch, step)
    return [[row for _, row in batch] for batch in sampler]


@pytest.mark.parametrize(("num_rows", "batch_size"), [(1, 8), (7, 8), (8, 8), (9, 8), (36, 8), (1001, 32)])
def test_every_row_once_in_even_batches(num_rows, batch_size):
    sampler = EpochBatches(num_rows, batch_size, shuffle=True, seed=3)
    batches = rows_of(sampler, 5)
    assert sorted(row for batch in batches for row in batch) == list(range(num_rows))
    sizes = [len(batch) for batch in batches]
    assert max(sizes) <= batch_size
    assert max(sizes) - min(sizes) <= 1  # no short batch at the end
    assert len(batches) == len(sampler) == sampler.num_batches == -(-num_rows // batch_size)


def test_the_order_depends_on_seed_and_epoch_alone():
    def order(seed: int, epoch: int) -> list[list[int]]:
        np.random.seed(np.random.randint(1000))  # whatever was drawn before must not matter
        return rows_of(EpochBatches(50, 8, shuffle=True, seed=seed), epoch)

    assert order(1, 2) == order(1, 2)
    assert order(1, 2) != order(1, 3)
    assert order(1, 2) != order(2, 2)
    assert order(0, 1) != order(1, 0)


def test_evaluation_goes_in_order():
    assert rows_of(EpochBatches(5, 2, shuffle=False), 7) == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize("step", [0, 1, 4, 5])
def test_from_a_step_on_the_same_batches_remain(step):
    sampler = EpochBatches(36, 8, shuffle=True, seed=1)
    whole = rows_of(sampler, 2)
    assert rows_of(sampler, 2, step) == whole[step:]


@pytest.mark.parametrize("processes", [2, 3])
def test_processes_share_each_batch(processes, monkeypatch):
    sampler = EpochBatches(37, 8, shuffle=True, seed=1)
    alone = rows_of(sampler, 0)
    shares = []
    monkeypatch.setattr(loaders.distributed, "world_size", lambda: processes)
    for rank in range(processes):
        monkeypatch.setattr(loaders.distributed, "rank", lambda rank=rank: rank)
        shares.append(rows_of(sampler, 0))
    for number, batch in enumerate(alone):
        together = [row for share in shares for row in share[number]]
        assert sorted(together) == sorted(batch)
        lengths = [len(share[number]) for share in shares]
        assert max(lengths) - min(lengths) <= 1


# --- augmentation ---


@pytest.mark.parametrize("keep", [True, False])
def test_augmentation_depends_on_seed_epoch_and_row_alone(keep, patches):
    config = TinyConfig.make().input

    def view(seed: int, epoch: int, row: int) -> np.ndarray:
        return ImageDataset(patches, config, augment=True, seed=seed, keep=keep)[epoch, row].image

    np.testing.assert_array_equal(view(1, 2, 3), view(1, 2, 3))
    for other in ((2, 2, 3), (1, 3, 3), (1, 2, 4)):
        assert not np.array_equal(view(1, 2, 3), view(*other))


def test_images_kept_in_memory_are_the_same_as_read_again(patches):
    config = TinyConfig.make().input
    kept = ImageDataset(patches, config, augment=True, seed=0, keep=True)
    read = ImageDataset(patches, config, augment=True, seed=0, keep=False)
    for epoch in range(2):
        np.testing.assert_array_equal(kept[epoch, 5].image, read[epoch, 5].image)
    assert kept.kept
    assert set(kept.kept) == {5}


@pytest.mark.parametrize(("size", "sides"), [
    (448, {512, 448, 384, 320, 256}),
    (224, {256, 224, 192, 160, 128}),
])  # fmt: skip
def test_crops_have_the_papers_sides_and_lie_inside(size, sides, monkeypatch):
    """Every side is drawn, anywhere in the image, up to its very corners."""
    boxes = []

    class Picture:
        def resize(self, shape, _, box):
            assert shape == (size, size)
            boxes.append(box)
            return Image.new("RGB", (1, 1))

    config = InputConfig(size=size)
    for number in range(3000):
        random_crop_flip(Picture(), config, np.random.default_rng(number))  # type: ignore[arg-type]
    lefts, tops, rights, bottoms = np.array(boxes).T
    assert set(rights - lefts) == sides
    assert np.array_equal(rights - lefts, bottoms - tops)
    assert lefts.min() == tops.min() == 0
    assert rights.max() == bottoms.max() == config.first_side
    counts = np.unique(rights - lefts, return_counts=True)[1]
    assert counts.min() > 0.8 * 3000 / 5


def test_half_of_the_images_are_mirrored():
    image = Image.fromarray(np.tile(np.arange(32, dtype=np.uint8)[None, :, None], (32, 1, 3)))
    for flip, expected in ((True, 0.5), (False, 0.0)):
        config = InputConfig(size=32, resize=32, crops=[32], flip=flip)
        views = [random_crop_flip(image, config, np.random.default_rng(n)) for n in range(400)]
        mirrored = np.mean([view[0, 0, 0] > view[0, -1, 0] for view in views])
        assert mirrored == pytest.approx(expected, abs=0.08)


def test_evaluation_sees_the_whole_image_at_the_input_size(patches):
    config = InputConfig(size=40)  # as large as the files: nothing may be changed
    sample = ImageDataset(patches, config, augment=False, seed=0, keep=False)[0, 7]
    np.testing.assert_array_equal(sample.image, np.asarray(Image.open(patches.path(7)).convert("RGB")))


# --- batches ---


def test_batches_carry_the_labels_of_their_rows(patches):
    batches = image_batches(patches, TinyConfig.make().input, batch_size=16, augment=True, seed=0)
    seen = []
    for loaded in batches.epoch(1):
        assert loaded.batch is not None
        assert loaded.batch.images.shape[1:] == (3, 32, 32)
        assert loaded.batch.images.dtype == torch.uint8
        np.testing.assert_array_equal(loaded.batch.labels.numpy(), patches.labels[loaded.batch.index.numpy()])
        seen += loaded.batch.index.tolist()
    assert sorted(seen) == list(range(48))


def test_worker_threads_give_the_same_batches(patches):
    config = TinyConfig.make()

    def pixels(workers: int) -> torch.Tensor:
        batches = image_batches(patches, config.input, batch_size=16, workers=workers, augment=True, seed=4)
        return torch.cat([loaded.batch.images for epoch in (0, 1) for loaded in batches.epoch(epoch)])

    assert torch.equal(pixels(0), pixels(2))


@pytest.mark.parametrize("workers", [0, 3])
def test_batches_equal_a_plain_loop_over_the_files(workers, patches):
    """Whatever threads do: file by file, resized, cropped by the image's own draw, mirrored, stacked."""
    config = TinyConfig.make().input
    batches = image_batches(patches, config, batch_size=7, workers=workers, augment=True, seed=3)
    for loaded in batches.epoch(2):
        for pixels, row in zip(loaded.batch.images, loaded.batch.index.tolist(), strict=True):
            with Image.open(patches.path(row)) as file:
                square = file.convert("RGB").resize((config.first_side,) * 2, Image.Resampling.BICUBIC)
            expected = random_crop_flip(square, config, np.random.default_rng((3, 2, row)))
            np.testing.assert_array_equal(pixels.permute(1, 2, 0).numpy(), expected)


def test_several_views_come_from_one_opening(patches, monkeypatch):
    config = TinyConfig.make().input
    alone = [ImageDataset(patches, config, augment=True, seed=0, keep=False)[epoch, 5].image for epoch in range(4)]
    opened, original = [], dataset.read_square
    monkeypatch.setattr(dataset, "read_square", lambda *args: opened.append(args) or original(*args))
    views = ImageDataset(patches, config, augment=True, seed=0, keep=False).views(5, range(4))
    assert len(opened) == 1
    for view, expected in zip(views, alone, strict=True):
        np.testing.assert_array_equal(view.image, expected)


def test_an_abandoned_epoch_leaves_no_threads(patches):
    before = threading.active_count()
    epoch = image_batches(patches, TinyConfig.make().input, batch_size=4, workers=3, augment=True).epoch()
    next(epoch)
    assert threading.active_count() > before
    epoch.close()
    assert threading.active_count() == before


def test_unreadable_images_are_left_out_of_the_batch():
    labels = torch.tensor([[1], [-1], [0]], dtype=torch.int8)
    image = np.zeros((4, 4, 3), dtype=np.uint8)
    loaded = Collate(labels)([Sample(image, 2), Sample(None, 0, "a.png: broken"), Sample(image, 1)])
    assert loaded.batch.index.tolist() == [2, 1]
    assert loaded.batch.labels.tolist() == [[0], [-1]]
    assert loaded.broken == {0: "a.png: broken"}
    assert Collate(labels)([Sample(None, 0, "broken")]) == dataset.Loaded(None, {0: "broken"})


def test_batches_for_a_gpu_are_in_pinned_memory(patches, monkeypatch):
    """From there they are copied while the GPU computes. There is none here, so the call is watched."""
    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: pinned.append(tensor) or tensor)
    for on_gpu in (False, True):
        batches = image_batches(patches, InputConfig(size=32), batch_size=16, augment=False, on_gpu=on_gpu)
        loaded = [one.batch.images for one in batches.epoch()]
        assert [id(images) for images in pinned] == ([id(images) for images in loaded] if on_gpu else [])
