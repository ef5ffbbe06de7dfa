"""A data set with a single tag goes through every head, to a saved model that predicts what was measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from conftest import TinyConfig
from fewtags.data.prepare import split_data
from fewtags.engine.prediction import predict_annotations
from fewtags.engine.training import train
from fewtags.models.saved import load_model


@pytest.mark.parametrize("method", ["instant", "linear", "ssgrl", "kggr", "cst", "sst", "caldnr", "refined"])
def test_one_category(method, patches, tmp_path):
    one = replace(patches, categories=patches.categories[:1], labels=patches.labels[:, :1])
    config = TinyConfig.make(f"method={method}", "train.epochs=1", "train.batch_size=36")
    data = split_data(one, config.data, config.seed)
    train(config, tmp_path / "run", data=data, quiet=True)
    assert data.test is not None
    found = predict_annotations(load_model(tmp_path / "run"), data.test).probabilities
    with np.load(tmp_path / "run" / "predictions-test.npz") as kept:
        np.testing.assert_allclose(found, kept["probabilities"], atol=1e-3)  # cached features are rounded
