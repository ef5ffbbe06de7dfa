"""The data audit: every damage found and listed, leaks told, and a verdict whether training would fail."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fewtags.data.annotations import Annotations, Finding
from fewtags.data.audit import Audit, audit


def write_picture(file: Path, seed: int, size: tuple[int, int] = (48, 40), mode: str = "RGB") -> None:
    noise = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(noise).convert(mode).save(file)


def kinds(result: Audit) -> dict[str, list[str]]:
    """Kind of finding -> names of the files or categories it was found at."""
    found: dict[str, list[str]] = {}
    for finding in result.findings:
        found.setdefault(finding.kind, []).append(Path(finding.where).name)
    return found


@pytest.fixture
def clean(tmp_path) -> Annotations:
    for n in range(6):
        write_picture(tmp_path / f"{n}.png", seed=n)
    tags = [["cat", "dog"], ["cat"], ["dog"], ["cat", "dog"], ["cat"], ["dog"]]
    splits = ["train", "train", "train", "train", "val", "test"]
    images = [f"{n}.png" for n in range(6)]
    return Annotations.from_tags(images, tags, root=tmp_path, splits=splits, complete=True, name="photos")


def test_nothing_is_found_in_a_clean_set(clean):
    result = audit(clean)
    assert result.findings == []
    assert not result.fatal
    assert result.readable.all()
    assert result.splits == {"train": 4, "val": 1, "test": 1}
    assert result.positives["cat"] == {"train": 3, "val": 1, "test": 0}
    assert result.render().splitlines() == [
        "photos: 6 images, 6 readable; 2 categories.",
        "  train: 4 images, 0.0% of the labels unknown",
        "  val: 1 image, 0.0% of the labels unknown",
        "  test: 1 image, 0.0% of the labels unknown",
        "Known positives of each category (train / val / test):",
        "  cat  3 / 1 / 0",
        "  dog  3 / 0 / 1",
        "",
        "Training can start; no findings.",
    ]


def test_every_bad_image_is_listed_with_its_file(clean, tmp_path):
    (tmp_path / "0.png").unlink()
    (tmp_path / "1.png").write_bytes(b"")
    (tmp_path / "2.png").write_text("hello")
    data = (tmp_path / "4.png").read_bytes()
    (tmp_path / "4.png").write_bytes(data[: len(data) // 2])
    result = audit(clean)
    found = kinds(result)
    assert found["missing image"] == ["0.png"]
    assert found["empty file"] == ["1.png"]
    assert found["not an image"] == ["2.png"]
    assert found["truncated image"] == ["4.png"]
    assert result.readable.tolist() == [False, False, False, True, False, True]
    assert result.positives["cat"] == {"train": 1, "val": 0, "test": 0}  # of the images that can be read
    for number in (0, 1, 2, 4):
        assert str(tmp_path / f"{number}.png") in result.render()
    assert not result.fatal


def test_equal_pixels_are_duplicates_and_across_splits_a_leak(clean, tmp_path):
    write_picture(tmp_path / "1.png", seed=0)
    Image.open(tmp_path / "0.png").save(tmp_path / "5.png", compress_level=0)  # other bytes, the same pixels
    result = audit(clean)
    assert kinds(result) == {"duplicate image": ["1.png"], "duplicate across splits": ["5.png"]}
    assert "is 0.png in train, this one in test" in result.render()
    assert not result.fatal


def test_an_image_listed_twice_is_told(clean):
    doubled = clean.take(np.array([0, 1, 2, 3, 0]))
    assert [str(finding) for finding in audit(doubled).findings] == [
        f"{clean.path(0)}: the same picture is listed in train already."
    ]


def test_flat_pictures_of_other_colours_or_shapes_are_no_duplicates(clean, tmp_path):
    for n, (size, colour) in enumerate([((64, 48), 1), ((48, 64), 1), ((64, 48), 2)]):
        Image.new("RGB", size, (colour, colour, colour)).save(tmp_path / f"{n}.png")
    assert audit(clean).findings == []


def test_odd_pictures_are_noted_only(clean, tmp_path):
    write_picture(tmp_path / "0.png", seed=0, mode="P")
    write_picture(tmp_path / "1.png", seed=1, size=(8, 8))
    write_picture(tmp_path / "2.png", seed=2, size=(400, 40))
    Image.fromarray(np.arange(1600, dtype=np.uint16).reshape(40, 40)).save(tmp_path / "3.png")
    result = audit(clean)
    assert kinds(result) == {"unusual colours": ["0.png", "3.png"], "unusual size": ["1.png", "2.png"]}
    assert result.readable.all()
    assert not result.fatal


def test_rare_categories_and_untagged_images_are_told(clean):
    labels = np.zeros((6, 3), dtype=np.int8)
    labels[:, 0] = [1, 1, 0, 1, 1, 1]
    labels[0, 1] = 1
    labels[2, 1] = -1
    result = audit(replace(clean, labels=labels, categories=["cat", "dog", "eel"]))
    found = kinds(result)
    assert found["category without positives"] == ["eel"]
    assert found["category with one positive"] == ["dog"]
    assert found["image without known tags"] == ["2.png"]
    assert found["partial evaluation labels"] == ["photos", "photos"]
    assert result.unknown["val"] == pytest.approx(2 / 3)
    assert "67% of the validation labels are unknown" in result.render()


def test_an_image_known_to_have_none_of_the_tags_is_not_untagged(clean):
    labels = clean.labels.copy()
    labels[1] = -1
    assert "image without known tags" not in kinds(audit(replace(clean, labels=labels)))


def test_what_the_reader_stumbled_on_is_listed_too(clean):
    finding = Finding("unknown category", "tags.csv:7", "the tag 'kat' is not among the categories")
    assert "tags.csv:7: the tag 'kat'" in audit(replace(clean, findings=[finding])).render()


def test_training_fails_without_readable_images(clean, tmp_path):
    for n in range(4):
        (tmp_path / f"{n}.png").write_bytes(b"")
    result = audit(clean)
    assert result.fatal
    assert len(kinds(result)["empty file"]) == 4
    assert result.render().endswith("Training would fail: No image of the training split can be read.")


def test_training_fails_without_known_positives(clean):
    result = audit(replace(clean, labels=np.minimum(clean.labels, 0).astype(np.int8)))
    assert result.fatal
    assert result.render().endswith("Training would fail: No training image is known to have any of the tags.")


def test_training_fails_without_categories_or_images(clean):
    nothing = replace(clean, categories=[], labels=np.zeros((6, 0), dtype=np.int8))
    assert audit(nothing).fatal
    assert audit(clean.take(np.zeros(6, dtype=bool))).fatal


def test_json_holds_the_same(clean, tmp_path):
    (tmp_path / "2.png").unlink()
    content = json.loads(audit(clean).to_json())
    assert (content["num_images"], content["num_readable"], content["fatal"]) == (6, 5, False)
    assert content["known_positives"]["dog"] == {"train": 2, "val": 0, "test": 1}
    assert content["findings"][0]["kind"] == "missing image"
    assert content["findings"][0]["where"] == str(tmp_path / "2.png")


@pytest.mark.parametrize("workers", [1, 4])
def test_progress_is_told_after_every_image(clean, workers):
    calls = []
    audit(clean, workers=workers, progress=lambda: calls.append(1))
    assert len(calls) == 6


# --- what a reader of the terminal sees ---


@pytest.fixture
def many_tags(clean) -> Annotations:
    """60 categories: category number n is known n times at most, in six images."""
    names = [f"tag{n:02}" for n in range(60)]
    tags = [[name for n, name in enumerate(names) if n > 10 * image] for image in range(6)]
    images = clean.images
    return Annotations.from_tags(images, tags, root=clean.root, splits=["train"] * 6, name="photos", categories=names)


def test_findings_come_last_and_counts_are_short(many_tags):
    lines = audit(many_tags).render().splitlines()
    last_count = max(number for number, line in enumerate(lines) if line.startswith("  tag") and ":" not in line)
    first_finding = next(number for number, line in enumerate(lines) if line.startswith("category with one positive"))
    assert last_count < first_finding
    assert "  … 50 categories between these; --all counts them" in lines
    assert lines[lines.index("Known positives of each category (train):") + 1] == "  tag51  6"  # the most frequent
    assert len(lines) < 40


def test_everything_is_listed_on_request(many_tags):
    text = audit(many_tags).render(everything=True)
    assert "--all" not in text
    assert all(f"  {name}  " in text for name in many_tags.categories)
    assert text.count("only one training image") == 10


def test_proposals_count_the_images_that_check_counts(clean, tmp_path):
    """An image that cannot be read has no say, in the list and in the alias file alike."""
    (tmp_path / "0.png").write_bytes(b"")
    tags = [["dogs"], ["dog"], ["dog"], ["dogs"], ["dog"], ["dog"]]
    result = audit(Annotations.from_tags(clean.images, tags, root=tmp_path, name="photos"))
    assert [proposal.images for proposal in result.proposals] == [(4, 1)]
    assert sum(result.positives["dogs"].values()) == 1
