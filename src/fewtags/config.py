"""The settings of a run: typed groups, from a YAML file and dotted overrides, and the resolved copy that is stored.

Later wins: general defaults < the method's own settings < its profile < the file < `group.name=value` overrides.
The groups `method` and `head` take the settings of whichever method and head is named in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import Field, SerializeAsAny, ValidationError, field_validator, model_validator

from fewtags.errors import UserError, did_you_mean
from fewtags.methods import find_method, objective_class
from fewtags.models.heads import head_class
from fewtags.settings import Settings


class DataConfig(Settings):
    source: str = ""
    """Folder or file with the images and their tags; every layout in `docs/data-formats.md` is recognised."""
    tags: str | None = None
    """Label file for a plain folder of images (CSV, JSON lines)."""
    format: str = "auto"
    """Name of the layout, where looking at the folder is not enough."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the reader, such as `data.options.zero=absent` for one-hot files."""
    known: float | Literal["single"] | None = None
    """For experiments on complete labels: the share of positives that stay known, or "single" for one an image."""
    mask_seed: int = 0
    """Which positives stay known; 0 is the paper's draw."""
    val_share: float | None = Field(None, ge=0, lt=1)
    """Share of the training images held out for validation; by default 0.15 where the data has no val or test split."""


class InputConfig(Settings):
    size: int = Field(224, ge=16)
    """Side of the square image that the backbone sees; 448 in the paper."""
    resize: int | None = Field(None, ge=1)
    """Side to which images are resized first, not keeping their aspect ratio; by default size * 8/7 (512 for 448)."""
    crops: list[int] | None = None
    """Crop sides, one drawn for each training image; by default resize * 1, 7/8, 6/8, 5/8, 4/8 as in the paper."""
    flip: bool = True
    """Mirror half of the training images."""
    augment: bool = True
    """Train on random crops and mirrored images; otherwise on the whole image, as it is evaluated."""
    keep_in_memory: bool | None = None
    """Keep the resized images in memory after their first reading; by default if they take less than 2 GB."""

    @model_validator(mode="after")
    def _crops_fit(self) -> Self:
        wrong = [side for side in self.crop_sides if not 1 <= side <= self.first_side]
        if wrong:
            raise ValueError(f"crops of {wrong[0]} px do not fit images resized to {self.first_side} px")
        return self

    @property
    def first_side(self) -> int:
        return self.resize or round(self.size * 8 / 7)

    @property
    def crop_sides(self) -> list[int]:
        return self.crops or [round(self.first_side * eighths / 8) for eighths in (8, 7, 6, 5, 4)]


class ModelConfig(Settings):
    backbone: str = "resnet50"
    """Any model name of timm."""
    pretrained: bool = True
    """Start from timm's pretrained weights (fetched from its hub) unless `weights` is given."""
    weights: str | None = None
    """Local file with the backbone's weights (.safetensors, or a state dict)."""
    stride_in_1x1: bool = False
    """For ResNet weights from Keras or Caffe, whose stride is in the first 1x1 convolution."""
    train_from: str = "auto"
    """First trainable stage ("layer4" in the paper), "all", or "head" (backbone frozen); auto: head if pretrained."""
    pool: int = Field(1, ge=1)
    """Average pooling of the feature map before the head; 2 in the paper (14x14 to 7x7)."""
    width: int = Field(0, ge=0)
    """Channels after a 1x1 convolution behind the backbone; 0 keeps the backbone's, 1024 in the paper."""


class CacheConfig(Settings):
    enabled: bool = False
    """Compute the frozen stages' feature maps once and keep them on disk for this and later runs."""
    views: int = Field(4, ge=1)
    """Augmented views of each training image that are kept; epoch e trains on view e mod views."""
    folder: str | None = None
    """Where caches are kept; by default fewtags/features in the user's cache folder."""
    dtype: Literal["bf16", "fp16", "fp32"] = "fp16"
    """Numbers on disk."""
    runtime: Literal["torch", "openvino"] = "torch"
    """What computes the maps; openvino (an extra) is several times faster for some backbones on some CPUs."""


class WordsConfig(Settings):
    source: str = "auto"
    """Word vectors of the categories: a file, "random" (learned), or "auto": an installed package, else learned."""
    dim: int = Field(300, ge=1)
    """Length of learned vectors."""


class TrainConfig(Settings):
    epochs: int = Field(20, ge=1)
    batch_size: int = Field(32, ge=1)
    """Images in one forward pass, over all processes together."""
    accumulate: int = Field(1, ge=1)
    """Forward passes per optimiser step."""
    optimizer: Literal["adam", "adamw"] = "adamw"
    """adam adds weight decay to the gradient, as in the paper; adamw decouples it."""
    lr: float = Field(1e-4, gt=0)
    """Learning rate of the backbone."""
    head_lr_scale: float = Field(10.0, gt=0)
    """Learning rate of neck, head and objective, as a multiple of `lr`; 1 in the paper."""
    weight_decay: float = Field(0.01, ge=0)
    decay_all: bool = False
    """Decay biases and normalisation layers too, as in the paper."""
    schedule: Literal["cosine", "step", "none"] = "cosine"
    step_epochs: int = Field(10, ge=1)
    """With schedule=step: epochs between two steps."""
    step_gamma: float = 0.1
    """With schedule=step: factor on the learning rate at each step."""
    warmup_epochs: float = Field(0.0, ge=0)
    """Epochs over which the learning rate rises linearly from 0."""
    ema: float = Field(0.0, ge=0, lt=1)
    """Decay of the moving average of the weights that is evaluated and exported; 0 for none, 0.9997 is common."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """auto: bf16 on a CUDA device that has it, else fp32."""
    channels_last: bool = True
    compile: bool = False
    """torch.compile the model."""
    device: str = "auto"
    workers: int | None = None
    """Processes that load images; by default the number of cores, at most 8, and 0 where images are kept in memory."""
    evaluate_every: int = Field(1, ge=1)
    """Epochs between two evaluations; the last epoch is always evaluated."""

    @field_validator("device")
    @classmethod
    def _device_exists(cls, value: str) -> str:
        if value not in ("auto", "cpu", "mps") and not value.startswith("cuda"):
            raise ValueError("should be auto, cpu, cuda, cuda:N or mps")
        return value


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
        """As it is written in a file: `method` and `head` carry their name inside."""
        values = self.model_dump(mode="json")
        method = {"name": values.pop("method_name"), "profile": values.pop("profile"), **values.pop("method")}
        head = {"name": values.pop("head_name"), **values.pop("head")}
        return {**values, "head": head, "method": method}

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.nested(), sort_keys=False)


DEFAULT_METHOD = "instant"
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
            raise UserError(f"'{key}' should be a group of settings (`{key}.name=value`), not {value!r}.")
    name = str(given.get("method", {}).get("name", DEFAULT_METHOD))
    method = find_method(name)
    profile = str(given.get("method", {}).get("profile", "default"))
    if profile != "default" and profile not in method.profiles:
        raise UserError(
            f"Method '{name}' has no profile '{profile}'; {did_you_mean(profile, ['default', *method.profiles])}"
        )

    method_head = method.head_of(profile)
    head_name = str(given.get("head", {}).get("name", method_head))
    merged: dict[str, Any] = {}
    for key, value in method.settings_of(profile).items():
        if head_name == method_head or not key.startswith("head."):  # what it says of its head is not meant for another
            merged = merge(merged, nest(key, value))
    merged = merge(merged, given)

    method_settings = {k: v for k, v in merged.pop("method", {}).items() if k not in ("name", "profile")}
    head_settings = {k: v for k, v in merged.pop("head", {}).items() if k != "name"}
    head = validate(head_class(head_name).Config, head_settings, "head")
    objective = validate(objective_class(name, profile).Config, method_settings, "method")
    groups: dict[str, type[Settings]] = {
        "data": DataConfig, "input": InputConfig, "model": ModelConfig, "cache": CacheConfig,
        "words": WordsConfig, "train": TrainConfig,
    }  # fmt: skip
    parts = {key: validate(kind, merged.get(key, {}), key) for key, kind in groups.items()}
    seed = merged.get("seed", 0)
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise UserError(f"seed should be a whole number from 0, not {seed!r}.")
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
        raise UserError(f"{group}.{field} {reason[0].lower() + reason[1:]}; it is {values.get(field)!r}.") from None


def read_yaml(file: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"The config file {file} does not exist.") from None
    except UnicodeDecodeError:
        raise UserError(f"The config file {file} cannot be read as text (UTF-8).") from None
    except OSError as error:
        raise UserError(f"The config file {file} cannot be read: {error.strerror}.") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{file}:{mark.line + 1}" if mark else str(file)
        raise UserError(f"{where} is not valid YAML: {getattr(error, 'problem', None) or error}.") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise UserError(f"{file} should hold groups of settings ({', '.join(GROUPS)}), not a {type(values).__name__}.")
    return values


def parse_override(text: str) -> dict[str, Any]:
    """`train.lr=1e-4` -> {"train": {"lr": 1e-4}}."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UserError(f"'{text}' is not a setting; write it as group.name=value, for example train.epochs=5.")
    try:
        return nest(key.strip(), yaml.safe_load(value) if value else None)
    except yaml.YAMLError:
        return nest(key.strip(), value)


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """{"train.lr": 1e-4, "seed": None} -> {"train": {"lr": 1e-4}}: what is None was not given, and a path is text."""
    groups: dict[str, Any] = {}
    for key, value in values.items():
        if value is not None:
            groups = merge(groups, nest(key, str(value) if isinstance(value, Path) else value))
    return groups


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
