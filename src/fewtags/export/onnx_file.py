"""A trained model as one ONNX (or OpenVINO) file: pixels in, probabilities out, with all metadata inside.

    input   pixels         float32 [batch, 3, size, size], RGB from 0 to 1; the model normalises them
    output  probabilities  float32 [batch, C]

With `for_imgutils` they have the names that imgutils reads: `input`; `prediction`, `logits`, `embedding`.

The metadata entry `fewtags` is JSON: categories, thresholds, input, model, head, quality and the record of training.
"""

from __future__ import annotations

import contextlib
import csv
import json
import logging
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import fewtags
from fewtags.atomic import atomic_write, write_json
from fewtags.data.images import BadImage, open_resized
from fewtags.engine.onnx_tagger import METADATA, ExportedTagger
from fewtags.errors import MissingExtra, RunFailed, UserError
from fewtags.models.saved import SavedModel, without_paths
from fewtags.wording import plural

TOLERANCE = 1e-4  # of probabilities; float32 kernels of two libraries differ by about 1e-6
INT8_IMAGES = 128  # calibration images for the activation ranges
OPSET = 18  # the operators that every version of the exporter writes; newer ones it converts to, some versions wrongly
KINDS = ("onnx", "openvino")
KIND = 0  # imgutils sorts tags into kinds ("general", "character", "rating"); ours are all of the first


@dataclass(frozen=True)
class Check:
    """How the exported file differs from torch, on `num_images` images."""

    num_images: int
    largest: float
    mean: float
    same_tags: float  # share of all tag decisions that agree

    def __str__(self) -> str:
        return (
            f"Compared with torch on {plural(self.num_images, 'image')}: largest difference of a probability "
            f"{self.largest:.2g}, mean {self.mean:.2g}; {self.same_tags:.2%} of the tags agree."
        )


class PixelsToProbabilities(nn.Module):
    inputs = "pixels"
    outputs: tuple[str, ...] = ("probabilities",)

    def __init__(self, saved: SavedModel):
        super().__init__()
        self.classifier = saved.classifier.eval()

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        return (self.classifier(self.normalised(pixels)).logits.sigmoid(),)

    def normalised(self, pixels: Tensor) -> Tensor:
        backbone = self.classifier.backbone
        return (255 * pixels - backbone.pixel_mean) / backbone.pixel_std


class WhatImgutilsReads(PixelsToProbabilities):
    inputs = "input"
    outputs = ("prediction", "logits", "embedding")

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        maps = self.classifier.feature_map(self.normalised(pixels))
        logits = self.classifier.head(maps.float()).logits
        return logits.sigmoid(), logits, maps.mean((2, 3))


def export_model(
    saved: SavedModel,
    file: Path,
    *,
    to: str = "onnx",
    int8: bool = False,
    images: Sequence[Path] = (),
    tolerance: float = TOLERANCE,
    for_imgutils: bool = False,
) -> Check:
    """Write `file`, compare it with torch on `images`, and remove it if the two differ too much.

    With `int8` weights and activations are quantised, calibrated on `images`; then the difference is reported
    instead of bounded.
    """
    if to not in KINDS:
        raise UserError(f"--to {to} should be one of {', '.join(KINDS)}, timm.")
    if int8 and not images:
        raise UserError("--int8 needs images for calibration; pass some with --images.")
    model = (WhatImgutilsReads if for_imgutils else PixelsToProbabilities)(saved).cpu()
    file.parent.mkdir(parents=True, exist_ok=True)
    pixels = opened_pixels(images, saved.input.size) or [made_up_pixels(saved.input.size)]
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        made = Path(folder) / "model.onnx"
        write_onnx(model, made, saved.input.size)
        if int8:
            made = quantised(made, pixels, model.inputs)
        write_metadata(made, metadata(saved, int8))
        if to == "openvino":
            made = to_openvino(made)
        unseen = pixels[INT8_IMAGES:] if int8 else pixels  # what the ranges were fitted to would flatter them
        check = compare(model, ExportedTagger(made), unseen or pixels, saved.thresholds)
        if not int8 and check.largest > tolerance:
            raise RunFailed(f"The exported model differs from torch, so it was discarded. {check}")
        for written in sorted(Path(folder).glob(f"{made.stem}.*" if to == "openvino" else made.name)):
            written.replace(file.with_suffix(written.suffix))
    return check


# --- writing ---


def write_onnx(model: PixelsToProbabilities, file: Path, size: int) -> None:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise MissingExtra("Export to ONNX", "onnx") from None
    example = torch.rand(2, 3, size, size)
    with _quiet(), torch.no_grad():
        torch.onnx.export(
            model,
            (example,),
            str(file),
            input_names=[model.inputs],
            output_names=list(model.outputs),
            dynamic_shapes={"pixels": {0: torch.export.Dim("batch")}},
            external_data=False,
            dynamo=True,
            opset_version=OPSET,
            verbose=False,
        )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences the exporter's messages, which are meant for its developers."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def metadata(saved: SavedModel, int8: bool) -> dict[str, Any]:
    backbone = saved.classifier.backbone
    return {
        "format": 1,
        "fewtags": fewtags.__version__,
        "categories": saved.categories,
        "thresholds": [round(float(threshold), 6) for threshold in saved.thresholds],
        **({"tree": saved.tree.to_json()} if saved.tree else {}),
        "input": {
            "size": saved.input.size,
            "resize": "bicubic to size x size, aspect ratio not kept",
            "range": [0, 1],
            "colours": "RGB",
            "normalised_inside": {"mean": list(backbone.mean), "std": list(backbone.std)},
        },
        "model": saved.model.backbone,
        "head": saved.head_name,
        "method": saved.method,
        "int8": int8,
        "data": dict(saved.data),
        "quality": dict(saved.quality),
        "training": without_paths(saved.training),
    }


def write_metadata(file: Path, about: dict[str, Any]) -> None:
    import onnx

    model = onnx.load(str(file))
    onnx.helper.set_model_props(model, {METADATA: json.dumps(about, ensure_ascii=False)})
    model.producer_name, model.producer_version = "fewtags", fewtags.__version__
    onnx.save(model, str(file))


def to_openvino(file: Path) -> Path:
    try:
        import onnx
        import openvino
    except ImportError:
        raise MissingExtra("Export to OpenVINO", "openvino") from None
    about = {entry.key: entry.value for entry in onnx.load(str(file)).metadata_props}
    model = openvino.convert_model(str(file))
    model.set_rt_info(about[METADATA], METADATA)
    openvino.save_model(model, str(file.with_name("openvino.xml")), compress_to_fp16=False)
    return file.with_name("openvino.xml")


def quantised(file: Path, pixels: Sequence[np.ndarray], inputs: str) -> Path:
    """Quantise weights and activations, calibrated on the first INT8_IMAGES of `pixels`."""
    from onnxruntime import quantization

    class Ranges(quantization.CalibrationDataReader):
        def __init__(self) -> None:
            self.waiting = iter(pixels[:INT8_IMAGES])

        def get_next(self) -> dict[str, np.ndarray] | None:
            one = next(self.waiting, None)
            return None if one is None else {inputs: one[None].astype(np.float32) / 255}

    prepared, small = file.with_name("prepared.onnx"), file.with_name("int8.onnx")
    with _quiet():
        quantization.quant_pre_process(str(file), str(prepared), skip_symbolic_shape=True)
        quantization.quantize_static(
            str(prepared),
            str(small),
            Ranges(),
            quant_format=quantization.QuantFormat.QDQ,
            per_channel=True,
            op_types_to_quantize=["Conv"],  # the head keeps its precision: thresholds depend on it
        )
    return small


# --- checking ---


def opened_pixels(images: Sequence[Path], size: int) -> list[np.ndarray]:
    """[3, size, size] bytes of every readable image."""
    found = []
    for image in images:
        with contextlib.suppress(BadImage):
            found.append(np.asarray(open_resized(image, (size, size))).transpose(2, 0, 1))
    return found


def made_up_pixels(size: int) -> np.ndarray:
    """If no images are available: smooth noise, which activates a network about as a photo does."""
    coarse = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    smooth = nn.functional.interpolate(coarse, size=(size, size), mode="bilinear")[0]
    return (255 * smooth).byte().numpy()


@torch.inference_mode()
def compare(model: nn.Module, exported: ExportedTagger, pixels: Sequence[np.ndarray], thresholds: np.ndarray) -> Check:
    ours, theirs = [], []
    for first in range(0, len(pixels), 16):
        batch = np.stack(pixels[first : first + 16])
        ours.append(model(torch.from_numpy(batch).float() / 255)[0].numpy())
        theirs.append(exported.probabilities(batch))
    a, b = np.concatenate(ours), np.concatenate(theirs)
    difference = np.abs(a - b)
    alike = ((a >= thresholds) == (b >= thresholds)).mean()
    return Check(len(pixels), float(difference.max()), float(difference.mean()), float(alike))


# --- the layout of imgutils (dghs-imgutils) and other booru-style tools ---


def write_layout(saved: SavedModel, folder: Path) -> None:
    """What imgutils.generic.MultiLabelTIMMModel reads next to model.onnx; `count` is the number of known training
    images."""
    counts = saved.data.get("known_positives") or [0] * len(saved.categories)
    with (
        atomic_write(folder / "selected_tags.csv") as temporary,
        temporary.open("w", newline="", encoding="utf-8") as out,
    ):
        writer = csv.writer(out)
        writer.writerow(["tag_id", "name", "category", "count", "best_threshold"])
        for number, (name, threshold) in enumerate(zip(saved.categories, saved.thresholds, strict=True)):
            writer.writerow([number, name, KIND, counts[number], f"{float(threshold):.6f}"])
    size = saved.input.size
    stages = [
        {"type": "convert_rgb", "force_background": "white"},
        {"type": "resize", "size": [size, size], "interpolation": "bicubic", "max_size": None, "antialias": True},
        {"type": "to_tensor"},  # numbers from 0 to 1; the model normalises them itself
    ]
    write_json(folder / "preprocess.json", {"val": stages, "test": stages})
    write_json(folder / "categories.json", [{"category": KIND, "name": "general"}])
