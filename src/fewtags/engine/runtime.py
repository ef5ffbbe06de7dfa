"""Runtimes for inference: torch, ONNX Runtime or OpenVINO, whichever is fastest on this machine.

On a CPU every thread of a pass reads its own images and runs the network on them on one core: no thread waits for
another, and torch is up to three times faster this way than with all cores on one batch (docs/speed.md). Which runtime
is fastest depends on the processor and the network, so one batch is timed with each. A runtime that is installed,
agrees with torch and is worth its start-up time for this number of images may win.
"""

from __future__ import annotations

import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fewtags.data.prefetch import default_workers, num_cores
from fewtags.errors import MissingExtra, UserError, did_you_mean
from fewtags.models.backbones import Backbone

BATCH = 8  # on one core; torch is slower with more, as the maps no longer fit in the CPU cache
GPU_BATCH = 64
TRIES = 3
SAVES = 3.0  # assumed speed-up of a faster runtime: tried if it saves more time than its start takes


@dataclass(frozen=True)
class Kind:
    extra: str | None  # the extra that installs it
    start: float  # approximate seconds to start
    half: bool = False  # in bf16: never chosen by `auto`, as tags would depend on the computer


KINDS = {
    "torch": Kind(None, 0.0),
    "torch-bf16": Kind(None, 0.0, half=True),
    "onnxruntime": Kind("onnx", 2.0),
    "openvino": Kind("openvino", 5.0),
    "openvino-bf16": Kind("openvino", 5.0, half=True),
}
EXACT = [name for name, kind in KINDS.items() if not kind.half]
AGREES = 1e-3  # largest relative difference of pooled features from torch's


@dataclass(frozen=True)
class Runtime:
    name: str
    run: Callable[[Tensor], Tensor]  # images [B, 3, H, W] uint8 -> maps [B, D, h, w], on the device
    batch: int = BATCH
    in_threads: bool = True  # each thread runs its own batches, on one core
    speed: dict[str, float] = field(default_factory=dict)  # images per second of those timed, on all cores
    rejected: dict[str, str] = field(default_factory=dict)  # why others were not chosen

    @property
    def sentence(self) -> str:
        """A sentence about which and why; empty if there was no choice."""
        if len(self.speed) + len(self.rejected) < 2:
            return ""
        others = [f"{name} {speed:.0f}" for name, speed in self.speed.items() if name != self.name]
        others += [f"{name}: {reason}" for name, reason in self.rejected.items()]
        return f"Features computed by {self.name}, about {self.speed[self.name]:.0f} images/s ({', '.join(others)})."


def choose_runtime(
    backbone: Backbone,
    name: str,
    size: int,
    device: torch.device,
    precision: torch.dtype | None = None,
    num_images: int | None = None,
) -> Runtime:
    """The frozen stages of `backbone` in the named runtime; "auto" times one batch with each.

    Without a number of images, many are assumed.
    """
    if name != "auto" and name not in KINDS:
        raise UserError(f"There is no runtime '{name}'; {did_you_mean(name, ['auto', *KINDS])}")
    if device.type != "cpu":
        if name not in ("auto", "torch"):
            raise UserError(f"cache.runtime={name} runs on the CPU, but the device is {device}; use torch or auto.")
        return Runtime("torch", torch_runtime(backbone, device, precision), GPU_BATCH, in_threads=False)
    if name not in ("auto", "torch"):
        return build(name, backbone, size)
    if precision is not None or name == "torch":
        return Runtime("torch", torch_runtime(backbone, device, precision))
    return fastest(backbone, size, float("inf") if num_images is None else num_images)


def build(name: str, backbone: Backbone, size: int) -> Runtime:
    builders: dict[str, Callable[[], Callable[[Tensor], Tensor]]] = {
        "torch": lambda: torch_runtime(backbone, torch.device("cpu"), None),
        "torch-bf16": lambda: torch_runtime(backbone, torch.device("cpu"), torch.bfloat16),
        "onnxruntime": lambda: onnx_runtime(backbone, size),
        "openvino": lambda: openvino_runtime(backbone, size, "f32"),
        "openvino-bf16": lambda: openvino_runtime(backbone, size, "bf16"),
    }
    return Runtime(name, builders[name]())


# --- choice ---


def fastest(backbone: Backbone, size: int, num_images: float) -> Runtime:
    """torch, unless another one is faster, agrees with it, and saves more time than it takes to start."""
    pixels = torch.randint(0, 256, (BATCH, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    images = nn.functional.interpolate(pixels.float(), (size, size), mode="bilinear").to(torch.uint8)
    images = images.contiguous(memory_format=torch.channels_last)
    best = build("torch", backbone, size)
    if num_images <= BATCH:
        return best  # for so few it does not pay, whatever the network
    others = worth_trying(num_images, timed(best.run, images[:1], tries=1)[0])
    if not others:
        return best
    seconds, expected = timed(best.run, images)
    speed, rejected = {"torch": BATCH / seconds * num_cores()}, {}
    for name in others:
        try:
            other = build(name, backbone, size)
            others_seconds, maps = timed(other.run, images)
        except MissingExtra:
            rejected[name] = "not installed"
            continue
        except Exception as error:  # a network it cannot run; each has its own exceptions
            rejected[name] = f"{type(error).__name__}"
            continue
        if difference(maps, expected) > AGREES:
            rejected[name] = "its features differ"
            continue
        speed[name] = BATCH / others_seconds * num_cores()
        if others_seconds < seconds:
            best, seconds = other, others_seconds
    return replace(best, speed=speed, rejected=rejected)


def worth_trying(num_images: float, seconds: float) -> list[str]:
    """The runtimes that may save more than their start takes, if an image takes torch so long on one core."""
    others = [name for name in EXACT if name != "torch"]
    return [name for name in others if num_images * seconds / num_cores() / SAVES >= KINDS[name].start]


def timed(run: Callable[[Tensor], Tensor], images: Tensor, tries: int = TRIES) -> tuple[float, Tensor]:
    """Seconds of the fastest of a few calls, on one core as in a pass, and the output."""

    def calls() -> tuple[float, Tensor]:
        maps, seconds = run(images), []
        for _ in range(tries):
            started = time.perf_counter()
            maps = run(images)
            seconds.append(time.perf_counter() - started)
        return min(seconds), maps

    with own_threads(), ThreadPoolExecutor(1, initializer=use_one_core) as pool:
        return pool.submit(calls).result()


def difference(maps: Tensor, expected: Tensor) -> float:
    """Relative difference of the pooled features; infinite if they are not finite."""
    pooled, wanted = maps.float().mean((2, 3)), expected.float().mean((2, 3))
    relative = float((pooled - wanted).norm() / wanted.norm().clamp(min=1e-12))
    return relative if relative == relative else float("inf")


# --- threads ---


def use_one_core() -> None:
    """From now on, torch computes in this thread only."""
    torch.set_num_threads(1)


class own_threads:  # noqa: N801 (used like a function)
    """Inside this context threads may call `use_one_core`; afterwards new threads use all cores again."""

    def __enter__(self) -> None:
        self.before = torch.get_num_threads()

    def __exit__(self, *_: Any) -> None:
        torch.set_num_threads(self.before)


# --- the runtimes ---


def torch_runtime(
    backbone: Backbone, device: torch.device, precision: torch.dtype | None
) -> Callable[[Tensor], Tensor]:
    def run(images: Tensor) -> Tensor:
        with torch.inference_mode(), torch.autocast(device.type, dtype=precision, enabled=precision is not None):
            return backbone.forward_frozen(images.to(device, non_blocking=True))

    return run


def normalised(backbone: Backbone) -> Callable[[Tensor], Any]:
    """Images [B, 3, H, W] uint8 as the input array of the first stage."""
    mean, std = backbone.pixel_mean.cpu(), backbone.pixel_std.cpu()
    return lambda images: ((images - mean) / std).contiguous().numpy()


def frozen_stages(backbone: Backbone) -> nn.Module:
    return nn.Sequential(*list(backbone.stages.values())[: backbone.num_frozen]).eval()


def openvino_runtime(backbone: Backbone, size: int, precision: str) -> Callable[[Tensor], Tensor]:
    try:
        import openvino
    except ImportError:
        raise MissingExtra("cache.runtime=openvino", "openvino") from None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch deprecated the tracing that OpenVINO still uses
        model = openvino.convert_model(frozen_stages(backbone), example_input=torch.zeros(1, 3, size, size))
    settings = {
        "INFERENCE_PRECISION_HINT": precision,
        "NUM_STREAMS": str(default_workers()),
        "INFERENCE_NUM_THREADS": str(num_cores()),
        "ENABLE_CPU_PINNING": False,  # the cores are shared with decoding
    }
    compiled = openvino.compile_model(model, "CPU", settings)
    prepare, own = normalised(backbone), threading.local()

    def run(images: Tensor) -> Tensor:
        if not hasattr(own, "request"):
            own.request = compiled.create_infer_request()
        return torch.from_numpy(own.request.infer([prepare(images)])[0])

    return run


def onnx_runtime(backbone: Backbone, size: int) -> Callable[[Tensor], Tensor]:
    try:
        import onnxruntime
    except ImportError:
        raise MissingExtra("cache.runtime=onnxruntime", "onnx") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = max(1, num_cores() // default_workers())
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")  # torch deprecated the exporter that needs no extra package
        file = Path(folder) / "stages.onnx"
        torch.onnx.export(
            frozen_stages(backbone),
            (torch.zeros(2, 3, size, size),),
            file,
            input_names=["images"],
            dynamic_axes={"images": {0: "batch"}},
            dynamo=False,
        )
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    prepare = normalised(backbone)
    return lambda images: torch.from_numpy(session.run(None, {"images": prepare(images)})[0])
