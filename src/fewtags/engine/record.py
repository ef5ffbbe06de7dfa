"""What a run records about itself: its first lines, its settings, versions, data, and its checkpoints.

config.yaml has the paths as given. What they are relative to is in data.json, so a run can be read from
any folder, even after it was moved together with its data; `load_run_config` and `load_run_data` handle that.
"""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fewtags
from fewtags import distributed
from fewtags.atomic import atomic_write, file_checksum, write_json
from fewtags.config import RunConfig, flat, read_yaml, resolve
from fewtags.contract import WordVectors
from fewtags.data.annotations import Annotations
from fewtags.data.decisions import read_decisions, summary
from fewtags.data.prepare import DataConfig, RunData, prepare_data, split_data
from fewtags.data.write_back import LabelSource
from fewtags.engine.checkpoint import load_checkpoint, save_checkpoint
from fewtags.engine.kept_labels import read_labels
from fewtags.engine.run import Run, is_mean
from fewtags.engine.run_folder import RunFolder
from fewtags.errors import DataError, UserError
from fewtags.methods import Profile, find_method
from fewtags.models import quick_timm
from fewtags.models.saved import damaged, read_object
from fewtags.models.tensor_files import first_line, read_arrays
from fewtags.train_settings import CacheConfig
from fewtags.wording import plural


def log_opening(run: Run) -> None:
    """The first lines of a run: how its data and settings were read."""
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
        run.log.warn(other_words(run.problem.words, find_method(config.method_name).profile(config.profile)))
    epochs = plural(run.num_epochs, "epoch") if run.num_epochs else "one pass over the images, no training,"
    run.log.say(
        f"Method {config.method_name} ({config.profile} profile) with the {config.head_name} head: "
        f"{epochs} in batches of {train.batch_size * train.accumulate} on {run.device}, "
        f"seed {config.seed}. Output folder: {run.folder}."
    )


def other_words(words: WordVectors, profile: Profile) -> str:
    """A warning if they are not those that the profile is published with; otherwise empty."""
    width = words.vectors.shape[1]
    if profile.word_dim is None or (not words.learned and width == profile.word_dim):
        return ""
    found = "learned from random" if words.learned else f"of {width} dimensions"
    return (
        f"WARNING: this is not the paper's setting. Its word vectors are GloVe's with {profile.word_dim} dimensions; "
        f"these are {found}. words.source=FILE gives others (.npz with names and vectors, .npy with a row per "
        "category, or GloVe's own .txt)."
    )


def write_record(run: Run) -> None:
    if not distributed.is_main():
        return
    write_json(run.files.environment, environment())
    parts = {"train": run.data.train, "val": run.data.val, "test": run.data.test}
    record = {name: describe_part(part) for name, part in parts.items() if part is not None}
    known = run.data.train.known_positives.tolist()
    categories = {"categories": run.data.train.categories, "known_positives": known}
    understood = {"notes": run.data.sentences, "renamed_tags": run.data.train.renamed_tags}
    more = {**understood, "seed": run.config.seed, "relative_to": started_in(run.folder)}
    origin = {"source": describe_source(run.config.data), "labels_from": describe_decisions(run.config.data)}
    write_json(run.files.data, {"name": run.data.train.name, **categories, **record, **origin, **more})
    save_labels(run.data, run.files.labels)
    write_config(run.config, run.files)  # last: it marks the folder as a run


def write_epochs(run: Run) -> None:
    """How many epochs the run has now; its other settings stay as they were given, paths too."""
    there = resolve(read_yaml(run.files.config))
    if there.train.epochs != run.config.train.epochs:
        write_config(there.with_epochs(run.config.train.epochs), run.files)


def write_config(config: RunConfig, files: RunFolder) -> None:
    with atomic_write(files.config) as temporary:
        temporary.write_text(config.to_yaml(), encoding="utf-8")


def describe_part(part: Annotations) -> dict[str, Any]:
    return {
        "images": len(part),
        "hash": part.content_hash(),
        "positives": part.known_positives.tolist(),
        "unknown": round(part.unknown_share, 4),
    }


def describe_source(config: DataConfig) -> dict[str, Any] | None:
    """The label file and its hash, to detect later changes; None if labels are in many files."""
    file = LabelSource.of(config).file if config.source else None
    return None if file is None else {"file": str(file), "sha256": file_checksum(file)}


def describe_decisions(config: DataConfig) -> dict[str, Any] | None:
    """Who made the decisions and in which review; None if there are no decisions."""
    return None if config.decisions is None else summary(read_decisions(Path(config.decisions)))


def save_labels(data: RunData, file: Path) -> None:
    """All labels before decisions, with each image's split."""
    parts = {"train": data.train, "val": data.val, "test": data.test}
    there = {name: part for name, part in parts.items() if part is not None}
    given = {name: data.given if name == "train" and data.given is not None else p.labels for name, p in there.items()}
    with atomic_write(file) as temporary, temporary.open("wb") as out:
        np.savez_compressed(
            out,
            images=np.array([image for part in there.values() for image in part.images]),
            splits=np.repeat(list(there), [len(part) for part in there.values()]),
            categories=np.array(data.train.categories),
            labels=np.concatenate(list(given.values())),
        )


def load_labels(folder: Path) -> Annotations:
    """Reads the file of `save_labels`; the splits are those of the run, and the root is unknown."""
    file = RunFolder(folder).must_be_run().labels
    if not file.is_file():
        raise UserError(f"{folder} was trained by an older fewtags, which did not save its labels ({file.name}).")
    images, categories, labels, splits = read_arrays(file, "images", "categories", "labels", "splits")
    try:
        return Annotations(Path(), images.tolist(), categories.tolist(), labels, splits)
    except (UserError, TypeError, ValueError, IndexError) as error:
        raise UserError(f"{file} is damaged ({first_line(error)}).") from error


def started_in(folder: Path) -> dict[str, str]:
    """What paths in config.yaml are relative to: a folder, and its path relative to the run's folder."""
    return {"folder": str(Path.cwd()), "from_run": Path(os.path.relpath(Path.cwd(), folder.resolve())).as_posix()}


def environment() -> dict[str, Any]:
    return {
        "fewtags": fewtags.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "timm": quick_timm.timm.__version__,
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
        save_checkpoint(content, run.files.last)
    distributed.wait_for_all()


PARTS = (
    "config", "categories", "data_hash", "epoch", "step", "totals", "best", "seconds",
    "model", "objective", "optimizer", "scaler", "ema",
)  # fmt: skip


def load_last(folder: RunFolder) -> dict[str, Any]:
    """Restores what `save_run` wrote."""
    file = folder.last
    checkpoint = load_checkpoint(file)
    missing = [part for part in PARTS if part not in checkpoint]
    if missing:
        raise UserError(f"{file} is not a complete checkpoint; it lacks '{missing[0]}'.")
    return checkpoint


def restore(run: Run, checkpoint: dict[str, Any]) -> None:
    file = run.files.last
    if checkpoint["categories"] != list(run.problem.categories):
        there, here = checkpoint["categories"], list(run.problem.categories)
        raise UserError(
            f"{file} was written for {len(there)} categories ({', '.join(there[:2])}, …), but this dataset has "
            f"{len(here)} ({', '.join(here[:2])}, …)."
        )
    changed = changed_settings(checkpoint["config"], run.config.nested())
    if changed:
        raise UserError(
            f"{run.files.config} was edited after {file} was written ({', '.join(changed)}); restore it, or "
            "start a new run for other settings."
        )
    if checkpoint["data_hash"] != run.data.train.content_hash():
        raise UserError(f"The training data has changed since {file} was written; start a new run instead of resuming.")
    try:
        run.learner.model.load_state_dict(checkpoint["model"])
        run.learner.objective.load_state_dict(checkpoint["objective"])
        load_optimizer(run.optimizer, checkpoint["optimizer"])
        run.scaler.load_state_dict(checkpoint["scaler"])
        if run.ema is not None:
            run.ema.module.load_state_dict(checkpoint["ema"])
    except (RuntimeError, ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"{file} does not match {run.files.config}; were settings changed? Start a new run for them."
        ) from error
    run.epoch, run.step = checkpoint["epoch"], checkpoint["step"]
    # The totals are those of all processes, whose number may have changed: the first one continues the counts.
    counts = distributed.is_main()
    run.totals = {name: total if counts or is_mean(name) else 0.0 for name, total in checkpoint["totals"].items()}
    run.best, run.seconds = checkpoint["best"], checkpoint["seconds"]


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Its moments, also from a version that did not fuse; torch would take over that choice with them."""
    for group in state["param_groups"]:
        group["fused"] = optimizer.defaults["fused"]
    optimizer.load_state_dict(state)


# Settings that change a run's speed or locations, not its results.
MAY_CHANGE = (
    "train.epochs",  # to train longer than planned; the schedule then follows the new number
    "train.device", "train.workers", "train.timeout", "train.channels_last", "train.compile", "input.keep_in_memory",
    "data.source", "data.tags", "data.options", "data.format", "data.decisions", "data.store", "model.weights",
    "words.source",
)  # fmt: skip


def changed_settings(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What has changed since a checkpoint was written: "train.lr 0.1 -> 0.2"."""
    then, today = flat(resolve(before).nested()), flat(now)  # a setting that is new since had its default
    return [
        f"{name} {then.get(name)} -> {today.get(name)}"
        for name in sorted({*then, *today})
        if then.get(name) != today.get(name) and not name.startswith(("cache.", *MAY_CHANGE))
    ]


# --- reading a run ---


def load_run_config(folder: Path) -> RunConfig:
    """The settings of a run, with relative paths resolved."""
    files = RunFolder(folder).must_be_run()
    config = resolve(read_yaml(files.config))
    config = config.relative_to(base_of_paths(folder, config.data.source))
    if config.data.decisions is not None and files.decisions.is_file():  # the file moves with the run
        own = config.data.model_copy(update={"decisions": str(files.decisions)})
        config = config.model_copy(update={"data": own})
    return config


def cache_of(folder: Path) -> CacheConfig:
    """Where a model's features are kept: as its run said."""
    with suppress(UserError):  # not a run but a saved tagger, or one whose settings cannot be read
        return load_run_config(folder).cache
    return CacheConfig()


def base_of_paths(folder: Path, source: str) -> Path:
    """What a run's relative paths are relative to; the current folder for older runs, which do not record it."""
    file = RunFolder(folder).data
    noted = (read_object(file) if file.is_file() else {}).get("relative_to")
    if not noted:
        return Path.cwd()
    try:
        bases = [Path(noted["folder"]), Path(os.path.normpath(folder.resolve() / noted["from_run"]))]
        return next((base for base in bases if (base / source).exists()), bases[0])
    except (KeyError, TypeError, ValueError, OSError) as error:  # ValueError: a path with a NUL in it
        raise damaged(file) from error


def load_run_data(folder: Path, moved_to: Path | None = None, tags: Path | None = None) -> RunData:
    """The data a run was trained on, with the same splits; `moved_to` is where it is now, if it was moved."""
    config = load_run_config(folder)
    data = config.data
    if not data.source and moved_to is None:
        raise UserError(f"The data of {folder} was passed in Python, so its location is unknown; pass it with --data.")
    if moved_to is not None:
        data = data.model_copy(update=new_place(data, moved_to, tags))
    hint = f"{folder} was trained on it; if it was moved, pass its new location with --data."
    try:
        if moved_to is None:
            return split_data(read_labels(folder, data), data, config.seed)
        return prepare_data(data, config.seed)
    except (UserError, OSError) as error:
        raise DataError(f"{error} {hint}") from error


def new_place(data: DataConfig, moved_to: Path, tags: Path | None) -> dict[str, str | None]:
    """Where images and tags are now. A tag file that is missing is searched for among the images."""
    old = Path(data.source)
    if old.suffix and not old.is_dir() and moved_to.is_dir():  # one file that lists its images, and their new folder
        inside = moved_to / old.name
        if inside.is_file() and tags is None:
            return {"source": str(inside), "tags": None}
        return {"source": str(moved_to), "tags": str(tags or old)}
    file = tags or (Path(data.tags) if data.tags else None)
    if file is not None and not file.exists() and tags is None:
        file = moved_to / (file.relative_to(old) if file.is_relative_to(old) else file.name)
    return {"source": str(moved_to), "tags": None if file is None else str(file)}
