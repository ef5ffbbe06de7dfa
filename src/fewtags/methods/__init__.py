"""METHODS: every method by name, described without importing torch; `objective_class` loads one."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fewtags.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from fewtags.methods.base import Objective


@dataclass(frozen=True)
class Method:
    """A head, an objective, and what people should know before choosing it."""

    name: str
    title: str
    sentence: str  # what it does, in one sentence
    head: str  # a row of HEADS
    objective: str  # "module:Class"
    venue: str
    bibtex: str
    # Settings that differ from the general defaults, as dotted names: {"head.hidden": 1024, "train.lr": 1e-5}. The user's
    # file and overrides win over them. `profiles` come on top of `settings`; the profile "default" may be absent.
    settings: Mapping[str, Any] = field(default_factory=dict)
    profiles: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    profile_notes: Mapping[str, str] = field(default_factory=dict)  # what each profile is, in words


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method(
            name="an",
            title="Assume negative",
            sentence="Trains every unknown label as absent: the usual thing to do, and what the others are measured against.",
            head="linear",
            objective="fewtags.methods.elementwise:AssumeNegative",
            venue="the common baseline; the row 'ResNet-101' of the paper",
            bibtex="",
        ),
    )
}


def list_methods() -> list[str]:
    """Names that `method=` takes."""
    return list(METHODS)


def find_method(name: str) -> Method:
    if name not in METHODS:
        raise UserError(f"There is no method '{name}'; {did_you_mean(name, METHODS)}")
    return METHODS[name]


def objective_class(name: str) -> type[Objective]:
    module, _, attribute = find_method(name).objective.partition(":")
    return getattr(importlib.import_module(module), attribute)
