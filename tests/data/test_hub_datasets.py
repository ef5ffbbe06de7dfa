"""Annotations go to Hugging Face's `datasets`, through its own files, and come back with all three states."""

from __future__ import annotations

import numpy as np
import pytest

from fewtags import Annotations, Tagger
from fewtags.errors import UserError

datasets = pytest.importorskip("datasets")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")


@pytest.fixture
def partial(patches) -> Annotations:
    """Some labels present, some absent, some unknown, in three splits."""
    labels = patches.labels.copy()
    labels[np.random.default_rng(0).random(labels.shape) < 0.4] = 0
    splits = np.array(["train"] * 30 + ["val"] * 6 + ["test"] * 12)
    return Annotations(patches.root, patches.images, patches.categories, labels, splits)


def same(a: Annotations, b: Annotations) -> None:
    assert a.categories == b.categories
    assert sorted(a.splits) == sorted(b.splits)
    for split in ("train", "val", "test"):
        np.testing.assert_array_equal(a.split(split).labels, b.split(split).labels)


def test_its_features_are_those_that_others_read(partial):
    made = partial.to_datasets()
    assert set(made) == {"train", "validation", "test"}
    assert isinstance(made["train"].features["image"], datasets.Image)
    assert made["train"].features["tags"].feature.names == partial.categories
    first = made["train"][0]
    assert first["image"].size == (40, 40)
    assert [partial.categories[c] for c in first["tags"]] == [
        name for name, label in zip(partial.categories, partial.labels[0], strict=True) if label == 1
    ]


def test_there_and_back(partial):
    back = Annotations.from_datasets(partial.to_datasets())
    same(back, partial)
    assert [back.path(row) for row in range(3)] == [partial.path(row) for row in range(3)]


def test_through_parquet_with_the_images_inside(partial, tmp_path):
    """What `push_to_hub` of datasets uploads: files with the images in them."""
    made = partial.to_datasets()
    for split, part in made.items():
        whole = part.with_format("arrow").map(datasets.table.embed_table_storage, batched=True).with_format(None)
        whole.to_parquet(tmp_path / f"{split}.parquet")
    files = {split: str(tmp_path / f"{split}.parquet") for split in made}
    loaded = datasets.load_dataset("parquet", data_files=files, cache_dir=str(tmp_path / "cache"))
    with pytest.raises(UserError, match="folder="):
        Annotations.from_datasets(loaded)
    back = Annotations.from_datasets(loaded, folder=tmp_path / "images")
    same(back, partial)
    assert back.path(0).read_bytes() == partial.path(0).read_bytes()


def test_a_dataset_of_someone_else(patches):
    """One split, another column name, tags as text, no column of absent tags: the rest is unknown."""
    paths = [str(patches.path(row)) for row in range(4)]
    tags = [["red"], [], ["blue", "red"], ["green"]]
    made = datasets.Dataset.from_dict({"picture": paths, "labels": tags}).cast_column("picture", datasets.Image())
    read = Annotations.from_datasets(made, image="picture", tags="labels")
    assert read.categories == ["blue", "green", "red"]
    np.testing.assert_array_equal(read.labels, [[0, 0, 1], [0, 0, 0], [1, 0, 1], [0, 1, 0]])
    assert (Annotations.from_datasets(made, image="picture", tags="labels", complete=True).labels != 0).all()
    with pytest.raises(UserError, match="pass the image column as image="):
        Annotations.from_datasets(made.rename_column("picture", "x"), tags="labels")


def test_a_tagger_learns_from_it(partial):
    settings = ["input.size=32", "train.batch_size=12"]
    tagger = Tagger("instant", "test_resnet", pretrained=False, settings=settings)
    assert tagger.fit(Annotations.from_datasets(partial.to_datasets())).classes_.tolist() == partial.categories


def test_numbers_without_names_are_refused(patches):
    made = datasets.Dataset.from_dict({"image": [str(patches.path(0))], "tags": [[1]]})
    with pytest.raises(UserError, match="without names"):
        Annotations.from_datasets(made.cast_column("image", datasets.Image()))
