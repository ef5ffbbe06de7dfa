"""Right names help and wrong ones are switched off, on features of real photographs (COCO, 80 tags)."""

import numpy as np
import pytest
import torch

from fewtags.data.partial_labels import hide_labels
from fewtags.metrics import mean_average_precision
from fewtags.models.backbones import create_backbone
from fewtags.models.names import find_names
from fewtags.presence.fitting import fit_presence
from fewtags.presence.model import Presence
from fewtags.presence.ridge import ImageSums, unit_length

IMAGES = 4000


@pytest.fixture(scope="module")
def photos(shared):
    """Features and truth of training and test photos, and the name scores of both."""
    data = np.load(shared / "data/coco_lite0_pooled.npz")
    weights = shared / "weights/tf_efficientnet_lite0_fp16.safetensors"
    backbone = create_backbone("tf_efficientnet_lite0", pretrained=False, weights=weights, keep_classifier=True)
    names = find_names(backbone.class_head, [str(name) for name in data["categories"]])
    parts = []
    for split in ("train", "test"):
        features = ((data[split][:IMAGES].astype(np.float32) / 255) ** 2 * data["scale"]).astype(np.float32)
        truth = np.unpackbits(data[f"{split}_labels"][:IMAGES], axis=1)[:, :80].astype(bool)
        pooled = torch.from_numpy(features)
        parts.append((pooled, truth, names.scores(0.7 * unit_length(pooled) * pooled.norm(dim=1).mean())))
    return *parts, names.known


def map_on_test(photos, known, order):
    (features, truth, names), (new, new_truth, new_names), named = photos
    labels = torch.from_numpy(hide_labels(truth, known, 0))
    model = Presence(80, features.shape[1])
    given = None if order is None else names[:, order]
    with torch.no_grad():
        fit_presence(
            model,
            ImageSums.of(features, labels),
            features,
            labels,
            names=given,
            named=None if order is None else named[order],
        )
        scores = model.scores(new, None if order is None else new_names[:, order])
    return 100 * mean_average_precision(scores.numpy(), new_truth)


@pytest.mark.shared
@pytest.mark.slow
@pytest.mark.parametrize(("known", "cost"), [(0.1, 0.5), (0.5, 0.1)])
def test_shuffled_names_are_noticed_and_switched_off(photos, known, cost):
    shuffled = torch.randperm(80, generator=torch.Generator().manual_seed(0))
    without = map_on_test(photos, known, None)
    assert map_on_test(photos, known, torch.arange(80)) > without
    assert map_on_test(photos, known, shuffled) > without - cost
