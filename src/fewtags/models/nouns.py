"""The nouns of WordNet 3.0: what a word may mean, and which things are kinds of which. Made by a script in tools/.

Read on first use, as arrays; a noun and a synset are numbers, their places in the file.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from functools import cache, cached_property
from pathlib import Path

import numpy as np

FILE = Path(__file__).with_name("nouns.npz")
_NOT_LETTERS = str.maketrans("", "", " _-'.,/")

_ENDINGS = (  # of plurals, and what they are in the singular
    ("ies", "y"), ("men", "man"), ("ves", "f"), ("ches", "ch"), ("shes", "sh"), ("ses", "s"), ("xes", "x"),
    ("zes", "z"), ("s", ""),
)  # fmt: skip


def squash(name: str) -> str:
    """'Hot dog', 'hot_dog', 'hot-dog' and 'hotdog' are one name."""
    return name.lower().translate(_NOT_LETTERS)


class Nouns:
    def __init__(self, file: Path = FILE):
        with np.load(file, allow_pickle=False) as arrays:
            self.offsets: np.ndarray = arrays["offsets"]
            text = arrays["lemmas"].tobytes().decode()
            self._plurals_text = arrays["plurals"].tobytes().decode()
            self._senses = _Ragged(arrays["senses"], arrays["num_senses"])
            self._words = _Ragged(arrays["words"], arrays["num_words"])
            self._hypernyms = _Ragged(arrays["hypernyms"], arrays["num_hypernyms"])
            self._members = _Ragged(arrays["members"], arrays["num_members"])
        self.lemmas = text.split("\n")  # in the order of their squashed forms, which are searched
        self._squashed = squash(text).split("\n")
        self._above: dict[int, frozenset[int]] = {}

    def __contains__(self, name: str) -> bool:
        return bool(self._lemmas_of(name))

    def senses(self, name: str) -> list[int]:
        """Synsets that `name` may mean, the most frequent sense first; none where the word is unknown."""
        return list(dict.fromkeys(synset for lemma in self._lemmas_of(name) for synset in self._senses[lemma]))

    def spelled(self, name: str) -> str:
        """'tvmonitor' -> 'tv monitor', where that is a noun; else the name."""
        return next((lemma.replace("_", " ") for n in self._lemmas_of(name) if "_" in (lemma := self.lemmas[n])), name)

    def words(self, synset: int) -> list[str]:
        """['dog', 'domestic dog', 'canis familiaris']"""
        return [self.lemmas[lemma].replace("_", " ") for lemma in self._words[synset]]

    def hypernyms(self, synset: int) -> list[int]:
        return self._hypernyms[synset]

    def members(self, synset: int) -> list[int]:
        """A train's members are its cars and locomotives, people's are persons."""
        return self._members[synset]

    def at_and_above(self, synset: int) -> frozenset[int]:
        """The synset and all that it is a kind of. At most 20 levels, so it may recurse."""
        if synset not in self._above:
            above = (self.at_and_above(other) for other in self.hypernyms(synset))
            self._above[synset] = frozenset((synset,)).union(*above)
        return self._above[synset]

    def synset_of(self, key: str) -> int | None:
        """By its place in WordNet ('n02084071') or by lemma, part of speech and sense ('dog.n.01')."""
        if re.fullmatch(r"n[0-9]{8}", key):
            place = int(np.searchsorted(self.offsets, int(key[1:])))
            return place if place < len(self.offsets) and self.offsets[place] == int(key[1:]) else None
        parts = re.fullmatch(r"(.+)\.n\.([0-9]{1,3})", key)
        if parts is None:
            return None
        senses = self._senses_of_lemma(parts[1].lower().replace(" ", "_"))
        return senses[int(parts[2]) - 1] if 0 < int(parts[2]) <= len(senses) else None

    def singulars(self, name: str) -> list[str]:
        """What may be the singular of a name: irregular forms that WordNet lists, then endings cut off."""
        irregular = self._irregular.get(squash(name))
        regular = [name.removesuffix(plural) + one for plural, one in _ENDINGS if name.endswith(plural)]
        return [form for form in ([irregular] if irregular else []) + regular if len(form) > 1]

    def _lemmas_of(self, name: str) -> list[int]:
        key = squash(name)
        if not key:
            return []
        places = range(bisect_left(self._squashed, key), bisect_right(self._squashed, key))
        written = name.lower().replace(" ", "_")
        return sorted(places, key=lambda place: self.lemmas[place] != written)  # the one spelled alike first

    def _senses_of_lemma(self, lemma: str) -> list[int]:
        return next((self._senses[n] for n in self._lemmas_of(lemma) if self.lemmas[n] == lemma), [])

    @cached_property
    def _irregular(self) -> dict[str, str]:
        pairs: Iterable[list[str]] = (line.split(" ") for line in self._plurals_text.split("\n"))
        return {squash(plural): singular for plural, singular in pairs}


class _Ragged:
    """Rows of different lengths, one behind the other."""

    def __init__(self, values: np.ndarray, lengths: np.ndarray):
        self.values = values
        self.ends = np.cumsum(lengths, dtype=np.int64)
        self.lengths = lengths

    def __getitem__(self, row: int) -> list[int]:
        end = int(self.ends[row])
        return self.values[end - int(self.lengths[row]) : end].tolist()


@cache
def nouns() -> Nouns:
    return Nouns()
