"""`fewtags predict` and `evaluate` on an exported file, in a process that cannot import torch."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import Cli
from fewtags.export.onnx_file import export_model
from fewtags.models.saved import load_model

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

WITHOUT_TORCH = (
    "import sys; sys.modules |= dict.fromkeys(['torch', 'timm', *sys.argv[1].split()])\n"
    "sys.argv = sys.argv[1:]; sys.argv = ['fewtags', *sys.argv[1:]]\nfrom fewtags.cli import main; main()"
)


@pytest.fixture(scope="module")
def exported(trained, patches, tmp_path_factory, traced_once) -> Path:
    file = tmp_path_factory.mktemp("exported") / "model.onnx"
    export_model(load_model(trained), file, images=[patches.path(0)])
    return file


def without_torch(*arguments: object, nor: str = "") -> subprocess.CompletedProcess[str]:
    """`nor` are other modules that it cannot import."""
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, nor, *map(str, arguments)], capture_output=True, text=True, timeout=120
    )


def test_predict_gives_what_the_run_gives(cli: Cli, trained, exported, patches):
    """Nor does it import what takes long to import and only other commands need."""
    photos = [patches.path(row) for row in range(12)]
    slow = "fewtags.data.formats fewtags.data.writers fewtags.config defusedxml yaml"
    answer = without_torch("predict", exported, *photos, "--all-scores", "-q", nor=slow)
    assert answer.returncode == 0, answer.stderr
    ours, theirs = (
        list(csv.DictReader(text.splitlines()))
        for text in (cli("predict", trained, *photos, "--all-scores", "-q").out, answer.stdout)
    )
    assert [(row["image"], row["tags"]) for row in ours] == [(row["image"], row["tags"]) for row in theirs]
    for mine, other in zip(ours, theirs, strict=True):
        for name in patches.categories:
            assert float(mine[name]) == pytest.approx(float(other[name]), abs=2e-4)  # four digits are written


def test_evaluate_gives_what_the_run_gives(cli: Cli, trained, exported, patches, tags_file):
    data = [patches.root, "--tags", tags_file, "-o", "complete=true", "--json"]
    answer = without_torch("evaluate", exported, *data)
    assert answer.returncode == 0, answer.stderr
    expected = json.loads(cli("evaluate", trained, *data).out)
    assert json.loads(answer.stdout)["map"] == pytest.approx(expected["map"], abs=1e-3)
    assert json.loads(answer.stdout)["num_images"] == expected["num_images"]


def test_it_is_served_without_torch(exported, patches):
    pytest.importorskip("fastapi")
    code = (
        "import sys; sys.modules['torch'] = sys.modules['timm'] = None\n"
        "from pathlib import Path; from fastapi.testclient import TestClient\n"
        "from fewtags.commands.serve import load_tagger; from fewtags.serve.app import create_app\n"
        "with TestClient(create_app(load_tagger(Path(sys.argv[1])))) as client:\n"
        "    print(client.post('/v1/tags?threshold=0', content=Path(sys.argv[2]).read_bytes()).text)"
    )
    command = [sys.executable, "-c", code, str(exported), str(patches.path(0))]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert answer.returncode == 0, answer.stderr
    assert set(json.loads(answer.stdout)["images"][0]["tags"]) == {"red", "green", "blue"}


def test_sidecars_and_going_on_work_too(exported, patches, tmp_path):
    photos, out = tmp_path / "photos", tmp_path / "tags.csv"
    photos.mkdir()
    for row in range(3):
        shutil.copy(patches.path(row), photos)
    command = ["predict", exported, photos, "--out", out, "--write", "xmp", "--threshold", "0"]
    assert without_torch(*command, "-q").stdout == "3 sidecars written, 0 unchanged.\n"
    assert "already has 3 images" in without_torch(*command).stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--precision", "0.9"], "export it again"),
        (["--save-thresholds"], "export it again"),
        (["--runtime", "openvino"], "is run by onnxruntime"),
        (["--device", "cuda"], "runs on the CPU"),
    ],
)
def test_what_needs_the_run_says_so(cli: Cli, exported, patches, arguments, sentence):
    answer = cli("predict", exported, patches.path(0), *arguments)
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert sentence in answer.err


def test_evaluate_asks_for_data(cli: Cli, exported):
    assert "pass the data to evaluate on" in cli("evaluate", exported).err


@pytest.mark.parametrize("command", ["predict", "evaluate"])
def test_what_is_no_model(cli: Cli, command, tmp_path, patches):
    (tmp_path / "x.bin").touch()
    for name, sentence in {"none.onnx": "none.onnx does not exist", "x.bin": "is not a model"}.items():
        answer = cli(command, tmp_path / name, patches.path(0))
        assert (answer.code, sentence in answer.err) == (2, True)
