"""Category names -> classes of an ImageNet classifier, by WordNet: which of the classes are dogs.

A name means the first of its noun senses that has classes at or below it. Names are as users write them ("hot_dog",
"TrafficLights", "stop sign", "jewellery"), and a user's file may say what individual ones mean.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fewtags.errors import UserError, did_you_mean
from fewtags.models.nouns import Nouns, nouns, squash
from fewtags.models.words import split_words
from fewtags.settings import load_yaml

# tag -> {"synset": ...}, {"classes": [...]}, {"synonym": ...} or None; see docs/explanation/names.md
Overrides = Mapping[str, Any]

# WordNet orders senses by frequency in text. As image tags these words have another sense.
READINGS = {
    "bank": "bank.n.01", "bike": "bicycle.n.01", "cake": "cake.n.03", "castle": "castle.n.02", "eye": "eye.n.01",
    "hand": "hand.n.01", "iron": "iron.n.04", "monitor": "monitor.n.05", "plant": "plant.n.02", "plate": "plate.n.04",
    "playground": "playground.n.02", "pool": "swimming_pool.n.01", "race": "race.n.02", "screen": "screen.n.03",
    "seal": "seal.n.09", "shoes": "shoe.n.01", "turtle": "turtle.n.02", "wood": "forest.n.01",
}  # fmt: skip

# Words that ImageNet has under another name. Tried if a name has no classes itself.
SYNONYMS = {
    "tv": "television", "potted plant": "flowerpot", "houseplant": "flowerpot", "sink": "washbasin",
    "toilet": "toilet seat", "handbag": "purse", "lorry": "truck", "puppy": "dog", "kitten": "domestic cat",
    "beach": "seashore", "sea": "seashore", "ocean": "seashore", "lake": "lakeside", "harbor": "dock",
}  # fmt: skip
_READINGS, _SYNONYMS = ({squash(word): key for word, key in words.items()} for words in (READINGS, SYNONYMS))


@dataclass(frozen=True)
class Match:
    """The classes of one category, and how they were found."""

    classes: tuple[int, ...]
    sentence: str


def match_names(categories: Sequence[str], index: ClassIndex, overrides: Overrides | None = None) -> list[Match]:
    """One match per category."""
    meanings = [(name, _override(name, overrides or {})) for name in categories]
    return [
        _match(name, index) if meaning is ... else _match_override(name, meaning, index) for name, meaning in meanings
    ]


class ClassIndex:
    """The classes with these WordNet ids ("n02084071"), and which of them lie at or below each synset."""

    def __init__(self, synsets: Sequence[str]):
        self.nouns = nouns()
        self.num_classes = len(synsets)
        self.class_synsets = [self.nouns.synset_of(key) for key in synsets]
        self.ids = {key: number for number, key in enumerate(synsets)}
        self._below: dict[int, list[int]] = {}
        for number, synset in enumerate(self.class_synsets):
            for above in self.nouns.at_and_above(synset) if synset is not None else ():
                self._below.setdefault(above, []).append(number)

    def below(self, synset: int) -> list[int]:
        return self._below.get(synset, [])

    def with_members(self, synset: int) -> list[int]:
        """Classes at or below a synset and at or below its members: a locomotive implies a train."""
        return sorted({number for kind in (synset, *self.nouns.members(synset)) for number in self.below(kind)})

    def first_sense(self, name: str) -> int | None:
        """The most frequent sense with classes at or below it; else the first sense, if its members have any."""
        reading = _READINGS.get(squash(name))
        known = self.nouns.synset_of(reading) if reading is not None else None
        senses = [known] if known is not None else self.nouns.senses(name)
        found = next((sense for sense in senses if self.below(sense)), None)
        # Rarer senses have all kinds of members: a school is also of fish, a cloud of insects.
        return senses[0] if found is None and senses and self.with_members(senses[0]) else found

    def by_name(self, name: str) -> list[int]:
        """The classes with exactly this name."""
        senses = set(self.nouns.senses(name))
        return [number for number, synset in enumerate(self.class_synsets) if synset in senses]

    def name(self, number: int) -> str:
        synset = self.class_synsets[number]
        return self.nouns.words(synset)[0] if synset is not None else str(number)


def _match(name: str, index: ClassIndex) -> Match:
    for form in forms(name, index.nouns):
        if (sense := index.first_sense(form)) is not None:
            return _matched(name, sense, index)
    synonym = _SYNONYMS.get(squash(name))
    if synonym is not None and (sense := index.first_sense(synonym)) is not None:
        return _matched(name, sense, index, f", by the synonym '{synonym}'")
    if (sense := _sense_above(name, index)) is not None:
        return _matched(name, sense, index, ", which it is a kind of")
    return Match((), f"{name}: nothing known, uses labels only")


def _sense_above(name: str, index: ClassIndex) -> int | None:
    """What a name without classes is a kind of, judging by its words: a stop sign is a sign, a cow is one of the cows.

    If WordNet knows the name, it has to agree (a sea horse is not a horse); of the head noun's senses those above the
    name are preferred.
    """
    spelled = index.nouns.spelled(name)
    whole = list(forms(name, index.nouns))
    above = {up for form in whole for sense in index.nouns.senses(form) for up in index.nouns.at_and_above(sense)}
    for head in _heads(spelled, index.nouns, cut=not whole):
        for form in forms(head, index.nouns):
            senses = index.nouns.senses(form)
            agreed = [sense for sense in senses if sense in above]
            if not whole or agreed:
                sense = next((sense for sense in agreed if index.below(sense)), index.first_sense(form))
                if sense is not None:
                    return sense
    return None


def _matched(name: str, sense: int, index: ClassIndex, how: str = "") -> Match:
    classes = index.with_members(sense)
    members = "" if len(classes) == len(index.below(sense)) else " and its members"
    where = f"at or below '{_meaning(name, index.nouns.words(sense))}'{members}{how}"
    return Match(tuple(classes), _sentence(name, classes, where, index))


def _meaning(name: str, words: Sequence[str]) -> str:
    """The word of a synset that best identifies the sense of `name`: another one, unless the name has two words."""
    same = next((word for word in words if squash(word) == squash(name)), "")
    return same if " " in same else next((word for word in words if word != same), same)


def _sentence(name: str, classes: Sequence[int], where: str, index: ClassIndex) -> str:
    examples = ", ".join(index.name(number) for number in classes[:3]) + (", ..." if len(classes) > 3 else "")
    return f"{name}: {len(classes)} class{'' if len(classes) == 1 else 'es'} {where} ({examples})"


# --- names as users write them ---

_SPELLINGS = (  # British and American, if WordNet has only one of them
    ("our", "or"), (r"re\b", "er"), ("ise", "ize"), ("yse", "yze"), ("ae", "e"), ("oe", "e"), ("ogue", "og"),
    ("ll", "l"), ("grey", "gray"), ("tyre", "tire"), ("mould", "mold"), ("plough", "plow"), ("cheque", "check"),
)  # fmt: skip
_PREPOSITIONS = {"of", "with", "in", "on", "at", "for", "from", "by", "without"}
_MIN_PIECE = 4  # letters of each half of a split name; WordNet knows nearly every shorter string as an acronym


def forms(name: str, known: Nouns) -> Iterator[str]:
    """The name itself, its singular, and both in the other spelling, if they are nouns."""
    words = " ".join(split_words(name))
    singulars = [words, *known.singulars(words)]
    candidates = [name, *singulars, *(other for form in singulars for other in _respelled(form))]
    return (form for form in dict.fromkeys(candidates) if form in known)


def _respelled(name: str) -> list[str]:
    there = [re.sub(british, american, name) for british, american in _SPELLINGS]
    back = [re.sub(american, british, name) for british, american in (("our", r"or\b"), ("re", r"er\b"))]
    return [other for other in there + back if other != name]


def _heads(name: str, known: Nouns, cut: bool) -> Iterator[str]:
    """Longest first: 'red fire engine' -> 'fire engine', 'engine'; 'cup of tea' -> 'cup'; 'cow' -> 'cows'.

    With `cut` a name written as one word is split: 'trafficsign' -> 'sign'.
    """
    words = split_words(name)
    end = next((place for place, word in enumerate(words) if place and word in _PREPOSITIONS), len(words))
    yield from (" ".join(words[start:end]) for start in range(0 if end < len(words) else 1, end))
    if len(words) == 1:
        yield from (words[0] + ending for ending in ("s", "es"))
        places = range(_MIN_PIECE, len(words[0]) - _MIN_PIECE + 1) if cut else ()
        yield from (words[0][place:] for place in places if words[0][:place] in known)


# --- a user's file ---


def read_overrides(file: str | Path) -> dict[str, Any]:
    """YAML: `tag: {synset: dog.n.01}`, `{classes: [...]}`, `{synonym: ox}`, or `none` for labels only."""
    try:
        content = load_yaml(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"The names file {file} cannot be read ({error.strerror}).") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{file} is not readable YAML ({str(error).splitlines()[0]}).") from error
    if not isinstance(content, dict):
        raise UserError(f"{file} should say what tags mean, one per line, such as `cow: {{synonym: ox}}`.")
    return {str(tag): meaning for tag, meaning in content.items()}


def check_tags(overrides: Overrides, categories: Iterable[str]) -> None:
    known = {squash(name): name for name in categories}
    for tag in overrides:
        if squash(tag) not in known:
            raise UserError(
                f"The names file has '{tag}', which is not one of the tags; {did_you_mean(tag, known.values())}"
            )


def synonym_override(name: str, overrides: Overrides) -> str | None:
    meaning = _override(name, overrides)
    return str(meaning["synonym"]) if isinstance(meaning, Mapping) and "synonym" in meaning else None


def uses_labels_only(name: str, overrides: Overrides) -> bool:
    return _override(name, overrides) in (None, "none")


def _override(name: str, overrides: Overrides) -> Any:
    """The file's entry for a name, `...` if there is none."""
    return {squash(tag): meaning for tag, meaning in overrides.items()}.get(squash(name), ...)


def _match_override(name: str, meaning: Any, index: ClassIndex) -> Match:
    if meaning is None or meaning == "none":
        return Match((), f"{name}: uses labels only, as set in the names file")
    if not (isinstance(meaning, Mapping) and len(meaning) == 1 and set(meaning) <= {"synset", "classes", "synonym"}):
        raise UserError(
            f"The names file should give '{name}' one of {{synset: ...}}, {{classes: [...]}}, {{synonym: ...}} "
            f"or none; it has {meaning!r}."
        )
    ((kind, value),) = meaning.items()
    if kind == "classes":
        numbers = _override_classes(name, value if isinstance(value, list) else [value], index)
        return Match(tuple(numbers), _sentence(name, numbers, "listed in the names file", index))
    if kind == "synonym":
        match = _match(str(value), index)
        return Match(match.classes, f"{name}: as {match.sentence}")
    synset = index.nouns.synset_of(str(value))
    if synset is None:
        senses = [index.nouns.words(sense)[0] for sense in index.nouns.senses(str(value).split(".")[0])]
        hint = f"that word has {len(senses)} senses" if senses else "write it as 'dog.n.01' or 'n02084071'"
        raise UserError(f"The names file gives '{name}' the synset '{value}', which is not in WordNet 3.0; {hint}.")
    if not index.with_members(synset):
        return Match((), f"{name}: nothing known at or below {value}, uses labels only")
    return _matched(name, synset, index)


def _override_classes(name: str, values: Sequence[Any], index: ClassIndex) -> list[int]:
    """Each is given as its number, its WordNet id, or its name."""
    numbers: set[int] = set()
    for value in values:
        if isinstance(value, int) and 0 <= value < len(index.class_synsets):
            found = [value]
        else:
            found = [index.ids[value]] if value in index.ids else index.by_name(str(value))
        if not found:
            raise UserError(f"The names file gives '{name}' the class {value!r}, which the backbone does not have.")
        numbers.update(found)
    return sorted(numbers)
