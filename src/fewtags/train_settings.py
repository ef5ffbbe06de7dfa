"""How a run trains and what it caches.

The engine owns these settings, but `RunConfig` holds them and the engine is built from a `RunConfig`; so they live
below both.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from fewtags.settings import Settings


class CacheConfig(Settings):
    enabled: bool | Literal["auto"] = "auto"
    """Compute features once and cache them for this and later runs: auto caches what the head needs if the whole
    backbone is frozen; true caches the maps of all frozen stages; false recomputes them in every epoch."""
    views: int = Field(4, ge=1)
    """Number of cached augmented views per training image; epoch e trains on view e mod views."""
    folder: str | None = None
    """Cache folder; default: fewtags/features in the user's cache folder."""
    dtype: Literal["bf16", "fp16", "fp32"] = "fp16"
    """Number type on disk."""
    runtime: Literal["auto", "torch", "torch-bf16", "onnxruntime", "openvino", "openvino-bf16"] = "auto"
    """Runtime that computes the features on a CPU; auto times the installed ones and uses the fastest whose features
    are torch's. Those in bf16 round: on a processor that has it they are about twice as fast, and a few tags change."""


class TrainConfig(Settings):
    epochs: int = Field(20, ge=1)
    """Passes over the training images; 20 in the paper."""
    batch_size: int = Field(32, ge=1)
    """Images in one forward pass, over all processes together."""
    accumulate: int = Field(1, ge=1)
    """Forward passes per optimiser step. Not the same as a larger batch: batch normalisation, the pairs of the
    cross-image loss, the share of labels that LL rejects and b/B go by single passes."""
    optimizer: Literal["adam", "adamw"] = "adamw"
    """adam adds weight decay to the gradient, as in the paper; adamw decouples it."""
    lr: float = Field(1e-4, gt=0)
    """Learning rate of the backbone."""
    head_lr_scale: float = Field(10.0, gt=0)
    """Learning rate of neck, head and objective, as a multiple of `lr`; 1 in the paper."""
    weight_decay: float = Field(0.01, ge=0)
    """Weight decay; 5e-4 in the paper, where adam couples it with the gradient."""
    decay_all: bool = False
    """Apply weight decay to biases and normalisation layers too, as in the paper."""
    schedule: Literal["cosine", "step", "none"] = "cosine"
    """Learning rate schedule: cosine to 0, step as in the paper, or constant."""
    step_epochs: int = Field(10, ge=1)
    """With schedule=step: epochs between two steps."""
    step_gamma: float = 0.1
    """With schedule=step: factor on the learning rate at each step."""
    warmup_epochs: float = Field(0.0, ge=0)
    """Warm-up: epochs over which the learning rate rises linearly from 0."""
    ema: float = Field(0.0, ge=0, lt=1)
    """Decay of the moving average of the weights (EMA) that is evaluated and exported; 0 disables it, 0.9997 is
    common."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """auto: bf16 on a CUDA device that supports it, else fp32."""
    channels_last: bool = True
    """Channels-last memory layout, which makes convolutions faster; results are the same."""
    deterministic: bool = False
    """On CUDA: only deterministic operations, so that a run can be repeated and resumed bit for
    bit on the same card; slower. torch warns of any that it has no such version of. A CPU needs no setting for it."""
    compile: bool = False
    """torch.compile the model."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1 or mps; auto uses a GPU if there is one."""
    workers: int | None = None
    """Threads that read images (default: one per core). 0 reads them between steps."""
    evaluate_every: int = Field(1, ge=1)
    """Epochs between two evaluations; the last epoch is always evaluated."""
    best_by: Literal["map", "map_voc12"] = "map"
    """The metric that selects the best epoch: plain mAP, or the interpolated one of VOC 2012, as in the paper."""

    sync_batch_norm: bool = True
    """Under several processes, each with a GPU: batch norm that is trained takes mean and variance over the images of
    all of them."""
    timeout: float = Field(600.0, gt=0)
    """Under several processes: seconds that one waits for another before it gives up; the run can then be resumed."""

    @field_validator("device")
    @classmethod
    def _device_exists(cls, value: str) -> str:
        if value not in ("auto", "cpu", "mps") and not value.startswith("cuda"):
            raise ValueError("should be auto, cpu, cuda, cuda:N or mps")
        return value
