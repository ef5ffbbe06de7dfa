"""timm, imported without torch's compiler: that takes longer to import than torch itself, and few runs use it.

timm and torchvision ask for it at three places while they are imported: to mark functions that are not to be compiled,
and for one function of its utilities. What they get here loads the compiler when it is called.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

__all__ = ["ImageNetInfo", "infer_imagenet_subset", "timm"]

UTILITIES = "torch._dynamo.utils"


class _Utilities(ModuleType):
    """Stands in for the compiler's utilities; any attribute but the one loads the real ones."""

    @staticmethod
    def is_compile_supported(device_type: Any) -> Any:
        return importlib.import_module(UTILITIES).is_compile_supported(device_type)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(UTILITIES) is self:
            del sys.modules[UTILITIES]
        return getattr(importlib.import_module(UTILITIES), name)


@contextmanager
def compiler_later() -> Iterator[None]:
    later = getattr(torch, "_disable_dynamo", None)  # torch's own way to mark functions without loading the compiler
    if UTILITIES in sys.modules or later is None:
        yield
        return
    disable, utilities = torch.compiler.disable, _Utilities(UTILITIES)
    sys.modules[UTILITIES] = utilities
    torch.compiler.disable = later
    try:
        yield
    finally:
        torch.compiler.disable = disable
        if sys.modules.get(UTILITIES) is utilities:
            del sys.modules[UTILITIES]


with compiler_later():
    import timm
    from timm.data import ImageNetInfo, infer_imagenet_subset
