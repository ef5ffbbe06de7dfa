"""Runs an exported model (`fewtags export`) without torch: names, thresholds and input size come from the file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from fewtags.data.images import LARGEST_SIDE, BadImage, open_resized
from fewtags.data.prefetch import default_workers
from fewtags.data.tag_tree import TagTree
from fewtags.engine.predictions import Prediction, name_of, prediction_of
from fewtags.errors import MissingExtra, UserError
from fewtags.wording import plural

METADATA = "fewtags"  # key of the model's metadata, which holds everything about it as JSON
SUFFIXES = (".onnx", ".xml")
BATCH = 16


def is_exported(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and path.is_file()


class ExportedTagger:
    """A model file of `fewtags export`: .onnx run by ONNX Runtime, or .xml run by OpenVINO."""

    def __init__(self, file: str | Path):
        self.file = Path(file)
        if not self.file.is_file():
            raise UserError(f"{self.file} does not exist.")
        self._is_onnx = self.file.suffix != ".xml"
        opened = _open_onnx(self.file) if self._is_onnx else _open_openvino(self.file)
        self._run = opened.run
        try:
            content = json.loads(opened.about)
            self.categories: list[str] = [str(name) for name in content["categories"]]
            self.thresholds = np.array([float(value) for value in content["thresholds"]])
            self.size = int(content["input"]["size"])
            self.tree = TagTree.from_json(content.get("tree"))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise UserError(f"{self.file} was not written by `fewtags export`: its metadata is missing.") from error
        if wrong := self._disagreement(opened):
            raise UserError(f"{self.file} is damaged: {wrong}.")
        self.about: dict[str, Any] = content

    def _disagreement(self, opened: Opened) -> str:
        """What the metadata says and the model does not, before anything of that size is made; '' if nothing."""
        if len(self.thresholds) != len(self.categories):
            return "the number of thresholds does not match the categories"
        if np.isnan(self.thresholds).any():
            return "a threshold is not a number"
        if opened.outputs not in (None, len(self.categories)):
            return (
                f"the model has {opened.outputs} outputs for {plural(len(self.categories), 'category', 'categories')}"
            )
        if not 1 <= self.size <= LARGEST_SIDE or opened.side not in (None, self.size):
            return f"its images have a side of {self.size}, the model's {opened.side or f'1 to {LARGEST_SIDE}'}"
        return ""

    def probabilities(self, pixels: np.ndarray) -> np.ndarray:
        """[N, C] from RGB pixels [N, 3, size, size] as bytes, or as numbers from 0 to 1."""
        return self._run(_as_input(pixels))

    @cached_property
    def on_one_core(self) -> Callable[[np.ndarray], np.ndarray] | None:
        """As `probabilities`, on one core: for threads that each compute their own images. Loaded on first use."""
        if not self._is_onnx:
            return None
        run = _open_onnx(self.file, num_threads=1).run
        return lambda pixels: run(_as_input(pixels))

    def predict_files(
        self, files: Iterable[Path], batch_size: int | None = None, workers: int | None = None
    ) -> Iterator[Prediction]:
        """One Prediction per file, in order. Pictures are opened in threads, a batch ahead of the model."""
        waiting, size = iter(files), batch_size or BATCH
        with ThreadPoolExecutor(workers or default_workers()) as pool:
            ahead = [(file, pool.submit(self._pixels, file)) for file in islice(waiting, size)]
            while ahead:
                batch, ahead = ahead, [(file, pool.submit(self._pixels, file)) for file in islice(waiting, size)]
                yield from self._predict_opened([(file, opened.result()) for file, opened in batch])

    def _pixels(self, file: Path) -> np.ndarray | str:
        try:
            return np.asarray(open_resized(file, (self.size, self.size))).transpose(2, 0, 1)
        except BadImage as error:
            return str(error)

    def _predict_opened(self, opened: Sequence[tuple[Path, np.ndarray | str]]) -> Iterator[Prediction]:
        pixels = [content for _, content in opened if isinstance(content, np.ndarray)]
        rows = iter(self.probabilities(np.stack(pixels)) if pixels else [])
        for file, content in opened:
            if isinstance(content, str):
                yield Prediction(name_of(file, 0), None, content)
            else:
                yield prediction_of(name_of(file, 0), next(rows), "", self.categories, self.tree)


def _as_input(pixels: np.ndarray) -> np.ndarray:
    if pixels.dtype == np.uint8:
        pixels = pixels.astype(np.float32) / 255
    return np.ascontiguousarray(pixels, dtype=np.float32)


@dataclass(frozen=True)
class Opened:
    run: Callable[[np.ndarray], np.ndarray]
    about: str  # the metadata
    side: int | None  # of the images it takes, if it takes one size only
    outputs: int | None  # numbers for each image, if that is known


def _open_onnx(file: Path, num_threads: int = 0) -> Opened:
    """No number of threads: one per core."""
    try:
        import onnxruntime
    except ImportError:
        raise MissingExtra(f"{file.name}", "onnx") from None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = num_threads
    try:
        session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime raises its own exceptions for damaged files
        raise UserError(f"{file} is not a readable ONNX model ({str(error).splitlines()[0][:150]}).") from error
    about = session.get_modelmeta().custom_metadata_map.get(METADATA, "")
    images, outputs = session.get_inputs()[0], session.get_outputs()[0]

    def run(pixels: np.ndarray) -> np.ndarray:
        return np.asarray(session.run(None, {images.name: pixels})[0])

    return Opened(run, about, _fixed(images.shape), _fixed(outputs.shape))


def _open_openvino(file: Path) -> Opened:
    try:
        import openvino
    except ImportError:
        raise MissingExtra(f"{file.name}", "openvino") from None
    try:
        model = openvino.Core().read_model(str(file))
        about = model.get_rt_info(METADATA).astype(str) if model.has_rt_info(METADATA) else ""
        compiled = openvino.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    except RuntimeError as error:
        raise UserError(f"{file} is not a readable OpenVINO model ({str(error).splitlines()[0][:150]}).") from error
    shapes = [
        [axis.get_length() if axis.is_static else None for axis in place.partial_shape]
        for place in (model.inputs[0], model.outputs[0])
    ]

    def run(pixels: np.ndarray) -> np.ndarray:
        found: np.ndarray = compiled(pixels)[0]
        return found

    return Opened(run, about, _fixed(shapes[0]), _fixed(shapes[1]))


def _fixed(shape: Sequence[Any]) -> int | None:
    """The length of the last axis; None if it is not fixed."""
    return shape[-1] if shape and isinstance(shape[-1], int) else None
