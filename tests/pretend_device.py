"""A device that is none: data on the CPU that says it is elsewhere, and refuses to be mixed with what is not.

It has CUDA's rules: operands are all on one device, but for copies, CPU scalars (tensors without a dimension) and
CPU indices into what is on the device; and NumPy sees nothing of it. So what fails on a GPU fails here, without one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing

ELSEWHERE = torch.device("meta")  # the one device that torch knows everywhere and has no kernels of its own to run
CPU = torch.device("cpu")
aten = torch.ops.aten
MAY_MIX = {aten.copy_.default, aten._copy_from.default}
MAY_INDEX = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default, aten._index_put_impl_.default}


class Away(torch.Tensor):
    """Holds its numbers in a CPU tensor that only `compute` looks at."""

    numbers: Tensor

    @staticmethod
    def __new__(cls, numbers: Tensor) -> Away:
        return Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, numbers.shape, strides=numbers.stride(), storage_offset=numbers.storage_offset(),
            dtype=numbers.dtype, layout=numbers.layout, device=ELSEWHERE,
        )  # fmt: skip

    def __init__(self, numbers: Tensor):
        self.numbers = numbers

    def tolist(self) -> list[Any]:
        return self.cpu().tolist()

    def __repr__(self, **_: Any) -> str:
        return f"Away({self.numbers})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


@contextmanager
def pretend_device() -> Iterator[torch.device]:
    """Within, `.to(ELSEWHERE)` and `torch.zeros(..., device=ELSEWHERE)` work."""
    autocast = torch.autocast
    with pytest.MonkeyPatch.context() as patch, Making(), Computing():
        patch.setattr(torch, "autocast", lambda kind, **options: autocast("cpu" if kind == "meta" else kind, **options))
        yield ELSEWHERE


class Making(TorchFunctionMode):
    """Tensors from Python's numbers, which torch makes before anybody is asked."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.tensor and kwargs.get("device") is not None:
            wanted = kwargs.pop("device")
            return torch.tensor(*args, **kwargs).to(wanted)
        if func is Tensor.new_tensor:
            return torch.tensor(*args[1:], **{"dtype": args[0].dtype, **kwargs}).to(args[0].device)
        return func(*args, **kwargs)


class Computing(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


def compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    if torch.is_inference_mode_enabled():  # then operations that consist of others come whole
        with Computing():
            found = func.decompose(*args, **kwargs)
        if found is not NotImplemented:
            return found
    wanted = kwargs.get("device")
    wanted_away = wanted is not None and torch.device(wanted).type == ELSEWHERE.type
    tensors = tensors_in((args, *kwargs.values()))
    any_away = any(isinstance(tensor, Away) for tensor in tensors)
    if not any_away and not wanted_away:
        return func(*args, **kwargs)
    if func is aten._has_compatible_shallow_copy_type.default:
        return False
    refuse_to_mix(func, args, tensors)
    away = any_away if wanted is None else wanted_away
    if func in MAY_MIX:
        away = isinstance(args[0], Away)
    plain_args, plain_kwargs = numbers_of(args), {name: numbers_of(value) for name, value in kwargs.items()}
    if wanted is not None:
        plain_kwargs["device"] = CPU
    found = func(*plain_args, **plain_kwargs)
    if func is aten._to_copy.default and any_away != away:
        found = found.clone() if found is plain_args[0] else found
    # As torch does it: what is new is an inference tensor in inference mode, and a view is what it is a view of.
    view = func.is_view and isinstance(args[0], Tensor)
    with torch.inference_mode(args[0].is_inference() if view else torch.is_inference_mode_enabled()):
        found = sent_away(found) if away else found
    return return_and_correct_aliasing(func, args, kwargs, found) if any_away and away else found


# torch's own functions for trees take a third of the time of the tests on this device.
def tensors_in(values: Any) -> list[Tensor]:
    found = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += tensors_in(value)
    return found


def numbers_of(value: Any) -> Any:
    if isinstance(value, Away):
        return value.numbers
    return type(value)(map(numbers_of, value)) if isinstance(value, list | tuple) else value


def sent_away(value: Any) -> Any:
    if isinstance(value, Tensor):
        return Away(value)
    return type(value)(map(sent_away, value)) if isinstance(value, list | tuple) else value


def refuse_to_mix(func: Any, args: Any, tensors: list[Tensor]) -> None:
    if func in MAY_MIX:
        return
    if func in MAY_INDEX:  # an index may be on the CPU, if what it looks into is away
        refuse_to_mix_these(func, tensors_in([args[0], *args[2:]]))
        if not isinstance(args[0], Away):
            refuse_to_mix_these(func, tensors)
        return
    refuse_to_mix_these(func, tensors)


def refuse_to_mix_these(func: Any, tensors: list[Tensor]) -> None:
    here = [value for value in tensors if not isinstance(value, Away) and value.ndim]
    if here and any(isinstance(value, Away) for value in tensors):
        raise RuntimeError(
            f"{func} mixes a tensor that is elsewhere with one of shape {list(here[0].shape)} that is not"
        )
