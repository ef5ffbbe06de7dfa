"""METHODS: every method by name, described without importing torch; `objective_class` loads one."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from fewtags.errors import UserError, did_you_mean
from fewtags.methods.method import Method
from fewtags.methods.rows import assumed_negatives, estimating, graphs, ours, paper, rejecting
from fewtags.plugins import loaded

if TYPE_CHECKING:
    from fewtags.methods.base import Objective

METHODS: dict[str, Method] = {
    method.name: method
    for group in (ours, assumed_negatives, rejecting, estimating, graphs, paper)
    for method in group.ROWS
}


def register(method: Method) -> Method:
    """Register your own method by name, so that it can be selected, listed and resumed like the others."""
    if method.name in METHODS:
        raise UserError(f"There is already a method '{method.name}'; choose another name.")
    METHODS[method.name] = method
    return method


def all_methods() -> dict[str, Method]:
    """METHODS, including those of other installed packages."""
    for method in loaded("fewtags.methods", Method):
        METHODS.setdefault(method.name, method)
    return METHODS


def list_methods() -> list[str]:
    """The names `method=` accepts."""
    return list(all_methods())


def find_method(name: str) -> Method:
    if name not in METHODS and name not in all_methods():  # other packages are imported only if needed
        raise UserError(f"There is no method '{name}'; {did_you_mean(name, METHODS)}")
    return METHODS[name]


def grouped() -> dict[str, list[Method]]:
    """All methods by their group, in the order of the table; those of other packages last."""
    groups: dict[str, list[Method]] = {}
    for method in all_methods().values():
        groups.setdefault(method.group, []).append(method)
    return groups


def objective_class(name: str, _profile: str = "default") -> type[Objective]:
    """A method has one objective in all its profiles. (The second argument is of no use; engine/purpose.py has it.)"""
    objective = find_method(name).objective
    if not isinstance(objective, str):
        return objective
    module, _, attribute = objective.partition(":")
    return getattr(importlib.import_module(module), attribute)
