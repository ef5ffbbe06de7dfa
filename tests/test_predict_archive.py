"""`fewtags predict` on an archive: it resumes where it was stopped, and never mixes models or loses rows."""

from __future__ import annotations

import json
import os
import shutil
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import Cli
from fewtags.commands import predict as command
from fewtags.data import image_files
from fewtags.data.image_files import Skipped, find_images, iter_images
from fewtags.engine import prediction
from fewtags.engine.prediction import predict_files
from fewtags.models.saved import load_model
from fewtags.train_settings import CacheConfig


@pytest.fixture
def photos(patches, tmp_path) -> Path:
    """Ten photos, one of them unreadable, some with names that a CSV has to quote."""
    folder = tmp_path / "photos"
    (folder / "more").mkdir(parents=True)
    names = ["a.png", "b, c.png", 'q"q.png', "line\nbreak.png", "é.png", *(f"more/{n}.png" for n in range(4))]
    for row, name in enumerate(names):
        shutil.copy(patches.path(row), folder / name)
    (folder / "z.png").write_bytes(b"not an image")
    return folder


@pytest.fixture
def other_model(trained, tmp_path) -> Path:
    """The same model but for one number."""
    saved = load_model(trained)
    with torch.no_grad():
        saved.classifier.head.classifier.bias[0] += 1
    saved.save(tmp_path / "other")
    return tmp_path / "other"


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.35, 0.5, 0.77, 0.999, 1.0])
def test_what_was_cut_off_anywhere_is_completed(share, ending, cli: Cli, trained, photos, tmp_path):
    """kill -9 or a full disk may leave half a row: in the end every image has one whole row."""
    whole, out = tmp_path / f"whole.{ending}", tmp_path / f"out.{ending}"
    options = ["--threshold", "0", "--all-scores", "-q", "--batch-size", "1"]
    assert cli("predict", trained, photos, "--out", whole, *options).code == 0
    cli("predict", trained, photos, "--out", out, *options)
    content = whole.read_bytes()
    out.write_bytes(content[: int(len(content) * share)])
    assert cli("predict", trained, photos, "--out", out, *options).code == 0
    assert out.read_bytes() == content


def test_only_the_missing_images_are_read(cli: Cli, trained, photos, tmp_path, monkeypatch):
    out = tmp_path / "out.csv"
    monkeypatch.setattr("fewtags.commands.models.SavedFolder.cache", lambda _: CacheConfig(enabled=False))
    cli("predict", trained, photos / "more", "--out", out, "-q")
    read, original = [], prediction.read_square
    monkeypatch.setattr(prediction, "read_square", lambda path, side: read.append(path) or original(path, side))
    answer = cli("predict", trained, photos, "--out", out)
    assert len(read) == 6
    assert "already has 4 images" in answer.err
    assert len(out.read_text(encoding="utf-8").splitlines()) == 1 + 10 + 1  # a header, and one name of two lines


def test_rows_of_another_model_are_not_added_to(cli: Cli, trained, other_model, photos, tmp_path):
    out = tmp_path / "out.csv"
    cli("predict", trained, photos, "--out", out, "-q")
    before = out.read_bytes()
    answer = cli("predict", other_model, photos, "--out", out, "-q")
    assert answer.code == 2
    assert "from another model" in answer.err
    assert out.read_bytes() == before
    assert cli("predict", other_model, photos, "--out", out, "-q", "--overwrite").code == 0
    assert out.read_bytes() != before


@pytest.mark.parametrize(
    ("options", "words"), [(["--top", "1"], "no --top"), (["--threshold", "0.3"], "no --threshold")]
)
def test_rows_of_other_settings_are_not_added_to(options, words, cli: Cli, trained, photos, tmp_path):
    cli("predict", trained, photos, "--out", tmp_path / "out.csv", "-q")
    answer = cli("predict", trained, photos, "--out", tmp_path / "out.csv", "-q", *options)
    assert answer.code == 2
    assert words in answer.err


def test_a_file_of_somebody_else_is_left_alone(cli: Cli, trained, photos, tmp_path):
    (tmp_path / "out.csv").write_text("image,tags\nmine.jpg,precious\n")
    answer = cli("predict", trained, photos, "--out", tmp_path / "out.csv", "-q")
    assert answer.code == 2
    assert "without a record of its model" in answer.err
    assert "precious" in (tmp_path / "out.csv").read_text()


def test_ctrl_c_keeps_the_rows_and_says_how_to_go_on(cli: Cli, trained, photos, tmp_path, monkeypatch):
    monkeypatch.setattr("fewtags.commands.models.SavedFolder.cache", lambda _: CacheConfig(enabled=False))
    original, read = prediction.read_square, []

    def interrupted(path, side):
        read.append(path)
        if len(read) == 6:
            raise KeyboardInterrupt
        return original(path, side)

    monkeypatch.setattr(prediction, "read_square", interrupted)
    options = ["--out", tmp_path / "out.jsonl", "--batch-size", "1", "--workers", "1"]
    answer = cli("predict", trained, photos, *options)
    assert answer.code == 130
    assert "5 rows were added" in answer.err
    monkeypatch.undo()
    cli("predict", trained, photos, *options)
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["image"] for row in rows] == [str(path) for path in find_images([photos])]


def test_what_is_not_a_number_is_an_error_and_never_written(cli: Cli, trained, photos, tmp_path):
    saved = load_model(trained)
    with torch.no_grad():
        saved.classifier.head.classifier.weight.fill_(float("nan"))
    saved.save(tmp_path / "broken")
    out = tmp_path / "out.jsonl"
    answer = cli("predict", tmp_path / "broken", photos, "--out", out, "--all-scores", "-q")
    assert answer.code == 1
    assert "For 9 of 10 images the model's output is NaN" in answer.err
    rows = [json.loads(line, parse_constant=pytest.fail) for line in out.read_text(encoding="utf-8").splitlines()]
    assert sum("output is NaN" in row["error"] for row in rows) == 9


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_predictions_equal_the_model_itself_in_the_order_of_the_files(workers, trained, photos):
    saved = load_model(trained)
    files = find_images([photos])
    for given in (files, iter(files)):
        predictions = list(predict_files(saved, given, workers=workers, batch_size=3, runtime="torch"))
        assert [one.image for one in predictions] == [str(file) for file in files]
        for file, one in zip(files, predictions, strict=True):
            loaded = prediction.load_file(saved, file)
            if loaded.batch is None:
                assert one.problem == loaded.broken[0]
                continue
            with torch.inference_mode():
                expected = saved.classifier(loaded.batch.images).logits.sigmoid()[0].numpy()
            np.testing.assert_allclose(one.probabilities, expected, atol=1e-6)


# --- listings ---


def test_listings_are_sorted_and_leave_out_what_is_hidden(tmp_path, monkeypatch):
    monkeypatch.setattr(image_files, "raw_is_installed", lambda: False)
    names = ["b.jpg", "a.JPG", "a/z.png", "a/b/c.webp", "a.txt", ".hidden.jpg", ".git/x.jpg", "._a.jpg", "n.cr2"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "loop").symlink_to(tmp_path)
    skipped = Skipped()
    found = [path.relative_to(tmp_path).as_posix() for path in iter_images([tmp_path], skipped)]
    assert found == ["a/b/c.webp", "a/z.png", "a.JPG", "b.jpg"]
    assert dict(skipped.kinds) == {"RAW": 1}


def test_a_folder_of_any_size_is_listed_in_little_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(image_files, "SORTED", 100)
    for number in range(5000):
        os.close(os.open(tmp_path / f"{number:050d}.jpg", os.O_CREAT))
    next(iter_images([tmp_path]))
    most = []
    for _ in range(3):  # threads that earlier tests left may allocate, too
        tracemalloc.start()
        assert sum(1 for _ in iter_images([tmp_path])) == 5000
        most.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert min(most) < 200_000  # 5,000 paths would be more than a megabyte


def test_what_was_written_is_remembered_in_eight_bytes_an_image(tmp_path):
    out = tmp_path / "out.jsonl"
    out.write_text("".join(json.dumps({"image": f"photos/{n}.jpg", "tags": {}}) + "\n" for n in range(3000)))
    command.about_file(out).write_text(json.dumps({"model": "m"}))
    written = command.read_written(out, {"model": "m"})
    assert written.hashes.nbytes == 8 * 3000
    assert "photos/17.jpg" in written
    assert "photos/x.jpg" not in written
