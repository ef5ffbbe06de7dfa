"""The linear head: with standardised features and its prior it is the regularised logistic regression people know."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression

from conftest import TinyConfig
from fewtags.config import load_config
from fewtags.contract import Batch, Problem
from fewtags.data.loaders import image_batches
from fewtags.data.prepare import split_data
from fewtags.engine.training import train
from fewtags.errors import DataError
from fewtags.methods import METHODS
from fewtags.methods.losses import assume_negative_loss
from fewtags.models.heads import LinearHead, Standardise
from fewtags.models.saved import load_model

NUM, DIM, CATEGORIES = 400, 12, 3


@pytest.fixture(scope="module")
def images():
    """Maps whose channels differ in size by three orders of magnitude, and labels that depend on some of them."""
    generator = torch.Generator().manual_seed(0)
    maps = torch.randn(NUM, DIM, 2, 2, generator=generator) + 3
    labels = (maps.mean((2, 3))[:, :CATEGORIES] > 3.6).to(torch.int8)
    return maps * torch.logspace(-2, 1, DIM)[:, None, None], labels


def batches(images, size=64):
    maps, labels = images
    return [Batch(maps[rows], labels[rows], rows) for rows in torch.arange(NUM).split(size)]


def started(images, **settings):
    head = LinearHead(LinearHead.Config(**settings), DIM, 3)
    head.initialise(Problem(tuple("abc"), images[1]))
    head.start(batches(images), len(images[1]))
    return head


def test_features_have_mean_zero_and_spread_one_over_the_training_images(images):
    head = started(images)
    unit = F.normalize(images[0].mean((2, 3)), dim=1)
    expected = (unit - unit.mean(0)) / unit.std(0, correction=0)
    torch.testing.assert_close(head.standardise(images[0].mean((2, 3))), expected, rtol=1e-3, atol=1e-3)


def test_the_size_of_batches_and_of_an_image_do_not_matter(images):
    head, other = started(images), Standardise(DIM)
    other.start(batch.images.mean((2, 3)) for batch in reversed(batches(images, 37)))
    torch.testing.assert_close(head.standardise.mean, other.mean)
    torch.testing.assert_close(head.standardise.factor, other.factor)
    pooled = images[0].mean((2, 3))
    torch.testing.assert_close(other(pooled), other(5 * pooled), rtol=1e-3, atol=1e-3)


def test_a_feature_that_never_changes_says_nothing():
    standardise = Standardise(2)
    standardise.start([torch.tensor([[1.0, 0.0], [2.0, 0.0]])])
    assert standardise(torch.tensor([[3.0, 1.0]])).tolist() == [[0.0, 0.0]]


def test_no_image_at_all_is_an_error():
    with pytest.raises(DataError, match="None of the training images"):
        Standardise(2).start([])


def test_before_the_first_step_every_image_gets_the_prior_log_odds(images):
    head = started(images).eval()
    prior = Problem(tuple("abc"), images[1]).prior()
    torch.testing.assert_close(head(images[0]).logits.sigmoid(), prior.float().expand(NUM, CATEGORIES))


def test_trained_to_the_end_an_is_the_regularised_logistic_regression(images):
    """The loss is mean log loss + prior * D / (2 N) |w|^2 per category, so scikit-learn's C is 1 / (prior * D)."""
    maps, labels = images
    head = started(images, prior=0.5).train()
    solver = torch.optim.LBFGS(head.parameters(), max_iter=500, tolerance_change=1e-12, line_search_fn="strong_wolfe")

    def closure():
        solver.zero_grad()
        outputs = head(maps)
        loss = assume_negative_loss(outputs.logits, labels).mean() + outputs.prior
        loss.backward()
        return loss

    solver.step(closure)
    x = head.standardise(maps.mean((2, 3))).numpy()
    for category in range(CATEGORIES):
        slow = LogisticRegression(C=1 / (0.5 * DIM), tol=1e-10, max_iter=10_000).fit(x, labels[:, category].numpy())
        np.testing.assert_allclose(head.classifier.weight[category].detach(), slow.coef_[0], atol=1e-2)
        np.testing.assert_allclose(head.classifier.bias[category].detach(), slow.intercept_[0], atol=1e-2)


def test_the_prior_belongs_to_training_and_to_standardised_features(images):
    head = started(images)
    assert head.train()(images[0]).prior is not None
    assert head.eval()(images[0]).prior is None
    plain = LinearHead(LinearHead.Config(standardise=False), DIM, 3).train()
    assert plain(images[0]).prior is None
    assert not plain.spec.needs_start


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.head == "linear"])
def test_published_trainings_have_the_head_as_published(name):
    """Focal's `own` is its loss alone, in our training."""
    for profile in METHODS[name].profiles:
        config = load_config(None, [f"method={name}", f"method.profile={profile}"])
        assert config.head.standardise == ((name, profile) == ("focal", "own"))


@pytest.mark.parametrize(("method", "plain"), [("an", False), ("instant", True)])
def test_features_are_standardised_as_they_are_trained_on(method, plain, patches, tmp_path):
    """AN's head has the mean of the augmented images of the first epoch, the closed form that of the plain ones."""
    config = TinyConfig.make(f"method={method}", "input.augment=true", "train.epochs=1", "model.train_from=head")
    data = split_data(patches, config.data, config.seed)
    train(config, tmp_path / "run", data=data, quiet=True)
    model = load_model(tmp_path / "run").classifier
    means = {}
    for augment in (False, True):
        batches = image_batches(data.train, config.input, augment=augment, seed=config.seed)
        with torch.no_grad():
            pooled = [model.feature_map(loaded.batch.images).mean((2, 3)) for loaded in batches.epoch(0)]
        means[augment] = F.normalize(torch.cat(pooled), dim=1).mean(0)
    found = model.head.presence.mean if plain else model.head.standardise.mean
    torch.testing.assert_close(found, means[not plain], rtol=1e-3, atol=1e-5)
    assert (means[True] - means[False]).abs().max() > 1e-3
