"""The base of every group of settings: typed, frozen, no unknown names, and the docstring below a field is its help.
Also reads their files."""

from __future__ import annotations

from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict

MOST_VALUES = 100_000  # in a YAML file with all aliases expanded
LONGEST = 120  # characters of a wrong value shown in a message


class Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, protected_namespaces=())


def load_yaml(text: str) -> Any:
    """Plain values. Raises YAMLError, also for nested aliases that expand to too many values."""
    try:
        values = yaml.safe_load(text)
        size = _size(values, {})
    except (RecursionError, OverflowError, ValueError) as error:  # nested too deep; a date of the year 0
        raise yaml.YAMLError(f"it cannot be read ({type(error).__name__})") from error
    if size > MOST_VALUES:
        raise yaml.YAMLError(f"its aliases expand to more than {MOST_VALUES:,} values")
    return values


def _size(value: Any, known: dict[int, float]) -> float:
    """Number of values with aliases expanded; infinite if it contains itself."""
    if not isinstance(value, dict | list):
        return 1
    if id(value) not in known:
        known[id(value)] = float("inf")
        inside = [*value, *value.values()] if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_size(one, known) for one in inside)
    return known[id(value)]


def shown(value: Any) -> str:
    """A wrong value, as shown in a message."""
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
