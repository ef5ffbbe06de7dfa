"""What the log says about a start."""

from dataclasses import replace

from fewtags.contract import FitFacts, Start
from fewtags.engine.start_wording import describe_start

NAMES = ["sun", "sea", "dog", "cat"]
FACTS = FitFacts(num_images=5000, known_positives=(9, 2, 0, 7), known_share=0.314)


def lines(**changed) -> list[str]:
    return describe_start(Start(facts=replace(FACTS, **changed)), NAMES).splitlines()


def test_how_many_tags_are_known_and_who_says_so():
    assert lines() == ["Closed form from 5,000 images: about 31% of the tags that apply are known (estimated)."]
    assert lines(share_is_given=True)[0].endswith("(given).")


def test_without_known_tags_the_names_are_all_there_is():
    assert "no label is known, so tags come from their names alone" in lines(known_share=None)[0]


def test_few_images_are_said_to_be_few_with_the_tags_of_which_least_are_known():
    assert len(lines(num_images=200)) == 1
    said = lines(num_images=199)[1]
    assert said.startswith("199 images are few")
    assert said.endswith("above all of 'dog' (0 known), 'sea' (2 known), 'cat' (7 known).")


def test_how_names_were_matched_all_if_few_else_the_three_that_fit_least():
    said = lines(num_named=3, name_matches=("sun: 1 class", "sea: 2 classes"))
    assert said[1:] == [
        "Names: 3 of 4 are known to the backbone's classifier.",
        "  sun: 1 class",
        "  sea: 2 classes",
    ]
    matches = tuple(f"{number}: 1 class" for number in range(30))
    said = lines(num_named=3, name_matches=matches, doubtful_names=(9, 4, 27, 1))
    assert "names.txt" in said[1]
    assert said[2:] == ["  9: 1 class", "  4: 1 class", "  27: 1 class"]
    assert "Those that fit" not in lines(num_named=3, name_matches=matches)[1]  # nothing is known to compare with


def test_unknown_names_may_be_of_another_language():
    assert "names: {Hund: dog}" in lines(num_named=1)[1]
    assert "Hund" not in lines(num_named=2)[1]


def test_a_head_of_your_own_says_its_sentence():
    assert describe_start(Start("Two passes."), NAMES) == "Two passes."
