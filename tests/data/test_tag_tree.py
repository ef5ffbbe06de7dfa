"""Trees of tags: read from levels and aliases, followed by labels and probabilities."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fewtags.data.annotations import Annotations
from fewtags.data.decisions import decided
from fewtags.data.formats import read_annotations
from fewtags.data.tag_tree import TagTree, levels_of
from fewtags.errors import DataError

BIRDS = TagTree({"owl": ("animal", "bird"), "gull": ("animal", "bird"), "bird": ("animal",)})
NAMES = ["animal", "bird", "gull", "owl", "sea"]


def written(folder: Path, lines: list[str]) -> Path:
    for line in lines:
        (folder / line.split(",")[0]).touch()
    (folder / "tags.csv").write_text("\n".join(["image,tags", *lines]) + "\n")
    return folder


def tags_of(annotations: Annotations, state: int = 1) -> dict[str, set[str]]:
    names = np.array(annotations.categories)
    return {image: set(names[row == state]) for image, row in zip(annotations.images, annotations.labels, strict=True)}


def test_labels_follow_the_tree() -> None:
    labels = np.array([[0, 0, 0, 1, 0], [-1, 0, 0, 0, 0], [0, -1, 0, 1, 0]], dtype=np.int8)
    assert BIRDS.closed(labels, NAMES).tolist() == [[1, 1, 0, 1, 0], [-1, -1, -1, -1, 0], [1, 1, -1, 1, 0]]
    assert TagTree().closed(labels, NAMES) is labels


def test_no_tag_is_more_probable_than_one_that_it_implies() -> None:
    random = np.random.default_rng(0).random((200, 5))
    raised = BIRDS.raised(random, NAMES)
    assert (raised[:, 0] >= raised[:, 1]).all()
    assert (raised[:, 1] >= raised[:, 2:4].max(1)).all()
    assert (raised[:, 2:] == random[:, 2:]).all()  # nothing below is lowered
    assert (raised >= random).all()


def test_beside_known_labels_a_tag_that_is_absent_implies_nothing():
    """Nor does one that implies an absent tag."""
    chances = np.tile(np.float32([0.1, 0.2, 0.9, 0.3, 0.5]), (4, 1))
    said = [{}, {("a", "gull"): -1}, {("a", "bird"): -1}, {("a", "gull"): 1}]
    unknown = Annotations(Path(), ["a"], NAMES, np.zeros((1, 5), np.int8), np.array(["train"]), tree=BIRDS)
    labels = np.concatenate([decided(unknown, each).labels for each in said])
    raised = BIRDS.raised_beside(chances, labels, NAMES)
    assert raised[:, 0].tolist() == pytest.approx([0.9, 0.3, 0.1, 1.0])
    assert raised[:, 1].tolist() == pytest.approx([0.9, 0.3, 0.2, 1.0])
    assert (raised[:, 2:] == chances[:, 2:]).all()


def test_at_least_a_bird_if_no_species_is_sure() -> None:
    thresholds = np.array([0.5, 0.5, 0.5, 0.5, 0.5])
    unsure = np.array([0.8, 0.7, 0.4, 0.4, 0.1])
    assert [NAMES[c] for c in np.flatnonzero(BIRDS.given(unsure, thresholds, NAMES))] == ["animal", "bird"]
    owl = np.array([0.6, 0.6, 0.1, 0.6, 0.1])
    strict = np.array([0.9, 0.9, 0.5, 0.5, 0.5])  # an owl without being an animal is never given
    assert [NAMES[c] for c in np.flatnonzero(BIRDS.given(owl, strict, NAMES))] == ["animal", "bird", "owl"]


def test_levels_in_a_csv_are_a_tree(tmp_path: Path) -> None:
    lines = ["a.jpg,animal|bird|owl;sea", "b.jpg,owl;animal|dog", "c.jpg,-animal", "d.jpg,Animal|Bird;-animal|dog"]
    annotations = read_annotations(written(tmp_path, lines))
    assert tags_of(annotations) == {
        "a.jpg": {"animal", "bird", "owl", "sea"},
        "b.jpg": {"animal", "bird", "owl", "dog"},  # an owl is a bird here, although this row does not say so
        "c.jpg": set(),
        "d.jpg": {"animal", "bird"},
    }
    assert tags_of(annotations, -1) == {
        "a.jpg": set(), "b.jpg": set(), "c.jpg": {"animal", "bird", "owl", "dog"}, "d.jpg": {"dog"},
    }  # fmt: skip
    assert annotations.tree.implied == {"bird": ("animal",), "dog": ("animal",), "owl": ("animal", "bird")}
    assert annotations.tree.paths["owl"] == ("animal", "bird", "owl")
    assert any("3 tags have a place in a tree, below 'animal'" in note for note in annotations.notes)
    leaves = read_annotations(tmp_path, hierarchy="leaf")
    assert tags_of(leaves)["a.jpg"] == {"owl", "sea"}
    assert (leaves.tree.implied, leaves.tree.paths["owl"]) == ({}, ("animal", "bird", "owl"))
    assert "animal|dog" in read_annotations(tmp_path, hierarchy="none").categories


def test_the_same_levels_as_columns_and_in_json_lines(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.jpg").touch()
    (tmp_path / "columns.csv").write_text("image,animal|owl,sea,animal\na.jpg,1,,\nb.jpg,,1,-1\n")
    (tmp_path / "lines.jsonl").write_text(
        '{"image": "a.jpg", "tags": ["animal|owl"]}\n{"image": "b.jpg", "tags": ["sea"], "absent": ["animal"]}\n'
    )
    for file in ("columns.csv", "lines.jsonl"):
        annotations = read_annotations(tmp_path, tags=tmp_path / file)
        assert tags_of(annotations) == {"a.jpg": {"animal", "owl"}, "b.jpg": {"sea"}}
        assert tags_of(annotations, -1) == {"a.jpg": set(), "b.jpg": {"animal", "owl"}}
        assert annotations.tree.implied == {"owl": ("animal",)}


def test_one_keyword_in_unrelated_places_is_several_tags(tmp_path: Path) -> None:
    lines = ["a.jpg,fruit|orange;orange", "b.jpg,colour|orange;sea", "c.jpg,orange;sea", "d.jpg,-orange;sea"]
    annotations = read_annotations(written(tmp_path, lines))
    assert tags_of(annotations) == {
        "a.jpg": {"fruit", "fruit|orange"},
        "b.jpg": {"colour", "colour|orange", "sea"},
        "c.jpg": {"sea"},  # which orange is not known
        "d.jpg": {"sea"},
    }
    assert tags_of(annotations, -1)["d.jpg"] == {"colour|orange", "fruit|orange"}
    assert annotations.tree.path("fruit|orange") == ("fruit", "orange")
    annotations.save(tmp_path / "saved.jsonl")
    again = read_annotations(tmp_path / "saved.jsonl")
    assert (again.categories, again.tree) == (annotations.categories, annotations.tree)
    assert again.labels.tolist() == annotations.labels.tolist()
    assert Annotations.load(tmp_path / "saved.jsonl").content_hash() == annotations.content_hash()


def test_shorter_paths_to_the_same_place_are_one_tag(tmp_path: Path) -> None:
    lines = ["a.jpg,animal|bird|owl;sea", "b.jpg,bird|owl;sea", "c.jpg,animal|owl;sea", "d.jpg,animal|pet|dog;sea",
             "e.jpg,animal|mammal|dog;sea"]  # fmt: skip
    tree = read_annotations(written(tmp_path, lines)).tree
    assert tree.implied["owl"] == ("animal", "bird")
    assert tree.implied["dog"] == ("animal",)  # not every dog is a pet
    assert set(tree.paths) == {"bird", "owl", "pet", "mammal", "dog"}


def test_aliases_and_levels_are_one_tree(tmp_path: Path) -> None:
    written(tmp_path, ["a.jpg,Tier|Hund;sea", "b.jpg,puppy;sea"])
    aliases = tmp_path / "aliases.yaml"
    aliases.write_text("merge: {dog: [Hund], animal: [Tier]}\nimplies: {puppy: dog, animal: being}\n")
    annotations = read_annotations(tmp_path, aliases=aliases)
    assert tags_of(annotations)["b.jpg"] == {"puppy", "dog", "animal", "being", "sea"}
    assert annotations.tree.implied["puppy"] == ("animal", "being", "dog")
    assert annotations.tree.paths == {"dog": ("animal", "dog")}


def test_drawn_faces_have_no_levels() -> None:
    assert [levels_of(tag) for tag in ("|_|", ":|", "\\||/", "a|b", "a | b ", "a/b")] == [
        (), (), (), ("a", "b"), ("a", "b"), (),
    ]  # fmt: skip


def test_what_follows_from_a_decision_is_decided_with_it(tmp_path: Path) -> None:
    labels = np.array([[1, 1, 1, 0, 0], [0, 0, 0, 0, 0]], dtype=np.int8)
    annotations = Annotations(tmp_path, ["a", "b"], NAMES, labels, np.array(["train"] * 2), tree=BIRDS)
    after = decided(annotations, {("a", "bird"): -1, ("b", "owl"): 1, ("b", "animal"): 0})
    assert after.labels.tolist() == [[1, -1, -1, -1, 0], [0, 1, 0, 1, 0]]


@pytest.mark.parametrize(
    "content", ['"x"', '{"implied": {"a": 3}, "paths": {}}', '{"implied": {}, "paths": {"a": []}}']
)
def test_a_damaged_tree_is_one_sentence(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.jpg").touch()
    header = '{"fewtags": 1, "root": ".", "categories": ["a"], "tree": %s}\n{"image": "a.jpg", "present": ["a"]}\n'
    (tmp_path / "x.jsonl").write_text(header % content)
    with pytest.raises(DataError, match="its tree is"):
        read_annotations(tmp_path / "x.jsonl")
