"""The presets in configs/: the paper's setting, and each starts on data of its layout."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from conftest import PROJECT
from fewtags.config import load_config
from fewtags.data.prepare import prepare_data
from fewtags.engine.run_log import read_rows
from fewtags.engine.training import train
from fewtags.metrics import mean_average_precision

PRESETS = ("voc2007", "coco2014", "vg200")
XML = "<annotation>{}</annotation>"
OBJECT = "<object><name>{}</name><difficult>0</difficult></object>"


def picture(file: Path, number: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(number).integers(0, 255, (40, 40, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file)


def make_voc2007(folder: Path) -> None:
    year = folder / "VOC2007"
    for name in ("Annotations", "ImageSets/Main"):
        (year / name).mkdir(parents=True)
    for number in range(12):
        picture(year / f"JPEGImages/{number:06d}.jpg", number)
        objects = OBJECT.format(("dog", "person")[number % 2])
        (year / f"Annotations/{number:06d}.xml").write_text(XML.format(objects))
    for split, numbers in (("trainval", range(8)), ("test", range(8, 12))):
        (year / f"ImageSets/Main/{split}.txt").write_text("".join(f"{number:06d}\n" for number in numbers))


def make_coco2014(folder: Path) -> None:
    (folder / "annotations").mkdir(parents=True)
    categories = [{"id": 1, "name": "person"}, {"id": 18, "name": "dog"}]
    for split, numbers in (("train", range(8)), ("val", range(8, 12))):
        files = {number: f"COCO_{split}2014_{number:012d}.jpg" for number in numbers}
        for number, file in files.items():
            picture(folder / f"{split}2014" / file, number)
        content = {
            "images": [{"id": number, "file_name": file} for number, file in files.items()],
            "annotations": [{"image_id": n, "category_id": (1, 18)[n % 2], "iscrowd": 0} for n in numbers],
            "categories": categories,
        }
        (folder / f"annotations/instances_{split}2014.json").write_text(json.dumps(content))


def make_vg200(folder: Path) -> None:
    for number in range(12):
        picture(folder / f"VG_100K/{number}.jpg", number)
    names = [["man"], ["tree", "man"], ["dog"]]
    objects = [{"image_id": n, "objects": [{"names": [name]} for name in names[n % 3]]} for n in range(12)]
    (folder / "objects.json").write_text(json.dumps(objects))


@pytest.mark.parametrize("preset", PRESETS)
def test_it_is_the_papers_setting(preset):
    config = load_config(PROJECT / f"configs/{preset}.yaml")
    assert config.method_name == "caldnr"
    assert (config.input.size, config.input.first_side, config.input.crop_sides) == (
        448,
        512,
        [512, 448, 384, 320, 256],
    )
    model, training = config.model, config.train
    assert (model.backbone, model.train_from, model.pool, model.width) == ("resnet101.tv_in1k", "layer4", 2, 1024)
    assert (training.epochs, training.batch_size, training.lr, training.head_lr_scale) == (20, 32, 1e-5, 1.0)
    assert (training.optimizer, training.weight_decay, training.decay_all) == ("adam", 5e-4, True)
    assert (training.schedule, training.step_epochs, training.step_gamma) == ("step", 10, 0.1)


@pytest.mark.parametrize("preset", PRESETS)
def test_it_starts_on_data_of_its_layout(preset, tmp_path):
    """With a small backbone at a small size; everything else as it is."""
    {"voc2007": make_voc2007, "coco2014": make_coco2014, "vg200": make_vg200}[preset](tmp_path / "data")
    smaller = [
        f"data.source={tmp_path / 'data'}", "data.known=0.9", "model.backbone=test_resnet", "model.pretrained=false",
        "model.pool=1", "model.width=16", "input.size=64", "input.resize=72", "input.crops=[72, 64]", "train.epochs=1",
        "train.batch_size=4", "train.workers=0",
    ]  # fmt: skip
    if preset == "vg200":
        smaller.append("data.options.test_images=4")
    config = load_config(PROJECT / f"configs/{preset}.yaml", smaller)
    data = prepare_data(config.data)
    assert (len(data.train), data.test is not None and len(data.test)) == (8, 4)
    result = train(config, tmp_path / "run", data=data, quiet=True)
    assert result.last is not None
    assert (result.last.num_images, result.epochs) == (4, 1)
    probabilities = np.load(tmp_path / "run/predictions-test.npz")["probabilities"]
    assert result.last.map == pytest.approx(mean_average_precision(probabilities, data.test.labels == 1), abs=1e-6)
    assert np.ptp(probabilities, axis=0).min() > 0  # the images differ, so do their predictions
    (row,) = (row for row in read_rows(tmp_path / "run/metrics.jsonl") if row["kind"] == "train")
    assert row["loss"] == pytest.approx(sum(value for name, value in row.items() if name.startswith("loss.")), rel=1e-4)
    assert {"loss.observed", "loss.kept", "loss.cross_image"} <= row.keys()  # from the first epoch on
