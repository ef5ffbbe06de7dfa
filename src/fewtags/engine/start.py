"""Before the first epoch: one pass over the training images, for heads that start from the data."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from timm.utils import ModelEmaV3

from fewtags.contract import Batch
from fewtags.engine.run import Run, make_batches


def start_head(run: Run) -> None:
    """One pass over the training images, if the head needs it."""
    model = run.learner.model
    if not model.head.needs_start:
        return
    started = time.monotonic()
    was_training = model.training
    model.eval()
    start = run.learner.start(training_maps(run, plain=model.head.starts_plain), len(run.data.train))
    run.log.say(start.sentence)
    run.left_out = start.left_out
    run.known_proportion = None if start.known_proportion is None else float(start.known_proportion.mean())
    model.train(was_training)
    if run.ema is not None:
        run.ema = ModelEmaV3(model, decay=run.config.train.ema)  # a copy of the model after the start
    run.seconds += time.monotonic() - started


@torch.no_grad()
def training_maps(run: Run, *, plain: bool) -> Iterator[Batch]:
    """The training images as feature maps after the neck, plain or augmented as in the first epoch."""
    batches = run.train_batches  # already plain if nothing is augmented; images are read only once
    if plain and run.config.input.augment:
        batches = make_batches(run.config, run.learner, run.data.train, run.device, training=False, log=run.log)
    with run.log.progress_bar("First pass over the images", batches.num_steps) as bar:
        for loaded in batches.epoch():
            bar.step()
            run.report_broken(loaded.broken, run.data.train)
            if loaded.batch is not None:
                batch = loaded.batch.to(run.device)
                with run.autocast():
                    maps = run.learner.model.feature_map(batch.images)
                yield Batch(maps, batch.labels, batch.index)
