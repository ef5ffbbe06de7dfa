"""`linear`: the regression is the optimum that scikit-learn finds, and its strength is never chosen on test images."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression

from conftest import Cli, TinyConfig
from fewtags.contract import Batch, Problem
from fewtags.data.prepare import split_data
from fewtags.engine.feature_store import FeatureStore
from fewtags.engine.prediction import predict_files
from fewtags.engine.training import train
from fewtags.errors import DataError
from fewtags.models.logistic import STRENGTHS, LogisticHead, choose_strength, fit, mean_log_rank
from fewtags.models.saved import load_model


def problem(num_images: int = 120, dim: int = 6):
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(num_images, dim, generator=generator)
    truth = features @ torch.randn(dim, 2, generator=generator) + torch.randn(num_images, 2, generator=generator) > 0.8
    return features, truth.float()


def one_by_one(features: torch.Tensor, known: torch.Tensor, strength: float) -> list[LogisticRegression]:
    """Slow: scikit-learn's regression of each category."""
    solver = LogisticRegression(C=1 / (strength * len(features)), tol=1e-8, max_iter=5000)
    return [LogisticRegression(**solver.get_params()).fit(features.numpy(), column.numpy()) for column in known.T]


def test_all_categories_at_once_equal_one_regression_each():
    features, known = problem()
    weight, bias = fit(features, known, strength=0.05)
    for c, one in enumerate(one_by_one(features, known, 0.05)):
        np.testing.assert_allclose(weight[c], one.coef_[0], atol=2e-3)
        np.testing.assert_allclose(bias[c], one.intercept_[0], atol=2e-3)


def test_the_head_is_that_regression_on_standardised_features_at_the_strength_that_ranks_held_out_images_best():
    """Against the whole recipe written plainly; the head gets the images shuffled, in batches, as maps."""
    features, known = problem()
    unit = F.normalize(features, dim=1)
    standard = (unit - unit.mean(0)) / unit.std(0, correction=0)
    held_out = np.random.default_rng(3).permutation(len(features)) % 5 == 0
    best, strength, worse = np.inf, 0.0, 0
    for candidate in reversed(STRENGTHS):  # until two in a row are worse than the best
        models = one_by_one(standard[~held_out], known[~held_out], candidate)
        scores = np.stack([one.decision_function(standard[held_out].numpy()) for one in models], axis=1)
        rank = mean_log_rank(torch.from_numpy(scores), known[held_out])
        worse = 0 if rank <= best else worse + 1
        best, strength = (rank, candidate) if rank < best else (best, strength)
        if worse == 2:
            break

    head = LogisticHead(LogisticHead.Config(), features.shape[1], known.shape[1])
    labels = known.to(torch.int8)
    head.initialise(Problem(("a", "b"), labels, seed=3))
    order = torch.randperm(len(features), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        maps = features[:, :, None, None].expand(-1, -1, 2, 3)
        start = head.start([Batch(maps[rows], labels[rows], rows) for rows in order.split(32)], len(features))
    assert f"regularisation {strength:g} (chosen" in start.sentence
    expected = [one.decision_function(standard.numpy()) for one in one_by_one(standard, known, strength)]
    np.testing.assert_allclose(head(maps).logits, np.stack(expected, axis=1), atol=0.02)


def test_noise_asks_for_a_stronger_regularisation():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(200, 30, generator=generator)
    signal, noise = features @ torch.randn(30, 4, generator=generator), torch.randn(200, 4, generator=generator)
    clean, noisy = ((signal + scale * noise > 3).float() for scale in (0.1, 12))
    assert choose_strength(features, clean, seed=0) < choose_strength(features, noisy, seed=0)


def test_without_known_labels_among_the_held_out_images_a_middle_strength_is_taken():
    features, known = problem()
    assert choose_strength(features, torch.zeros_like(known), seed=0) == pytest.approx(0.1)


def test_without_a_readable_image_it_says_so():
    head = LogisticHead(LogisticHead.Config(), 6, 2)
    with pytest.raises(DataError, match="None of the training images could be read"):
        head.start([], 3)


def test_it_is_trained_saved_and_read_like_any_method(patches, tmp_path, cli: Cli):
    config = TinyConfig.make("method=linear", "cache.enabled=true", f"cache.folder={tmp_path / 'cache'}")
    data = split_data(patches, config.data, 0)
    train(config, tmp_path / "run", data=data, quiet=True)
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert result["best"]["map"] == result["test"]["map"] > 0.4
    kept = FeatureStore(tmp_path / "cache").shelves()
    assert {shelf.rows for shelf in kept} == {len(data.train) + len(data.test)}  # plain views, none augmented
    saved = load_model(tmp_path / "run")
    files = [data.test.path(row) for row in range(len(data.test))]
    again = np.stack([prediction.probabilities for prediction in predict_files(saved, files)])
    measured = np.load(tmp_path / "run/predictions-test.npz")["probabilities"]
    np.testing.assert_allclose(again, measured, atol=2e-3)  # the cache keeps maps in half precision
    assert "Logistic regression" in cli("methods", "linear").out
