"""Before the first epoch: one pass over the training images, for heads that start from the data."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from fewtags import distributed
from fewtags.atomic import atomic_write
from fewtags.contract import Batch, Start
from fewtags.distributed import gather_rows
from fewtags.engine.moving_average import MovingAverage
from fewtags.engine.run import Run
from fewtags.engine.start_wording import describe_start
from fewtags.models.heads import Head


def start_head(run: Run) -> None:
    """One pass over the training images, if the head needs it."""
    model = run.learner.model
    if not model.head.spec.needs_start:
        return
    started = time.monotonic()
    was_training = model.training
    model.eval()
    batches: Iterable[Batch] = TrainingMaps(run, plain=model.head.spec.starts_plain)
    decided = None
    if run.data.given is not None and model.head.spec.assumes_random_labels:
        batches = decided = Decided(run, batches)
    with run.log.working(f"Fitting the {run.config.head_name} head"):
        start = run.learner.start(batches, len(run.data.train))
    run.log.say(describe_start(start, run.problem.categories))
    if start.facts is not None and start.facts.name_matches and distributed.is_main():
        with atomic_write(run.files.names) as temporary:
            temporary.write_text("\n".join(start.facts.name_matches) + "\n", encoding="utf-8")
    if decided is not None and not run.learner.objective.trains:
        decided.tell(model.head, start)
    run.judged = start.judged
    run.known_proportion = None if start.known_proportion is None else float(start.known_proportion.mean())
    model.train(was_training)
    if run.ema is not None:
        run.ema = MovingAverage(model, run.config.train.ema)  # a copy of the model after the start
    run.seconds += time.monotonic() - started


class TrainingMaps:
    """The training images as feature maps after the neck, plain or augmented as in the first epoch.

    Each iteration is a pass over them, from cached features if there are any.
    """

    def __init__(self, run: Run, *, plain: bool):
        self.run = run
        self.batches = run.train_batches  # already plain if nothing is augmented; images are read only once
        if plain and run.config.input.augment:
            self.batches = run.batches_of(run.data.train)
        self.passes = 0

    @torch.no_grad()
    def __iter__(self) -> Iterator[Batch]:
        run = self.run
        self.passes += 1
        title = f"Pass {self.passes} over the images"
        with run.log.progress_bar(title, self.batches.num_steps, "batches") as bar:
            for loaded in self.batches.epoch():
                bar.step()
                run.report_broken(loaded.broken, run.data.train)
                if loaded.batch is not None:
                    batch = loaded.batch.to(run.device)
                    with run.autocast():
                        maps = run.learner.model.feature_map(batch.images, batch.are_maps)
                    yield Batch(maps, batch.labels, batch.index)


class Decided:
    """Labels from a review. Which labels are decided is not random, so a head that assumes random labels starts with
    the given ones and learns the decided ones afterwards."""

    def __init__(self, run: Run, batches: Iterable[Batch]):
        assert run.data.given is not None
        self.batches = batches
        self.given, self.labels = (torch.from_numpy(each) for each in (run.data.given, run.data.train.labels))
        self.changed = self.given != self.labels
        self.rows: list[Tensor] = []
        self.features: list[Tensor] = []

    def __iter__(self) -> Iterator[Batch]:
        """The batches with the given labels; features of images with decisions are kept."""
        self.rows, self.features = [], []
        for batch in self.batches:
            index = batch.index.cpu()
            mine = self.changed[index].any(1)
            self.rows.append(index[mine])
            self.features.append(batch.images[mine.to(batch.images.device)].float().mean((2, 3)).cpu())
            yield Batch(batch.images, self.given[index].to(batch.labels), batch.index)

    def tell(self, head: Head, start: Start) -> None:
        """The decided labels, as they were judged without themselves; where the head is trained further, its training
        learns them instead."""
        rows, features = (gather_rows(torch.cat(part)) for part in (self.rows, self.features))
        place, column = self.changed[rows].nonzero(as_tuple=True)
        if len(place):
            images = rows[place]
            head.relabel(
                features[place],
                column,
                self.labels[images, column],
                given=self.given[images, column],
                odds=judged_before(start, images, column),
            )


def judged_before(start: Start, images: Tensor, categories: Tensor) -> Tensor:
    """[n] log-odds of presence of labels by the start, each without itself; NaN of images that it did not judge."""
    odds = torch.full((len(images),), torch.nan)
    if start.judged is None or start.judged_images is None or not len(start.judged_images):
        return odds
    judged = start.judged_images
    place = torch.searchsorted(judged, images).clamp(max=len(judged) - 1)
    mine = judged[place] == images
    odds[mine] = start.judged.odds[place[mine], categories[mine]].float()
    return odds
