"""A run: it learns, can be stopped and resumed bit for bit, says what went wrong, and leaves a usable folder."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from conftest import TinyConfig
from fewtags import progress
from fewtags.data.annotations import Annotations
from fewtags.data.loaders import EpochBatches
from fewtags.data.prepare import split_data
from fewtags.engine import features, training
from fewtags.engine.checkpoint import load_checkpoint
from fewtags.engine.prediction import predict_files
from fewtags.engine.record import load_run_config
from fewtags.engine.run_log import read_rows
from fewtags.errors import Interrupted, MissingExtra, RunFailed, UserError
from fewtags.loggers import opened
from fewtags.methods import METHODS, objective_class
from fewtags.models import saved
from fewtags.models.classifier import Classifier
from fewtags.models.saved import load_model


def run(config, folder: Path, data: Annotations, **more):
    return training.train(config, folder, data=split_data(data, config.data, config.seed), quiet=True, **more)


def tensors(content: object, prefix: str = "") -> dict[str, Tensor]:
    """Every tensor in a nested checkpoint, by its path."""
    if isinstance(content, Tensor):
        return {prefix: content}
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    return {name: t for key, value in items for name, t in tensors(value, f"{prefix}/{key}").items()}


def stop_after(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send this process a SIGTERM once so many training steps were taken, as a job scheduler would."""
    original, taken = training.train_step, []

    def step(*args):
        taken.append(1)
        if len(taken) == steps:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(*args)

    monkeypatch.setattr(training, "train_step", step)


# Rows that leave out a part of `refined` or `caldnr` have no state that these do not have.
PARTS = ("cald-no-catu", "cald", "canr-no-catu", "canr", "refined-an", "refined-discover", "refined-reject")
TRAINED = [name for name in METHODS if objective_class(name).trains and name not in PARTS]


@pytest.mark.parametrize("method", TRAINED)
def test_a_resumed_run_repeats_the_uninterrupted_one(method, patches, tmp_path, monkeypatch):
    """Stopped in the middle of an epoch: weights, optimiser and method state end equal to the last bit."""
    some = ("model.train_from=layer4", "cache.enabled=false")  # writing weights and reading them takes most of the time
    config = TinyConfig.make(f"method={method}", "train.ema=0.9", "train.batch_size=6", *some)
    few = patches.take(np.r_[0:18, 36:40])  # enough for every method, and there are many of them
    run(config, tmp_path / "whole", few)
    with monkeypatch.context() as patch:
        stop_after(5, patch)  # epochs have 3 steps
        with pytest.raises(Interrupted, match="--resume"):
            run(config, tmp_path / "parts", few)
    assert load_checkpoint(tmp_path / "parts/checkpoints/last.pt")["step"] == 2
    run(config, tmp_path / "parts", few, resume=True)
    whole, parts = (load_checkpoint(tmp_path / name / "checkpoints/last.pt") for name in ("whole", "parts"))
    expected, found = tensors(whole), tensors(parts)
    assert expected.keys() == found.keys()
    different = [name for name in expected if not torch.equal(expected[name], found[name])]
    assert not different
    assert whole["totals"] == parts["totals"]


def test_instant_learns_in_one_look(patches, tmp_path):
    config = TinyConfig.make("method=instant", "data.known=1.0")
    result = run(config, tmp_path / "run", patches)
    assert result.last.map > 0.6
    assert result.best["epoch"] == 0
    saved = load_model(tmp_path / "run")
    closed_form = saved.classifier.head.presence
    assert closed_form.weights.any()
    np.testing.assert_allclose(saved.thresholds, closed_form.thresholds, atol=1e-5)


def test_a_run_stopped_at_its_start_is_no_dead_end(patches, tmp_path, monkeypatch):
    """Ctrl-C at the first look at the images: the folder is there, no checkpoint is."""
    config = TinyConfig.make("method=instant", "data.known=1.0")
    whole = run(config, tmp_path / "whole", patches)
    for folder, resume in (("resumed", True), ("again", False)):
        with monkeypatch.context() as patch:
            patch.setattr(training, "start_head", lambda _: signal.raise_signal(signal.SIGINT))
            with pytest.raises(Interrupted, match=rf"before the first checkpoint.*--resume .*{folder}"):
                run(config, tmp_path / folder, patches)
        assert not (tmp_path / folder / "result.json").exists()
        assert run(config, tmp_path / folder, patches, resume=resume).last == whole.last


@pytest.mark.parametrize("method", ["an", "instant"])
def test_resuming_a_finished_run_says_so_and_gives_its_result(method, patches, tmp_path, capsys):
    config = TinyConfig.make(f"method={method}", "train.epochs=1")
    result = run(config, tmp_path / "run", patches)
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "run").rglob("*")}
    data = split_data(patches, config.data, 0)
    again = training.train(config, tmp_path / "run", data=data, resume=True)
    assert "finished; there is nothing to resume" in capsys.readouterr().err
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "run").rglob("*")} == before
    assert replace(again, seconds=0, best={}) == replace(result, seconds=0, best={})


def test_a_run_that_lacks_only_its_result_makes_it(patches, tmp_path, capsys):
    """Killed after the last epoch, while the model was exported."""
    config = TinyConfig.make("train.epochs=1")
    result = run(config, tmp_path / "run", patches)
    (tmp_path / "run/result.json").unlink()
    data = split_data(patches, config.data, 0)
    assert training.train(config, tmp_path / "run", data=data, resume=True).last == result.last
    assert "all epochs are done" in capsys.readouterr().err


def test_no_run_is_written_over(patches, tmp_path, monkeypatch):
    config = TinyConfig.make("train.epochs=1")
    stop_after(2, monkeypatch)
    with pytest.raises(Interrupted):
        run(config, tmp_path / "run", patches)
    with pytest.raises(UserError, match="already contains a run; resume it"):
        run(config, tmp_path / "run", patches)
    run(config, tmp_path / "run", patches, resume=True)
    log = (tmp_path / "run/metrics.jsonl").read_bytes()
    with pytest.raises(UserError, match="already contains a finished run"):
        run(config, tmp_path / "run", patches)
    assert (tmp_path / "run/metrics.jsonl").read_bytes() == log


def test_weights_that_cannot_be_had_leave_nothing_behind(patches, tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        run(TinyConfig.make("model.weights=nowhere.safetensors"), tmp_path / "run", patches)
    assert not (tmp_path / "run").exists()


def test_training_learns_colours(patches, tmp_path):
    config = TinyConfig.make("data.known=1.0", "train.epochs=15", "train.lr=3e-3", "train.head_lr_scale=1")
    assert run(config, tmp_path / "run", patches).last.map > 0.9


def test_the_run_folder_tells_everything(patches, tmp_path):
    run(TinyConfig.make(), tmp_path / "run", patches)
    folder = tmp_path / "run"
    assert {"config.yaml", "environment.json", "data.json", "metrics.jsonl", "result.json", "model", "checkpoints"} <= {
        path.name for path in folder.iterdir()
    }
    rows = read_rows(folder / "metrics.jsonl")
    assert [row["epoch"] for row in rows if row["kind"] == "eval"] == [1, 2]
    assert json.loads((folder / "data.json").read_text())["train"]["hash"]
    assert load_run_config(folder) == TinyConfig.make()


def test_the_saved_model_predicts_what_the_run_measured(patches, tmp_path):
    result = run(TinyConfig.make("method=refined"), tmp_path / "run", patches)
    test = patches.split("test")
    saved = load_model(tmp_path / "run")
    rows = [p.probabilities for p in predict_files(saved, [test.path(n) for n in range(len(test))])]
    measured = np.load(tmp_path / "run/predictions-test.npz")["probabilities"]
    np.testing.assert_allclose(np.stack(rows), measured, atol=1e-5)
    assert result.split == "test"


def test_broken_images_are_reported_and_left_out(patches, tmp_path):
    copy = tmp_path / "data"
    copy.mkdir()
    for name in patches.images:
        (copy / name).write_bytes((patches.root / name).read_bytes())
    (copy / "03.png").write_bytes((patches.root / "03.png").read_bytes()[:200])
    (copy / "40.png").write_bytes(b"not an image")
    result = run(TinyConfig.make(), tmp_path / "run", replace(patches, root=copy))
    bad = (tmp_path / "run/bad_images.txt").read_text()
    assert "03.png" in bad
    assert "40.png" in bad
    assert result.last.num_images == 11


def test_a_loss_that_is_not_finite_stops_the_run(patches, tmp_path):
    config = TinyConfig.make("train.lr=1e30", "train.optimizer=adam", "train.schedule=none", "train.epochs=3")
    with pytest.raises(RunFailed, match=r"not finite at epoch \d+, step \d+ \(observed: \S+, prior: \w+\)"):
        run(config, tmp_path / "run", patches)


def test_resuming_on_other_data_is_refused(patches, tmp_path):
    run(TinyConfig.make(), tmp_path / "run", patches)
    (tmp_path / "run/result.json").unlink()  # not finished, then
    other = split_data(patches, TinyConfig.make("data.mask_seed=1").data, 0)
    with pytest.raises(UserError, match="training data has changed"):
        training.train(TinyConfig.make(), tmp_path / "run", data=other, quiet=True, resume=True)


def test_gradients_accumulate_to_the_larger_batch(patches, tmp_path):
    """Two half batches, accumulated, move the weights like one whole batch (batch norm frozen, plain mean loss)."""
    common = ("train.epochs=1", "model.train_from=head", "train.schedule=none", "input.flip=false", "input.crops=[37]")
    run(TinyConfig.make(*common, "train.batch_size=36"), tmp_path / "one", patches)
    run(TinyConfig.make(*common, "train.batch_size=18", "train.accumulate=2"), tmp_path / "two", patches)
    one, two = (load_checkpoint(tmp_path / name / "checkpoints/last.pt")["model"] for name in ("one", "two"))
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-4, atol=1e-5)


def test_a_broken_batch_at_the_end_of_a_window_does_not_keep_the_others_from_counting(patches, tmp_path, monkeypatch):
    """Windows of two batches, the second of each unreadable: what was collected is used up before the next window."""
    config = TinyConfig.make("train.epochs=1", "train.batch_size=6", "train.accumulate=2")  # 6 batches
    copy = tmp_path / "data"
    copy.mkdir()
    sampler = EpochBatches(36, 6, shuffle=True, seed=config.seed)
    sampler.start(0)
    broken = {row for number, batch in enumerate(sampler) if number % 2 for _, row in batch}
    for row, name in enumerate(patches.images):
        (copy / name).write_bytes(b"no image" if row in broken else (patches.root / name).read_bytes())
    events: list[str] = []
    for name in ("train_step", "update_weights"):
        original = getattr(training, name)
        monkeypatch.setattr(training, name, lambda *args, n=name, f=original: (events.append(n), f(*args))[1])
    run(config, tmp_path / "run", replace(patches, root=copy))
    assert events == ["train_step", "update_weights"] * 3


def test_a_stop_is_delayed_to_the_end_of_a_window(patches, tmp_path, monkeypatch):
    stop_after(1, monkeypatch)
    with pytest.raises(Interrupted, match="step 3;"):
        run(TinyConfig.make("train.accumulate=3", "train.epochs=1"), tmp_path / "run", patches)


def test_half_precision_on_the_way_and_single_precision_where_it_counts(patches, tmp_path, monkeypatch):
    """bf16: the backbone computes in it; logits, losses, weights and what is measured do not."""
    seen: dict[str, torch.dtype] = {}

    def maps(self, images, are_maps=False):
        found = feature_map(self, images, are_maps)
        seen["maps"] = found.dtype
        return found

    def outputs(self, images, are_maps=False):
        found = forward(self, images, are_maps)
        seen["logits"] = found.logits.dtype
        return found

    feature_map, forward = Classifier.feature_map, Classifier.forward
    settings = ("train.epochs=3", "train.lr=1e-3", "data.known=1.0")
    plain = run(TinyConfig.make(*settings, "train.precision=fp32"), tmp_path / "fp32", patches)
    monkeypatch.setattr(Classifier, "feature_map", maps)
    monkeypatch.setattr(Classifier, "forward", outputs)
    half = run(TinyConfig.make(*settings, "train.precision=bf16"), tmp_path / "bf16", patches)
    assert seen == {"maps": torch.bfloat16, "logits": torch.float32}
    weights = load_checkpoint(tmp_path / "bf16/checkpoints/last.pt")["model"]
    assert {value.dtype for value in weights.values() if value.is_floating_point()} == {torch.float32}
    losses = [
        [row["loss"] for row in read_rows(tmp_path / name / "metrics.jsonl") if row["kind"] == "train"]
        for name in ("fp32", "bf16")
    ]
    np.testing.assert_allclose(losses[1], losses[0], rtol=0.05)
    assert half.last.map == pytest.approx(plain.last.map, abs=0.1)


def test_a_run_speaks_before_it_computes_features_and_writes_after_it(patches, tmp_path, monkeypatch, capsys):
    """Features may take an hour: what the run is about to do is said before, and nothing is left if they fail."""
    said = []

    def fails(*_, **__):
        said.append(capsys.readouterr().err)
        raise RunFailed("no features")

    monkeypatch.setattr("fewtags.engine.run.cached_batches", fails)
    config = TinyConfig.make("model.train_from=head", "cache.enabled=true")
    with pytest.raises(RunFailed, match="no features"):
        training.train(config, tmp_path / "run", data=split_data(patches, config.data, 0))
    assert "Backbone test_resnet at 32 px" in said[0]
    assert "Method an (default profile)" in said[0]
    assert not (tmp_path / "run/config.yaml").exists()


def test_the_choice_of_a_runtime_is_not_silent(patches, tmp_path, monkeypatch, capsys):
    """Seen: 74 seconds without a word on a busy machine, while other runtimes were imported and timed."""
    said, choose = [], features.choose_runtime

    def slowly(*arguments):
        given_up = time.monotonic() + 60
        while "Choosing the runtime: " not in "".join(said) and time.monotonic() < given_up:
            said.append(capsys.readouterr().err)
            time.sleep(0.01)
        return choose(*arguments)

    monkeypatch.setattr(progress, "FIRST_LINE", 0.05)
    monkeypatch.setattr(features, "choose_runtime", slowly)
    config = TinyConfig.make("method=instant", "model.train_from=head", f"cache.folder={tmp_path / 'cache'}")
    training.train(config, tmp_path / "run", data=split_data(patches, config.data, 0))
    assert "Choosing the runtime: " in "".join(said)


def test_weights_are_written_once_and_the_card_has_the_numbers(patches, tmp_path, monkeypatch):
    """The estimates come after the weights are safe, and must not write them again."""
    written, original = [], saved.save_file
    monkeypatch.setattr(saved, "save_file", lambda *args: (written.append(1), original(*args)))
    run(TinyConfig.make("train.epochs=1"), tmp_path / "run", patches)
    assert len(written) == 1
    model = load_model(tmp_path / "run")
    assert model.quality
    assert model.data


def test_tensorboard_is_shown_what_the_log_has(patches, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with opened(["tensorboard"]) as loggers:
        run(TinyConfig.make(), tmp_path / "run", patches, loggers=loggers)
    board = EventAccumulator(str(tmp_path / "run/tensorboard"))
    board.Reload()
    rows = read_rows(tmp_path / "run/metrics.jsonl")
    for kind, name, tag in (("train", "loss", "train/loss"), ("eval", "map", "test/map")):
        expected = [(row["epoch"], row[name]) for row in rows if row["kind"] == kind]
        shown = [(event.step, event.value) for event in board.Scalars(tag)]
        assert len(shown) == 2
        np.testing.assert_allclose(shown, expected, rtol=1e-5)


def test_without_tensorboard_a_run_is_refused_before_it_begins(patches, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingExtra, match=r"fewtags\[tensorboard\]"), opened(["tensorboard"]) as loggers:
        run(TinyConfig.make(), tmp_path / "run", patches, loggers=loggers)
    assert not (tmp_path / "run").exists()
