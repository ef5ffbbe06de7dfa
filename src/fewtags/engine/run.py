"""All parts of a run, built from its settings."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fewtags import distributed
from fewtags.atomic import append_line
from fewtags.config import RunConfig
from fewtags.contract import Problem, Progress
from fewtags.data.annotations import Annotations
from fewtags.data.loaders import image_batches
from fewtags.data.prepare import RunData
from fewtags.engine.cluster import active_cluster
from fewtags.engine.evaluation import Batches
from fewtags.engine.features import FeatureMaker, cached_batches, keeps_averages, keeps_features
from fewtags.engine.moving_average import MovingAverage
from fewtags.engine.predictions import Predictions
from fewtags.engine.run_folder import RunFolder
from fewtags.engine.run_log import RunLog
from fewtags.errors import DataError, UserError
from fewtags.labels import PRESENT
from fewtags.methods import objective_class
from fewtags.methods.base import Learner
from fewtags.metrics import Scores
from fewtags.models.build import build_classifier, is_from_scratch, make_problem
from fewtags.models.classifier import Classifier
from fewtags.models.heads import Head
from fewtags.models.optimizers import without_compiler
from fewtags.presence.estimates import Judged


@dataclass(frozen=True)
class Measured:
    scores: Scores
    predictions: Predictions


@dataclass
class Run:
    """All parts of a run."""

    config: RunConfig
    folder: Path
    data: RunData
    problem: Problem
    device: torch.device
    learner: Learner
    wrapped: nn.Module  # the learner as called: compiled or distributed
    scaler: torch.amp.GradScaler
    ema: MovingAverage | None
    caches_features: bool  # what the frozen stages make of images is computed once
    log: RunLog
    eval_batches: dict[str, Batches] = field(default_factory=dict)
    latest: dict[str, Measured] = field(default_factory=dict)  # by split, of the last finished epoch
    epoch: int = 0  # the next one to run, also after a resume
    step: int = 0
    num_collected: int = 0  # accumulated batches not yet applied; a checkpoint is written when there are none
    totals: dict[str, float] = field(default_factory=dict)  # of the current epoch
    best: dict[str, Any] = field(default_factory=dict)
    judged: Judged | None = None  # of the start, if made in this session; see contract.Start,
    known_proportion: float | None = None  # and this, as a mean over the categories
    broken: dict[str, str] = field(default_factory=dict)  # image files that could not be read, and why
    seconds: float = 0.0  # spent training, over all sessions

    @cached_property
    def optimizer(self) -> torch.optim.Optimizer:
        return build_optimizer(self.learner, self.config)

    @cached_property
    def train_batches(self) -> Batches:
        """Shuffled. Made on first use: it may take a pass over the images, before which the run should have spoken."""
        return self.batches_of(self.data.train, augment=self.config.input.augment, shuffle=True)

    def batches_of(self, part: Annotations, *, augment: bool = False, shuffle: bool = False) -> Batches:
        """Batches of images, or of the frozen stages' maps if they are cached."""
        make = cached_batches_of if self.caches_features else image_batches_of
        return make(self, part, augment=augment, shuffle=shuffle)

    @property
    def files(self) -> RunFolder:
        return RunFolder(self.folder)

    @property
    def model(self) -> Classifier:
        """The model that is evaluated and exported."""
        return self.ema.module if self.ema is not None else self.learner.model

    def autocast(self) -> AbstractContextManager:
        kind = precision_of(self.config.train.precision, self.device)
        return nullcontext() if kind is None else torch.autocast(self.device.type, dtype=kind)

    @property
    def num_epochs(self) -> int:
        """0 if nothing is trained: by the method, or because no tag is known."""
        return self.config.train.epochs if self.learner.objective.trains and has_labels(self.data) else 0

    def progress(self, step: int | None = None) -> Progress:
        step = self.step if step is None else step
        return Progress(self.epoch, self.num_epochs, step, self.train_batches.num_steps)

    def report_broken(self, broken: dict[int, str], part: Annotations) -> None:
        for row, reason in broken.items():
            path = str(part.path(row))
            if path not in self.broken:
                self.broken[path] = reason
                self.log.warn(f"Skipped: {reason}")
                self.files.bad_images.parent.mkdir(parents=True, exist_ok=True)  # another process may have created it
                append_line(self.files.bad_images, reason)


def is_mean(name: str) -> bool:
    """Of `Run.totals`: is it a sum of means over the images of a step? Every process has one of these; others count."""
    return name.startswith(("loss", "stat.", "steps"))


def build_run(config: RunConfig, folder: Path, data: RunData, device: torch.device, log: RunLog) -> Run:
    torch.manual_seed(config.seed)
    train = data.train
    problem = make_problem(config.head_name, config.words, train.categories, train.labels, config.seed, train.english)
    if train.groups is not None:
        problem = replace(problem, groups=torch.from_numpy(train.groups))
    learner = build_learner(config, problem).to(device)
    if learner.model.head.needs_labels and not has_labels(data):
        raise DataError(nothing_known(config, data, learner.model.head))
    if config.train.channels_last and device.type != "mps":
        learner.to(memory_format=torch.channels_last)
    caches = keeps_features(config.cache, learner.model, config.input.size, num_views(config, learner, data))
    if active_cluster() is not None and not caches:
        raise UserError(
            "--ray computes what a frozen backbone makes of images, and here that is trained or not kept; freeze it "
            "(model.train_from=head, cache.enabled=auto), or train with torchrun."
        )
    half = precision_of(config.train.precision, device) == torch.float16
    return Run(
        config=config,
        folder=folder,
        data=data,
        problem=problem,
        device=device,
        learner=learner,
        wrapped=wrap(learner, config, device),
        scaler=torch.amp.GradScaler(device.type, enabled=half),
        ema=MovingAverage(learner.model, config.train.ema) if config.train.ema else None,
        caches_features=caches,
        log=log,
    )


def has_labels(data: RunData) -> bool:
    return bool((data.train.labels == PRESENT).any())


def nothing_known(config: RunConfig, data: RunData, head: Head) -> str:
    if not head.spec.uses_names:
        return f"No tag is known, and method '{config.method_name}' learns only from tags; tag some images."
    names = ", ".join(data.train.categories[:4])
    return (
        f"No tag is known, and the classifier of the backbone {config.model.backbone} knows none of the names "
        f"({names}); tag some images, or say what the names mean (docs/explanation/names.md)."
    )


def num_views(config: RunConfig, learner: Learner, data: RunData) -> int:
    """Sizes of all splits used for training and evaluation."""
    augmented = config.cache.views + learner.model.head.spec.starts_plain if config.input.augment else 1
    return len(data.train) * augmented + sum(len(part) for part in (data.val, data.test) if part is not None)


def image_batches_of(run: Run, part: Annotations, *, augment: bool, shuffle: bool) -> Batches:
    config = run.config
    return image_batches(
        part,
        config.input,
        batch_size=config.train.batch_size,
        workers=config.train.workers,
        augment=augment,
        shuffle=shuffle,
        seed=config.seed,
        on_gpu=run.device.type == "cuda",
        store=config.data.store,
    )


def cached_batches_of(run: Run, part: Annotations, *, augment: bool, shuffle: bool) -> Batches:
    config, model = run.config, run.learner.model
    return cached_batches(
        part,
        feature_maker(run, augment=augment),
        pooled=keeps_averages(config.cache, model),
        shuffle=shuffle,
        batch_size=config.train.batch_size,
        seed=config.seed,
        log=run.log,
    )


def feature_maker(run: Run, *, augment: bool) -> FeatureMaker:
    config = run.config
    return FeatureMaker(
        run.learner.model.backbone,
        config.input,
        config.cache,
        run.device,
        precision_of(config.train.precision, run.device),
        seed=config.seed if augment else None,
        workers=config.train.workers,
    )


def build_learner(config: RunConfig, problem: Problem) -> Learner:
    model = build_classifier(
        config.model,
        config.input.size,
        config.head_name,
        config.head,
        problem.num_categories,
        problem.words,
        categories=problem.categories,
        english=problem.english,
    )
    model.head.initialise(problem)
    kind = objective_class(config.method_name)
    if kind.needs_features and model.head.feature_dim is None:
        raise UserError(
            f"Method '{config.method_name}' needs category features, but head '{config.head_name}' has none; "
            "use head=decoupled or head=graph."
        )
    before_head = (*model.backbone.parameters(), *model.neck.parameters())
    tunes = not is_from_scratch(config.model) and any(p.requires_grad for p in before_head)
    problem = replace(problem, tunes_features=tunes)
    return Learner(model, kind(config.method, problem, model.head.feature_dim))


def wrap(learner: Learner, config: RunConfig, device: torch.device) -> nn.Module:
    if config.train.sync_batch_norm and any(p.requires_grad for p in learner.model.backbone.parameters()):
        distributed.join_batch_norm(learner.model, device.type)
    wrapped = distributed.wrap(learner)
    if config.train.compile:
        learner.model.compile()
    return wrapped


def build_optimizer(learner: Learner, config: RunConfig) -> torch.optim.Optimizer:
    """Adam or AdamW; every group knows its base learning rate, which the schedule multiplies."""
    train = config.train
    backbone = [p for p in learner.model.backbone.parameters() if p.requires_grad]
    in_backbone = {id(p) for p in backbone}
    head = [p for p in learner.model.parameters() if p.requires_grad and id(p) not in in_backbone]
    groups: list[dict[str, Any]] = []
    for params, scale in ((backbone, 1.0), (head, train.head_lr_scale)):
        groups += split_decay(params, train.lr * scale, train.weight_decay, train.decay_all)
    for group in learner.objective.parameter_groups():
        scale = train.head_lr_scale * group.get("lr_scale", 1.0)
        decay = group.get("weight_decay", train.weight_decay)
        groups += split_decay(group["params"], train.lr * scale, decay, train.decay_all)
    kind = without_compiler(torch.optim.AdamW if train.optimizer == "adamw" else torch.optim.Adam)
    groups = [group for group in groups if group["params"]] or groups  # torch requires a group, even an empty one
    return kind(groups, fused=can_fuse(groups))


def can_fuse(groups: list[dict[str, Any]]) -> bool | None:
    """One pass over the weights instead of ten, which in batches of 8 on a CPU take a quarter of a step. None: torch's
    choice."""
    return all(p.device.type in ("cpu", "cuda") for group in groups for p in group["params"]) or None


def split_decay(params: list[nn.Parameter], lr: float, weight_decay: float, decay_all: bool) -> list[dict[str, Any]]:
    """Weight decay applies to matrices; to biases and normalisation weights only if it applies to all."""
    decayed = [p for p in params if p.ndim > 1 or decay_all]
    plain = [p for p in params if not (p.ndim > 1 or decay_all)]
    return [
        {"params": decayed, "lr": lr, "base_lr": lr, "weight_decay": weight_decay},
        {"params": plain, "lr": lr, "base_lr": lr, "weight_decay": 0.0},
    ]


def choose_device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(f"train.device={name}, but torch sees no CUDA device; see `fewtags doctor`.")
    if name == "mps" and not torch.backends.mps.is_available():
        raise UserError("train.device=mps, but this is not a Mac with an Apple GPU.")
    try:
        return torch.device(name)
    except RuntimeError:
        raise UserError(f"There is no device '{name}'; use auto, cpu, cuda, cuda:N or mps.") from None


@contextmanager
def repeatable(wanted: bool) -> Iterator[None]:
    """Within this context, CUDA uses deterministic operations; torch warns about those that have none."""
    if not wanted:
        yield
        return
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS asks for it, before its first call
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def precision_of(name: str, device: torch.device) -> torch.dtype | None:
    """The autocast type, or None for plain float32."""
    if name == "auto":
        # Cards older than Ampere (T4, RTX 20xx) only emulate bf16, which is slower than fp32.
        native = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        name = "bf16" if native else "fp32"
    return {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[name]
