"""What every method of the table must stand, whatever it does."""

import pytest
import torch

from fewtags.config import load_config
from fewtags.contract import Batch, Problem, Progress, StepResult, WordVectors
from fewtags.methods import METHODS, objective_class
from fewtags.methods.base import Learner
from fewtags.models.heads import head_class

CANCELLED = {"model.decoupling.mix.bias", "model.decoupling.score.bias"}  # by the softmax over locations
SMALL = {"sst": ["method.pair_width=8", "method.pair_hidden=8"]}  # its size grows with the square of the categories


def some_labels(num_categories: int, num_images: int = 12) -> torch.Tensor:
    torch.manual_seed(0)
    labels = (torch.rand(num_images, num_categories) < 0.4).to(torch.int8)
    labels[0, 0] = -1
    return labels


TRAINED = [name for name in METHODS if objective_class(name).trains]


def build(name: str, labels: torch.Tensor) -> Learner:
    torch.manual_seed(0)
    config = load_config(overrides=[f"method={name}", *SMALL.get(name, [])])
    settings = config.head.model_copy(update={"width": 16}) if hasattr(config.head, "width") else config.head
    words = WordVectors(torch.randn(labels.shape[1], 16), "random")
    problem = Problem(tuple(str(c) for c in range(labels.shape[1])), labels, words)
    head = head_class(config.head_name)(settings, 24, problem.num_categories, problem.words)
    head.initialise(problem)
    objective = objective_class(name)(config.method, problem, head.feature_dim)
    if head.spec.needs_start and labels.any():
        with torch.no_grad():
            batch = Batch(torch.randn(len(labels), 24, 4, 4), labels, torch.arange(len(labels)))
            objective.start(head.start([batch], len(labels)))
            if config.head_name == "closed_form":
                head.residual.attended_weight.normal_()  # it starts at 0, where queries have no gradient
    return Learner(head, objective)


def step(learner: Learner, labels: torch.Tensor, epoch: int) -> StepResult:
    batch = Batch(torch.randn(6, 24, 4, 4), labels[:6], torch.arange(6))
    result = learner(batch, Progress(epoch, 20, 1, 3))
    result.total.backward()
    return result


@pytest.mark.parametrize("name", TRAINED)
def test_gradients_reach_every_trainable_parameter(name):
    labels = some_labels(5)
    learner = build(name, labels)
    step(learner, labels, epoch=6)
    unreached = {key for key, value in learner.named_parameters() if value.grad is None or not value.grad.any()}
    assert unreached <= CANCELLED


@pytest.mark.parametrize("kind", ["all unknown", "category without positives", "one category", "1,000 categories"])
@pytest.mark.parametrize("name", TRAINED)
def test_loss_and_gradients_are_finite(name, kind):
    labels = some_labels({"one category": 1, "1,000 categories": 1000}.get(kind, 5))
    if kind == "all unknown":
        labels = torch.zeros_like(labels)
    elif kind == "category without positives":
        labels[:, 1] = 0
    learner = build(name, labels)
    for epoch in (0, 1, 6):  # before, between and after what starts late
        assert step(learner, labels, epoch).total.isfinite()
    assert all(value.grad.isfinite().all() for value in learner.parameters() if value.grad is not None)


@pytest.mark.parametrize("name", TRAINED)
def test_decisions_are_about_unknown_labels_only(name):
    labels = some_labels(5)
    learner = build(name, labels)
    for epoch in range(8):
        for mask in step(learner, labels, epoch).decisions.values():
            assert mask.dtype == torch.bool
            assert not mask[labels[:6] != 0].any()


@pytest.mark.parametrize("name", TRAINED)
def test_what_it_says_to_decide_is_what_its_loss_acts_on(name):
    """Asking changes nothing: the report asks a trained objective without training it further."""
    labels = some_labels(5)
    learner = build(name, labels)
    for epoch in range(8):
        step(learner, labels, epoch)
    batch, progress = Batch(torch.randn(6, 24, 4, 4), labels[:6], torch.arange(6)), Progress.at_end(9)
    outputs = learner.model(batch.images)
    before = {key: value.clone() for key, value in learner.state_dict().items()}
    torch.manual_seed(1)  # CANR draws
    said = learner.objective.decide(batch, outputs, progress)
    assert all(torch.equal(value, before[key]) for key, value in learner.state_dict().items())
    torch.manual_seed(1)
    acted_on = learner.objective.loss(batch, outputs, progress).decisions
    assert said.keys() == acted_on.keys()
    assert all(torch.equal(mask, acted_on[key]) for key, mask in said.items())


@pytest.mark.parametrize("name", METHODS)
def test_every_profile_is_valid_and_explained(name):
    method = METHODS[name]
    for profile in ("default", *method.profiles):
        load_config(overrides=[f"method={name}", f"method.profile={profile}"])
        assert method.profile(profile).note
    assert "@" in method.bibtex
