"""What features depend on besides the image: their key in the store."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import torch

from fewtags.data.images import DECODER
from fewtags.data.preprocess import InputConfig
from fewtags.engine.runtime import EXACT
from fewtags.models.backbones import Backbone
from fewtags.models.tensor_files import add_tensors

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
PLAIN = "plain"  # the whole image, as in evaluation; others are random crops


@dataclass(frozen=True)
class FeatureSpec:
    stages: tuple[str, ...]  # of the backbone that were applied
    weights: str  # a hash of them
    size: int  # of the square input
    view: str  # PLAIN, or how and with which seed the image was augmented
    decoder: int  # that made pixels of the file
    arithmetic: str  # "exact", or the runtime that rounds
    dtype: str  # on disk

    @classmethod
    def of(
        cls,
        backbone: Backbone,
        config: InputConfig,
        *,
        seed: int | None = None,
        precision: torch.dtype | None = None,
        runtime: str = "auto",
        dtype: str = "fp16",
    ) -> FeatureSpec:
        """Of the frozen stages of `backbone`. With a `seed`, of augmented views."""
        view = PLAIN
        if seed is not None:
            crops = {"seed": seed, "from": config.first_side, "crops": config.crop_sides, "flip": config.flip}
            view = json.dumps(crops)
        arithmetic = str(precision) if precision is not None else "exact" if runtime in ("auto", *EXACT) else runtime
        stages = tuple(backbone.stage_names[: backbone.num_frozen])
        return cls(stages, weights_hash(backbone), config.size, view, DECODER, arithmetic, dtype)

    @cached_property
    def key(self) -> str:
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:24]

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> FeatureSpec:
        values: dict[str, Any] = json.loads(text)
        values["stages"] = tuple(values["stages"])
        return cls(**values)


def weights_hash(backbone: Backbone) -> str:
    digest = hashlib.sha256(json.dumps([backbone.mean, backbone.std]).encode())
    digest.update(backbone.variant.encode())
    for stage in list(backbone.stages.values())[: backbone.num_frozen]:
        add_tensors(digest, stage.state_dict())
    return digest.hexdigest()
