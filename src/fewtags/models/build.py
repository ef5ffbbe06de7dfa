"""From settings to a Classifier, fresh or as it was saved."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

import fewtags
from fewtags.config import RunConfig, resolve
from fewtags.errors import UserError
from fewtags.files import write_json, written_whole
from fewtags.methods.base import Problem, WordVectors
from fewtags.methods.instant import InstantModel
from fewtags.models.backbones import create_backbone
from fewtags.models.classifier import Classifier, Neck
from fewtags.models.closed_form import ClosedFormHead
from fewtags.models.heads import head_class
from fewtags.models.tensor_files import first_line
from fewtags.models.words import find_word_vectors

FORMAT = 1


def make_problem(config: RunConfig, categories: list[str], labels: np.ndarray, dataset: str) -> Problem:
    words = None
    if head_class(config.head_name).needs_words:
        words = find_word_vectors(categories, config.words.source, config.words.dim, seed=config.seed)
    return Problem(tuple(categories), torch.from_numpy(labels), words, dataset)


def build_classifier(config: RunConfig, problem: Problem, *, load_weights: bool = True) -> Classifier:
    model = config.model
    backbone = create_backbone(
        model.backbone,
        pretrained=model.pretrained and load_weights,
        weights=model.weights if load_weights else None,
        stride_in_1x1=model.stride_in_1x1,
        input_size=config.input.size,
    )
    neck = Neck(backbone.num_channels, model.pool, model.width)
    head = head_class(config.head_name)(config.head, neck.num_channels, problem)
    from_scratch = not model.pretrained and model.weights is None
    train_from = ("all" if from_scratch else "head") if model.train_from == "auto" else model.train_from
    backbone.freeze_before(train_from)
    return Classifier(backbone, neck, head)


@dataclass(frozen=True)
class SavedModel:
    """All that prediction needs, as it is kept in a folder: `model.safetensors` and `tagger.json`.

    Beside them the method `instant` keeps `instant.safetensors`, the sums that it needs to take in more labels.
    """

    classifier: Classifier
    config: RunConfig
    categories: list[str]
    thresholds: np.ndarray  # [C] a tag is given where its probability reaches this
    word_vectors: tuple[int, bool] | None  # their length and whether they were learned, where the head has any

    @property
    def instant(self) -> InstantModel | None:
        """The closed form, where it is the whole model."""
        return getattr(self.classifier.head, "instant", None)

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        about = {
            "format": FORMAT,
            "fewtags": fewtags.__version__,
            "categories": self.categories,
            "thresholds": [round(float(threshold), 6) for threshold in self.thresholds],
            "word_vectors": self.word_vectors,
            "config": self.config.nested(),
        }
        weights = {name: tensor.contiguous() for name, tensor in self.classifier.state_dict().items()}
        with written_whole(folder / "model.safetensors") as beside:
            save_file(weights, beside)
        if self.instant is not None:
            with written_whole(folder / "instant.safetensors") as beside:
                save_file({name: tensor.contiguous() for name, tensor in self.instant.state_dict().items()}, beside)
        write_json(folder / "tagger.json", about)


def load_model(folder: str | Path) -> SavedModel:
    """Read what `SavedModel.save` wrote; a run folder may be given too."""
    folder = Path(folder)
    folder = folder / "model" if (folder / "model" / "tagger.json").is_file() else folder
    about = _read_about(folder)
    categories, config = about["categories"], resolve(about["config"])
    words = None
    if about["word_vectors"]:
        dim, learned = about["word_vectors"]
        words = WordVectors(torch.zeros(len(categories), dim), "the saved model", learned)
    problem = Problem(tuple(categories), torch.zeros(1, len(categories), dtype=torch.int8), words)
    classifier = build_classifier(config, problem, load_weights=False)
    file, sums = folder / "model.safetensors", folder / "instant.safetensors"
    try:
        classifier.load_state_dict(load_file(file))
        if isinstance(classifier.head, ClosedFormHead) and sums.is_file():
            file = sums
            classifier.head.instant = InstantModel.from_state_dict(load_file(sums))
    except Exception as error:
        raise UserError(f"{file} is missing, damaged or does not fit tagger.json ({first_line(error)}).") from error
    return SavedModel(classifier.eval(), config, categories, np.array(about["thresholds"]), about["word_vectors"])


def _read_about(folder: Path) -> dict:
    file = folder / "tagger.json"
    if not file.is_file():
        raise UserError(f"{folder} holds no trained model (no tagger.json); give the folder of a finished run.")
    try:
        about = json.loads(file.read_text(encoding="utf-8"))
        if about["format"] != FORMAT:
            raise UserError(f"{file} has format {about['format']!r}; this version of fewtags reads {FORMAT}.")
        assert isinstance(about["config"], dict)
        assert all(isinstance(name, str) for name in about["categories"])
        assert len([float(threshold) for threshold in about["thresholds"]]) == len(about["categories"])
        assert about["word_vectors"] is None or len(about["word_vectors"]) == 2
    except (ValueError, KeyError, TypeError, AssertionError) as error:
        raise UserError(f"{file} is damaged or not written by fewtags.") from error
    return about
