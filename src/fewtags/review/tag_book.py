"""The tags of a review: those of the run, and those that reviewers added, renamed, merged, deleted or described.

Every change is a row of the decisions' own file, in the order it happened, so that it is durable, sealed, undone and
seen by other windows as decisions are. The row has no image; its `queue` says what was done, its `content_hash` holds
the details as JSON. A decision names the tag as it was called then: `TagBook.of` follows the names through all rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from fewtags.data.aliases import clean, fold
from fewtags.errors import UserError, did_you_mean
from fewtags.review.store import ABOUT_TAGS, Decision, Draft

Kind = Literal["add", "rename", "merge", "delete", "describe", "pin"]
KINDS: tuple[Kind, ...] = get_args(Kind)
EXAMPLE = "example"  # the queue of the images that a new tag starts from
LONGEST_NAME, LONGEST_DESCRIPTION, MOST_PINNED = 100, 300, 5


@dataclass
class BookedTag:
    column: int  # in the session's labels
    name: str
    description: str = ""
    pinned: tuple[str, ...] = ()  # images that show what is meant
    text: str = ""  # the phrase that a new tag started from
    history: list[Decision] = field(default_factory=list)  # what was done to it, the oldest first
    version: int = 0  # id of the last row about the tag itself, also of one that was undone
    merged_into: int | None = None  # column
    deleted: bool = False

    @property
    def gone(self) -> bool:
        return self.deleted or self.merged_into is not None


@dataclass
class TagBook:
    own: int  # the first columns are the run's own categories
    tags: list[BookedTag]
    decided: dict[int, int] = field(default_factory=dict)  # id of a decision -> column, where it is not by its name
    _current: dict[str, int] = field(default_factory=dict)  # folded name -> column
    _former: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, categories: Sequence[str], rows: Iterable[Decision]) -> TagBook:
        """After all rows of the file that stand."""
        book = cls(len(categories), [BookedTag(column, name) for column, name in enumerate(categories)])
        book._current = {fold(tag.name): tag.column for tag in book.tags}
        every = list(rows)
        undone = {row.undo_of for row in every if row.undo_of is not None}
        for row in every:
            if row.is_about_tag:
                if row.undo_of is None and row.id not in undone:
                    book._apply(row)
                elif (changed := book.find(row.category)) is not None:
                    book.tags[changed].version = row.id
            else:
                column = book.decided.get(row.undo_of or 0, book.find(row.category))
                if column is not None:
                    book.decided[row.id] = column
        return book

    def _apply(self, row: Decision) -> None:
        kind, details = row.queue.removeprefix(ABOUT_TAGS), json.loads(row.content_hash or "{}")
        if kind == "add":
            text = str(details.get("text", ""))
            new = BookedTag(len(self.tags), row.category, text=text)
            self.tags.append(new)
            self._current[fold(row.category)] = new.column
        column = self.find(row.category)
        if column is None:
            return  # of a tag that this run does not have
        tag = self.tags[column]
        tag.version = row.id
        tag.history.append(row)
        if kind == "rename":
            self._leave(tag)
            tag.name = str(details["name"])
            self._current[fold(tag.name)] = column
        elif kind == "merge":
            tag.merged_into = self.find(str(details["into"]))
            if tag.merged_into is not None:
                self.tags[tag.merged_into].history.append(row)
            self._leave(tag)
        elif kind == "delete":
            tag.deleted = True
            self._leave(tag)
        elif kind == "describe":
            tag.description = str(details["description"])
        elif kind == "pin":
            tag.pinned = tuple(map(str, details["images"]))

    def _leave(self, tag: BookedTag) -> None:
        """Its name becomes free, and is understood until another tag has it."""
        self._current.pop(fold(tag.name), None)
        self._former[fold(tag.name)] = tag.column

    # --- finding ---

    def find(self, name: str) -> int | None:
        """The column of a tag by its name, in any case, or by one that it had; None if there is none."""
        column = self._current.get(fold(name), self._former.get(fold(name)))
        return None if column is None else self.final(column)

    def final(self, column: int) -> int:
        """Where the tag was merged into, if it was."""
        seen = {column}
        while (into := self.tags[column].merged_into) is not None and into not in seen:
            column = into
            seen.add(column)
        return column

    def column(self, name: str) -> int:
        column = self.find(name)
        if column is None or self.tags[column].deleted:
            names = [tag.name for tag in self.shown()]
            raise UserError(f"This run has no category '{name}'; {did_you_mean(name, names)}")
        return column

    def shown(self) -> list[BookedTag]:
        return [tag for tag in self.tags if not tag.gone]

    def is_new(self, column: int) -> bool:
        return column >= self.own

    # --- drafts of changes, checked ---

    def added(self, name: str, text: str = "") -> Draft:
        name = self._free_name(name)
        return event("add", name, {"text": clean(text)} if text else {})

    def renamed(self, name: str, new: str) -> Draft:
        tag = self.tags[self.column(name)]
        return event("rename", tag.name, {"name": self._free_name(new, but=tag.column)})

    def merged(self, name: str, into: str) -> Draft:
        tag, other = self.tags[self.column(name)], self.tags[self.column(into)]
        if tag is other:
            raise UserError(f"'{tag.name}' cannot be merged into itself.")
        return event("merge", tag.name, {"into": other.name})

    def removed(self, name: str) -> Draft:
        tag = self.tags[self.column(name)]
        return event("delete", tag.name, {})

    def described(self, name: str, description: str) -> Draft:
        tag, text = self.tags[self.column(name)], clean(description)
        if len(text) > LONGEST_DESCRIPTION:
            raise UserError(f"A definition has at most {LONGEST_DESCRIPTION} characters; this one has {len(text)}.")
        return event("describe", tag.name, {"description": text})

    def pinned(self, name: str, images: Sequence[str]) -> Draft:
        tag, chosen = self.tags[self.column(name)], list(dict.fromkeys(images))
        if len(chosen) > MOST_PINNED:
            raise UserError(f"At most {MOST_PINNED} examples are pinned to a tag; these are {len(chosen)}.")
        return event("pin", tag.name, {"images": chosen})

    def _free_name(self, name: str, but: int | None = None) -> str:
        name = clean(name)
        if not name:
            raise UserError("A tag needs a name.")
        if len(name) > LONGEST_NAME:
            raise UserError(f"A tag's name has at most {LONGEST_NAME} characters; this one has {len(name)}.")
        taken = self._current.get(fold(name))
        if taken is not None and taken != but:
            other = self.tags[taken].name
            case = "" if other == name else ", in other case or spacing"
            raise UserError(f"There is a tag '{other}' already{case}; open that one, or choose another name.")
        return name


def event(kind: Kind, name: str, details: dict[str, Any]) -> Draft:
    return Draft("", name, 0, 0, json.dumps(details, ensure_ascii=False), queue=f"{ABOUT_TAGS}{kind}")


def in_words(row: Decision) -> str:
    """What a row about a tag did, for undo."""
    kind, details = row.queue.removeprefix(ABOUT_TAGS), json.loads(row.content_hash or "{}")
    return {
        "add": f"adding the tag “{row.category}”",
        "rename": f"renaming “{row.category}” to “{details.get('name')}”",
        "merge": f"merging “{row.category}” into “{details.get('into')}”",
        "delete": f"deleting the tag “{row.category}”",
        "describe": f"the definition of “{row.category}”",
        "pin": f"the examples of “{row.category}”",
    }[kind]
