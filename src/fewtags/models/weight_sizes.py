"""Do the sizes in a model's settings agree with its weights? Asked before anything of these sizes is made: a folder
from elsewhere may ask for more memory than there is."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch.overrides import TorchFunctionMode

from fewtags.errors import UserError
from fewtags.models import quick_timm
from fewtags.models.tensor_files import first_line

Shapes = Mapping[str, tuple[int, ...]]
SMALL = 4096  # lengths up to this need no proof
BESIDE = 2**23  # parameters of a backbone that are not saved, such as its classifier


def weight_shapes(file: Path) -> Shapes:
    """By name, from the header alone: its lengths agree with that of the file."""
    try:
        with safe_open(file, "pt") as weights:
            return {name: tuple(weights.get_slice(name).get_shape()) for name in weights.keys()}  # noqa: SIM118
    except Exception as error:  # safetensors has its own exceptions
        raise UserError(f"{file} is damaged or no safetensors file ({first_line(error)}).") from error


def check_sizes(lengths: Mapping[str, object], backbone: str, shapes: Shapes, file: Path) -> None:
    """`lengths` are numbers in the settings that may be lengths of tensors, by name; others are skipped."""
    longest = max((length for shape in shapes.values() for length in shape), default=0)
    for name, length in lengths.items():
        if isinstance(length, int | float) and length > max(SMALL, longest):
            raise UserError(
                f"{file} does not match the model in its folder: it has nothing as long as {name}={length}."
            )
    saved, wanted = sum(map(prod, shapes.values())), num_parameters(backbone)
    if wanted > 2 * saved + BESIDE:
        raise UserError(
            f"{file} does not match the model in its folder: {backbone} has {wanted:,} parameters, it has {saved:,}."
        )


def num_parameters(backbone: str) -> int:
    """Of a timm model, without making it; 0 for others."""
    if not quick_timm.timm.is_model(backbone.split(".")[0]):
        return 0
    with torch.device("meta"), _NoRandomNumbers():
        return sum(
            tensor.numel()
            for tensor in quick_timm.timm.create_model(backbone, pretrained=False, num_classes=0).parameters()
        )


class _NoRandomNumbers(TorchFunctionMode):
    """Tensors without values need none, and torch would import its compiler for them, which takes seconds."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in ("normal_", "uniform_", "kaiming_uniform_"):  # of tensors, or of nn.init
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))
