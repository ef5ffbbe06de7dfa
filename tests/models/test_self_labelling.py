"""One round of self-labelling: it helps where labels that were held back say so, and else changes nothing."""

import pytest
import torch

from fewtags.labels import PRESENT
from fewtags.metrics import mean_average_precision
from fewtags.models import self_labelling
from fewtags.models.discriminant import Discriminant, DiscriminantSums
from fewtags.models.self_labelling import refine
from made_features import some_images


def weak_images(num_images, known, seed=0):
    """Whose categories can hardly be told by a few labels."""
    return some_images(num_images, num_categories=6, dim=60, known=known, seed=seed, strength=0.4)


def fitted(features, labels):
    sums = DiscriminantSums.of(features, labels)
    model = Discriminant(labels.shape[1], features.shape[1], keeps_sums=False)
    images, choice = model.fit(sums, features, labels)
    return model, images, sums, choice


def quality(model, known):
    images, answers, _ = weak_images(3000, known, seed=1)
    return mean_average_precision(model.scores(images).numpy(), answers.numpy())


def test_with_a_tenth_of_the_labels_known_it_helps():
    features, _, labels = weak_images(1500, 0.1)
    model, images, sums, choice = fitted(features, labels)
    before = quality(model, 0.1)
    how, weights = refine(model, images, sums, choice)
    assert how is not None
    assert quality(model, 0.1) > before + 0.005
    assert (weights[labels == PRESENT] == 1).all()
    assert float(weights.max()) <= 1


@pytest.mark.parametrize("known", [0.3, 1.0])
def test_it_never_costs_much(known):
    features, _, labels = weak_images(1500, known)
    model, images, sums, choice = fitted(features, labels)
    before = quality(model, known)
    refine(model, images, sums, choice)
    assert quality(model, known) > before - 0.003


def test_where_none_is_convincing_everything_stays_as_it_was(monkeypatch):
    monkeypatch.setattr(self_labelling, "CONVINCING", 1e6)
    model, images, sums, choice = fitted(*weak_images(400, 0.2)[::2])
    before = {name: value.clone() for name, value in model.named_buffers()}
    how, _ = refine(model, images, sums, choice)
    assert how is None
    for name, value in model.named_buffers():
        assert torch.equal(value, before[name]), name


@pytest.mark.parametrize("number", [1, 3, 12])
def test_tiny_sets_are_left_alone_or_stay_finite(number):
    features, _, labels = weak_images(number, 0.5)
    labels[0, 0] = PRESENT
    model, images, sums, choice = fitted(features, labels)
    refine(model, images, sums, choice)
    assert model.probabilities(features).isfinite().all()
