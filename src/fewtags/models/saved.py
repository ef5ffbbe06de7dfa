"""A trained model as a folder with a familiar layout, and how it is loaded.

    config.json         format, backbone, head, input and word vectors: all that is needed to build the model;
                        how it was trained, as a record that nothing depends on
    labels.json         category names and thresholds, and the tree of the tags if they have one
    model.safetensors   the weights; config.json has their checksum
    README.md           a model card

It contains no paths of the machine it was trained on. Loading needs neither the method nor the settings of
training, so a model outlives both. Format 1 (`tagger.json`, `instant.safetensors`) is still read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from torch import Tensor

import fewtags
from fewtags.atomic import atomic_write, file_checksum, write_json
from fewtags.contract import WordVectors
from fewtags.data.preprocess import InputConfig
from fewtags.data.tag_tree import TagTree
from fewtags.errors import UserError, no_such_folder
from fewtags.models.backbones import timm_weights
from fewtags.models.build import ModelConfig, build_classifier
from fewtags.models.classifier import Classifier
from fewtags.models.heads import head_class
from fewtags.models.model_card import UNKNOWN_LICENSE, model_card
from fewtags.models.places import WEIGHTS, model_places
from fewtags.models.tensor_files import first_line
from fewtags.models.weight_sizes import Shapes, check_sizes, weight_shapes
from fewtags.renamed import current_names
from fewtags.settings import Settings

FORMAT = 2
CONFIG, LABELS, CARD = "config.json", "labels.json", "README.md"


@dataclass(frozen=True)
class SavedModel:
    """All that prediction needs."""

    classifier: Classifier
    model: ModelConfig
    input: InputConfig
    head_name: str
    head: Settings
    categories: list[str]
    thresholds: np.ndarray  # [C] a tag is predicted if its probability reaches this
    word_vectors: tuple[int, bool] | None = None  # their length and whether they were learned, if the head has any
    training: Mapping[str, Any] = field(default_factory=dict)  # a record of the settings; nothing reads it to predict
    data: Mapping[str, Any] = field(default_factory=dict)  # images and known tags of training, for the model card
    quality: Mapping[str, Any] = field(default_factory=dict)  # what was measured or estimated, for the model card
    tree: TagTree = field(default_factory=TagTree)  # which categories imply which, and where keywords are written

    @property
    def method(self) -> str:
        method = self.training.get("method")
        return str(method.get("name", "unknown")) if isinstance(method, Mapping) else "unknown"

    def save(self, folder: Path, *, license: str = UNKNOWN_LICENSE) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        weights = {name: tensor.contiguous() for name, tensor in self.classifier.state_dict().items()}
        with atomic_write(folder / WEIGHTS) as temporary:
            save_file(weights, temporary)
            checksum = file_checksum(temporary)
        self._save_about(folder, checksum, license)

    def save_about(self, folder: Path, *, license: str = UNKNOWN_LICENSE) -> None:
        """Everything but the weights, which are in the folder already."""
        self._save_about(folder, str(read_object(folder / CONFIG)["weights_sha256"]), license)

    def _save_about(self, folder: Path, checksum: str, license: str) -> None:
        thresholds = [round(float(threshold), 6) for threshold in self.thresholds]
        tree = {"tree": self.tree.to_json()} if self.tree else {}
        write_json(folder / LABELS, {"categories": self.categories, "thresholds": thresholds, **tree})
        with atomic_write(folder / CARD) as temporary:
            temporary.write_text(self._card(license), encoding="utf-8")
        write_json(folder / CONFIG, {**self._about(), "weights_sha256": checksum})  # last: it marks a model folder

    def _card(self, license: str) -> str:
        about = (self.categories, self.thresholds.tolist(), self.training, self.data, self.quality)
        return model_card(
            *about,
            backbone=self.model.backbone,
            size=self.input.size,
            base_model=self._base_model(),
            license=license,
        )

    def _base_model(self) -> str | None:
        """The repository with the weights it started from, if they were timm's own."""
        model = self.training.get("model") or {}
        known = (
            model.get("pretrained") and not model.get("weights") and not self.model.backbone.startswith("open_clip/")
        )
        return f"timm/{timm_weights(self.model.backbone)}" if known else None

    def _about(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "fewtags": fewtags.__version__,
            "model": self.model.model_copy(update={"weights": None}).model_dump(mode="json"),
            "head": {"name": self.head_name, **without_file_of_names(self.head.model_dump(mode="json"))},
            "input": self.input.model_dump(mode="json"),
            "word_vectors": self.word_vectors,
            "data": dict(self.data),
            "quality": dict(self.quality),
            "training": without_paths(self.training),
        }


def save_thresholds(folder: Path, saved: SavedModel, thresholds: np.ndarray) -> None:
    """Make these the thresholds of the model in its own folder or in a run's."""
    place = next((place for place in model_places(folder)[:2] if place.is_dir()), folder)
    replace(saved, thresholds=thresholds).save(place)


def without_file_of_names(head: Mapping[str, Any]) -> dict[str, Any]:
    """A head's settings, without the path of a names file: its content is in the weights."""
    return {**head, "names": "auto"} if head.get("names", "auto") not in ("auto", "none") else dict(head)


def without_paths(training: Mapping[str, Any]) -> dict[str, Any]:
    """The record of the settings without local paths; the name of a weights file is kept."""
    record = {group: dict(values) if isinstance(values, Mapping) else values for group, values in training.items()}
    places = {"data": ("source", "tags", "options", "decisions"), "cache": ("folder",), "words": ("source",)}
    for group, names in places.items():
        for name in names:
            if isinstance(record.get(group), dict):
                record[group].pop(name, None)
    if isinstance(record.get("head"), dict):
        record["head"] = without_file_of_names(record["head"])
    model = record.get("model")
    if isinstance(model, dict) and model.get("weights"):
        model["weights"] = Path(str(model["weights"])).name
    return record


# --- reading ---


def load_model(folder: str | Path) -> SavedModel:
    """Load a model written by `SavedModel.save`; a run folder works too."""
    folder = Path(folder)
    for place in model_places(folder):
        if (place / CONFIG).is_file():
            return _load_format_2(place)
        if (place / "tagger.json").is_file():
            return _load_format_1(place)
    if not folder.exists():
        raise no_such_folder(folder)
    raise UserError(f"{folder} contains no trained model (no {CONFIG}); pass the folder of a finished run.")


def read_thresholds(folder: Path) -> np.ndarray:
    """[C] thresholds of the model in a folder, read without loading the model."""
    for place in model_places(folder):
        for name in (LABELS, "tagger.json"):
            if (place / name).is_file():
                about = read_object(place / name)
                try:
                    return names_and_thresholds(about["categories"], about["thresholds"])[1]
                except (ValueError, KeyError, TypeError) as error:
                    raise damaged(place / name) from error
    raise UserError(f"{folder} contains no trained model (no {LABELS}); pass the folder of a finished run.")


def _load_format_2(folder: Path) -> SavedModel:
    about, labels = read_object(folder / CONFIG), read_object(folder / LABELS)
    if about.get("format") != FORMAT:
        raise UserError(
            f"{folder / CONFIG} has format {about.get('format')!r}; this version of fewtags reads 1 and {FORMAT}."
        )
    with damage_of(folder / LABELS):
        categories, thresholds = names_and_thresholds(labels["categories"], labels["thresholds"])
        tree = TagTree.from_json(labels.get("tree"))
    with damage_of(folder / CONFIG):
        training, data, quality = (dict(about.get(name) or {}) for name in ("training", "data", "quality"))
        head, words = dict(about["head"]), about["word_vectors"]
    file = folder / WEIGHTS
    if not file.is_file() or file_checksum(file) != about.get("weights_sha256"):
        raise UserError(f"{file} is missing or damaged (its checksum does not match {CONFIG}).")
    shapes = weight_shapes(file)
    with damage_of(folder / CONFIG):
        saved = _build(about["model"], about["input"], head.pop("name"), head, categories, words, shapes, file)
    load_weights(saved, read_weights(file), file)
    training = current_names(training)
    return replace(saved, thresholds=thresholds, training=training, data=data, quality=quality, tree=tree)


def _load_format_1(folder: Path) -> SavedModel:
    """Format 1: tagger.json with all settings of the run, and the closed form in a separate file."""
    about = read_object(folder / "tagger.json")
    if about.get("format") != 1:
        raise UserError(f"{folder / 'tagger.json'} has format {about.get('format')!r}; it should be 1.")
    file, sums = folder / "model.safetensors", folder / "instant.safetensors"
    shapes = {**weight_shapes(file), **(weight_shapes(sums) if sums.is_file() else {})}
    with damage_of(folder / "tagger.json"):
        categories, thresholds = names_and_thresholds(about["categories"], about["thresholds"])
        config = dict(about["config"])
        head, words = dict(config["head"]), about["word_vectors"]
        saved = _build(config["model"], config["input"], head.pop("name"), head, categories, words, shapes, file)
    state = read_weights(file)
    if saved.head_name == "closed_form":
        try:
            state = closed_form_of_format_1(state, read_weights(sums) if sums.is_file() else {})
        except KeyError as error:
            raise UserError(f"{file} or {sums.name} is missing or damaged ({first_line(error)}).") from error
    load_weights(saved, state, file, strict=False)
    return replace(saved, thresholds=thresholds, training=current_names(config))


def closed_form_of_format_1(state: dict[str, Tensor], sums: dict[str, Tensor]) -> dict[str, Tensor]:
    """The head's buffers by their current names. Without the sums the logits are a plain linear layer."""
    prefix = "head.discriminant."
    state = dict(state)
    weight, bias, thresholds = (state.pop(f"head.{name}") for name in ("weight", "bias", "thresholds"))
    if not sums:
        return state | {prefix + "weights": weight, prefix + "intercept": bias, prefix + "thresholds": thresholds}
    kept = {name.removeprefix("basis.").removeprefix("statistics."): value.float() for name, value in sums.items()}
    for name in ("count", "total", "second_moment"):
        kept.pop(name, None)
    return state | {prefix + name: value for name, value in kept.items()}


def read_object(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{file} is missing; the folder is not a complete model.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise damaged(file) from error
    if not isinstance(content, dict):
        raise damaged(file)
    return content


def read_weights(file: Path) -> dict[str, Tensor]:
    try:
        return load_file(file)
    except Exception as error:  # safetensors has its own exceptions
        raise UserError(f"{file} is missing or damaged ({first_line(error)}).") from error


def damaged(file: Path) -> UserError:
    return UserError(f"{file} is damaged or not written by fewtags.")


@contextmanager
def damage_of(file: Path) -> Iterator[None]:
    """Whatever the content of the file leads to within the block is said as one sentence about it: building a model
    from settings that make no sense may raise anything."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise damaged(file) from error


def names_and_thresholds(categories: Any, thresholds: Any) -> tuple[list[str], np.ndarray]:
    if not isinstance(categories, list) or not all(isinstance(name, str) for name in categories):
        raise ValueError("category names should be strings")
    values = np.array([float(threshold) for threshold in thresholds])
    if len(values) != len(categories):
        raise ValueError("there should be one threshold per category")
    if np.isnan(values).any():
        raise ValueError("thresholds should be numbers")
    return categories, values


def _build(
    model: Any,
    input: Any,
    head_name: Any,
    head: dict[str, Any],
    categories: list[str],
    word_vectors: Any,
    shapes: Shapes,
    file: Path,
) -> SavedModel:
    """The model with random weights and thresholds of one half, if the weights in `file` have its size."""
    model_config, input_config = part(ModelConfig, model), part(InputConfig, input)
    head_config = part(head_class(str(head_name)).Config, head)
    dim, learned = (0, False) if word_vectors is None else (int(word_vectors[0]), bool(word_vectors[1]))
    lengths = {f"head.{name}": value for name, value in head_config.model_dump().items()}
    lengths |= {"model.width": model_config.width, "word_vectors": dim, "categories": len(categories)}
    check_sizes(lengths, model_config.backbone, shapes, file)
    words = None
    if word_vectors is not None:
        words = WordVectors(torch.zeros(len(categories), dim), "the saved model", learned)
    classifier = build_classifier(
        model_config, input_config.size, str(head_name), head_config, len(categories), words, load_weights=False
    )
    about_words = None if words is None else (words.vectors.shape[1], words.learned)
    thresholds = np.full(len(categories), 0.5)
    return SavedModel(
        classifier, model_config, input_config, str(head_name), head_config, categories, thresholds, about_words
    )


S = TypeVar("S", bound=Settings)


def part(kind: type[S], values: Any) -> S:
    try:
        return kind(**values)
    except ValidationError as error:
        raise ValueError(first_line(error)) from error


def load_weights(saved: SavedModel, state: dict[str, Tensor], file: Path, *, strict: bool = True) -> None:
    state = saved.classifier.head.current_state(state, "head.")
    try:
        missing, unexpected = saved.classifier.load_state_dict(state, strict=strict)
    except Exception as error:
        raise UserError(f"{file} does not match the model in its folder ({first_line(error)}).") from error
    if missing or unexpected:
        raise UserError(f"{file} does not match the model in its folder ('{(missing or unexpected)[0]}').")
    saved.classifier.eval()
