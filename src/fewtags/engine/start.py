"""Before the first epoch: a neck or head that starts from the data sees every training image once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from fewtags.engine.run import Run, make_batches
from fewtags.methods.base import Batch


def start_model(run: Run) -> None:
    """One pass over the training images for the neck, and one for the head, where they want it."""
    model = run.learner.model
    started = time.monotonic()
    was_training = model.training
    model.eval()
    if model.neck.needs_start:
        run.log.say(model.neck.start(training_maps(run, model.backbone_map)))
    if model.head.needs_start:
        maps = training_maps(run, model.feature_map, plain=model.head.starts_plain)
        run.log.say(run.learner.start(maps).sentence)
    model.train(was_training)
    if run.ema is not None:
        run.ema.set(model)
    run.seconds += time.monotonic() - started


@torch.no_grad()
def training_maps(run: Run, map_of: Callable[[Tensor], Tensor], plain: bool = True) -> Iterator[Batch]:
    """The training images as feature maps, plain or as augmented in the first epoch."""
    batches = run.train_batches  # these are plain already where nothing is augmented; their images are read only once
    if plain and run.config.input.augment:
        batches = make_batches(run.config, run.learner, run.data.train, run.device, training=False)
    with run.log.ticking("First look at the images", batches.num_steps) as ticker:
        for loaded in batches.epoch():
            ticker.step()
            run.report_broken(loaded.broken, run.data.train)
            if loaded.batch is not None:
                batch = loaded.batch.to(run.device)
                with run.autocast():
                    maps = map_of(batch.images)
                yield Batch(maps, batch.labels, batch.index)
