"""CLIP models from open_clip: the image tower as a backbone, the text tower for category names. Needs the extra `clip`.

Written `open_clip/ViT-B-32` (weights from a file, or none) or `open_clip/ViT-B-32/openai` (downloaded by that tag).
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fewtags.errors import MissingExtra, RunFailed, UserError, did_you_mean
from fewtags.models.backbones import Backbone
from fewtags.models.tensor_files import first_line

PREFIX = "open_clip/"
TEXTS_AT_ONCE = 64


@dataclass(frozen=True)
class TextTower:
    """Texts -> vectors in the space of the backbone's image features."""

    model: Any
    tokenizer: Any

    @property
    def scale(self) -> float:
        """The factor from cosine to logit, as trained."""
        return float(self.model.logit_scale.detach().exp())

    @torch.no_grad()
    def vectors(self, texts: Sequence[str]) -> Tensor:
        """[len(texts), D], unit length."""
        parts = [texts[start : start + TEXTS_AT_ONCE] for start in range(0, len(texts), TEXTS_AT_ONCE)]
        return torch.cat([self.model.encode_text(self.tokenizer(list(part)), normalize=True) for part in parts])


class _ImageFeatures(nn.Module):
    """The tower's projected features as a 1 x 1 map."""

    def __init__(self, tower: nn.Module):
        super().__init__()
        self.tower = tower

    def forward(self, images: Tensor) -> Tensor:
        return self.tower(images)[:, :, None, None]


def create_clip_backbone(
    name: str,
    *,
    pretrained: bool = True,
    weights: str | Path | None = None,
    input_size: int | None = None,
    keep_text: bool = False,
) -> Backbone:
    """The image tower of an open_clip model as one stage; with `keep_text` its `class_head` is the text tower."""
    open_clip = _open_clip()
    model_name, _, tag = name.removeprefix(PREFIX).partition("/")
    if model_name not in open_clip.list_models():
        raise UserError(
            f"There is no open_clip model '{model_name}'; {did_you_mean(model_name, open_clip.list_models())}"
        )
    source = str(weights) if weights is not None else _tag(open_clip, model_name, tag) if pretrained else None
    if weights is not None and not Path(weights).is_file():
        raise UserError(f"The weights file {weights} does not exist.")
    try:
        model = open_clip.create_model(
            model_name, pretrained=source, force_image_size=input_size, pretrained_text=False
        )
    except Exception as error:  # the hub client and damaged files raise many kinds of exceptions
        kind, hint = (UserError, "") if weights is not None else (RunFailed, "; pass a local file with --weights")
        raise kind(f"The weights '{source}' of {name} could not be loaded ({first_line(error)}){hint}.") from error
    model.eval()
    pixels = open_clip.get_model_preprocess_cfg(model)
    with torch.no_grad():
        channels = model.encode_image(torch.zeros(1, 3, *_size(model))).shape[1]
    stages: dict[str, nn.Module] = {"features": _ImageFeatures(model.visual)}
    backbone = Backbone(stages, channels, tuple(pixels["mean"]), tuple(pixels["std"]))
    if keep_text and source is not None:
        backbone.class_head = TextTower(model, open_clip.get_tokenizer(model_name))
    return backbone


def _open_clip() -> Any:
    try:
        return importlib.import_module("open_clip")
    except ImportError as error:
        raise MissingExtra("An open_clip backbone", "clip") from error


def _tag(open_clip: Any, model_name: str, tag: str) -> str:
    tags = open_clip.list_pretrained_tags_by_model(model_name)
    if not tag:
        example = f"{PREFIX}{model_name}/{tags[0] if tags else 'TAG'}"
        raise UserError(
            f"Say which weights of {model_name} to download, as in {example}, or pass a local file with --weights."
        )
    if tag not in tags:
        raise UserError(f"open_clip has no weights '{tag}' for {model_name}; {did_you_mean(tag, tags)}")
    return tag


def _size(model: Any) -> tuple[int, int]:
    size = model.visual.image_size
    return tuple(size) if isinstance(size, (tuple, list)) else (size, size)
