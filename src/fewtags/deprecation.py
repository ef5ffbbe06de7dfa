"""Deprecation of public names: for some releases they keep working, with a warning about the removal and the
replacement.

    @deprecated("Tagger.rank", removed_in="0.4", instead="Tagger.rerank")
    def rank(self): ...

A test finds the names that are due for removal.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def warn_deprecated(what: str, *, removed_in: str, instead: str, stacklevel: int = 3) -> None:
    """A FutureWarning, which users see; Python hides DeprecationWarnings outside the main script."""
    message = f"{what} will be removed in fewtags {removed_in}; use {instead} instead."
    warnings.warn(message, FutureWarning, stacklevel=stacklevel)


def deprecated(what: str, *, removed_in: str, instead: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Marks a function: each call warns, pointing at the caller's line."""

    def mark(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def warned(*args: P.args, **kwargs: P.kwargs) -> R:
            warn_deprecated(what, removed_in=removed_in, instead=instead)
            return function(*args, **kwargs)

        return warned

    return mark
