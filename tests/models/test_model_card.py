"""README.md of a saved model."""

from __future__ import annotations

import json
from dataclasses import replace

from huggingface_hub import ModelCard

from fewtags.engine.card_facts import rests_on
from fewtags.models.model_card import model_card
from fewtags.models.saved import load_model
from fewtags.presence.summary import assumption


def section(card: str, name: str) -> str:
    return card.split(f"## {name}\n")[1].split("\n## ")[0]


def test_the_card_of_a_run_says_what_was_measured(trained, patches):
    card = (trained / "model" / "README.md").read_text(encoding="utf-8")
    labels = patches.split("train").labels
    present, absent = int((labels == 1).sum()), int((labels == -1).sum())
    assert f"| train | 36 | {present} | {absent} | 0.0% |" in section(card, "Data")
    scores = json.loads((trained / "result.json").read_text())["test"]
    row = " | ".join(f"{100 * scores[name]:.1f}" for name in ("map", "of1", "cf1"))
    assert f"| measured, test split (complete labels) | 12 | {row} |" in section(card, "Quality")
    assert "unknown, not absent" in section(card, "Quality")
    assert "method `an`" in section(card, "Method")
    assert f"| red | {load_model(trained).thresholds[0]:.3f} | {int((labels[:, 0] == 1).sum())} |" in section(
        card, "Tags"
    )
    assert "Tagger.load" in section(card, "Use")


def test_saving_again_keeps_the_record(trained, tmp_path):
    load_model(trained).save(tmp_path)
    assert (tmp_path / "README.md").read_text() == (trained / "model" / "README.md").read_text()


def made(names: list[str], **more) -> str:
    return model_card(
        names, [0.5] * len(names), {}, more.get("data", {}), more.get("quality", {}), backbone="b", size=8
    )


def test_names_are_text_and_not_markup():
    names = ["<img src=x>", "a|b", "[x](http://y)", "line\nbreak", "*b*"]
    rows = [line for line in made(names).splitlines() if line.endswith("| 0.500 | – |")]
    assert rows == [
        "| &lt;img src=x&gt; | 0.500 | – |", r"| a\|b | 0.500 | – |", r"| \[x\](http://y) | 0.500 | – |",
        r"| line\\nbreak | 0.500 | – |", r"| \*b\* | 0.500 | – |",
    ]  # fmt: skip


def test_what_is_not_known_is_said():
    card = made([f"tag {number}" for number in range(60)])
    assert "Not recorded." in section(card, "Data")
    assert "Not measured." in section(card, "Quality")
    assert "And 10 more, see `labels.json`." in section(card, "Tags")


def test_estimates_stand_with_their_intervals():
    estimated = {"judged_on": "validation images", "images": 9, "map": [0.5, 0.4, 0.6], "of1": None, "cf1": None}
    estimated["rests_on"] = rests_on({"known_proportion": [0.41, 0.34, 0.49], "assumption": assumption(50)})
    lines = section(made(["a"], quality={"estimated": estimated}), "Quality")
    assert (
        "Estimates rest on this: 41 % of the tags that apply are known (34 to 49 %). "
        "Checked by 50 answers about unknown labels."
    ) in lines
    assert "| estimated from known tags, validation images (95 % interval) | 9 | 50.0 (40.0–60.0) | – | – |" in lines


# --- what the hub reads, as huggingface_hub itself reads it ---


def test_the_front_matter_of_a_run(trained):
    data = ModelCard((trained / "model" / "README.md").read_text(encoding="utf-8")).data
    assert (data.license, data.library_name, data.pipeline_tag) == ("unknown", "fewtags", "image-classification")
    assert data.datasets == ["tags"]  # of tags.csv
    assert data.metrics == ["average_precision", "f1"]
    assert data.base_model is None  # it started from random weights
    scores = json.loads((trained / "result.json").read_text())["test"]
    measured = [(result.metric_type, result.metric_name, result.metric_value) for result in data.eval_results]
    assert measured == [
        ("average_precision", "mAP", round(scores["map"], 4)),
        ("f1", "OF1", round(scores["of1"], 4)),
        ("f1", "CF1", round(scores["cf1"], 4)),
    ]
    assert {(result.dataset_name, result.dataset_split) for result in data.eval_results} == {("tags", "test")}


def test_partial_labels_and_estimates_are_named_as_such():
    quality = {
        "measured": {"split": "val", "images": 9, "complete": False, "map": 0.5, "of1": None, "cf1": 0.25},
        "estimated": {"judged_on": "test images", "images": 9, "map": [0.75, 0.7, 0.8], "of1": None, "cf1": None},
    }
    data = ModelCard(made(["a"], data={"name": "My photos: 2024"}, quality=quality)).data
    assert data.datasets == ["My-photos-2024"]
    assert [(result.metric_name, result.metric_value) for result in data.eval_results] == [
        ("mAP, partial labels", 0.5), ("CF1, partial labels", 0.25), ("mAP, estimated from known tags", 0.75),
    ]  # fmt: skip


def test_the_base_model_is_the_repository_the_weights_came_from(trained, tmp_path):
    saved = replace(load_model(trained), training={"model": {"pretrained": True, "weights": None}})
    saved.save(tmp_path)
    assert ModelCard.load(tmp_path / "README.md").data.base_model == "timm/test_resnet.r160_in1k"
    replace(saved, training={"model": {"pretrained": True, "weights": "own.safetensors"}}).save(tmp_path)
    assert ModelCard.load(tmp_path / "README.md").data.base_model is None
