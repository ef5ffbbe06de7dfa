"""The final name of each tag: spellings merged, aliases applied, rare tags dropped.

The same rules apply to readers that collect sets of tags (`tidy_rows`) and to those with a matrix (`tidy_columns`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from fewtags.data.aliases import Aliases, clean, fold
from fewtags.labels import ABSENT, PRESENT, UNKNOWN
from fewtags.wording import printable

SHOWN = 8  # examples in a sentence


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


@dataclass
class TagNames:
    """`final` maps every tag that was read to its name, or to None if it was excluded."""

    final: dict[str, str | None]
    notes: list[str] = field(default_factory=list)  # what was done, as sentences
    rare: set[str] = field(default_factory=set)  # names dropped because too few images have them

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
    words = "1 spelling was" if count == 1 else f"{count:,} spellings were"
    return [f"{words} merged: {_some(examples)} (merge_case=false keeps them apart)."]


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
    names = name_tags(counts, rules, categories)
    if names.changes:
        for row in rows:
            row.present = _renamed(row.present, names.final)
            row.absent = _renamed(row.absent, names.final) - row.present  # 'Dog' present and 'dog' absent: present
            row.unknown = _renamed(row.unknown, names.final)
    if rules.aliases.implied:
        _imply(rows, rules.aliases)
    if rare := _rare_tags(rows, rules.min_images):
        for row in rows:
            row.present -= rare
            row.absent -= rare
            row.unknown -= rare
        names = _without(names, rare, rules.min_images)
    return names


def _renamed(tags: Collection[str], final: Mapping[str, str | None]) -> set[str]:
    return {name for tag in tags if (name := final[tag]) is not None}


def _imply(rows: Iterable[TagSets], aliases: Aliases) -> None:
    """An image with puppy has dog; an image known not to have dog is known not to have puppy."""
    known = {fold(tag): tag for row in rows for tag in (*row.present, *row.absent)}
    implying = {known[tag]: others for tag, others in aliases.implied.items() if tag in known}
    for row in rows:
        for tag, others in implying.items():
            if tag in row.present:
                row.present |= others
                row.absent -= others
            elif row.absent & others:
                row.absent.add(tag)


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
    return TagNames(final, [*names.notes, note], rare)


# --- a matrix ---


def tidy_columns(
    labels: np.ndarray, columns: Sequence[str], rules: TagRules, categories: Sequence[str] | None = None
) -> tuple[np.ndarray, list[str], TagNames]:
    """Labels [N, C], possibly with several columns per tag -> labels and category names without duplicates."""
    positives = (labels == PRESENT).sum(0).tolist()
    counts: Counter[str] = Counter()
    for column, count in zip(columns, positives, strict=True):
        counts[column] += count
    names = name_tags(counts, rules, categories)
    sources: dict[str, list[int]] = {}
    for place, column in enumerate(columns):
        if (name := names.final[column]) is not None:
            sources.setdefault(name, []).append(place)
    final = list(sources)
    if len(sources) < len(columns):
        joined = [_joined(labels[:, places]) for places in sources.values()]
        labels = np.stack(joined, axis=1) if joined else labels[:, :0]
    if rules.aliases.implied:
        labels, final = _imply_columns(labels, final, rules.aliases)
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


def _imply_columns(labels: np.ndarray, names: list[str], aliases: Aliases) -> tuple[np.ndarray, list[str]]:
    place = {fold(name): c for c, name in enumerate(names)}
    new = {fold(other): other for tag in place for other in sorted(aliases.implied.get(tag, ()))}
    added = [name for key, name in new.items() if key not in place]
    labels = np.concatenate([labels, np.zeros((len(labels), len(added)), dtype=np.int8)], axis=1)
    names = [*names, *added]
    place = {fold(name): c for c, name in enumerate(names)}
    for tag, others in aliases.implied.items():
        if tag in place:
            columns = [place[fold(other)] for other in others]
            has = labels[:, place[tag]] == PRESENT
            denied = (labels[:, columns] == ABSENT).any(1) & ~has
            labels[np.ix_(has, columns)] = PRESENT
            labels[denied, place[tag]] = ABSENT
    return labels, names
