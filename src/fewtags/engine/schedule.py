"""The learning rate as a function of progress: there is no state to save or restore."""

from __future__ import annotations

import math

from fewtags.contract import Progress
from fewtags.train_settings import TrainConfig


def lr_factor(config: TrainConfig, progress: Progress) -> float:
    """The factor on the base learning rates at this step."""
    epochs = progress.epoch + progress.epoch_fraction
    if epochs < config.warmup_epochs:
        warm_step = progress.epoch * progress.steps_per_epoch + progress.step + 1
        return min(1.0, warm_step / (config.warmup_epochs * progress.steps_per_epoch))
    if config.schedule == "step":
        return config.step_gamma ** (progress.epoch // config.step_epochs)
    if config.schedule == "cosine":
        done = (epochs - config.warmup_epochs) / (progress.num_epochs - config.warmup_epochs)
        return 0.5 * (1 + math.cos(math.pi * done))
    return 1.0
