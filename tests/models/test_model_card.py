"""README.md of a saved model."""

from __future__ import annotations

import json

from fewtags.models.model_card import model_card
from fewtags.models.saved import load_model


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
    lines = section(made(["a"], quality={"estimated": estimated}), "Quality")
    assert "| estimated from known tags, validation images (95 % interval) | 9 | 50.0 (40.0–60.0) | – | – |" in lines
