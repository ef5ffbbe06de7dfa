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
    """Compute features once and keep them for this and later runs: auto, if the whole backbone is frozen, what the head
    looks at; true, the maps of all frozen stages; false, compute them in every epoch."""
    views: int = Field(4, ge=1)
    """Augmented views of each training image that are kept; epoch e trains on view e mod views."""
    folder: str | None = None
    """Where caches are kept; by default fewtags/features in the user's cache folder."""
    dtype: Literal["bf16", "fp16", "fp32"] = "fp16"
    """Numbers on disk."""
    runtime: Literal["auto", "torch", "torch-bf16", "onnxruntime", "openvino", "openvino-bf16"] = "auto"
    """What computes the features on a CPU; auto times those that are installed and takes the fastest."""


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
    """Of weights; 5e-4 in the paper, where adam couples it with the gradient."""
    decay_all: bool = False
    """Decay biases and normalisation layers too, as in the paper."""
    schedule: Literal["cosine", "step", "none"] = "cosine"
    """How the learning rate falls: along a cosine to 0, in steps as in the paper, or not at all."""
    step_epochs: int = Field(10, ge=1)
    """With schedule=step: epochs between two steps."""
    step_gamma: float = 0.1
    """With schedule=step: factor on the learning rate at each step."""
    warmup_epochs: float = Field(0.0, ge=0)
    """Epochs over which the learning rate rises linearly from 0."""
    ema: float = Field(0.0, ge=0, lt=1)
    """Decay of the moving average of the weights that is evaluated and exported; 0 for none, 0.9997 is common."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """auto: bf16 on a CUDA device that has it, else fp32."""
    channels_last: bool = True
    """Memory layout of images and maps that convolutions are faster with; results are the same."""
    deterministic: bool = False
    """On CUDA: only operations that give the same numbers every time, so that a run can be repeated and resumed bit for
    bit on the same card; slower. torch warns of any that it has no such version of. A CPU needs no setting for it."""
    compile: bool = False
    """torch.compile the model."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1 or mps; auto takes a GPU where there is one."""
    workers: int | None = None
    """Threads that read images; by default as many as there are cores. 0 reads them between the steps."""
    evaluate_every: int = Field(1, ge=1)
    """Epochs between two evaluations; the last epoch is always evaluated."""
    best_by: Literal["map", "map_voc12"] = "map"
    """What makes an epoch the best one: plain mAP, or the interpolated one of VOC 2012, as in the paper."""

    @field_validator("device")
    @classmethod
    def _device_exists(cls, value: str) -> str:
        if value not in ("auto", "cpu", "mps") and not value.startswith("cuda"):
            raise ValueError("should be auto, cpu, cuda, cuda:N or mps")
        return value
