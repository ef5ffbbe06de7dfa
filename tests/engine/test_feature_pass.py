"""Once over many images by threads: what a plain loop gives, in its order."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from torch import Tensor

from fewtags.data.annotations import Annotations
from fewtags.data.dataset import ImageDataset, Sample
from fewtags.data.preprocess import InputConfig
from fewtags.engine.feature_pass import FeaturePass, average
from fewtags.engine.runtime import Runtime


def shrink(images: Tensor) -> Tensor:
    return torch.nn.functional.avg_pool2d(images.float(), 8)


@pytest.mark.parametrize("in_threads", [True, False])
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_the_pass_equals_a_plain_loop(in_threads, workers, patches: Annotations):
    dataset = ImageDataset(patches, InputConfig(size=32), augment=True, seed=0, keep=False)
    runtime = Runtime("test", shrink, batch=7, in_threads=in_threads)
    row = 0
    for views in FeaturePass(runtime, workers=workers).over(range(48), lambda row: dataset.views(row, range(3))):
        assert len(views) == 3
        for number, maps in enumerate(views[0].batch.index.tolist()):
            assert maps == row
            for epoch, view in enumerate(views):
                expected = shrink(torch.from_numpy(dataset[epoch, row].image.copy()).permute(2, 0, 1)[None])
                assert torch.equal(view.batch.images[number], expected[0])
            row += 1
    assert row == 48


def test_averages_are_maps_of_one_place(patches):
    dataset = ImageDataset(patches, InputConfig(size=32), augment=False, seed=0, keep=False)
    maps = list(FeaturePass(Runtime("test", shrink)).over(range(5), lambda row: dataset.views(row, [0])))
    averages = list(FeaturePass(Runtime("test", shrink), average).over(range(5), lambda row: dataset.views(row, [0])))
    torch.testing.assert_close(averages[0][0].batch.images[:, :, 0, 0], maps[0][0].batch.images.mean((2, 3)))


def test_a_broken_image_costs_nothing_but_itself():
    def read(key: int) -> list[Sample]:
        return [Sample(None, key, "broken") if key % 3 == 0 else Sample(np.full((8, 8, 3), key, np.uint8), key)]

    results = [views[0] for views in FeaturePass(Runtime("test", shrink, batch=4), workers=2).over(range(10), read)]
    assert [row for one in results for row in one.batch.index.tolist()] == [1, 2, 4, 5, 7, 8]
    assert sorted(row for one in results for row in one.broken) == [0, 3, 6, 9]
    assert [float(maps.mean()) for one in results for maps in one.batch.images] == [1, 2, 4, 5, 7, 8]


def test_reading_and_computing_go_on_together():
    """Two threads meet in the network: each computes on its own."""
    both = threading.Barrier(2, timeout=60)

    def meet(images: Tensor) -> Tensor:
        both.wait()
        return shrink(images)

    read = [Sample(np.zeros((8, 8, 3), np.uint8), 0)]
    assert len(list(FeaturePass(Runtime("test", meet, batch=1), workers=2).over(range(4), lambda _: read))) == 4


def test_memory_holds_a_few_batches_however_many_images_there_are():
    alive, most, lock = 0, 0, threading.Lock()

    def read(key: int) -> list[Sample]:
        nonlocal alive, most
        with lock:
            alive += 1
            most = max(most, alive)
        return [Sample(np.zeros((8, 8, 3), np.uint8), key)]

    for _ in FeaturePass(Runtime("test", shrink, batch=2), workers=2).over(range(1000), read):
        with lock:
            alive -= 2
    assert most <= 2 * (2 + 2)
