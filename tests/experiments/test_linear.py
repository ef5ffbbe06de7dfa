"""The yardstick: the regression is the optimum that scikit-learn finds, and its strength is never chosen on test."""

from __future__ import annotations

import json

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression

from conftest import TinyConfig
from fewtags.data.prepare import split_data
from fewtags.experiments import linear
from fewtags.experiments.linear import choose_strength, fit, train_linear


def problem(num_images: int = 120, dim: int = 6):
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(num_images, dim, generator=generator)
    truth = features @ torch.randn(dim, 2, generator=generator) + torch.randn(num_images, 2, generator=generator) > 0.8
    return features, truth.float()


def test_all_categories_at_once_equal_one_regression_each():
    features, known = problem()
    weight, bias = fit(features, known, strength=0.05)
    for c in range(2):
        one = LogisticRegression(C=1 / (0.05 * len(features)), tol=1e-8, max_iter=5000)
        one.fit(features.numpy(), known[:, c].numpy())
        np.testing.assert_allclose(weight[c], one.coef_[0], atol=2e-3)
        np.testing.assert_allclose(bias[c], one.intercept_[0], atol=2e-3)


def test_noise_asks_for_a_stronger_regularisation():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(200, 30, generator=generator)
    signal, noise = features @ torch.randn(30, 4, generator=generator), torch.randn(200, 4, generator=generator)
    clean, noisy = ((signal + scale * noise > 3).float() for scale in (0.1, 12))
    assert choose_strength(features, clean, seed=0) < choose_strength(features, noisy, seed=0)


def test_it_leaves_a_run_folder(patches, tmp_path):
    config = TinyConfig.make("method=an", "cache.enabled=true", f"cache.folder={tmp_path / 'cache'}")
    train_linear(config, tmp_path / "run", data=split_data(patches, config.data, 0), quiet=True)
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert result["best"]["map"] == result["test"]["map"] > 0.4
    assert result["strength"] in linear.STRENGTHS
    assert np.load(tmp_path / "run/predictions-test.npz")["probabilities"].shape == (12, 3)
    assert (
        len(list((tmp_path / "cache").glob("*/about.json"))) == 2
    )  # the plain views of train and test, no augmented ones
