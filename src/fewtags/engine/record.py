"""What a run writes down about itself: its first lines, its settings, versions, data, and its checkpoints."""

from __future__ import annotations

import platform
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch

import fewtags
from fewtags import distributed
from fewtags.atomic import write_json
from fewtags.config import RunConfig, read_yaml, resolve
from fewtags.engine.checkpoint import load_checkpoint, save_checkpoint
from fewtags.engine.run import Run
from fewtags.errors import UserError
from fewtags.wording import plural


def describe(run: Run) -> None:
    """The first lines of a run: what was understood, in words."""
    config, train = run.config, run.config.train
    for sentence in run.data.sentences:
        run.log.say(sentence)
    for name, part in (("validation", run.data.val), ("test", run.data.test)):
        if part is not None:
            run.log.say(f"{plural(len(part), f'{name} image')}.")
    backbone = run.learner.model.backbone
    frozen = backbone.stage_names[: backbone.num_frozen]
    origin = config.model.weights or ("timm's pretrained weights" if config.model.pretrained else "random weights")
    state = (
        "all of it trained"
        if not frozen
        else f"frozen up to {frozen[-1]}"
        if len(frozen) < len(backbone.stages)
        else "frozen"
    )
    run.log.say(f"Backbone {config.model.backbone} at {config.input.size} px from {origin}, {state}.")
    if run.problem.words is not None:
        run.log.say(f"Word vectors: {run.problem.words.source}.")
    epochs = plural(run.num_epochs, "epoch") if run.num_epochs else "one look at the images, no training,"
    run.log.say(
        f"Method {config.method_name} ({config.profile} profile) with the {config.head_name} head: "
        f"{epochs} in batches of {train.batch_size * train.accumulate} on {run.device}, "
        f"seed {config.seed}. Everything goes to {run.folder}."
    )


def write_record(run: Run) -> None:
    if not distributed.is_main():
        return
    run.folder.mkdir(parents=True, exist_ok=True)
    (run.folder / "config.yaml").write_text(run.config.to_yaml(), encoding="utf-8")
    write_json(run.folder / "environment.json", environment())
    parts = {"train": run.data.train, "val": run.data.val, "test": run.data.test}
    record = {name: {"images": len(p), "hash": p.content_hash()} for name, p in parts.items() if p is not None}
    known = run.data.train.known_positives.tolist()
    categories = {"categories": run.data.train.categories, "known_positives": known}
    write_json(run.folder / "data.json", {"name": run.data.train.name, **categories, **record, "seed": run.config.seed})


def environment() -> dict[str, Any]:
    return {
        "fewtags": fewtags.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "timm": timm.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "started": datetime.now().isoformat(timespec="seconds"),
    }


def save_run(run: Run) -> None:
    if distributed.is_main():
        content = {
            "config": run.config.nested(),
            "categories": list(run.problem.categories),
            "data_hash": run.data.train.content_hash(),
            "epoch": run.epoch,
            "step": run.step,
            "totals": run.totals,
            "best": run.best,
            "seconds": run.seconds,
            "model": run.learner.model.state_dict(),
            "objective": run.learner.objective.state_dict(),
            "optimizer": run.optimizer.state_dict(),
            "scaler": run.scaler.state_dict(),
            "ema": run.ema.module.state_dict() if run.ema is not None else None,
        }
        save_checkpoint(content, run.folder / "checkpoints" / "last.pt")
    distributed.wait_for_all()


PARTS = (
    "categories", "data_hash", "epoch", "step", "totals", "best", "seconds",
    "model", "objective", "optimizer", "scaler", "ema",
)  # fmt: skip


def load_last(folder: Path) -> dict[str, Any]:
    """What `save_run` wrote."""
    file = folder / "checkpoints" / "last.pt"
    checkpoint = load_checkpoint(file)
    missing = [part for part in PARTS if part not in checkpoint]
    if missing:
        raise UserError(f"{file} is not the checkpoint of a whole run; it lacks '{missing[0]}'.")
    return checkpoint


def restore(run: Run, checkpoint: dict[str, Any]) -> None:
    file = run.folder / "checkpoints" / "last.pt"
    if checkpoint["categories"] != list(run.problem.categories):
        there, here = checkpoint["categories"], list(run.problem.categories)
        raise UserError(
            f"{file} was written for {len(there)} categories ({', '.join(there[:2])}, …) and this dataset has "
            f"{len(here)} ({', '.join(here[:2])}, …)."
        )
    if checkpoint["data_hash"] != run.data.train.content_hash():
        raise UserError(f"The training data changed since {file} was written; start a new run instead of resuming.")
    try:
        run.learner.model.load_state_dict(checkpoint["model"])
        run.learner.objective.load_state_dict(checkpoint["objective"])
        run.optimizer.load_state_dict(checkpoint["optimizer"])
        run.scaler.load_state_dict(checkpoint["scaler"])
        if run.ema is not None:
            run.ema.module.load_state_dict(checkpoint["ema"])
    except (RuntimeError, ValueError, TypeError, KeyError) as error:
        settings = run.folder / "config.yaml"
        raise UserError(f"{file} does not fit {settings}; were settings changed? Start a new run for them.") from error
    run.epoch, run.step, run.totals = checkpoint["epoch"], checkpoint["step"], checkpoint["totals"]
    run.best, run.seconds = checkpoint["best"], checkpoint["seconds"]


def load_run_config(folder: Path) -> RunConfig:
    if not (folder / "config.yaml").is_file():
        raise UserError(f"{folder} is not a run folder (it has no config.yaml).")
    return resolve(read_yaml(folder / "config.yaml"))
