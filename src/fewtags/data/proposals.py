"""Likely duplicate tags (plurals, whitespace, accents, one-letter typos), written as an alias file to edit."""

from __future__ import annotations

import json
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from fewtags.atomic import atomic_write
from fewtags.data.aliases import fold
from fewtags.errors import UserError
from fewtags.wording import singulars

SHORTEST_TYPO = 5  # letters; shorter words have too many neighbours (cat, car, bat)
SERIES = 20  # more words of one form than this are a series of names, not typos
RARE_SHARE = 0.05  # a typo is rare compared with the right spelling
PLAIN = re.compile(r"[^\W\d_][\w ]*", re.UNICODE)


class Proposal(NamedTuple):
    """`drop` may be another spelling of `keep`."""

    keep: str
    drop: str
    reason: str
    sure: bool  # otherwise it needs a second look
    images: tuple[int, int]  # number of images with each

    def __str__(self) -> str:
        kept, dropped = self.images
        return f"'{self.drop}' ({dropped:,}) may be '{self.keep}' ({kept:,}): {self.reason}"


def propose_merges(counts: Mapping[str, int]) -> list[Proposal]:
    """Pairs of tags, from the number of images per tag; the more frequent one is kept."""
    found: dict[str, Proposal] = {}
    for reason, sure, pairs in (
        ("spaces, punctuation or accents", True, _equal(counts, _without_marks)),
        ("plural", True, _equal(counts, _singular_in(counts))),
        ("one letter", False, _one_letter_apart(counts)),
    ):
        for pair in pairs:
            keep, drop = sorted(pair, key=lambda tag: (-counts[tag], len(tag), tag))
            is_typo = not sure and (counts[drop] > max(2, RARE_SHARE * counts[keep]) or counts[drop] == counts[keep])
            if drop not in found and not is_typo:
                found[drop] = Proposal(keep, drop, reason, sure, (counts[keep], counts[drop]))
    # A dropped tag cannot be another's target: dogs -> dog and dogz -> dogs would be a chain.
    return [proposal for proposal in found.values() if proposal.keep not in found]


def write_proposals(proposals: list[Proposal], file: Path) -> None:
    """An alias file with one line per proposal; doubtful ones are commented out. Never overwrites a file."""
    must_be_new(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(file) as temporary:
        temporary.write_text("\n".join(_lines(proposals)) + "\n", encoding="utf-8")


def must_be_new(file: Path) -> None:
    if file.exists():
        raise UserError(f"{file} already exists and may have been edited; choose another name or remove it.")


def _lines(proposals: list[Proposal]) -> Iterator[str]:
    yield "# Likely duplicate tags, found by `fewtags check`. Delete the lines that are wrong; uncomment those"
    yield "# that are right. Then pass the file as --aliases to `fewtags check` and `fewtags train`."
    groups: dict[str, list[Proposal]] = defaultdict(list)
    for proposal in proposals:
        groups[proposal.keep].append(proposal)
    yield "merge:" if any(proposal.sure for proposal in proposals) else "# merge:"
    for keep, group in sorted(groups.items()):
        mark = "" if any(proposal.sure for proposal in group) else "# "
        yield f"{mark}  {_quoted(keep)}:  # {_images(group[0].images[0])}"
        for proposal in sorted(group, key=lambda proposal: not proposal.sure):
            comment = "" if proposal.sure else "# "
            yield f"{comment}    - {_quoted(proposal.drop)}  # {_images(proposal.images[1])}; {proposal.reason}"
    yield "# rename:\n#   old name: new name"
    yield "# implies:\n#   puppy: [dog, animal]"
    yield "# exclude: [untagged]"


def _quoted(tag: str) -> str:
    return tag if PLAIN.fullmatch(tag) else json.dumps(tag, ensure_ascii=False)


def _images(count: int) -> str:
    return "1 image" if count == 1 else f"{count:,} images"


def _equal(counts: Mapping[str, int], form: Callable[[str], str]) -> Iterator[tuple[str, str]]:
    """Tags whose forms are equal, each paired with the most frequent of them."""
    groups: dict[str, list[str]] = defaultdict(list)
    for tag in counts:
        groups[form(tag)].append(tag)
    for same in groups.values():
        keep = min(same, key=lambda tag: (-counts[tag], len(tag), tag))
        yield from ((keep, tag) for tag in same if tag != keep)


def _without_marks(tag: str) -> str:
    """long_hair, long-hair and Long hair; café and cafe."""
    letters = unicodedata.normalize("NFKD", fold(tag))
    plain = "".join(letter for letter in letters if not unicodedata.combining(letter))
    return " ".join(re.sub(r"[\W_]+", " ", plain).split()) or fold(tag)


def _singular_in(tags: Iterable[str]) -> Callable[[str], str]:
    """What a tag is in the singular, if that is a tag too. Words in -ss, -us and -is are seldom plurals."""
    there = {_without_marks(tag) for tag in tags}

    def singular(tag: str) -> str:
        plain = _without_marks(tag)
        if len(plain) <= 3 or plain.endswith(("ss", "us", "is")):
            return plain
        return next((form for form in singulars(plain) if form in there), plain)

    return singular


def _one_letter_apart(counts: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """One letter added, missing, changed or swapped. Such words share a form that lacks one letter."""
    shorter: dict[str, list[str]] = defaultdict(list)
    words = {tag: fold(tag) for tag in counts}
    for tag, word in words.items():
        if len(word) >= SHORTEST_TYPO and not any(map(str.isdigit, word)):  # model 1 and model 2 are different
            for form in {word, *(word[:place] + word[place + 1 :] for place in range(len(word)))}:
                shorter[form].append(tag)
    seen = set()
    for near in shorter.values():
        if len(near) > SERIES:
            continue
        for place, one in enumerate(near):
            for other in near[place + 1 :]:
                if (one, other) not in seen and _is_typo(words[one], words[other]):
                    seen.add((one, other))
                    yield one, other


def _is_typo(one: str, other: str) -> bool:
    if len(one) > len(other):
        one, other = other, one
    start = next((place for place, letter in enumerate(one) if letter != other[place]), len(one))
    if len(one) < len(other):
        return one[start:] == other[start + 1 :]
    swapped = one[start : start + 2] == other[start : start + 2][::-1] and one[start + 2 :] == other[start + 2 :]
    return swapped or one[start + 1 :] == other[start + 1 :]
