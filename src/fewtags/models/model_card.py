"""README.md of a saved model: what it was trained on, how, how good it is and how to use it.

Its first lines are YAML for the Hugging Face Hub, which filters and lists models by them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

import fewtags
from fewtags.wording import markdown, plural, printable

TAGS_SHOWN = 50
CAVEAT = (
    "If tags are only partly known, an unlisted tag is unknown, not absent. A correct prediction of "
    "such a tag counts as a mistake in measured numbers, so these are too low. Estimated numbers assume that the "
    "known tags are a random sample within each category."
)
TASK = "image-classification"  # the hub has no name for the multi-label kind
METRICS = {"map": ("average_precision", "mAP"), "of1": ("f1", "OF1"), "cf1": ("f1", "CF1")}  # its name there and here
UNKNOWN_LICENSE = "unknown"  # one of the hub's words


def model_card(
    categories: Sequence[str],
    thresholds: Sequence[float],
    training: Mapping[str, Any],
    data: Mapping[str, Any],
    quality: Mapping[str, Any],
    *,
    backbone: str,
    size: int,
    base_model: str | None = None,
    license: str = UNKNOWN_LICENSE,
) -> str:
    """`training` is the record of settings, `data` and `quality` are what engine/card_facts.py records."""
    method = dict(training.get("method") or {})
    parts = [
        *front_matter(data, quality, base_model, license),
        f"# Multi-label image tagger with {plural(len(categories), 'tag')}",
        "",
        "Given a photo, it returns a probability for each tag, and the tags that reach their thresholds. Trained with "
        f"fewtags {fewtags.__version__}.",
        "",
        "## Data",
        "",
        *data_lines(data),
        "",
        "## Method",
        "",
        f"- method {code(method.get('name', 'unknown'))}"
        + (f", profile {code(method['profile'])}" if method.get("profile", "default") != "default" else ""),
        f"- backbone {code(backbone)}, images resized to {size} x {size} px",
        *([f"- seed {training['seed']}"] if "seed" in training else []),
        "",
        "Every setting is in `config.json` under `training`.",
        "",
        "## Quality",
        "",
        *quality_lines(quality),
        "",
        CAVEAT,
        "",
        "## Use",
        "",
        "```python",
        "from fewtags import Tagger",
        "",
        'tagger = Tagger.load("path/to/this/folder")  # or Tagger.from_hub("owner/name")',
        'tagger.predict(["photo.jpg"])',
        "```",
        "",
        "```",
        "fewtags predict path/to/this/folder photos/ --out tags.csv",
        "fewtags export path/to/this/folder --out model.onnx",
        "```",
        "",
        "## Tags",
        "",
        *tag_lines(categories, thresholds, data.get("known_positives")),
        "",
    ]
    return "\n".join(parts)


# --- for the hub ---


def front_matter(
    data: Mapping[str, Any], quality: Mapping[str, Any], base_model: str | None, license: str
) -> Iterator[str]:
    dataset = str(data.get("name") or "unnamed")
    identifier = re.sub(r"[^\w./-]+", "-", dataset).strip("-") or "unnamed"
    about: dict[str, Any] = {"license": license, "library_name": "fewtags", "pipeline_tag": TASK}
    about["tags"] = [TASK, "multi-label", "partial-labels"]
    about |= {"base_model": base_model} if base_model else {}
    about |= {"datasets": [identifier]} if data.get("name") else {}
    results: list[dict[str, Any]] = [
        {
            "task": {"type": TASK, "name": "Multi-label image classification"},
            "dataset": {"type": identifier, "name": dataset, "split": split},
            "metrics": metrics,
        }
        for split, metrics in measured_and_estimated(quality)
        if metrics
    ]
    if results:
        about["metrics"] = sorted({metric["type"] for result in results for metric in result["metrics"]})
        about["model-index"] = [{"name": f"fewtags-{identifier}", "results": results}]
    yield "---"
    yield yaml.safe_dump(about, sort_keys=False, allow_unicode=True).rstrip()
    yield "---"
    yield ""


def measured_and_estimated(quality: Mapping[str, Any]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The split and its numbers; their names say if labels were partial, or if they are estimates."""
    measured, estimated = quality.get("measured"), quality.get("estimated")
    if measured:
        labels = "" if measured["complete"] else ", partial labels"
        yield str(measured["split"]), metrics_of({name: measured[name] for name in METRICS}, labels)
    if estimated:
        middle = {name: (estimated.get(name) or [None])[0] for name in METRICS}
        yield str(estimated["judged_on"]), metrics_of(middle, ", estimated from known tags")


def metrics_of(values: Mapping[str, float | None], remark: str) -> list[dict[str, Any]]:
    return [
        {"type": METRICS[name][0], "name": METRICS[name][1] + remark, "value": round(float(value), 4)}
        for name, value in values.items()
        if value is not None
    ]


# --- for people ---


def data_lines(data: Mapping[str, Any]) -> Iterator[str]:
    splits = data.get("splits")
    if not isinstance(splits, Mapping) or not splits:
        yield "Not recorded."
        return
    if data.get("name"):
        yield f"Dataset: {markdown(str(data['name']))}."
        yield ""
    yield "| split | images | tags known present | tags known absent | labels unknown |"
    yield "|---|---:|---:|---:|---:|"
    for name, part in splits.items():
        yield f"| {name} | {part['images']:,} | {part['present']:,} | {part['absent']:,} | {part['unknown']:.1%} |"


def quality_lines(quality: Mapping[str, Any]) -> Iterator[str]:
    measured, estimated = quality.get("measured"), quality.get("estimated")
    if not measured and not estimated:
        yield "Not measured."
        return
    yield "| | images | mAP | OF1 | CF1 |"
    yield "|---|---:|---:|---:|---:|"
    if measured:
        labels = "complete labels" if measured["complete"] else "partial labels, see below"
        values = " | ".join(percent(measured[name]) for name in ("map", "of1", "cf1"))
        yield f"| measured, {measured['split']} split ({labels}) | {measured['images']:,} | {values} |"
    if estimated:
        values = " | ".join(interval(estimated.get(name)) for name in ("map", "of1", "cf1"))
        where = f"estimated from known tags, {estimated['judged_on']} (95 % interval)"
        yield f"| {where} | {estimated['images']:,} | {values} |"
    yield ""
    yield "In percent; OF1 and CF1 at a threshold of 0.5 where measured, at the model's thresholds where estimated."
    if estimated and estimated.get("rests_on"):
        yield f"Estimates rest on this: {estimated['rests_on']}"


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"


def interval(values: Sequence[float | None] | None) -> str:
    return f"{percent(values[0])} ({percent(values[1])}–{percent(values[2])})" if values else "–"


def tag_lines(categories: Sequence[str], thresholds: Sequence[float], known: Sequence[int] | None) -> Iterator[str]:
    yield "| tag | threshold | known images in training |"
    yield "|---|---:|---:|"
    for number, (name, threshold) in enumerate(zip(categories[:TAGS_SHOWN], thresholds, strict=False)):
        count = f"{known[number]:,}" if known is not None and number < len(known) else "–"
        yield f"| {markdown(name)} | {float(threshold):.3f} | {count} |"
    if len(categories) > TAGS_SHOWN:
        yield ""
        yield f"And {len(categories) - TAGS_SHOWN:,} more, see `labels.json`."


def code(name: Any) -> str:
    """A name of any origin in the font of code."""
    return f"`{printable(str(name)).replace('`', '')}`"
