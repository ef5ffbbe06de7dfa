"""What a classifier sees in images, beside their features."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fewtags.presence.new_tag import Archive
from fewtags.presence.rows import TOP, ClassShares, with_classes

CLASSES = 50


@pytest.fixture(scope="module")
def shares() -> torch.Tensor:
    return torch.randn(300, CLASSES, generator=torch.Generator().manual_seed(0)).mul(2).softmax(1)


@pytest.fixture(scope="module")
def features() -> torch.Tensor:
    return torch.nn.functional.normalize(torch.rand(300, 16, generator=torch.Generator().manual_seed(1)), dim=1)


def test_the_largest_shares_are_kept_and_make_a_whole(shares):
    kept = ClassShares.of(shares.split(70))
    dense = kept.dense()
    assert dense.shape == (300, CLASSES)
    assert ((dense > 0).sum(1) == TOP).all()
    torch.testing.assert_close(dense.square().sum(1), torch.ones(300))
    assert (dense.argmax(1) == shares.argmax(1)).all()


def test_rows_with_classes_are_used_like_a_tensor(features, shares):
    rows = with_classes(features, ClassShares.of([shares]))
    every = rows[torch.arange(300)]
    assert every.shape == (300, 16 + CLASSES)
    weights = torch.randn(16 + CLASSES, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(rows @ weights, every @ weights)
    torch.testing.assert_close(torch.cat(list(rows.split(64))), every)
    assert with_classes(features, None) is features


def test_a_tag_is_found_by_its_class_where_features_say_nothing(features):
    truth = np.arange(300) % 10 == 0
    of_class = torch.full((300, CLASSES), 0.2 / CLASSES)
    of_class[torch.arange(300), torch.where(torch.from_numpy(truth), 7, torch.arange(300) % 5)] += 0.8
    archive = Archive.of(features, ClassShares.of([of_class]))
    learned = archive.learn(np.array([0]), np.array([True]))
    scores = learned.scores(archive.features)
    best = scores.argsort(descending=True)[: truth.sum()]
    assert truth[best.numpy()].all()
    torch.testing.assert_close(scores[:9], learned.scores(with_classes(features[:9], ClassShares.of([of_class[:9]]))))
