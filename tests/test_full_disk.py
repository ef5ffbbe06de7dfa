"""A full disk: a sentence with the file's name, and no half-written file. /dev/full is a disk that always is."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import TINY, Cli
from fewtags import atomic
from fewtags.atomic import append_line, atomic_write
from fewtags.models import saved as saved_models

pytestmark = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")


def fill(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the disk is full whenever `file` is written."""
    create = atomic._create

    def create_full(temporary: Path, wanted: Path) -> int:
        if wanted != file:
            return create(temporary, wanted)
        temporary.symlink_to("/dev/full")
        return 0o644

    monkeypatch.setattr(atomic, "_create", create_full)


@pytest.mark.parametrize(
    "write",
    [
        lambda file: file.write_text("x" * 10**6),
        lambda file: torch.save({"a": torch.zeros(300, 300)}, file.open("wb")),
        lambda file: np.savez_compressed(file.open("wb"), a=np.random.default_rng(0).random((300, 300))),
    ],
    ids=["text", "torch", "numpy"],
)
def test_whoever_writes_the_error_has_a_name_and_a_number(write, tmp_path, monkeypatch):
    fill(tmp_path / "file", monkeypatch)
    (tmp_path / "file").write_text("before")
    with pytest.raises(OSError, match="No space left") as caught, atomic_write(tmp_path / "file") as beside:
        write(beside)
    assert caught.value.filename == str(tmp_path / "file")
    assert [file.name for file in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "before"


def test_a_line_is_added_whole_or_not_at_all(tmp_path, monkeypatch):
    (tmp_path / "log").symlink_to("/dev/full")
    with pytest.raises(OSError) as caught:
        append_line(tmp_path / "log", "{}")
    assert caught.value.filename == str(tmp_path / "log")


FILES = (
    "config.yaml", "environment.json", "data.json", "checkpoints/last.pt", "predictions-test.npz", "model/config.json",
    "model/labels.json", "model/README.md", "result.json",
)  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_training_says_which_file(name, cli: Cli, patches, tags_file, tmp_path, monkeypatch):
    """Whichever file of a run the disk has no room for; and what there was before can be gone on from."""
    fill(tmp_path / "run" / name, monkeypatch)
    data = ("train", patches.root, *TINY, "--tags", tags_file, "-o", "complete=true", "--out", tmp_path / "run", "-q")
    answer = cli(*data)
    assert answer.code == 1
    assert answer.err.strip().endswith(f"{tmp_path / 'run' / name} cannot be used: No space left on device.")
    assert not (tmp_path / "run" / name).is_file()


def test_a_row_that_does_not_fit_stops_the_run_by_name(cli: Cli, trained, patches, tmp_path, monkeypatch):
    from fewtags.engine import run_log

    run = tmp_path / "run"
    shutil.copytree(trained, run)
    (run / "result.json").unlink()
    shutil.rmtree(run / "checkpoints")

    def full(file: Path, line: str) -> None:
        append_line(Path("/dev/full"), line)

    monkeypatch.setattr(run_log, "append_line", full)
    answer = cli("train", "--resume", run, "-q")
    assert (answer.code, "No space left on device" in answer.err) == (1, True)


def test_weights_that_do_not_fit(cli: Cli, trained, tmp_path, monkeypatch):
    """safetensors' own error, in Rust's words."""

    def full(*_: object) -> None:
        raise saved_models_error()

    monkeypatch.setattr(saved_models, "save_file", full)
    model = saved_models.load_model(trained)
    with pytest.raises(OSError, match="No space left") as caught:
        model.save(tmp_path / "model")
    assert caught.value.filename == str(tmp_path / "model" / "model.safetensors")
    assert list((tmp_path / "model").iterdir()) == []


def saved_models_error() -> Exception:
    from safetensors import SafetensorError

    return SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


def test_tags_that_do_not_fit(cli: Cli, trained, patches, tmp_path):
    out = tmp_path / "tags.csv"
    out.symlink_to("/dev/full")
    answer = cli("predict", trained, patches.root, "--out", out, "--overwrite", "-q")
    assert answer.code == 1
    assert f"{out} cannot be used" in answer.err


def test_a_feature_cache_that_does_not_fit_goes_on_later(cli: Cli, patches, tags_file, tmp_path):
    settings = ("model.train_from=head", f"cache.folder={tmp_path / 'cache'}")
    data = ("train", patches.root, *TINY, *settings, "--tags", tags_file, "-o", "complete=true", "-q")
    assert cli(*data, "--out", tmp_path / "first").code == 0
    files = list((tmp_path / "cache").glob("*/0.bin"))
    for file in files:
        file.unlink()
        file.symlink_to("/dev/full")
    answer = cli(*data, "--out", tmp_path / "second")
    assert answer.code == 1
    assert any(f"{file} cannot be used: No space left on device." in answer.err for file in files)
    for file in files:
        file.unlink()
    assert cli(*data, "--out", tmp_path / "second").code == 0
