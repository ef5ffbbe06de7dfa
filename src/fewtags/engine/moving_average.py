"""The exponential moving average of a model in training, which is what is evaluated and exported."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from fewtags.models.classifier import Classifier


class MovingAverage:
    """Averages what training changes: frozen weights, and buffers that nobody writes to, equal their average."""

    def __init__(self, model: Classifier, decay: float):
        self.module = deepcopy(model).eval()
        self.decay = decay
        self.moving: list[tuple[Tensor, Tensor]] = []  # average, and what it follows
        self.still: list[tuple[Tensor, Tensor, int]] | None = None  # the others, with the version they had

    @torch.no_grad()
    def update(self, model: Classifier) -> None:
        if self.still is None:
            self._compare(model)
        self._wake()
        floats = [pair for pair in self.moving if pair[0].is_floating_point()]
        if floats:
            torch._foreach_lerp_([mine for mine, _ in floats], [theirs for _, theirs in floats], 1 - self.decay)
        for mine, theirs in self.moving:
            if not mine.is_floating_point():
                mine.copy_(theirs)

    def _compare(self, model: Classifier) -> None:
        """Once, after the first step or a resume. The version of a tensor tells who was written to, but not by fused
        optimisers and batch normalisation."""
        unversioned = {name for name, weight in model.named_parameters() if weight.requires_grad}
        for place, module in model.named_modules():
            if isinstance(module, _BatchNorm):
                unversioned |= {f"{place}.{name}" for name, _ in module.named_buffers()}
        self.still = []
        averages = self.module.state_dict()
        for name, theirs in model.state_dict().items():
            mine = averages[name]
            if name in unversioned or not torch.equal(mine, theirs):
                self.moving.append((mine, theirs))
            else:
                self.still.append((mine, theirs, theirs._version))

    def _wake(self) -> None:
        """What was written to since it was last looked at moves from now on."""
        assert self.still is not None
        woken = [(mine, theirs) for mine, theirs, version in self.still if theirs._version != version]
        if woken:
            self.moving += woken
            self.still = [each for each in self.still if each[1]._version == each[2]]
