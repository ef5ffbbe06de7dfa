"""Before the first epoch: a head that starts from the data sees every training image once."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from timm.utils import ModelEmaV3

from fewtags.contract import Batch
from fewtags.engine.run import Run, make_batches


def start_head(run: Run) -> None:
    """One pass over the training images, where the head wants it."""
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
        run.ema = ModelEmaV3(model, decay=run.config.train.ema)  # a copy of all that the start has made
    run.seconds += time.monotonic() - started


@torch.no_grad()
def training_maps(run: Run, *, plain: bool) -> Iterator[Batch]:
    """The training images as feature maps behind the neck, plain or as augmented in the first epoch."""
    batches = run.train_batches  # these are plain already where nothing is augmented; their images are read only once
    if plain and run.config.input.augment:
        batches = make_batches(run.config, run.learner, run.data.train, run.device, training=False, log=run.log)
    with run.log.progress_bar("First look at the images", batches.num_steps) as bar:
        for loaded in batches.epoch():
            bar.step()
            run.report_broken(loaded.broken, run.data.train)
            if loaded.batch is not None:
                batch = loaded.batch.to(run.device)
                with run.autocast():
                    maps = run.learner.model.feature_map(batch.images)
                yield Batch(maps, batch.labels, batch.index)
