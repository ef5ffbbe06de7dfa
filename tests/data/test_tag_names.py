"""Tag hygiene: spellings, aliases, implications, rare tags; in sets and in matrices alike."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fewtags.data.aliases import clean, read_aliases
from fewtags.data.annotations import Annotations
from fewtags.data.formats import read_annotations
from fewtags.errors import UserError


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for name in "abcd":
        (folder / f"{name}.jpg").touch()
    return folder


def aliases(photos: Path, text: str) -> Path:
    file = photos.parent / "aliases.yaml"
    file.write_text(text)
    return file


LINES = "image,tags\na.jpg,Dog;puppy\nb.jpg,dog ;DOG\nc.jpg,  dogs;-animal\nd.jpg,cat;untagged\n"
ONEHOT = (
    "image,Dog,puppy,dog ,DOG,dogs,animal,cat,untagged\n"
    "a.jpg,1,1,,,,,,\nb.jpg,,,1,1,,,,\nc.jpg,,,,,1,-1,,\nd.jpg,,,,,,,1,1\n"
)


@pytest.fixture(params=["csv", "onehot"])
def source(request: pytest.FixtureRequest, photos: Path) -> Path:
    """The same labels as a column of tags and as one column per tag."""
    file = photos / "tags.csv"
    file.write_text(LINES if request.param == "csv" else ONEHOT)
    return photos


def tags_of(annotations: Annotations, state: int = 1) -> list[set[str]]:
    return [{annotations.categories[c] for c in np.flatnonzero(row == state)} for row in annotations.labels]


def test_spellings_of_one_tag_are_joined_and_it_is_said(source: Path) -> None:
    annotations = read_annotations(source)
    assert tags_of(annotations) == [{"dog", "puppy"}, {"dog"}, {"dogs"}, {"cat", "untagged"}]
    (note,) = [note for note in annotations.notes if "merged" in note]
    assert "'Dog'" in note
    assert "as 'dog'" in note
    assert "merge_case=false" in note
    assert annotations.renamed_tags["DOG"] == "dog"


def test_twenty_tags_in_many_spellings_stay_twenty(photos: Path) -> None:
    names = [f"animal{n}" for n in range(20)]
    rows = [
        f"{image}.jpg,{form(name)}"
        for image, form in zip("abc", (str.upper, str.title, str), strict=True)
        for name in names
    ]
    (photos / "tags.csv").write_text("\n".join(["image,tag", *rows]))
    assert read_annotations(photos).categories == sorted(names)


def test_aliases_merge_rename_imply_and_exclude(source: Path) -> None:
    file = aliases(
        source, "merge:\n  dog: [dogs]\nrename:\n  cat: kitty\nimplies:\n  puppy: [dog, animal]\nexclude: [Untagged]\n"
    )
    annotations = read_annotations(source, aliases=file)
    assert tags_of(annotations) == [{"dog", "puppy", "animal"}, {"dog"}, {"dog"}, {"kitty"}]
    assert tags_of(annotations, -1) == [set(), set(), {"animal", "puppy"}, set()]  # no animal, so no puppy
    (note,) = [note for note in annotations.notes if note.startswith(f"Aliases in {file}")]
    assert all(words in note for words in ("'dogs' as 'dog'", "'cat' as 'kitty'", "excluded 'untagged'", "'puppy'"))
    assert annotations.renamed_tags["untagged"] is None


def test_implied_tags_may_be_new_and_imply_more(source: Path) -> None:
    file = aliases(source, 'implies:\n  - "dogs => pet"\n  - "pet => friend, animal"\n')
    annotations = read_annotations(source, aliases=file)
    assert tags_of(annotations)[2] == {"dogs", "pet", "friend", "animal"}  # present wins over the known absence


def test_rare_tags_are_left_out_and_listed(source: Path) -> None:
    annotations = read_annotations(source, min_images=2)
    assert annotations.categories == ["dog"]
    assert any(
        "5 tags with fewer than 2 images: animal, cat, dogs, puppy, untagged" in note for note in annotations.notes
    )
    assert read_annotations(source, min_images=2, categories=["cat", "dog"]).categories == ["cat", "dog"]


def test_given_categories_are_found_in_any_spelling(source: Path) -> None:
    annotations = read_annotations(source, categories=["DOG", "Cat"])
    assert annotations.categories == ["DOG", "Cat"]
    assert tags_of(annotations) == [{"DOG"}, {"DOG"}, set(), {"Cat"}]


def test_fixed_vocabularies_follow_the_aliases(tmp_path: Path) -> None:
    """The header of a saved file lists categories; their order stays, and their names are the new ones."""
    (tmp_path / "a.jpg").touch()
    saved = Annotations.from_tags(["a.jpg"], [["tvmonitor"]], root=tmp_path, categories=["sofa", "tvmonitor", "cat"])
    saved.save(tmp_path / "labels.jsonl")
    file = aliases(tmp_path / "photos", "rename: {tvmonitor: television}\nexclude: [cat]\n")
    annotations = read_annotations(tmp_path / "labels.jsonl", aliases=file)
    assert annotations.categories == ["sofa", "television"]
    assert annotations.labels.tolist() == [[0, 1]]


def test_numbers_dates_and_yes_are_tags_in_a_file_of_aliases(photos: Path) -> None:
    read = read_aliases(aliases(photos, "merge:\n  yes: [no, 2019, 2019-05-01]\nexclude: [null, 1.0]\n"))
    assert read.final("2019") == read.final("NO") == read.final("2019-05-01") == "yes"
    assert read.final("null") is None
    assert read.final("1.0") is None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("merg: {a: b}", "did you mean 'merge'"),
        ("- a\n- b", "should hold the sections"),
        ("merge: [a, b]", "merge should be lines of"),
        ("merge: {dog: [[a]]}", "where a tag is expected"),
        ("merge: {dog: ['  ']}", "where a tag is expected"),
        ("merge: {dog: [x], cat: [X]}", "gives 'X' two names"),
        ("rename: {a: [b, c]}", "only one is allowed"),
        ("rename: {a: b, b: c, c: a}", "in a circle"),
        ("implies: [puppy]", "write it as: puppy => dog, animal"),
        ("merge: {a: [b}", "is not valid YAML"),
        ("a: &a [x]\nmerge: {b: *a}", r"\*a in line 2 is not supported"),
        ("\x00", "is not valid YAML"),
    ],
)
def test_an_unusable_file_of_aliases_is_one_sentence(photos: Path, text: str, sentence: str) -> None:
    file = aliases(photos, text)
    with pytest.raises(UserError, match=sentence) as caught:
        read_aliases(file)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_alias_bomb_is_refused_at_once(photos: Path) -> None:
    text = "a: &a [x, x, x, x, x, x, x, x]\n" + "".join(
        f"{b}: &{b} [{', '.join(['*' + a] * 8)}]\n" for a, b in zip("abcdefg", "bcdefgh", strict=True)
    )
    with pytest.raises(UserError, match="not supported here") as caught:
        read_aliases(aliases(photos, text))
    assert len(str(caught.value)) < 300


def test_names_that_cannot_be_shown_are_cleaned() -> None:
    assert clean("  polar\t bear\0 ") == "polar bear"
    assert clean("Cafe\u0301") == "Caf\u00e9"
    assert clean("a\ud800b") == "a b"


def test_english_names_go_with_the_categories_they_are_of(source: Path) -> None:
    """By their final spelling; of tags that do not occur, nothing."""
    file = aliases(source, "rename:\n  puppy: Welpe\nnames:\n  Puppy: {name: young dog}\n  CAT: cat\n  Meer: sea\n")
    annotations = read_annotations(source, aliases=file)
    assert annotations.english == {"Welpe": "young dog", "cat": "cat"}
    assert annotations.take(np.array([0])).english == annotations.english
    for wrong in ("names:\n  Hund: {word: dog}\n", "names:\n  Hund: [dog]\n", "names:\n  Hund:\n"):
        with pytest.raises(UserError, match="names gives 'Hund'"):
            read_annotations(source, aliases=aliases(source, wrong))


def test_merged_spellings_and_their_tags_are_two_counts(photos: Path) -> None:
    """20 names, written in three ways: 40 spellings merged, of 20 tags; eight are shown."""
    names = [f"animal{n}" for n in range(20)]
    rows = [
        f"{image}.jpg,{form(name)}"
        for image, form in zip("abc", (str.upper, str.title, str), strict=True)
        for name in names
    ]
    (photos / "tags.csv").write_text("\n".join(["image,tag", *rows]))
    (note,) = [
        note for note in read_annotations(photos).notes if note.startswith("40 spellings of 20 tags were merged: ")
    ]
    assert " and 12 more tags (" in note
