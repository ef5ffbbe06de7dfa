"""Two hundred real photographs: of what is predicted, about as much is right as the probabilities say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fewtags.data.partial_labels import hide_labels, single_positive
from fewtags.presence.fitting import fit_presence
from fewtags.presence.model import Presence
from fewtags.presence.ridge import ImageSums

DRAWS = 4


@pytest.fixture(scope="module")
def coco(shared: Path) -> dict[str, np.ndarray]:
    """Pooled features and complete labels of both splits."""
    data = np.load(shared / "data/coco_lite0_pooled.npz")
    return {
        split + kind: values
        for split in ("train", "test")
        for kind, values in (
            ("", (data[split].astype(np.float32) / 255) ** 2 * data["scale"].astype(np.float32)),
            ("_truth", np.unpackbits(data[f"{split}_labels"], axis=1)[:, : len(data["categories"])].astype(bool)),
        )
    }


@pytest.mark.parametrize("known", ["single", 0.3])
def test_precision_is_about_what_the_probabilities_promise(coco, known):
    """Within ten points, on average over draws; one draw of 200 photos may be further off. Known proportions were
    estimated at two thirds or twice the truth when labels alone decided, and precision was 20 points off."""
    truth, off = torch.from_numpy(coco["test_truth"]), []
    for seed in range(DRAWS):
        rows = np.random.default_rng(seed).permutation(len(coco["train"]))[:200]
        complete = coco["train_truth"][rows]
        given = single_positive(complete, seed) if known == "single" else hide_labels(complete, known, seed)
        features, labels = torch.from_numpy(coco["train"][rows]), torch.from_numpy(given)
        model = Presence(labels.shape[1], features.shape[1])
        fit_presence(model, ImageSums.of(features, labels), features, labels)
        chance = model.log_odds(torch.from_numpy(coco["test"])).sigmoid()
        predicted = chance >= model.thresholds
        off.append(float(chance[predicted].mean() - truth[predicted].double().mean()))
    assert abs(np.mean(off)) < 0.1
