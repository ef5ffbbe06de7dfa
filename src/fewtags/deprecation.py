"""How a public name goes: for some releases it works on and says until when, and what to use instead.

    @deprecated("Tagger.rank", removed_in="0.4", instead="Tagger.rerank")
    def rank(self): ...

A test finds the names whose time is over.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def warn_deprecated(what: str, *, removed_in: str, instead: str, stacklevel: int = 3) -> None:
    """A FutureWarning, which people see; Python hides a DeprecationWarning from all but the main script."""
    message = f"{what} will be removed in fewtags {removed_in}; use {instead} instead."
    warnings.warn(message, FutureWarning, stacklevel=stacklevel)


def deprecated(what: str, *, removed_in: str, instead: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Marks a function: each call warns, naming the line that calls it."""

    def mark(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def warned(*args: P.args, **kwargs: P.kwargs) -> R:
            warn_deprecated(what, removed_in=removed_in, instead=instead)
            return function(*args, **kwargs)

        return warned

    return mark
