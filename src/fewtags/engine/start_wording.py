"""What the log says about a head's start: sentences made from its facts."""

from __future__ import annotations

from collections.abc import Sequence

from fewtags.contract import FitFacts, Start

FEW_IMAGES = 200  # below this, the rankings of VOC's tags were rough
MOST_NAMES = 3  # lines about single names
FEWEST_SHOWN = 3  # categories that more known tags would help most


def describe_start(start: Start, categories: Sequence[str]) -> str:
    """One or more lines."""
    if start.facts is None:
        return start.sentence
    return "\n".join([about_labels(start.facts), *about_names(start.facts), *about_few_images(start.facts, categories)])


def about_labels(facts: FitFacts) -> str:
    if facts.known_share is None:
        about = (
            "no label is known, so tags come from their names alone, with the probabilities of the backbone's "
            "classifier. These could not be checked: review some."
        )
    else:
        how = "given" if facts.share_is_given else "estimated"
        about = f"about {facts.known_share:.0%} of the tags that apply are known ({how})."
    return f"Closed form from {facts.num_images:,} images: {about}"


def about_names(facts: FitFacts) -> list[str]:
    """How many names are known, and how the doubtful ones were matched: those that fit their images least."""
    if facts.num_named is None:
        return []
    number = len(facts.known_positives)
    sentence = f"Names: {facts.num_named} of {number} are known to the backbone's classifier."
    if 2 * facts.num_named < number:
        sentence += " If they are not English, an alias file can say what they are (names: {Hund: dog})."
    if len(facts.name_matches) <= MOST_NAMES:
        return [sentence, *(f"  {match}" for match in facts.name_matches)]
    about = "names.txt in the run's folder says what each was taken for."
    doubtful = [f"  {facts.name_matches[category]}" for category in facts.doubtful_names[:MOST_NAMES]]
    return [f"{sentence} {about}" + (" Those that fit their images least:" if doubtful else ""), *doubtful]


def about_few_images(facts: FitFacts, categories: Sequence[str]) -> list[str]:
    """What would help most if there are few labels."""
    if facts.num_images >= FEW_IMAGES:
        return []
    fewest = sorted(zip(facts.known_positives, categories, strict=True), key=lambda pair: pair[0])[:FEWEST_SHOWN]
    which = ", ".join(f"'{name}' ({known} known)" for known, name in fewest)
    return [
        f"{facts.num_images} images are few: rankings will be rough, and of tags predicted with 70 % on average, "
        f"60 or 80 % may be right. More known tags help most, above all of {which}."
    ]
