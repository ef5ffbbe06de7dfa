"""A row of METHODS: a method and its profiles, described without importing torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from fewtags.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from fewtags.methods.base import Objective


@dataclass(frozen=True)
class Profile:
    """A way to train a method: settings that differ from its defaults, and their purpose.

    Settings have dotted names: {"head.hidden": 1024, "train.lr": 1e-5}. The user's file and overrides take precedence.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""  # description
    word_dim: int | None = None  # of the word vectors it is published with; a run with others says so


@dataclass(frozen=True)
class Method:
    """A head, an objective, and what users should know before choosing it."""

    name: str
    title: str
    sentence: str  # what it does, in one sentence
    head: str  # a row of HEADS
    objective: str | type[Objective]  # "module:Class", imported on use, or the class
    venue: str
    bibtex: str
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the profile "default"; see Profile
    note: str = ""  # on the profile "default"
    profiles: Mapping[str, Profile] = field(default_factory=dict)  # the others; their settings are applied on top
    group: str = "others"  # under which `fewtags methods` lists it; your own methods may have their own

    def profile(self, name: str = "default") -> Profile:
        """A profile with all its settings."""
        if name == "default":
            return Profile(self.settings, self.note)
        if name not in self.profiles:
            names = ["default", *self.profiles]
            raise UserError(f"Method '{self.name}' has no profile '{name}'; {did_you_mean(name, names)}")
        own = self.profiles[name]
        return replace(own, settings={**self.settings, **own.settings})
