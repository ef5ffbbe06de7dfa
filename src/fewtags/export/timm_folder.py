"""A model as a folder that timm loads: `timm.create_model("local-dir:FOLDER", pretrained=True)`, or from the hub.

Possible where the head is one linear layer on the average-pooled map: it becomes timm's own classifier. A head that
scales features to unit length is not linear in them. Whether timm gives the same logits is checked before anything is
written.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fewtags.errors import RunFailed, UserError
from fewtags.models import quick_timm
from fewtags.models.heads import LinearHead
from fewtags.models.saved import SavedModel

TOLERANCE = 1e-4  # of logits; the layers are the same, so they differ by rounding at most


def export_to_timm(saved: SavedModel, folder: Path) -> float:
    """Write the folder; returns the largest difference of a logit from ours."""
    linear = linear_layer(saved)
    model = timm_model(saved, linear)
    difference = largest_difference(saved, model)
    if difference > TOLERANCE:
        raise UserError(
            f"timm's own '{saved.model.backbone}' does not average-pool the map its classifier sees (logits differ by "
            f"{difference:.2g}), so this model cannot be one of timm's; use --to onnx."
        )
    model.pretrained_cfg = {**model.pretrained_cfg, **input_settings(saved)}
    about = {"label_names": saved.categories, "thresholds": [round(float(t), 6) for t in saved.thresholds]}
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as made:
        quick_timm.timm.models.save_for_hf(
            model, made, model_config=about, model_args=model_arguments(saved), safe_serialization=True
        )
        for file in Path(made).iterdir():
            shutil.move(file, folder / file.name)
    return difference


def linear_layer(saved: SavedModel) -> nn.Linear:
    """The head as one layer on the average-pooled map of the backbone."""
    head, classifier = saved.classifier.head, saved.classifier
    if not isinstance(head, LinearHead):
        raise cannot(f"its head is '{saved.head_name}'")
    if head.standardise is not None:
        raise cannot("its head scales features to unit length (train with head.standardise=false)")
    if not isinstance(head.hidden, nn.Identity):
        raise cannot("its head has a hidden layer")
    if len(classifier.neck):
        raise cannot("it has layers between backbone and head (model.pool, model.width)")
    if saved.model.stride_in_1x1 or saved.model.backbone.startswith("open_clip/"):
        raise cannot(f"its backbone is not timm's '{saved.model.backbone}' as it is")
    return head.classifier


def cannot(reason: str) -> UserError:
    return UserError(
        f"timm's classifier is one linear layer on average-pooled features, and this model is more: {reason}. "
        "Use --to onnx, which exports every model."
    )


def timm_model(saved: SavedModel, linear: nn.Linear) -> Any:
    model: Any = quick_timm.timm.create_model(
        saved.model.backbone, pretrained=False, num_classes=len(saved.categories), **model_arguments(saved)
    )
    state = backbone_state(saved)
    classifier = next(name for name, layer in model.named_modules() if layer is model.get_classifier())
    state |= {f"{classifier}.weight": linear.weight, f"{classifier}.bias": linear.bias}
    missing, unexpected = model.load_state_dict(state, strict=False)
    if missing or unexpected:
        raise RunFailed(
            f"timm's '{saved.model.backbone}' has other tensors than this model: {(missing + unexpected)[0]}."
        )
    return model.eval()


def backbone_state(saved: SavedModel) -> dict[str, Tensor]:
    """The backbone's tensors by timm's names."""
    backbone = saved.classifier.backbone
    return {
        f"{name}.{inner}".removeprefix("features.model."): tensor
        for name, stage in zip(backbone.stage_names, backbone.stages.values(), strict=True)
        for inner, tensor in stage.state_dict().items()
    }


def model_arguments(saved: SavedModel) -> dict[str, Any]:
    return {} if saved.model.output_stride is None else {"output_stride": saved.model.output_stride}


def input_settings(saved: SavedModel) -> dict[str, Any]:
    """What timm's own transform needs to do what ours does: bicubic to a square, the aspect ratio is not kept."""
    backbone, size = saved.classifier.backbone, saved.input.size
    return {
        "num_classes": len(saved.categories),
        "input_size": (3, size, size),
        "interpolation": "bicubic",
        "crop_pct": 1.0,
        "crop_mode": "squash",
        "mean": tuple(backbone.mean),
        "std": tuple(backbone.std),
    }


@torch.inference_mode()
def largest_difference(saved: SavedModel, model: nn.Module) -> float:
    size = saved.input.size
    images = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    ours = saved.classifier.cpu().eval()(images).logits
    return float((model(images) - ours).abs().max())
