"""Tags in a tree: which imply which, and where the tree of a person's keywords has them.

    animal|dog     dog implies animal: an image with a dog has an animal, and one without animals has no dog

The tree comes from keywords with levels (lr:hierarchicalSubject, digiKam:TagsList, `animal|dog` in a label file) and
from `implies` in an alias file. Labels follow it when they are read; probabilities and given tags when they are
predicted; and keywords are written to the place where the tree has them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fewtags.data.aliases import clean, fold
from fewtags.labels import ABSENT, PRESENT, UNKNOWN

SEPARATOR = "|"
Path = tuple[str, ...]  # keywords from the top level down


@dataclass(frozen=True)
class TagTree:
    implied: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # tag -> all it implies, however indirectly
    paths: Mapping[str, Path] = field(default_factory=dict)  # tag -> where it is; the last level is its keyword
    lists_parents: bool = False  # people list `animal` too where they list `animal|dog`
    flat_parents: bool = True  # and the keyword animal where there is dog

    def __bool__(self) -> bool:
        return bool(self.implied or self.paths)

    # --- labels and probabilities ---

    def closed(self, labels: np.ndarray, categories: Sequence[str]) -> np.ndarray:
        """Labels [N, C] with what follows from them: what a present tag implies is present, and what implies an absent
        tag is absent. Where these contradict each other, presence wins."""
        pairs = self._pairs(categories)
        if not pairs:
            return labels
        closed = labels.copy()
        for tag, others in pairs:
            denied = (labels[:, others] == ABSENT).any(1) & (labels[:, tag] != PRESENT)
            closed[denied, tag] = ABSENT
        for tag, others in pairs:
            closed[np.ix_(labels[:, tag] == PRESENT, others)] = PRESENT
        return closed

    def raised(self, probabilities: np.ndarray, categories: Sequence[str]) -> np.ndarray:
        """Probabilities [..., C] in which no tag is more probable than one that it implies."""
        pairs = self._pairs(categories)
        raised = probabilities.copy() if pairs else probabilities
        for tag, others in pairs:
            raised[..., others] = np.maximum(raised[..., others], probabilities[..., [tag]])
        return raised

    def raised_beside(self, chances: np.ndarray, labels: np.ndarray, categories: Sequence[str]) -> np.ndarray:
        """[N, C] likewise, of images of which some `labels` are known: by these, not by their chances."""
        pairs = self._pairs(categories)
        if not pairs:
            return chances
        raised, implying = chances.copy(), np.where(labels == UNKNOWN, chances, labels == PRESENT).astype(chances.dtype)
        for tag, others in pairs:
            raised[:, others] = np.maximum(raised[:, others], implying[:, [tag]])
        return raised

    def above(self, categories: Sequence[str]) -> dict[int, list[int]]:
        """Of every column that implies others, which."""
        return dict(self._pairs(categories))

    def given(self, probabilities: np.ndarray, thresholds: np.ndarray, categories: Sequence[str]) -> np.ndarray:
        """[..., C] which tags are given: those that reach their threshold, and what they imply.

        Where no species reaches its threshold, the bird that they all imply may: it has more positives and the higher
        probability.
        """
        reached = probabilities >= thresholds
        given = reached.copy()
        for tag, others in self._pairs(categories):
            given[..., others] |= reached[..., [tag]]
        return given

    def _pairs(self, categories: Sequence[str]) -> list[tuple[int, list[int]]]:
        """(tag, what it implies) as columns."""
        if not self.implied:
            return []
        column = {name: c for c, name in enumerate(categories)}
        known = {tag: [column[o] for o in others if o in column] for tag, others in self.implied.items()}
        return [(column[tag], others) for tag, others in known.items() if tag in column and others]

    # --- keywords ---

    def path(self, tag: str) -> Path:
        return self.paths.get(tag, (tag,))

    def path_of_keyword(self, keyword: str) -> Path:
        """Where a person's keyword without levels is, if only one place has it."""
        paths = [path for path in self.paths.values() if fold(path[-1]) == fold(keyword)]
        return (*paths[0][:-1], keyword) if len(paths) == 1 else (keyword,)

    def without_parents(self, paths: Iterable[Path]) -> list[Path]:
        """Without those that another one goes through."""
        paths = list(dict.fromkeys(paths))
        above = {_folded(path[:depth]) for path in paths for depth in range(1, len(path))}
        return [path for path in paths if _folded(path) not in above]

    # --- other forms ---

    def restricted(self, categories: Iterable[str]) -> TagTree:
        kept = set(categories)
        implied = {tag: tuple(o for o in others if o in kept) for tag, others in self.implied.items() if tag in kept}
        return replace(
            self,
            implied={tag: others for tag, others in implied.items() if others},
            paths={tag: path for tag, path in self.paths.items() if tag in kept},
        )

    def renamed(self, names: Mapping[str, str | None]) -> TagTree:
        """With other names for some tags, or without them."""

        def new(tags: Iterable[str]) -> list[str]:
            return [name for tag in tags if (name := names.get(tag, tag)) is not None]

        return replace(
            self,
            implied={name: tuple(new(self.implied[tag])) for tag in self.implied for name in new([tag])},
            paths={name: self.paths[tag] for tag in self.paths for name in new([tag])},
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "implied": {tag: list(others) for tag, others in self.implied.items()},
            "paths": {tag: list(path) for tag, path in self.paths.items()},
            "lists_parents": self.lists_parents,
            "flat_parents": self.flat_parents,
        }

    @classmethod
    def from_json(cls, content: Any) -> TagTree:
        """Raises ValueError for anything that `to_json` does not write; None is the empty tree."""
        if content is None:
            return cls()
        try:
            implied, paths = (
                {str(tag): tuple(str(name) for name in names) for tag, names in content[key].items()}
                for key in ("implied", "paths")
            )
            if not all(paths.values()):
                raise ValueError("a place in the tree has no level")
            return cls(implied, paths, bool(content.get("lists_parents")), bool(content.get("flat_parents", True)))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a tree of tags ({error})") from None


def _folded(path: Path) -> Path:
    return tuple(map(fold, path))


def levels_of(tag: str) -> Path:
    """("animal", "dog") for animal|dog, () for a tag without levels. Tags like `|_|` and `:|` are drawn faces."""
    if SEPARATOR not in tag:
        return ()
    levels = tuple(map(clean, tag.split(SEPARATOR)))
    return levels if all(levels) and len(levels) > 1 else ()


# --- from tags with levels to a tree ---


class Places:
    """The places of all tags with levels in a dataset, and the category of each.

    A category has the name of its keyword. Only a keyword in several unrelated places (fruit|orange, colour|orange)
    gives several categories, which have their whole path as names.
    """

    def __init__(self, counts: Mapping[str, int], final: Mapping[str, str | None]):
        """`counts` of tags as they were read, and the `final` name of every level."""
        self.final = final
        self.places: dict[str, Counter[Path]] = defaultdict(Counter)  # name -> its paths, below the top level
        for tag, count in counts.items():
            path = tuple(final[level] or level for level in levels_of(tag))
            for depth in range(2, len(path) + 1):
                self.places[path[depth - 1]][path[:depth]] += count
        self.first = {name: places.most_common(1)[0][0][0] for name, places in self.places.items()}
        self.tops = {name: self._tops(name) for name in self.places}
        self.several = {name: tops for name, tops in self.tops.items() if len(tops) > 1}

    def _tops(self, name: str) -> dict[str, Path]:
        """Top level -> the most frequent path of this name below it. bird|owl is below animal if bird is."""
        best: dict[str, Path] = {}
        for path, _ in sorted(self.places[name].items(), key=lambda entry: (-entry[1], -len(entry[0]), entry[0])):
            best.setdefault(self._top(path[0]), path)
        return best

    def _top(self, name: str) -> str:
        seen = {name}
        while name in self.first and self.first[name] not in seen:
            name = self.first[name]
            seen.add(name)
        return name

    def category(self, path: Path) -> str | None:
        """Of a path of final names; None for an excluded tag, and for a keyword that may be in several places."""
        if self.final.get(path[-1], path[-1]) is None:
            return None
        tops = self.several.get(path[-1])
        if tops is None:
            return path[-1]
        return SEPARATOR.join(tops[self._top(path[0])]) if len(path) > 1 else None

    def categories(self, tag: str) -> list[str]:
        """Those of every level of a tag, from the top level down."""
        path = tuple(self.final[level] or level for level in levels_of(tag) or (tag,))
        found = (self.category(path[:depth]) for depth in range(1, len(path) + 1))
        return [name for name in found if name is not None]

    def leaf(self, tag: str) -> str | None:
        path = tuple(self.final[level] or level for level in levels_of(tag) or (tag,))
        return self.category(path)

    def candidates(self, tag: str) -> list[str]:
        """The categories of a keyword that is in several places; [] for any other tag."""
        name = self.final.get(tag)
        return [SEPARATOR.join(path) for path in self.several.get(name or "", {}).values()]

    def tree(self) -> TagTree:
        paths, implied = {}, {}
        for name, tops in self.tops.items():
            for top, home in tops.items():
                tag = self.category(home)
                if tag is not None:
                    paths[tag] = home
                    above = [self._above(path) for path in self.places[name] if self._top(path[0]) == top]
                    implied[tag] = tuple(sorted(_common(above) - {tag}))
        return TagTree(with_indirect(implied), paths)

    def _above(self, path: Path) -> frozenset[str]:
        found = (self.category(path[:depth]) for depth in range(1, len(path)))
        return frozenset(name for name in found if name is not None)


def _common(sets: Sequence[frozenset[str]]) -> frozenset[str]:
    """What holds in all places of a tag: the longest if each place is a shorter form of it, else what they share."""
    longest = max(sets, key=len)
    return longest if all(one <= longest for one in sets) else frozenset.intersection(*sets)


def with_indirect(implied: Mapping[str, Iterable[str]]) -> dict[str, tuple[str, ...]]:
    """puppy -> dog and dog -> animal is puppy -> dog, animal."""
    closed = {}
    for tag in implied:
        found: dict[str, None] = {}
        waiting = list(implied[tag])
        while waiting:
            name = waiting.pop()
            if name != tag and name not in found:
                found[name] = None
                waiting += implied.get(name, ())
        if found:
            closed[tag] = tuple(sorted(found))
    return closed


def describe_tree(places: Places) -> Iterator[str]:
    """Sentences for the reader's notes."""
    tops = sorted({top for tops in places.tops.values() for top in tops})
    shown = ", ".join(f"'{top}'" for top in tops[:5]) + (" …" if len(tops) > 5 else "")
    number = len(places.tops)
    yield (
        f"{number:,} tag{'s have' if number != 1 else ' has'} a place in a tree, below {shown}; a tag implies those "
        "above it (hierarchy=leaf reads only the last level, hierarchy=none reads animal|dog as one tag)."
    )
    for name, paths in list(places.several.items())[:5]:
        names = " and ".join(f"'{SEPARATOR.join(path)}'" for path in paths.values())
        yield f"'{name}' is in several places and is read as {names}."
