"""The moving average: that of timm, which averages everything, whatever changes and however it is written."""

import pytest
import torch
from torch import nn

from fewtags.engine.moving_average import MovingAverage
from fewtags.models.quick_timm import timm


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.norm = nn.BatchNorm1d(4)
        self.last = nn.Linear(4, 2)
        self.late = nn.Parameter(torch.zeros(2))
        self.register_buffer("fixed", torch.randn(3))
        self.register_buffer("told", torch.zeros(3))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        return self.last(self.norm(self.frozen(x))) + self.late


def steps(net: Net, number: int):
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=0.1, fused=True)
    for step in range(number):
        net.zero_grad()
        loss = net(torch.randn(8, 4)).square().sum()
        if step < 3:  # so that `late` moves late
            loss = loss - loss.detach() + net(torch.randn(8, 4))[:, :1].square().sum()
        loss.backward()
        optimizer.step()
        if step == 4:  # a buffer that somebody writes to in the middle, once
            net.told += 1
            net.count += 1
        yield step


def test_it_is_the_average_of_everything():
    torch.manual_seed(0)
    net = Net()
    reference, ours = timm.utils.ModelEmaV3(net, decay=0.9), MovingAverage(net, 0.9)
    for _ in steps(net, 8):
        reference.update(net)
        ours.update(net)
    for name, expected in reference.module.state_dict().items():
        torch.testing.assert_close(ours.module.state_dict()[name], expected, rtol=0, atol=0, msg=name)
    assert not torch.equal(ours.module.last.weight, net.last.weight)


def test_what_never_changes_costs_nothing():
    net = Net()
    ours = MovingAverage(net, 0.9)
    for _ in steps(net, 2):
        ours.update(net)
    pointers = {theirs.data_ptr() for _, theirs in ours.moving}
    assert net.fixed.data_ptr() not in pointers
    assert net.frozen.weight.data_ptr() not in pointers
    assert net.last.weight.data_ptr() in pointers


def test_it_goes_on_after_a_resume():
    """The average of a weight that has stopped moving still comes closer to it."""
    torch.manual_seed(0)
    net = Net()
    ours = MovingAverage(net, 0.5)
    for _ in steps(net, 3):
        ours.update(net)
    again = MovingAverage(net, 0.5)
    again.module.load_state_dict(ours.module.state_dict())
    net.requires_grad_(False)
    again.module.requires_grad_(False)
    before = (again.module.last.weight - net.last.weight).abs().sum()
    again.update(net)
    after = (again.module.last.weight - net.last.weight).abs().sum()
    assert float(after) == pytest.approx(float(before) / 2, rel=1e-3)
