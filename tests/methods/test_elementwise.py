import pytest
import torch
from torch import Tensor

from fewtags.contract import Batch, Outputs, Problem, Progress
from fewtags.methods.elementwise import AssumeNegative, Asymmetric, Focal
from fewtags.methods.losses import assume_negative_loss, asymmetric_loss, focal_loss

LOSSES = {
    "an": assume_negative_loss,
    "focal": focal_loss,
    "focal, gamma 0.5, alpha": lambda z, y: focal_loss(z, y, gamma=0.5, alpha=0.25),
    "asl": asymmetric_loss,
    "asl, detached": lambda z, y: asymmetric_loss(z, y, detach_focus=True),
    "asl, powers below 1": lambda z, y: asymmetric_loss(z, y, gamma_pos=0.5, gamma_neg=0.5),
    "asl, no margin": lambda z, y: asymmetric_loss(z, y, margin=0.0),
    "asl, power below 1, no margin": lambda z, y: asymmetric_loss(z, y, gamma_neg=0.5, margin=0.0),
}


def random_labels(*shape: int) -> Tensor:
    return torch.randint(-1, 2, shape, dtype=torch.int8)


def one_by_one(slow, logits: Tensor, labels: Tensor, *settings: float) -> Tensor:
    values = [slow(float(z), int(y), *settings) for z, y in zip(logits.flatten(), labels.flatten(), strict=True)]
    return torch.stack(values).view_as(logits)


def slow_asymmetric(z: float, y: int, gamma_pos: float, gamma_neg: float, margin: float) -> Tensor:
    p = torch.tensor(z, dtype=torch.float64).sigmoid()
    if y == 1:
        return -((1 - p) ** gamma_pos) * p.log()
    p_neg = torch.clamp(1 - p + margin, max=1)  # the paper's "probability of the negative class"
    return -((1 - p_neg) ** gamma_neg) * p_neg.log()


def slow_focal(z: float, y: int, gamma: float, alpha: float) -> Tensor:
    p = torch.tensor(z, dtype=torch.float64).sigmoid()
    return -alpha * (1 - p) ** gamma * p.log() if y == 1 else -(1 - alpha) * p**gamma * (1 - p).log()


def test_asymmetric_loss_matches_its_formula_label_by_label():
    torch.manual_seed(0)
    logits, labels = 4 * torch.randn(6, 5, dtype=torch.float64), random_labels(6, 5)
    expected = one_by_one(slow_asymmetric, logits, labels, 1.0, 4.0, 0.05)
    torch.testing.assert_close(asymmetric_loss(logits, labels, 1.0, 4.0, 0.05), expected)


def test_focal_loss_matches_its_formula_label_by_label():
    torch.manual_seed(0)
    logits, labels = 4 * torch.randn(6, 5, dtype=torch.float64), random_labels(6, 5)
    expected = one_by_one(slow_focal, logits, labels, 3.0, 0.25)
    torch.testing.assert_close(focal_loss(logits, labels, 3.0, 0.25), expected)


def test_assume_negative_is_binary_cross_entropy_with_unknown_as_absent():
    torch.manual_seed(0)
    logits, labels = torch.randn(6, 5), random_labels(6, 5)
    expected = torch.nn.functional.binary_cross_entropy_with_logits(logits, (labels == 1).float(), reduction="none")
    torch.testing.assert_close(assume_negative_loss(logits, labels), expected)


@pytest.mark.parametrize(
    "loss",
    [
        lambda z, y: focal_loss(z, y, gamma=0.0),
        lambda z, y: asymmetric_loss(z, y, gamma_pos=0.0, gamma_neg=0.0, margin=0.0),
    ],
    ids=["focal, gamma 0", "asl, gammas 0, margin 0"],
)
def test_without_focus_it_is_assume_negative(loss):
    torch.manual_seed(0)
    labels = random_labels(8, 5)
    ours, plain = (5 * torch.randn(8, 5)).requires_grad_(), torch.zeros(8, 5, requires_grad=True)
    plain.data.copy_(ours.data)
    torch.testing.assert_close(loss(ours, labels), assume_negative_loss(plain, labels))
    loss(ours, labels).sum().backward()
    assume_negative_loss(plain, labels).sum().backward()
    torch.testing.assert_close(ours.grad, plain.grad)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_loss_and_gradient_are_finite_for_extreme_logits(name, dtype):
    extremes = [0.0, 1e-6, 0.05, 1.0, 10.0, 20.0, 88.0, 104.0, 1e3, 1e4]
    logits = torch.tensor([extremes + [-z for z in extremes]] * 3, dtype=dtype, requires_grad=True)
    labels = torch.tensor([[1], [0], [-1]], dtype=torch.int8).expand(-1, logits.shape[1])
    loss = LOSSES[name](logits, labels)
    loss.sum().backward()
    assert loss.shape == logits.shape
    assert loss.isfinite().all()
    assert (loss >= 0).all()
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("name", [name for name in LOSSES if "detached" not in name])
def test_gradients_are_those_of_finite_differences(name):
    torch.manual_seed(0)
    labels = random_labels(4, 5)
    logits = (3 * torch.randn(4, 5, dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: LOSSES[name](z, labels), logits)


def test_detaching_the_focus_keeps_the_value_and_leaves_only_the_logarithm_to_learn_from():
    logits = torch.tensor([[1.0, -1.0, 2.0]], requires_grad=True)
    labels = torch.tensor([[1, 0, -1]], dtype=torch.int8)
    loss = asymmetric_loss(logits, labels, 1.0, 4.0, 0.05, detach_focus=True)
    torch.testing.assert_close(loss, asymmetric_loss(logits, labels, 1.0, 4.0, 0.05))
    loss.sum().backward()
    p = logits.detach().sigmoid()
    positive = -(1 - p) * (1 - p)  # weight x d(-log p)/dz
    negative = (p - 0.05) ** 4 * p * (1 - p) / (1 - p + 0.05)  # weight x d(-log(1 - p + m))/dz
    torch.testing.assert_close(logits.grad, torch.where(labels == 1, positive, negative))


def test_easy_negatives_within_the_margin_cost_nothing():
    z = torch.logit(torch.tensor([[0.049, 0.051]], dtype=torch.float64))
    loss = asymmetric_loss(z, torch.zeros(1, 2, dtype=torch.int8))
    assert loss[0, 0] == 0
    assert loss[0, 1] > 0


@pytest.mark.parametrize("objective", [AssumeNegative, Focal, Asymmetric])
def test_the_objective_is_the_scaled_mean(objective):
    torch.manual_seed(0)
    labels = random_labels(6, 4)
    batch, outputs = Batch(torch.empty(6, 0), labels, torch.arange(6)), Outputs(torch.randn(6, 4))
    problem = Problem(tuple("abcd"), labels)
    once, scaled = (
        objective(objective.Config(loss_scale=scale), problem, None).loss(batch, outputs, Progress(0, 1, 0, 1)).total
        for scale in (1.0, 30.0)
    )
    torch.testing.assert_close(scaled, 30 * once)
    if objective is Asymmetric:
        torch.testing.assert_close(once, asymmetric_loss(outputs.logits, labels, 0.0, 4.0, 0.05).mean())
