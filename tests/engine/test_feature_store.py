"""The store on disk: rows by key, shared by processes, whole after a kill."""

from __future__ import annotations

import os
import signal
import time
from io import FileIO
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from fewtags.engine import feature_store
from fewtags.engine.feature_spec import PLAIN, FeatureSpec
from fewtags.engine.feature_store import DamagedChunks, FeatureStore, KeyTable, Shelf
from fewtags.engine.row_file import read_places
from made_processes import processes

SPEC = FeatureSpec(("stem", "layer1"), "weights", 224, PLAIN, 1, "exact", "fp32")


def keys(first: int, last: int) -> np.ndarray:
    numbers = np.arange(first, last, dtype=np.uint64)
    return np.stack([numbers * np.uint64(0x9E3779B97F4A7C15), numbers + np.uint64(1)], axis=1)


def rows(first: int, last: int) -> Tensor:
    return torch.arange(first, last, dtype=torch.float32)[:, None, None, None].expand(-1, 3, 1, 1)


def shelf(root: Path) -> Shelf:
    return FeatureStore(root).shelf(SPEC, pooled=True)


def add(root: Path, first: int, last: int, step: int = 7) -> None:
    with shelf(root).writer() as writer:
        for start in range(first, last, step):
            end = min(start + step, last)
            writer.add(keys(start, end), rows(start, end))
            writer.commit()


def read(root: Path, first: int, last: int) -> Tensor:
    there = shelf(root)
    return there.read(there.find(keys(first, last)))


def test_rows_are_found_by_their_keys_whenever_they_came(tmp_path):
    add(tmp_path, 0, 300)
    add(tmp_path, 300, 700)
    assert torch.equal(read(tmp_path, 0, 700), rows(0, 700))
    assert (shelf(tmp_path).find(keys(700, 800)) == -1).all()
    assert [file.name for file in tmp_path.glob("*/*.bin")] == ["0.bin"]
    assert len(shelf(tmp_path).chunks) == 3  # of 256 rows, though they were committed in pieces of 7


def test_an_index_of_keys_is_a_dictionary():
    random = np.random.default_rng(0).integers(0, 50, (400, 2)).astype(np.uint64)
    table = KeyTable(random[:200])
    numbers = {tuple(key): number for number, key in enumerate(random[:200].tolist())}
    alike = len({tuple(key) for key in random[:200].tolist()}) == len({key[0] for key in random[:200].tolist()})
    assert not alike  # first halves repeat here, which no two images do: then a key may be missed, never confused
    for key, found in zip(random.tolist(), table.find(random).tolist(), strict=True):
        assert found in (-1, numbers.get(tuple(key)))


def test_a_full_file_is_followed_by_another(tmp_path, monkeypatch):
    monkeypatch.setattr(feature_store, "LARGEST_FILE", 12 * 300)
    add(tmp_path, 0, 1000)
    assert len(list(tmp_path.glob("*/*.bin"))) == 4
    assert torch.equal(read(tmp_path, 0, 1000), rows(0, 1000))


def test_two_writers_at_once_have_a_file_each(tmp_path):
    with shelf(tmp_path).writer() as one, shelf(tmp_path).writer() as other:
        for start in range(0, 100, 10):
            one.add(keys(start, start + 10), rows(start, start + 10))
            other.add(keys(start + 100, start + 110), rows(start + 100, start + 110))
    assert torch.equal(read(tmp_path, 0, 200), rows(0, 200))
    assert len(list(tmp_path.glob("*/*.bin"))) == 2
    add(tmp_path, 200, 300)
    assert len(list(tmp_path.glob("*/*.bin"))) == 2


def test_two_processes_share_it(tmp_path):
    children = [processes().Process(target=add, args=(tmp_path, 400 * n, 400 * n + 400)) for n in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0, 0]
    assert torch.equal(read(tmp_path, 0, 800), rows(0, 800))


def add_forever(root: Path) -> None:
    add(root, 0, 10**6, step=3)


def test_a_kill_at_any_moment_leaves_whole_rows(tmp_path):
    """What the index lists is there and right, and the next process goes on behind it."""
    for kill in range(3):
        child = processes().Process(target=add_forever, args=(tmp_path / str(kill),))
        child.start()
        while not len(shelf(tmp_path / str(kill))) and child.is_alive():
            time.sleep(0.01)
        time.sleep(0.05 * (kill + 1))
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        number = len(shelf(tmp_path / str(kill)))
        assert torch.equal(read(tmp_path / str(kill), 0, number), rows(0, number))
        add(tmp_path / str(kill), number, number + 10)
        assert torch.equal(read(tmp_path / str(kill), 0, number + 10), rows(0, number + 10))


def test_what_was_not_committed_is_overwritten(tmp_path):
    add(tmp_path, 0, 10)
    with pytest.raises(KeyboardInterrupt), shelf(tmp_path).writer() as writer:
        writer.add(keys(10, 20), rows(10, 20))
        raise KeyboardInterrupt
    assert len(shelf(tmp_path)) == 10
    add(tmp_path, 20, 30)
    assert torch.equal(read(tmp_path, 20, 30), rows(20, 30))
    (file,) = tmp_path.glob("*/0.bin")
    assert file.stat().st_size == 20 * 12


def test_only_damaged_chunks_are_forgotten(tmp_path):
    add(tmp_path, 0, 600)
    (file,) = tmp_path.glob("*/0.bin")
    content = bytearray(file.read_bytes())
    content[300 * 12] ^= 1
    file.write_bytes(content)
    there = shelf(tmp_path)
    assert torch.equal(there.read(np.arange(256)), rows(0, 256))
    with pytest.raises(DamagedChunks) as damage:
        there.read(np.array([2, 400]))
    there.forget(damage.value.chunks)
    found = there.find(keys(0, 600))
    assert (np.flatnonzero(found < 0) == np.arange(256, 512)).all()
    add(tmp_path, 256, 512)
    assert torch.equal(read(tmp_path, 0, 600), rows(0, 600))


def test_a_reader_is_not_disturbed_by_a_writer(tmp_path):
    add(tmp_path, 0, 100)
    there = shelf(tmp_path)
    add(tmp_path, 100, 200)
    assert torch.equal(there.read(np.arange(100)), rows(0, 100))
    there.refresh()
    assert torch.equal(there.read(there.find(keys(0, 200))), rows(0, 200))


def test_an_emptied_store_begins_anew(tmp_path):
    add(tmp_path, 0, 100)
    FeatureStore(tmp_path).empty()
    assert len(shelf(tmp_path)) == 0
    add(tmp_path, 0, 50)
    assert torch.equal(read(tmp_path, 0, 50), rows(0, 50))


def test_rows_of_a_file_are_read_in_any_order_neighbours_at_once(tmp_path):
    content = np.arange(70, dtype=np.uint8).reshape(10, 7)
    (tmp_path / "rows").write_bytes(content.tobytes())
    reads = []

    class Counted(FileIO):
        def readinto(self, buffer):
            reads.append(len(buffer))
            return super().readinto(buffer)

    with Counted(tmp_path / "rows") as file:
        places = np.array([3, 4, 5, 0, 9, 5])
        assert np.array_equal(read_places(file, places, 7), content[places])
        assert reads == [21, 7, 7, 7]
        assert len(read_places(file, np.zeros(0, np.int64), 7)) == 0
        assert np.array_equal(read_places(file, np.array([9, 10]), 7), [content[9], np.zeros(7)])
