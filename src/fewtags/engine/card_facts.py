"""What a run records for the model card: counts of its data, and its quality."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fewtags.data.annotations import Annotations
from fewtags.data.prepare import RunData
from fewtags.labels import ABSENT, PRESENT


def data_facts(data: RunData) -> dict[str, Any]:
    parts = {"train": data.train, "val": data.val, "test": data.test}
    return {
        "name": data.train.name,
        "splits": {name: split_facts(part) for name, part in parts.items() if part is not None},
        "known_positives": [int(count) for count in data.train.known_positives],  # of the training images, [C]
    }


def split_facts(part: Annotations) -> dict[str, Any]:
    present, absent = int((part.labels == PRESENT).sum()), int((part.labels == ABSENT).sum())
    return {"images": len(part), "present": present, "absent": absent, "unknown": round(part.unknown_share, 4)}


def quality_facts(result: Mapping[str, Any], data: RunData) -> dict[str, Any]:
    """From result.json: measured on the test images, else on the validation images; and estimated, if available."""
    facts: dict[str, Any] = {}
    split = next((name for name in ("test", "val") if name in result), None)
    part = {"test": data.test, "val": data.val}.get(split or "")
    if split is not None and part is not None:
        scores = result[split]
        numbers = {name: number(scores[name]) for name in ("map", "of1", "cf1")}
        facts["measured"] = {"split": split, "images": int(scores["num_images"]), "complete": part.complete, **numbers}
    estimates = result.get("estimates")
    if estimates and estimates.get("map"):
        intervals = {name: estimates[name] and [number(v) for v in estimates[name]] for name in ("map", "of1", "cf1")}
        where = {"images": int(estimates["num_images"]), "judged_on": str(estimates.get("judged_on"))}
        facts["estimated"] = {**where, **intervals, "rests_on": rests_on(estimates)}
    return facts


def rests_on(estimates: Mapping[str, Any]) -> str:
    """How complete the known tags are said to be, and how that was checked."""
    known, low, high = (round(100 * share) for share in estimates["known_proportion"])
    return f"{known} % of the tags that apply are known ({low} to {high} %). {estimates['assumption']}"


def number(value: float) -> float | None:
    """None if it is not a number, which JSON cannot express."""
    return round(float(value), 4) if math.isfinite(value) else None
