"""timm, imported when it is first used, and without torch's compiler, which takes longer to import than torch itself.

    from fewtags.models import quick_timm
    quick_timm.timm.create_model(...)

A review that is opened again needs no backbone, and few runs are compiled.
timm and torchvision ask for it at three places while they are imported: to mark functions that are not to be compiled,
and for one function of its utilities. What they get here loads the compiler when it is called.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    import timm
    from timm.data import ImageNetInfo, infer_imagenet_subset

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


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with compiler_later():
        import timm
        from timm.data import ImageNetInfo, infer_imagenet_subset
    globals().update(timm=timm, ImageNetInfo=ImageNetInfo, infer_imagenet_subset=infer_imagenet_subset)
    return globals()[name]
