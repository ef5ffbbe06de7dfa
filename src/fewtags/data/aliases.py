"""The user's rules about tags: which to merge or rename, which imply others, which to exclude, and their English names.

merge:                      # all of these become dog
  dog: [dogs, doggo, Hund]
rename:
  tvmonitor: television
implies:                    # an image with puppy has these too; "puppy => dog, animal" also works
  puppy: [dog, animal]
exclude: [untagged, to do]
names:                      # what a tag is in English, so that its name says something; it keeps its own
  Hund: {name: dog}         # or Hund: dog
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fewtags.errors import UserError, did_you_mean

SECTIONS = ("merge", "rename", "implies", "exclude", "names")
LARGEST = 10_000_000  # bytes; nobody writes more by hand


def clean(tag: str) -> str:
    """A tag as it is displayed: composed characters, single spaces, only printable characters."""
    tag = unicodedata.normalize("NFC", tag)
    if not tag.isprintable():
        tag = "".join(character if character.isprintable() else " " for character in tag)
    return " ".join(tag.split())


def fold(tag: str) -> str:
    """Equal for tags that differ only in case or whitespace."""
    return clean(tag).casefold()


@dataclass(frozen=True)
class Aliases:
    """Keys are folded names, so the file need not match a tag's case."""

    renamed: dict[str, str] = field(default_factory=dict)  # folded old name -> new name
    implied: dict[str, set[str]] = field(default_factory=dict)  # folded name -> all it implies, directly or indirectly
    excluded: set[str] = field(default_factory=set)
    names: dict[str, str] = field(default_factory=dict)  # folded name -> what it is in English
    file: str = ""

    def final(self, tag: str) -> str | None:
        """The final name of a tag; None if it is excluded."""
        name = self.renamed.get(fold(tag), tag)
        return None if fold(tag) in self.excluded or fold(name) in self.excluded else name

    def implied_by(self, tag: str) -> set[str]:
        return self.implied.get(fold(tag), set())

    def english(self, categories: Iterable[str]) -> dict[str, str]:
        """Category -> its English name, of those that the file gives one."""
        return {name: self.names[fold(name)] for name in categories if fold(name) in self.names}

    @property
    def spellings(self) -> dict[str, str]:
        """Folded name -> the name as written in the file, for all names the file introduces."""
        names = [*self.renamed.values(), *(name for names in self.implied.values() for name in names)]
        return {fold(name): name for name in names}


def read_aliases(file: Path) -> Aliases:
    content = load_yaml(file)
    for section in content:
        if section not in SECTIONS:
            raise UserError(f"{file} has an unknown section '{section}'; {did_you_mean(str(section), SECTIONS)}")
    renamed: dict[str, str] = {}
    for section, old, new in _renames(content, file):
        if renamed.setdefault(fold(old), new) != new:
            raise UserError(f"{file}: {section} gives '{old}' two names, '{renamed[fold(old)]}' and '{new}'.")
    renamed = {old: _end_of_chain(old, renamed, file) for old in renamed}
    implied: dict[str, set[str]] = {}
    for tag, others in _implications(content.get("implies"), file):
        name = renamed.get(fold(tag), tag)
        implied.setdefault(fold(name), set()).update(renamed.get(fold(other), clean(other)) for other in others)
    excluded = {fold(tag) for tag in _names(content.get("exclude") or [], file, "exclude")}
    names = {fold(renamed.get(fold(tag), tag)): word for tag, word in _translations(content.get("names"), file)}
    return Aliases(renamed, {tag: _closure(tag, implied) for tag in implied}, excluded, names, str(file))


def load_yaml(file: Path) -> dict[str, Any]:
    import yaml  # not needed to write tags, where an exported model is all there is

    from fewtags.data.plain_yaml import NoAnchors

    try:
        if file.stat().st_size > LARGEST:
            raise UserError(f"{file} is larger than {LARGEST // 1_000_000} MB; an alias file is written by hand.")
        content = yaml.load(file.read_text(encoding="utf-8-sig"), Loader=NoAnchors)
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read as an alias file: {_one_line(error)}.") from None
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{file}:{mark.line + 1}" if mark else str(file)
        raise UserError(f"{where} is not valid YAML: {getattr(error, 'problem', None) or _one_line(error)}.") from None
    if not content:
        return {}
    if not isinstance(content, dict):
        raise UserError(f"{file} should hold the sections {', '.join(SECTIONS)}; it holds a {type(content).__name__}.")
    return content


def _renames(content: Mapping[str, Any], file: Path) -> Iterator[tuple[str, str, str]]:
    """(section, old name, new name) of `merge` and `rename`."""
    for new, olds in _mapping(content.get("merge"), file, "merge"):
        for old in _names(olds, file, "merge"):
            yield "merge", old, clean(new)
    for old, new in _mapping(content.get("rename"), file, "rename"):
        names = _names(new, file, "rename")
        if len(names) != 1:
            raise UserError(f"{file}: rename gives '{old}' {len(names)} names; only one is allowed.")
        yield "rename", old, clean(names[0])


def _implications(section: Any, file: Path) -> Iterator[tuple[str, list[str]]]:
    if isinstance(section, list):
        for line in _names(section, file, "implies"):
            tag, arrow, others = line.partition("=>")
            if not arrow:
                raise UserError(f"{file}: cannot parse '{line}' under implies; write it as: puppy => dog, animal")
            yield clean(tag), [clean(other) for other in others.split(",") if clean(other)]
    else:
        for tag, others in _mapping(section, file, "implies"):
            yield tag, _names(others, file, "implies")


def _translations(section: Any, file: Path) -> Iterator[tuple[str, str]]:
    for tag, value in _mapping(section, file, "names"):
        word = value.get("name") if isinstance(value, dict) and len(value) == 1 else value
        if not isinstance(word, str) or not clean(word):
            raise UserError(f"{file}: names gives '{tag}' {value!r}; write it as `{tag}: {{name: dog}}`.")
        yield tag, clean(word)


def _mapping(section: Any, file: Path, name: str) -> Iterator[tuple[str, Any]]:
    if not section:
        return
    if not isinstance(section, dict):
        raise UserError(f"{file}: {name} should be lines of `tag: other tags`; it is a {type(section).__name__}.")
    for key, value in section.items():
        yield _names([key], file, name)[0], value


def _names(value: Any, file: Path, section: str) -> list[str]:
    """A list of names, or one name."""
    names = value if isinstance(value, list) else [value]
    for name in names:
        if not isinstance(name, str) or not clean(name):
            raise UserError(f"{file}: {section} has {name!r} where a tag is expected.")
    return [clean(name) for name in names]


def _end_of_chain(old: str, renamed: Mapping[str, str], file: Path) -> str:
    """a -> b and b -> c is a -> c."""
    seen, name = {old}, renamed[old]
    while fold(name) in renamed and renamed[fold(name)] != name:
        if fold(name) in seen:
            raise UserError(f"{file} renames '{name}' in a circle.")
        seen.add(fold(name))
        name = renamed[fold(name)]
    return name


def _closure(tag: str, implied: Mapping[str, set[str]]) -> set[str]:
    found: dict[str, str] = {}
    waiting = list(implied[tag])
    while waiting:
        name = waiting.pop()
        if fold(name) not in found and fold(name) != tag:
            found[fold(name)] = name
            waiting += implied.get(fold(name), ())
    return set(found.values())


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
