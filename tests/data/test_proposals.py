"""Tags that may be one are proposed as a file that `--aliases` reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from fewtags.data.aliases import read_aliases
from fewtags.data.formats.voc import VOC_CATEGORIES
from fewtags.data.proposals import propose_merges, write_proposals
from fewtags.errors import UserError

COUNTS = {
    "dog": 120, "dogs": 3, "long hair": 80, "long_hair": 5, "café": 9, "cafe": 2, "berries": 4, "berry": 40,
    "elephant": 200, "elefant": 2, "elephnat": 1, "horse": 300, "house": 280, "model 1": 50, "model 2": 1, "bus": 9,
    "bu": 1, "glass": 30, "yes": 2, "#1: best": 7, "1 best": 1,
}  # fmt: skip


def pairs() -> dict[str, tuple[str, str]]:
    return {proposal.drop: (proposal.keep, proposal.reason) for proposal in propose_merges(COUNTS)}


def test_what_is_proposed_and_what_is_not() -> None:
    assert pairs() == {
        "dogs": ("dog", "plural"),
        "berries": ("berry", "plural"),
        "long_hair": ("long hair", "spaces, punctuation or accents"),
        "cafe": ("café", "spaces, punctuation or accents"),
        "1 best": ("#1: best", "spaces, punctuation or accents"),
        "elephnat": ("elephant", "one letter"),
    }


def test_one_letter_more_less_other_or_swapped() -> None:
    counts = {"elephant": 100, "elephnt": 1, "elephannt": 1, "elephunt": 1, "leephant": 1, "elphnt": 1}
    assert {proposal.drop for proposal in propose_merges(counts)} == {"elephnt", "elephannt", "elephunt", "leephant"}


def test_nothing_is_proposed_for_a_clean_vocabulary() -> None:
    assert propose_merges(dict.fromkeys(VOC_CATEGORIES, 200)) == []
    assert propose_merges({name: 5 * number for number, name in enumerate(VOC_CATEGORIES)}) == []


def test_the_file_is_read_as_aliases_with_the_doubtful_ones_left_out(tmp_path: Path) -> None:
    file = tmp_path / "aliases.yaml"
    write_proposals(propose_merges(COUNTS), file)
    aliases = read_aliases(file)
    assert aliases.final("Dogs") == "dog"
    assert aliases.final("1 best") == "#1: best"
    assert aliases.final("elephnat") == "elephnat"
    text = file.read_text()
    assert "#     - elephnat  # 1 image; one letter" in text
    uncommented = text.replace("#   elephant:", "  elephant:").replace("#     - elephnat", "    - elephnat")
    file.write_text(uncommented)
    assert read_aliases(file).final("elephnat") == "elephant"


def test_no_proposal_is_a_usable_file_too(tmp_path: Path) -> None:
    file = tmp_path / "aliases.yaml"
    write_proposals([], file)
    assert read_aliases(file).final("dog") == "dog"


def test_an_edited_file_is_never_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "aliases.yaml"
    file.write_text("merge: {dog: [hund]}\n")
    with pytest.raises(UserError, match="already exists"):
        write_proposals([], file)
    assert "hund" in file.read_text()


def test_many_tags_are_compared_without_trying_all_pairs() -> None:
    """12 million pairs would take a minute; a typo among them is found all the same."""
    syllables = ["ba", "ke", "lo", "mi", "nu", "po", "ra", "si", "tu", "we"]
    words = ["".join(syllables[n // 10**place % 10] for place in range(5)) for n in range(0, 100_000, 20)]
    counts = dict.fromkeys(words, 50) | {words[7] + "x": 1}
    assert [(proposal.keep, proposal.drop) for proposal in propose_merges(counts)] == [(words[7], words[7] + "x")]


def test_a_plural_is_one_of_a_tag_that_is_there() -> None:
    counts = {"bus": 9, "buses": 3, "woman": 8, "women": 2, "wolf": 7, "wolves": 1, "house": 6, "houses": 2,
              "potatoes": 3, "potato": 9, "news": 4, "glasses": 5}  # fmt: skip
    plurals = {p.drop: p.keep for p in propose_merges(counts) if p.reason == "plural"}
    assert plurals == {"buses": "bus", "women": "woman", "wolves": "wolf", "houses": "house", "potatoes": "potato"}
