"""The final name of each tag: spellings merged, aliases applied, rare tags dropped.

The same rules apply to readers that collect sets of tags (`tidy_rows`) and to those with a matrix (`tidy_columns`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

import numpy as np

from fewtags.data.aliases import Aliases, clean, fold
from fewtags.data.tag_tree import Places, TagTree, describe_tree, levels_of, with_indirect
from fewtags.labels import ABSENT, PRESENT, UNKNOWN
from fewtags.wording import plural, printable

SHOWN = 8  # examples in a sentence
Hierarchy = Literal["all", "leaf", "none"]


class TagSets(Protocol):
    """What a reader knows about one image's tags."""

    present: set[str]
    absent: set[str]
    unknown: set[str]


@dataclass(frozen=True)
class TagRules:
    aliases: Aliases = field(default_factory=Aliases)
    merge_case: bool = True
    min_images: int = 0
    hierarchy: Hierarchy = "all"


@dataclass
class TagNames:
    """`final` maps every tag that was read to its name, or to None if it was excluded."""

    final: dict[str, str | None]
    notes: list[str] = field(default_factory=list)  # what was done, as sentences
    rare: set[str] = field(default_factory=set)  # names dropped because too few images have them
    tree: TagTree = field(default_factory=TagTree)

    @property
    def changes(self) -> dict[str, str | None]:
        """Only the tags whose name differs from how they were written."""
        return {printable(tag): name for tag, name in self.final.items() if tag != name}


def name_tags(counts: Mapping[str, int], rules: TagRules, categories: Sequence[str] | None = None) -> TagNames:
    """Names for tags that were seen in `counts[tag]` images. If `categories` are given, their spelling is used."""
    aliases = rules.aliases
    final: dict[str, str | None] = {}
    for tag in counts:  # Visual Genome has 80,000, and a file made to hurt has ten times as many
        name = aliases.final(tag) if aliases.file else tag
        final[tag] = None if name is None else clean(name) or None
    if rules.merge_case:
        final = _joined_spellings(final, counts, aliases, categories)
    return TagNames(final, [*_spelling_notes(final), *_alias_notes(final, aliases)])


def _joined_spellings(
    final: Mapping[str, str | None], counts: Mapping[str, int], aliases: Aliases, categories: Sequence[str] | None
) -> dict[str, str | None]:
    """Names that differ only in case as one: as categories or aliases write it, else as most images do."""
    keys = {name: name.casefold() for name in final.values() if name is not None}
    several = {key for key, count in Counter(keys.values()).items() if count > 1}
    used: dict[str, list[str]] = {key: [] for key in several}
    for written, key in keys.items():
        if key in several:
            used[key].append(written)
    images: Counter[str] = Counter()
    for tag, name in final.items():
        if name is not None and keys[name] in several:
            images[name] += counts[tag]
    # Of equally frequent spellings, the lower-case one wins: it sorts last.
    spelling = {key: max(used[key], key=lambda name: (images[name], name)) for key in several}
    spelling |= aliases.spellings | {fold(name): name for name in reversed(categories or ())}
    exact = set(categories or ())  # both 'Dog' and 'dog' may be given
    if not spelling:
        return dict(final)
    return {tag: n if n is None or n in exact else spelling.get(keys[n], n) for tag, n in final.items()}


def _spelling_notes(final: Mapping[str, str | None]) -> list[str]:
    joined: dict[str, list[str]] = defaultdict(list)
    for tag, name in final.items():
        if name is not None and tag != name and fold(tag) == fold(name):
            joined[name].append(tag)
    if not joined:
        return []
    examples = [f"{_quoted(tags)} as '{name}'" for name, tags in sorted(joined.items())]
    count = sum(map(len, joined.values()))
    words = "1 spelling of a tag was" if count == 1 else f"{count:,} spellings of {plural(len(joined), 'tag')} were"
    more = " tags" if len(examples) > SHOWN else ""
    return [f"{words} merged: {_some(examples)}{more} (merge_case=false keeps them apart)."]


def _alias_notes(final: Mapping[str, str | None], aliases: Aliases) -> list[str]:
    if not aliases.file:
        return []
    renamed = [f"{_quoted([t])} as '{n}'" for t, n in final.items() if n is not None and fold(t) != fold(n)]
    excluded = [_quoted([tag]) for tag, name in final.items() if name is None]
    present = {fold(name) for name in final.values() if name is not None}
    implying = [f"'{tag}'" for tag in aliases.implied if tag in present]
    parts = [f"read {_some(renamed)}"] if renamed else []
    parts += [f"excluded {_some(excluded)}"] if excluded else []
    parts += [f"gave images with {_some(implying)} the implied tags"] if implying else []
    return [f"Aliases in {aliases.file}: {'; '.join(parts) or 'none of its tags occur here'}."]


def _quoted(tags: Iterable[str]) -> str:
    return ", ".join(f"'{printable(tag)}'" for tag in tags)


def _some(examples: Sequence[str]) -> str:
    more = f" and {len(examples) - SHOWN:,} more" if len(examples) > SHOWN else ""
    return ", ".join(examples[:SHOWN]) + more


# --- sets of tags ---


def tidy_rows(rows: Sequence[TagSets], rules: TagRules, categories: Sequence[str] | None = None) -> TagNames:
    """Rename the tags of every row in place."""
    counts: Counter[str] = Counter()
    for row in rows:
        counts.update(row.present)
        counts.update(dict.fromkeys(row.absent | row.unknown, 0))
    names, places = name_levels(counts, rules, categories)
    if places is not None:
        for row in rows:
            _place(row, places, rules.hierarchy)
    elif names.changes:
        for row in rows:
            row.present = _renamed(row.present, names.final)
            row.absent = _renamed(row.absent, names.final) - row.present  # 'Dog' present and 'dog' absent: present
            row.unknown = _renamed(row.unknown, names.final)
    if rules.aliases.implied:
        known = {tag for row in rows for tag in (*row.present, *row.absent)}
        names.tree = with_aliases(names.tree, known, rules.aliases)
    if names.tree.implied:
        _imply(rows, names.tree)
    if rare := _rare_tags(rows, rules.min_images):
        for row in rows:
            row.present -= rare
            row.absent -= rare
            row.unknown -= rare
        names = _without(names, rare, rules.min_images)
    return names


def name_levels(
    counts: Mapping[str, int], rules: TagRules, categories: Sequence[str] | None
) -> tuple[TagNames, Places | None]:
    """Names as by `name_tags`, of every level of the tags that have some; and the places of these, if there are any."""
    paths = {tag: levels_of(tag) for tag in counts if "|" in tag} if rules.hierarchy != "none" else {}
    if not any(paths.values()):
        return name_tags(counts, rules, categories), None
    of_levels: Counter[str] = Counter()
    for tag, count in counts.items():
        of_levels.update(dict.fromkeys(paths.get(tag) or (tag,), count))
    names = name_tags(of_levels, rules, categories)
    places = Places(counts, names.final)
    names.final = {tag: places.leaf(tag) for tag in counts}
    names.notes += describe_tree(places)
    names.tree = places.tree()
    if rules.hierarchy == "leaf":
        names.tree = TagTree({}, names.tree.paths)
    return names, places


def _place(row: TagSets, places: Places, hierarchy: Hierarchy) -> None:
    """The categories of a row's tags. A keyword in several places means the one that the same row has a path to; if
    there is none, nothing is known."""
    levels = {tag: places.categories(tag) for tag in row.present}
    here = {name for names in levels.values() for name in names}
    if hierarchy == "leaf":
        here = {names[-1] for names in levels.values() if names} - {n for names in levels.values() for n in names[:-1]}
    row.present = here
    row.absent = _last_levels(row.absent, places) - row.present
    row.unknown = _last_levels(row.unknown, places)


def _last_levels(tags: Iterable[str], places: Places) -> set[str]:
    """No animal|dog is no dog; no orange is neither of the two."""
    found = {name for tag in tags for name in (*places.candidates(tag), places.leaf(tag))}
    return {name for name in found if name is not None}


def with_aliases(tree: TagTree, known: Collection[str], aliases: Aliases) -> TagTree:
    """A tree, and what an alias file says about the known tags in addition."""
    spelling = {fold(name): name for name in known}
    implied: dict[str, set[str]] = {tag: set(others) for tag, others in tree.implied.items()}
    waiting = list(known)
    while waiting:  # implied tags may be new, and imply more
        tag = waiting.pop()
        for other in aliases.implied_by(tag):
            name = spelling.setdefault(fold(other), other)
            if name not in implied.get(tag, ()):
                implied.setdefault(tag, set()).add(name)
                waiting.append(name)
    return replace(tree, implied=with_indirect(implied))


def _renamed(tags: Collection[str], final: Mapping[str, str | None]) -> set[str]:
    return {name for tag in tags if (name := final[tag]) is not None}


def _imply(rows: Iterable[TagSets], tree: TagTree) -> None:
    """An image with puppy has dog; an image known not to have dog is known not to have puppy."""
    implying = {tag: set(others) for tag, others in tree.implied.items()}
    implied_by: dict[str, set[str]] = defaultdict(set)
    for tag, others in implying.items():
        for other in others:
            implied_by[other].add(tag)
    for row in rows:
        row.absent = row.absent.union(*(implied_by.get(tag, ()) for tag in row.absent))
        row.present = row.present.union(*(implying.get(tag, ()) for tag in row.present))
        row.absent -= row.present


def _rare_tags(rows: Iterable[TagSets], min_images: int) -> set[str]:
    if min_images <= 0:
        return set()
    counts: Counter[str] = Counter()
    for row in rows:
        counts.update(row.present)
        counts.update(dict.fromkeys(row.absent | row.unknown, 0))
    return {tag for tag, count in counts.items() if count < min_images}


def _without(names: TagNames, rare: set[str], min_images: int) -> TagNames:
    words = "1 tag" if len(rare) == 1 else f"{len(rare):,} tags"
    note = f"Dropped {words} with fewer than {min_images} images: {_some(sorted(rare))}."
    final = {tag: None if name in rare else name for tag, name in names.final.items()}
    return TagNames(final, [*names.notes, note], rare, names.tree)


# --- a matrix ---


def tidy_columns(
    labels: np.ndarray, columns: Sequence[str], rules: TagRules, categories: Sequence[str] | None = None
) -> tuple[np.ndarray, list[str], TagNames]:
    """Labels [N, C], possibly with several columns per tag -> labels and category names without duplicates."""
    positives = (labels == PRESENT).sum(0).tolist()
    counts: Counter[str] = Counter()
    for column, count in zip(columns, positives, strict=True):
        counts[column] += count
    names, _ = name_levels(counts, rules, categories)
    sources: dict[str, list[int]] = {}
    for place, column in enumerate(columns):
        if (name := names.final[column]) is not None:
            sources.setdefault(name, []).append(place)
    final = list(sources)
    if len(sources) < len(columns):
        joined = [_joined(labels[:, places]) for places in sources.values()]
        labels = np.stack(joined, axis=1) if joined else labels[:, :0]
    if rules.aliases.implied:
        names.tree = with_aliases(names.tree, final, rules.aliases)
    if names.tree.implied:
        new = {other: None for tag in final for other in names.tree.implied.get(tag, ()) if other not in sources}
        labels = np.concatenate([labels, np.zeros((len(labels), len(new)), dtype=np.int8)], axis=1)
        final = [*final, *new]
        labels = names.tree.closed(labels, final)
    positives = (labels == PRESENT).sum(0)
    if rare := {name for name, count in zip(final, positives, strict=True) if count < rules.min_images}:
        kept = [place for place, name in enumerate(final) if name not in rare]
        labels, final, names = labels[:, kept], [final[c] for c in kept], _without(names, rare, rules.min_images)
    return labels, final, names


def _joined(labels: np.ndarray) -> np.ndarray:
    """Merges columns: present wins over absent, absent over unknown."""
    if labels.shape[1] == 1:
        return labels[:, 0]
    absent = (labels == ABSENT).any(1)
    return np.where((labels == PRESENT).any(1), PRESENT, np.where(absent, ABSENT, UNKNOWN)).astype(np.int8)
