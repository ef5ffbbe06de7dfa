"""A run from settings to result: train epoch by epoch, evaluate, save checkpoints, export the model."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewtags import distributed
from fewtags.atomic import atomic_write, remove_leftovers, write_json
from fewtags.config import RunConfig, flat
from fewtags.contract import Batch, Progress, StepResult
from fewtags.data.annotations import Annotations
from fewtags.data.prepare import RunData, read_data, split_data
from fewtags.engine.card_facts import data_facts, quality_facts
from fewtags.engine.checkpoint import save_checkpoint
from fewtags.engine.evaluation import Batches, predict, predict_some
from fewtags.engine.kept_labels import keep_labels, seen_files
from fewtags.engine.predictions import measure
from fewtags.engine.quality import estimate_run
from fewtags.engine.record import (
    load_last,
    load_run_config,
    log_opening,
    restore,
    save_run,
    write_epochs,
    write_record,
)
from fewtags.engine.run import Measured, Run, build_run, choose_device, is_mean, repeatable
from fewtags.engine.run_folder import RunFolder
from fewtags.engine.run_log import RunLog
from fewtags.engine.schedule import lr_factor
from fewtags.engine.settled import settle
from fewtags.engine.start import start_head
from fewtags.engine.thresholds import choose_thresholds
from fewtags.errors import DataError, Interrupted, RunFailed, UserError
from fewtags.labels import ABSENT, PRESENT, UNKNOWN
from fewtags.locks import only_process_in
from fewtags.loggers import Logger
from fewtags.methods import objective_class
from fewtags.metrics import Scores
from fewtags.models.backbones import check_weights_are_near
from fewtags.models.saved import SavedModel, read_object
from fewtags.progress import duration

IMAGES_FOR_THRESHOLDS = 5000  # training images, if none are held out: enough for two digits of a threshold


@dataclass(frozen=True)
class RunResult:
    folder: Path
    last: Scores | None  # of the last epoch, on the test split, else on validation
    best: dict[str, Any]  # of the best epoch on the split that was evaluated each epoch
    split: str | None
    seconds: float  # of training
    epochs: int  # 0 if nothing is trained
    estimates: dict[str, Any] | None = None  # as in result.json, if there are no complete labels


# --- the whole run ---


def train(
    config: RunConfig,
    folder: Path,
    *,
    data: RunData | None = None,
    resume: bool = False,
    quiet: bool = False,
    loggers: Sequence[Logger] = (),
) -> RunResult:
    """Train according to `config` and write everything to `folder`. With `resume`, continue from its last checkpoint.

    A run that was stopped before its first checkpoint starts from the beginning, with or without `resume`.
    """
    device = choose_device(config.train.device)
    distributed.start(device.type, config.train.timeout)
    files, log = RunFolder(folder), RunLog(RunFolder(folder), quiet, loggers)
    if resume and (finished := finished_result(files, config)) is not None:
        log.say(f"The run in {folder} is already finished; there is nothing to resume.")
        return finished
    with distributed.reports_lost_process(), alone_in(folder):
        if not resume:
            refuse_to_overwrite(files)
        checkpoint = load_last(files) if resume and files.can_resume else None
        read: Annotations | None = None
        seen = ""
        if data is None:
            if config.data.source:
                log.say(f"Reading the labels of {config.data.source}.")
                if config.model.pretrained and not config.model.weights:
                    check_weights_are_near(config.model.backbone)
            with log.working("Reading labels"):
                seen = seen_files(folder, config.data)
                read = read_data(config.data)
                data = split_data(read, config.data, config.seed)
        try:
            run = build_run(config, folder, data, device, log)
            start_new(run) if checkpoint is None else resume_from(run, checkpoint)
            if read is not None and distributed.is_main():
                keep_labels(folder, load_run_config(folder).data, read, seen)
            read = None
            if run.num_epochs > run.epoch:
                run.train_batches = settle(run, run.train_batches, "Preparing training images")
            with stop_signals() as stop, repeatable(config.train.deterministic):
                while run.epoch < run.num_epochs:
                    train_one_epoch(run, stop)
                    finish_epoch(run)
            return finish_run(run)
        except KeyboardInterrupt:
            raise Interrupted(resume_hint(files)) from None


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """No other run may write to `folder`. The first process locks it for its group, and alone reports a refusal."""
    refused = None
    with ExitStack() as locks:
        if distributed.is_main():
            try:
                locks.enter_context(only_process_in(folder, "fewtags train"))
                for place in (folder, RunFolder(folder).last.parent, RunFolder(folder).model):
                    remove_leftovers(place, older_than=60)
            except UserError as error:
                refused = error
        if distributed.anywhere(refused is not None):
            raise refused or UserError("")
        yield


def start_new(run: Run) -> None:
    log_opening(run)
    _ = run.train_batches  # computing features may fail; until then nothing is written
    run.log.open(flat(run.config.nested()))
    write_record(run)
    start_head(run)


def resume_from(run: Run, checkpoint: dict[str, Any]) -> None:
    restore(run, checkpoint)
    run.log.open(flat(run.config.nested()), after_epoch=run.epoch)
    if distributed.is_main():
        write_epochs(run)
        run.files.result.unlink(missing_ok=True)  # of fewer epochs than the settings now ask for
    where = f"Resuming at epoch {run.epoch + 1} of {run.num_epochs}, step {run.step + 1}."
    run.log.say(where if run.epoch < run.num_epochs else "Resuming: all epochs are done, only the result is missing.")


def refuse_to_overwrite(files: RunFolder) -> None:
    if files.is_finished:
        raise UserError(f"{files.path} already contains a finished run; choose another folder, or remove it.")
    if files.can_resume:
        raise UserError(
            f"{files.path} already contains a run; resume it (fewtags train --resume {files.path}), "
            "choose another folder, or remove it."
        )


def resume_hint(files: RunFolder) -> str:
    """The message for a run that is interrupted immediately, without saving."""
    if files.can_resume:
        return f"Stopped immediately. Resume from the last checkpoint with: fewtags train --resume {files.path}"
    if files.is_run:
        return (
            f"Stopped before the first checkpoint. Start from the beginning with: fewtags train --resume {files.path}"
        )
    return f"Stopped before the run started; nothing was written to {files.path}."


# --- one epoch ---


def train_one_epoch(run: Run, stop: Callable[[], bool]) -> None:
    started = time.monotonic()
    run.learner.train()
    if run.step == 0:
        run.totals = {}
        run.learner.objective.start_epoch(run.progress())
    title = f"Epoch {run.epoch + 1}/{run.config.train.epochs}"
    num_steps = run.train_batches.num_steps
    with run.log.progress_bar(title, num_steps - run.step, "steps") as bar:
        for loaded in run.train_batches.epoch(run.epoch, run.step):
            run.report_broken(loaded.broken, run.data.train)
            # A rank alone in a step would wait for the others forever; the same holds for stopping below.
            num_ready, num_stopping = distributed.counts(loaded.batch is not None, stop())
            if num_ready == distributed.world_size() and loaded.batch is not None:
                result = train_step(run, loaded.batch.to(run.device))
                add_totals(run, loaded.batch, result)
            run.step += 1
            whole_window = run.step % run.config.train.accumulate == 0
            if run.num_collected and (whole_window or run.step == num_steps):
                update_weights(run)
            bar.step(f"loss {mean_loss(run):.4f}")
            asked = num_stopping or (distributed.world_size() == 1 and stop())  # a single process need not ask others
            if asked and whole_window:
                run.seconds += time.monotonic() - started
                save_and_stop(run)
    run.seconds += time.monotonic() - started


def train_step(run: Run, batch: Batch) -> StepResult:
    """Accumulates the gradients of one batch."""
    progress = run.progress()
    torch.manual_seed(step_seed(run.config.seed, progress))
    for group in run.optimizer.param_groups:
        group["lr"] = group["base_lr"] * lr_factor(run.config.train, progress)
    with run.autocast():
        result: StepResult = run.wrapped(batch, progress)
    stop_if_not_finite(run, result)
    run.scaler.scale(result.total / run.config.train.accumulate).backward()
    run.num_collected += 1
    return result


def update_weights(run: Run) -> None:
    """One optimiser step with the gradients accumulated since the last; some batches may have been unreadable."""
    run.scaler.step(run.optimizer)
    run.scaler.update()
    run.optimizer.zero_grad()
    run.num_collected = 0
    if run.ema is not None:
        run.ema.update(run.learner.model)


def step_seed(seed: int, progress: Progress) -> int:
    """Seeds the random numbers of each step (dropout, CANR), so that a resumed run draws the same as an uninterrupted
    one."""
    sequence = np.random.SeedSequence((seed, progress.epoch, progress.step, distributed.rank()))
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))


def stop_if_not_finite(run: Run, result: StepResult) -> None:
    if bool(torch.isfinite(result.total)):
        return
    terms = ", ".join(f"{name}: {float(loss.detach()):g}" for name, loss in result.losses.items())
    last = run.files.last
    kept = f"the last good checkpoint is {last}" if run.files.can_resume else "no checkpoint was written yet"
    raise RunFailed(
        f"The loss is not finite at epoch {run.epoch + 1}, step {run.step + 1} ({terms}); {kept}. "
        "A lower learning rate (train.lr) or train.precision=fp32 usually helps."
    )


def add_totals(run: Run, batch: Batch, result: StepResult) -> None:
    """Sums over the epoch: every named loss and stat, and the accuracy of the method's decisions."""
    values: dict[str, Tensor | float] = {f"loss.{name}": loss for name, loss in result.losses.items()}
    values |= {f"stat.{name}": value for name, value in result.stats.items()}
    values |= {"loss": result.total, "steps": 1}
    values |= judge_decisions(run.data.truth, batch, result.decisions)
    for name, value in values.items():
        run.totals[name] = run.totals.get(name, 0.0) + float(value.detach() if isinstance(value, Tensor) else value)


def judge_decisions(truth: np.ndarray | None, batch: Batch, decisions: dict[str, Tensor]) -> dict[str, int]:
    """Found or rejected labels, and how many of them are truly present. Only here are decisions compared with the
    truth."""
    if not decisions:
        return {}
    counts = {f"{name}.count": int(mask.sum()) for name, mask in decisions.items()}
    if truth is not None:
        present = torch.from_numpy(truth[batch.index.numpy()] == PRESENT)
        hidden = present & (batch.labels != PRESENT)
        counts["hidden"] = int(hidden.sum())
        counts |= {f"{name}.right": int((mask.cpu() & hidden).sum()) for name, mask in decisions.items()}
    return counts


# --- after an epoch, and at the end ---


def finish_epoch(run: Run) -> None:
    epoch, progress = run.epoch + 1, run.progress(run.train_batches.num_steps)
    objective = run.learner.objective
    share_batch_statistics(run)
    share_broken(run)
    run.totals = join_totals(run.totals)
    if not run.totals.get("steps"):
        raise DataError(f"None of the training images could be read; see {run.files.bad_images}.")
    run.log.row("train", epoch, epoch_summary(run))
    if stats := objective.epoch_stats(progress):
        run.log.row("state", epoch, stats)
    if per_category := objective.category_stats(progress):
        run.log.row("categories", epoch, {name: values.tolist() for name, values in per_category.items()})
    if epoch % run.config.train.evaluate_every == 0 or epoch == run.config.train.epochs:
        evaluate_epoch(run)
    else:
        run.log.say(f"Epoch {epoch}: loss {mean_loss(run):.4f}")
    run.epoch, run.step = epoch, 0
    save_run(run)


def share_batch_statistics(run: Run) -> None:
    """So that every process evaluates, saves and continues with the same model."""
    distributed.average_batch_statistics(run.learner.model)
    if run.ema is not None:
        distributed.average_batch_statistics(run.ema.module)


def share_broken(run: Run) -> None:
    """Images that one process could not read are known to all; the first one warns about them."""
    for found in distributed.gather_objects(run.broken):
        for path, reason in found.items():
            if path not in run.broken:
                run.broken[path] = reason
                run.log.warn(f"Left out: {reason}")


def join_totals(totals: dict[str, float]) -> dict[str, float]:
    """Of all processes, which have the same names: counts added up, what is a mean over a step's images averaged.

    So they mean the same whatever the number of processes is, and was before a resume.
    """
    summed = distributed.sum_across_ranks(torch.tensor(list(totals.values()), dtype=torch.float64)).tolist()
    shares = [distributed.world_size() if is_mean(name) else 1 for name in totals]
    return {name: total / share for name, total, share in zip(totals, summed, shares, strict=True)}


def epoch_summary(run: Run) -> dict[str, Any]:
    steps = max(run.totals.get("steps", 0), 1)
    summary: dict[str, Any] = {"seconds": round(run.seconds, 3), "lr": run.optimizer.param_groups[-1]["lr"]}
    for name, value in run.totals.items():
        if name.startswith(("loss", "stat.")):
            summary[name.removeprefix("stat.")] = value / steps
    for name in [key.removesuffix(".count") for key in run.totals if key.endswith(".count")]:
        summary |= decision_summary(run.totals, name)
    return summary


def decision_summary(totals: dict[str, float], name: str) -> dict[str, float]:
    """How many labels were found (or rejected); with a truth, their precision and their recall of hidden positives."""
    count = totals[f"{name}.count"]
    summary = {f"{name}_labels": count}
    if f"{name}.right" in totals:
        right = totals[f"{name}.right"]
        summary[f"{name}_precision"] = right / count if count else float("nan")
        summary[f"{name}_recall"] = right / totals["hidden"] if totals["hidden"] else float("nan")
    return summary


def evaluate_epoch(run: Run) -> None:
    """Evaluate on validation images, or on the test set if there are none (then the best epoch is not a fair
    choice)."""
    epoch, split = run.epoch + 1, "val" if run.data.val is not None else "test"
    run.latest = {}
    scores = measure_split(run, split)
    if scores is None:
        run.log.say(f"Epoch {epoch}: loss {mean_loss(run):.4f}")
        return
    summary = summary_of(scores)
    run.log.row("eval", epoch, {"split": split, **summary})
    line = score_line(scores, typed_only=no_absence_known(run, split))
    run.log.say(f"Epoch {epoch}: loss {mean_loss(run):.4f}, {split} {line}  ({duration(run.seconds)})")
    metric = run.config.train.best_by
    if not run.best or summary[metric] > run.best[metric]:
        run.best = {"epoch": epoch, "split": split, **summary}
        if split == "val" and distributed.is_main():
            save_checkpoint({"model": run.model.state_dict(), "epoch": epoch}, run.files.best)


def measure_split(run: Run, split: str) -> Scores | None:
    """Scores of the current model on "val" or "test", measured once per epoch; None if the data has no such split."""
    part = run.data.val if split == "val" else run.data.test
    if part is None:
        return None
    if split not in run.latest:
        if split not in run.eval_batches:
            batches = run.batches_of(part)
            run.eval_batches[split] = settle(run, batches, "Preparing evaluation") if run.num_epochs else batches
        batches = run.eval_batches[split]
        with run.log.progress_bar("Evaluating", batches.num_steps, "batches") as bar:
            predictions = predict(run.model, batches, part.labels.shape, run.device, run.autocast, bar.step)
        run.report_broken(predictions.broken, part)
        run.latest[split] = Measured(measure(predictions, part), predictions)
    return run.latest[split].scores


def mean_loss(run: Run) -> float:
    return run.totals.get("loss", 0.0) / max(run.totals.get("steps", 0), 1)


def no_absence_known(run: Run, split: str) -> bool:
    part = run.data.val if split == "val" else run.data.test
    return part is not None and not part.complete and not (part.labels == ABSENT).any()


def score_line(scores: Scores, *, typed_only: bool = False) -> str:
    """With unknown labels as absent, only the order of the images says something: F1 would count what was found as
    wrong."""
    if typed_only:
        return f"mAP {100 * scores.map:.2f} of the given tags"
    return f"mAP {100 * scores.map:.2f}, OF1 {100 * scores.of1:.2f}, CF1 {100 * scores.cf1:.2f}"


def summary_of(scores: Scores) -> dict[str, Any]:
    return {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in asdict(scores).items()}


def finish_run(run: Run) -> RunResult:
    """Measure the last epoch, choose thresholds, export the model, write result.json."""
    result: dict[str, Any] = {"epochs": run.epoch, "seconds": round(run.seconds, 1)}
    last, split = None, None
    for name in ("val", "test"):
        scores = measure_split(run, name)
        if scores is not None:
            last, split, result[name] = scores, name, summary_of(scores)
            run.best = run.best or {"epoch": run.epoch, "split": name, **result[name]}  # if no epoch was trained
    result["best"] = run.best
    with run.log.working("Choosing thresholds"):
        thresholds = thresholds_of(run)
    share_broken(run)
    if distributed.is_main():
        for name, measured in run.latest.items():
            with atomic_write(run.files.predictions(name)) as temporary, temporary.open("wb") as out:
                np.savez_compressed(out, probabilities=measured.predictions.probabilities)
        saved = saved_model(run, thresholds)
        saved.save(run.files.model)
        with run.log.working("Estimating quality"):
            estimates = estimate_run(run, saved)
        result |= {"estimates": estimates} if estimates else {}
        # The model card's numbers come last: estimating may take long, and the model is already safe.
        replace(saved, data=data_facts(run.data), quality=quality_facts(result, run.data)).save_about(run.files.model)
        write_json(run.files.result, {**result, "unreadable_images": len(run.broken)})
        run.log.finish(result, category_table(run, result, thresholds))
    return RunResult(run.folder, last, run.best, split, run.seconds, run.epoch, result.get("estimates"))


def category_table(run: Run, result: dict[str, Any], thresholds: np.ndarray) -> list[dict[str, Any]]:
    """For the loggers: a row per category."""
    columns: dict[str, Sequence[Any]] = {
        "category": run.problem.categories,
        "known_images": run.data.train.known_positives.tolist(),
        "threshold": [round(float(threshold), 6) for threshold in thresholds],
    }
    columns |= {f"{split}_ap": result[split]["per_category"] for split in ("val", "test") if split in result}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def saved_model(run: Run, thresholds: np.ndarray) -> SavedModel:
    words, config = run.problem.words, run.config
    return SavedModel(
        run.model,
        config.model,
        config.input,
        config.head_name,
        config.head,
        list(run.problem.categories),
        thresholds,
        None if words is None else (words.vectors.shape[1], words.learned),
        config.nested(),
        tree=run.data.train.tree,
    )


def thresholds_of(run: Run) -> np.ndarray:
    """From validation images; if these are partly labelled, a head's own thresholds, chosen by leave-one-out, take
    precedence. Without validation images, from training images. Never from the test set. All processes must call this.
    """
    val, own = run.data.val, run.model.head.thresholds
    if own is not None and (val is None or not val.complete):
        return own.cpu().numpy()
    calibrated = run.learner.objective.calibrated
    if val is not None:
        predictions = run.latest["val"].predictions
        probabilities, labels = predictions.probabilities[predictions.read], val.labels[predictions.read]
    else:
        run.log.say("Choosing thresholds on the training images, as none were held out.")
        batches = some_training_batches(run)
        probabilities, labels = predict_some(run.model, batches, IMAGES_FOR_THRESHOLDS, run.device, run.autocast)
        if (labels != UNKNOWN).all():  # they were trained on, so F1 on them says little
            return np.full(run.problem.num_categories, 0.5)
    return choose_thresholds(probabilities, labels, calibrated=calibrated)


def some_training_batches(run: Run) -> Batches:
    """The training images shuffled, without augmentation, except for maps cached with it."""
    if run.caches_features or not run.config.input.augment:
        return run.train_batches
    return run.batches_of(run.data.train, shuffle=True)


def finished_result(files: RunFolder, config: RunConfig) -> RunResult | None:
    """The result of a finished run; None if it is not finished, or its settings now ask for more epochs."""
    if not (files.is_run and files.is_finished and files.model.is_dir()):
        return None
    result = read_object(files.result)
    if objective_class(config.method_name).trains and result["epochs"] < config.train.epochs:
        return None
    split = next((name for name in ("test", "val") if name in result), None)
    last = None if split is None else Scores(**result[split])
    estimates = result.get("estimates")
    return RunResult(files.path, last, result["best"], split, result["seconds"], result["epochs"], estimates)


# --- stopping ---


def save_and_stop(run: Run) -> None:
    share_batch_statistics(run)
    run.totals = join_totals(run.totals)
    save_run(run)
    raise Interrupted(
        f"Stopped at epoch {run.epoch + 1}, step {run.step}; everything is saved. "
        f"Resume with: fewtags train --resume {run.folder}"
    )


@contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """Ctrl-C and SIGTERM stop the run after the current step; a second one stops it immediately."""
    asked = False

    def ask(number: int, _: Any) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    previous = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            previous[number] = signal.signal(number, ask)
    except ValueError:  # not in the main thread (a notebook server, a test): signals cannot be caught
        pass
    try:
        yield lambda: asked
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
