"""torch's optimisers without its compiler, which takes longer to import than torch itself.

torch keeps its compiler away from some of their methods by a wrapper each, which imports it. Here they are as they were
written.
"""

from __future__ import annotations

import inspect
from typing import TypeVar

import torch

WRAPPED = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")


Kind = TypeVar("Kind", bound=torch.optim.Optimizer)


def without_compiler(kind: type[Kind]) -> type[Kind]:
    """The same optimiser, for weights that are not themselves a function of what is differentiated."""
    methods = {name: inspect.unwrap(getattr(kind, name)) for name in WRAPPED}
    return type(kind.__name__, (kind,), {**methods, "step": torch.no_grad()(inspect.unwrap(kind.step))})
