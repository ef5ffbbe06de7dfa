"""Options that several commands share, and groups of them: a command takes a group as one parameter.

@app.command()
@grouped
def check(data: Path, *, reader: TagReaderOptions) -> None: ...     # --tags, --format, --option, --aliases ...
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from fewtags.errors import UserError

if TYPE_CHECKING:
    from fewtags.engine.cluster import Cluster

Format = Annotated[
    str,
    typer.Option(
        help="Layout: auto, voc, coco, vg, openimages, camtrapdp, megadetector, csv, onehot, jsonl, imagefolder, "
        "labelstudio, fiftyone, booru, sidecar, keywords or folders."
    ),
]
Data = Annotated[Path, typer.Argument(help="Folder or file with images and tags.")]
AnyModel = Annotated[Path, typer.Argument(help="Folder of a run or saved tagger, or an exported .onnx or .xml file.")]
RunOrTagger = Annotated[Path, typer.Argument(help="Folder of a finished run, or of a saved tagger.")]
AnyRun = Annotated[Path, typer.Argument(help="Folder of a finished run of any method.")]
Moved = Annotated[Path | None, typer.Option("--data", help="Where the run's own images are now, if they were moved.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 or mps.")]
Json = Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Suppress progress output.")]


class OptionGroup:
    """Base of the groups: a frozen dataclass whose fields are options."""


@dataclass(frozen=True)
class ReaderOptions(OptionGroup):
    """How the labels of a dataset are read."""

    tags: Annotated[Path | None, typer.Option(help="File with the tags, if DATA is a plain folder of images.")] = None
    format: Format = "auto"
    option: Annotated[
        list[str] | None,
        typer.Option("--option", "-o", help="Option of the reader, for example -o zero=absent."),
    ] = None

    @property
    def options(self) -> dict[str, Any]:
        """Of the reader, by name."""
        return named_values(self.option)

    @property
    def given(self) -> bool:
        """Does any of them say how to read labels?"""
        return self.tags is not None or self.format != "auto" or bool(self.options)


@dataclass(frozen=True)
class TagReaderOptions(ReaderOptions):
    """And which of their tags are used."""

    aliases: Annotated[
        Path | None,
        typer.Option(help="YAML file that merges, renames, implies and excludes tags; see check --propose."),
    ] = None
    min_images: Annotated[int | None, typer.Option(min=0, help="Skip tags that fewer images than this have.")] = None
    allow_outside: Annotated[
        bool, typer.Option("--allow-outside", help="Accept image paths of the label file that leave the data folder.")
    ] = False

    @property
    def options(self) -> dict[str, Any]:
        more = {
            "aliases": None if self.aliases is None else str(self.aliases),
            "min_images": self.min_images,
            "allow_outside": self.allow_outside or None,
        }
        return named_values(self.option) | {name: value for name, value in more.items() if value is not None}


@dataclass(frozen=True)
class TrainingReaderOptions(TagReaderOptions):
    """And which categories are trained, if the labels do not say it."""

    categories: Annotated[
        str | None,
        typer.Option(
            help="Categories to find, comma-separated, or a text file with one per line. The images then need no "
            "tags: names known to the backbone's classifier are enough to start."
        ),
    ] = None

    @property
    def options(self) -> dict[str, Any]:
        return super().options | category_list(self.categories)

    def settings(self) -> dict[str, Any]:
        """By the settings they stand for."""
        format = None if self.format == "auto" else self.format
        return {"data.tags": self.tags, "data.format": format, "data.options": self.options}


@dataclass(frozen=True)
class SettingOptions(OptionGroup):
    """Options that stand for settings of a run."""

    method: Annotated[
        str | None,
        typer.Option(
            help="One of `fewtags methods` (default: instant, one pass over the images and no training; refined trains "
            "on top of it and is more accurate)."
        ),
    ] = None
    profile: Annotated[str | None, typer.Option(help="Profile of the method, e.g. paper.")] = None
    backbone: Annotated[str | None, typer.Option(help="Any timm model name; by default tf_efficientnet_lite0.")] = None
    weights: Annotated[Path | None, typer.Option(help="Local file with the backbone's weights.")] = None
    known: Annotated[float | None, typer.Option(help="For experiments: share of positives to keep.")] = None
    epochs: Annotated[
        int | None, typer.Option(help="Epochs: passes over the training images. With --resume: train longer.")
    ] = None
    seed: Annotated[int | None, typer.Option(help="Random seed (data.mask_seed draws the hidden labels).")] = None
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:1 or mps.")] = None

    def settings(self) -> dict[str, Any]:
        """By the settings they stand for."""
        return {
            "data.known": self.known, "method.name": self.method, "method.profile": self.profile,
            "model.backbone": self.backbone, "model.weights": self.weights, "train.epochs": self.epochs,
            "train.device": self.device, "seed": self.seed,
        }  # fmt: skip


@dataclass(frozen=True)
class LoggerOptions(OptionGroup):
    """Where a run is logged besides its own folder."""

    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write TensorBoard files (extra: tensorboard).")
    ] = False
    logger: Annotated[
        list[str] | None,
        typer.Option(help="Also log to mlflow, wandb (extras of these names) or your own; may be repeated."),
    ] = None

    @property
    def names(self) -> list[str]:
        return [*(["tensorboard"] if self.tensorboard else []), *(self.logger or [])]


@dataclass(frozen=True)
class ThresholdOptions(OptionGroup):
    """When a tag is given."""

    threshold: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="No tag below this probability (default: the model's per-category thresholds; with --precision, in "
            "addition to it).",
        ),
    ] = None
    precision: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Per-category thresholds at which this share of the predicted tags is right on average; single tags "
            "may be less probable.",
        ),
    ] = None
    recall: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Per-category thresholds at which this share of the true tags is found."),
    ] = None
    save_thresholds: Annotated[
        bool, typer.Option("--save-thresholds", help="Save the thresholds used here with the model.")
    ] = False

    def arguments(self) -> dict[str, Any]:
        if self.recall is not None and (self.threshold is not None or self.precision is not None):
            raise UserError("--recall chooses the thresholds by itself; leave out --threshold and --precision.")
        return asdict(self)


@dataclass(frozen=True)
class InferenceOptions(OptionGroup):
    """How images are run through a model."""

    workers: Annotated[int | None, typer.Option(min=0, help="Decoding threads (default: one per core).")] = None
    runtime: Annotated[
        str, typer.Option(help="What runs the backbone on a CPU: auto, torch, onnxruntime or openvino.")
    ] = "auto"
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Images in one forward pass (default: 8 on a CPU, 64 on a GPU).")
    ] = None
    device: Device = "auto"


@dataclass(frozen=True)
class ClusterOptions(OptionGroup):
    """Which machines compute."""

    ray: Annotated[
        str | None,
        typer.Option(
            help="Compute on a Ray cluster (extra: ray): local, auto or an address such as ray://head:10001.",
            metavar="ADDRESS",
        ),
    ] = None
    cpus: Annotated[float, typer.Option(min=0, help="With --ray: CPUs of one task.")] = 1
    gpus: Annotated[float, typer.Option(min=0, help="With --ray: GPUs of one task.")] = 0

    def joined(self) -> AbstractContextManager[Cluster | None]:
        """The cluster while in this context; None without --ray."""
        from fewtags.engine.cluster import cluster

        return cluster(self.ray, cpus=self.cpus, gpus=self.gpus)


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """The command as typer wants it: every parameter that is an OptionGroup is replaced by the group's options."""
    hints, parameters = get_type_hints(command, include_extras=True), []
    groups: dict[str, Any] = {}
    for parameter in inspect.signature(command).parameters.values():
        kind = hints[parameter.name]
        if isinstance(kind, type) and issubclass(kind, OptionGroup):
            groups[parameter.name] = kind
            parameters += _options_of(kind)
        else:
            parameters.append(parameter.replace(annotation=kind, kind=inspect.Parameter.KEYWORD_ONLY))

    @wraps(command)
    def with_groups(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values)

    with_groups.__signature__ = inspect.Signature(parameters)  # pyrefly: ignore[missing-attribute]
    with_groups.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return with_groups


def _options_of(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )
        for field in fields(group)
    ]


def named_values(pairs: list[str] | None) -> dict[str, Any]:
    """`-o name=value` as strings, except lists: the reader's options define the type of each value."""
    options: dict[str, Any] = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UserError(f"--option {pair} should be name=value, for example -o zero=absent.")
        options[name.strip()] = _as_list(pair, value) if value.startswith("[") else value
    return options


def category_list(given: str | None) -> dict[str, Any]:
    """`dog,sea` or the name of a text file as the reader's option."""
    if given is None:
        return {}
    names = [name.strip() for name in given.split(",") if name.strip()]
    return {"categories": given if len(names) == 1 and Path(given).is_file() else names}


def _as_list(pair: str, value: str) -> Any:
    import yaml

    try:
        return yaml.load(value, Loader=yaml.BaseLoader)
    except yaml.YAMLError:
        raise UserError(f"--option {pair}: the value is not a list like [cat, dog].") from None
