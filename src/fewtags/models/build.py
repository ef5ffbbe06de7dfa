"""From settings to a Classifier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from safetensors.torch import load_file

from fewtags.contract import Problem, WordVectors
from fewtags.errors import UserError
from fewtags.models.backbones import Backbone, create_backbone
from fewtags.models.classifier import Classifier, Neck
from fewtags.models.heads import head_class
from fewtags.models.names import find_names
from fewtags.models.places import WEIGHTS, model_places
from fewtags.models.tensor_files import first_line
from fewtags.models.words import WordsConfig, find_word_vectors
from fewtags.settings import Settings

DEFAULT_BACKBONE = "tf_efficientnet_lite0"  # the best accuracy per CPU second: docs/speed.md


class ModelConfig(Settings):
    backbone: str = DEFAULT_BACKBONE
    """Any model name of timm, or `open_clip/...`; docs/speed.md compares some."""
    pretrained: bool = True
    """Start from timm's pretrained weights (downloaded from its hub) unless `weights` is given."""
    weights: str | None = None
    """Local file with the backbone's weights (.safetensors, or a state dict), or the folder of a saved model or
    finished run, to use its backbone."""
    stride_in_1x1: bool = False
    """For ResNet weights from Keras or Caffe, which have the stride in the first 1x1 convolution."""
    output_stride: Literal[8, 16, 32] | None = None
    """Output stride of the backbone: 16 instead of the usual 32 gives a feature map twice as fine from the same
    weights, with dilated convolutions in the last stage. Not every timm model supports it."""
    train_from: str = "auto"
    """First trainable stage ("layer4" in the paper), "all", or "head" (backbone frozen); auto: head if pretrained."""
    pool: int = Field(1, ge=1, le=64)
    """Average pooling of the feature map before the head; 2 in the paper (14x14 to 7x7)."""
    width: int = Field(0, ge=0)
    """Channels of a 1x1 convolution after the backbone; 0 keeps the backbone's, 1024 in the paper."""


def make_problem(
    head_name: str,
    words: WordsConfig,
    categories: Sequence[str],
    labels: np.ndarray,
    seed: int = 0,
    english: Mapping[str, str] | None = None,
) -> Problem:
    """The problem as known before training; word vectors only if the head needs them."""
    vectors = None
    if head_class(head_name).spec.needs_words:
        words_of = [(english or {}).get(name, name) for name in categories]
        vectors = find_word_vectors(words_of, words.source, words.dim, seed=seed)
    return Problem(tuple(categories), torch.from_numpy(labels), vectors, seed, english=english or {})


def load_backbone(backbone: Backbone, folder: Path) -> None:
    """The backbone weights of a saved model."""
    files = [place / WEIGHTS for place in model_places(folder)]
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        raise UserError(f"model.weights={folder} is a folder without a trained model (no {WEIGHTS}).")
    try:
        state = load_file(file)
        prefix = "backbone."
        backbone.load_state_dict({k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)})
    except Exception as error:
        raise UserError(f"{file} does not match the backbone ({first_line(error)}).") from error


def build_classifier(
    model: ModelConfig,
    input_size: int,
    head_name: str,
    head: Settings,
    num_categories: int,
    words: WordVectors | None = None,
    *,
    load_weights: bool = True,
    categories: Sequence[str] = (),
    english: Mapping[str, str] | None = None,
) -> Classifier:
    """With the names of the `categories`, a head that uses names gets what the backbone knows about them."""
    kind = head_class(head_name)
    names = getattr(head, "names", "none") if kind.spec.uses_names and categories and not model.width else "none"
    source = Path(model.weights) if model.weights is not None and load_weights else None
    from_model = source is not None and source.is_dir()
    backbone = create_backbone(
        model.backbone,
        pretrained=model.pretrained and load_weights and not from_model,
        weights=None if from_model else source,
        stride_in_1x1=model.stride_in_1x1,
        output_stride=model.output_stride,
        input_size=input_size,
        keep_classifier=names != "none",
    )
    if source is not None and from_model:
        load_backbone(backbone, source)
    neck = Neck(backbone.num_channels, model.pool, model.width)
    backbone.freeze_before(first_trained(model))
    built = kind(head, neck.num_channels, num_categories, words)
    if names != "none":
        built.names = find_names(backbone.class_head, categories, None if names == "auto" else names, english)
        backbone.class_head = None
    return Classifier(backbone, neck, built)


def first_trained(model: ModelConfig) -> str:
    """The first trainable stage; those before it are frozen."""
    return ("all" if is_from_scratch(model) else "head") if model.train_from == "auto" else model.train_from


def is_from_scratch(model: ModelConfig) -> bool:
    return not model.pretrained and model.weights is None
