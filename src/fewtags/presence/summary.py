"""Estimates in words, with what they rest on. Without torch."""

from __future__ import annotations

from typing import Any

NOT_AUDITED = (
    "Not audited: who left tags out, and why, is a guess from the labels, so the intervals are wide. "
    "`fewtags audit RUN` checks it in minutes."
)


def assumption(answers: int) -> str:
    """What estimates rest on."""
    return NOT_AUDITED if not answers else f"Checked by {answers:,} answers about unknown labels."


def estimate_lines(record: dict[str, Any]) -> list[str]:
    """The result of `Estimates.as_json` as a few lines of text."""

    def share(key: str, name: str) -> str:
        value, low, high = (100 * number for number in record[key])
        return f"{name} {value:.0f} ({low:.0f} to {high:.0f})"

    lines = []
    if record.get("map"):
        quality = ", ".join(share(key, name) for key, name in (("map", "mAP"), ("of1", "OF1"), ("cf1", "CF1")))
        lines.append(f"estimated: {quality}")
    if record.get("missing"):
        value, low, high = record["missing"]
        known, least, most = (100 * number for number in record["known_proportion"])
        missing = (
            f"about {value:,.0f} {'tag is' if round(value) == 1 else 'tags are'} missing ({low:,.0f} to {high:,.0f})"
        )
        lines.append(f"{missing}; {known:.0f} % of those that apply are known ({least:.0f} to {most:.0f} %)")
    return [*lines, record["assumption"]]
