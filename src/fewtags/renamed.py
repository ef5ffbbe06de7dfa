"""Names of methods that meant something else in an earlier version: how their records are read today.

Until 0.1 `caldnr`, in its default profile, was a recipe of ours (the closed form, trained on probabilities), and the
paper's own mechanism was its profile `relative` or `paper`. That recipe is `refined` now, and `caldnr` is the paper's
method in every profile. A record of such a run or model is recognised by what it holds, never by its date.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

REFINED = {
    "caldnr": "refined",
    "cssl": "refined-an",
    "cald-no-catu": "refined-discover",  # with one curve for all categories, which is gone
    "cald": "refined-discover",
    "canr-no-catu": "refined-reject",
    "canr": "refined-reject",
}  # of a recipe of ours, the old name and the new one


class MethodRenamed(UserWarning):
    """A run or a model was recorded under a name that means another method today."""


def current_names(record: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run with its method by today's name; warns if that is another one."""
    method, head = record.get("method"), record.get("head")
    if not isinstance(method, Mapping):
        return dict(record)
    head_name = head.get("name") if isinstance(head, Mapping) else head
    now, sentence = current_method(method, head_name)
    if not sentence:
        return dict(record)
    warnings.warn(sentence, MethodRenamed, stacklevel=2)
    return {**record, "method": now}


def current_method(method: Mapping[str, Any], head_name: Any) -> tuple[dict[str, Any], str]:
    """The group `method` of a record as it is called today, and a sentence about it; empty if nothing changed."""
    name, profile = str(method.get("name")), str(method.get("profile", "default"))
    if name not in REFINED:
        return dict(method), ""
    if profile == "relative":
        return {**method, "profile": "default"}, f"The profile 'relative' of '{name}' is its default profile now."
    # What the recipe of ours recorded, and the paper's objective does not have:
    if profile == "default" and head_name == "closed_form" and "known_proportion" in method:
        now = REFINED[name]
        return {**method, "name": now}, f"What was recorded as '{name}' is '{now}' now; '{name}' is the paper's method."
    return dict(method), ""
