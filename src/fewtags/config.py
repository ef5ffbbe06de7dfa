"""The settings of a run: typed groups, from a YAML file and dotted overrides, and the resolved copy that is stored.

Precedence: general defaults < the method's own settings < its profile < the file < `group.name=value` overrides.
The groups `method` and `head` accept the settings of the method and head they name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, SerializeAsAny, ValidationError

from fewtags.data.prepare import DataConfig
from fewtags.data.preprocess import InputConfig
from fewtags.data.remote import remote_url
from fewtags.errors import UserError, did_you_mean
from fewtags.methods import find_method, objective_class
from fewtags.models.build import ModelConfig
from fewtags.models.heads import head_class
from fewtags.models.words import WordsConfig
from fewtags.renamed import REFINED, current_names
from fewtags.settings import Settings, load_yaml, shown
from fewtags.train_settings import CacheConfig, TrainConfig


class RunConfig(Settings):
    data: DataConfig = Field(default_factory=DataConfig)
    input: InputConfig = Field(default_factory=InputConfig)
    model: ModelConfig = Field(default_factory=ModelConfig)
    cache: CacheConfig = Field(default_factory=CacheConfig)
    words: WordsConfig = Field(default_factory=WordsConfig)
    head_name: str
    head: SerializeAsAny[Settings]
    method_name: str
    profile: str
    method: SerializeAsAny[Settings]
    train: TrainConfig = Field(default_factory=TrainConfig)
    seed: int = 0

    def nested(self) -> dict[str, Any]:
        """As written in a file: `method` and `head` include their name."""
        values = self.model_dump(mode="json")
        method = {"name": values.pop("method_name"), "profile": values.pop("profile"), **values.pop("method")}
        head = {"name": values.pop("head_name"), **values.pop("head")}
        return {**values, "head": head, "method": method}

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.nested(), sort_keys=False)

    def with_epochs(self, epochs: int) -> RunConfig:
        return self.model_copy(update={"train": self.train.model_copy(update={"epochs": epochs})})

    def relative_to(self, folder: Path) -> RunConfig:
        """The same settings with relative paths resolved against `folder`."""

        def placed(values: Settings, *names: str) -> Settings:
            paths = {name: _under(folder, value) for name in names if (value := getattr(values, name))}
            return values.model_copy(update=paths)

        options = {
            name: _under(folder, value) if name in FILE_OPTIONS else value for name, value in self.data.options.items()
        }
        changed = {
            "data": placed(self.data, "source", "tags", "decisions", "store").model_copy(update={"options": options}),
            "model": placed(self.model, "weights"),
            "cache": placed(self.cache, "folder"),
            "words": self.words if self.words.source in ("auto", "random") else placed(self.words, "source"),
        }
        return self.model_copy(update=changed)


def _under(folder: Path, path: Any) -> Any:
    if not isinstance(path, str | Path) or remote_url(path) is not None:
        return path
    return str(folder / Path(path).expanduser())


DEFAULT_METHOD = "instant"
FILE_OPTIONS = (
    "categories",
    "train_list",
    "test_list",
    "aliases",
    "classes",
)  # of a reader; a list of categories is not a path
GROUPS = ("data", "input", "model", "cache", "words", "head", "method", "train", "seed")


def load_config(file: str | Path | None = None, overrides: Iterable[str] = (), **values: Any) -> RunConfig:
    """A run's settings from a YAML file, then `values` (nested), then `group.name=value` strings."""
    given = read_yaml(Path(file)) if file is not None else {}
    given = merge(given, values)
    for override in overrides:
        given = merge(given, parse_override(override))
    return resolve(given)


def resolve(given: Mapping[str, Any]) -> RunConfig:
    given = {**given}
    for group in ("method", "head"):  # `method: role` is short for `method: {name: role}`
        if isinstance(given.get(group), str):
            given[group] = {"name": given[group]}
    for key, value in given.items():
        if key not in GROUPS:
            raise UserError(f"There is no group of settings '{key}'; {did_you_mean(str(key), GROUPS)}")
        if key != "seed" and not isinstance(value, Mapping):
            raise UserError(f"'{key}' should be a group of settings (`{key}.name=value`), not {shown(value)}.")
    given = current_names(given)
    name = str(given.get("method", {}).get("name", DEFAULT_METHOD))
    method = find_method(name)
    profile = str(given.get("method", {}).get("profile", "default"))
    recipe = method.profile(profile)
    head_name = str(given.get("head", {}).get("name", method.head))
    merged: dict[str, Any] = {}
    for key, value in recipe.settings.items():
        if head_name == method.head or not key.startswith("head."):  # its head settings do not apply to another head
            merged = merge(merged, nest(key, value))
    merged = merge(merged, given)

    method_settings = {k: v for k, v in merged.pop("method", {}).items() if k not in ("name", "profile")}
    head_settings = {k: v for k, v in merged.pop("head", {}).items() if k != "name"}
    try:
        head = validate(head_class(head_name).Config, head_settings, "head")
        objective = validate(objective_class(name).Config, method_settings, "method")
    except UserError as error:
        if name not in REFINED or profile != "default":
            raise
        raise UserError(
            f"{error} ('{name}' is the paper's method; ours of that name is '{REFINED[name]}' now.)"
        ) from None
    groups: dict[str, type[Settings]] = {
        "data": DataConfig, "input": InputConfig, "model": ModelConfig, "cache": CacheConfig,
        "words": WordsConfig, "train": TrainConfig,
    }  # fmt: skip
    parts = {key: validate(kind, merged.get(key, {}), key) for key, kind in groups.items()}
    seed = merged.get("seed", 0)
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise UserError(f"seed should be a whole number from 0, not {shown(seed)}.")
    return RunConfig(
        head_name=head_name, head=head, method_name=name, profile=profile, method=objective, seed=seed, **parts
    )


def validate(kind: type[Settings], values: Mapping[str, Any], group: str) -> Settings:
    """Build one group of settings; every mistake becomes one sentence."""
    try:
        return kind(**{str(key): value for key, value in values.items()})
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            raise UserError(f"[{group}] has no setting '{name}'; {did_you_mean(name, kind.model_fields)}") from None
        reason = first["msg"].removeprefix("Value error, ").replace("Input s", "s")
        if not first["loc"]:  # the settings of the group contradict each other
            raise UserError(f"[{group}] {reason}.") from None
        field = str(first["loc"][0])
        raise UserError(
            f"{group}.{field} {reason[0].lower() + reason[1:]}; it is {shown(values.get(field))}."
        ) from None


def read_yaml(file: Path) -> dict[str, Any]:
    try:
        values = load_yaml(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"The config file {file} does not exist.") from None
    except UnicodeDecodeError:
        raise UserError(f"The config file {file} cannot be read as text (UTF-8).") from None
    except OSError as error:
        raise UserError(f"The config file {file} cannot be read: {error.strerror}.") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{file}:{mark.line + 1}" if mark else str(file)
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
        raise UserError(f"{where} is not valid YAML: {problem}.") from None
    except (RecursionError, ValueError):  # ValueError: a date or number that cannot be
        raise UserError(f"{file} is not valid YAML.") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise UserError(f"{file} should have groups of settings ({', '.join(GROUPS)}), not a {type(values).__name__}.")
    return values


def parse_override(text: str) -> dict[str, Any]:
    """`train.lr=1e-4` -> {"train": {"lr": 1e-4}}."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UserError(f"'{text}' is not a setting; write it as group.name=value, for example train.epochs=5.")
    try:
        return nest(key.strip(), load_yaml(value) if value else None)
    except yaml.YAMLError:
        return nest(key.strip(), value)


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """{"train.lr": 1e-4, "seed": None} -> {"train": {"lr": 1e-4}}: None means not given; paths become strings."""
    groups: dict[str, Any] = {}
    for key, value in values.items():
        if value is not None:
            groups = merge(groups, nest(key, str(value) if isinstance(value, Path) else value))
    return groups


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"train": {"lr": 1}} -> {"train.lr": 1}"""
    items: dict[str, Any] = {}
    for key, value in values.items():
        deeper = isinstance(value, Mapping) and value
        items |= flat(value, f"{prefix}{key}.") if deeper else {f"{prefix}{key}": value}
    return items


def nest(key: str, value: Any) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


def merge(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    """`top` over `base`, group by group."""
    merged = dict(base)
    for key, value in top.items():
        below = merged.get(key)
        if isinstance(below, str) and key in ("method", "head"):
            below = {"name": below}
        if isinstance(value, str) and key in ("method", "head"):
            value = {"name": value}
        merged[key] = merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged
