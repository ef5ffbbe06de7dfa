"""Bursts, sequences and folders: one unit in the split, in what is left out, and in what `check` says."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import Cli
from fewtags.data.burst_times import burst_numbers
from fewtags.data.splitting import stratified_split
from fewtags.engine.record import load_labels
from fewtags.presence.bursts import SAME_MOMENT, burst_leaders
from fewtags.presence.fitting import fit_presence
from fewtags.presence.model import Presence
from fewtags.presence.ridge import ImageSums, unit_length
from made_features import some_images

SETTINGS = ("model.backbone=test_resnet", "model.pretrained=false", "model.train_from=head", "input.size=32")


@pytest.fixture
def archive(patches, tmp_path) -> Path:
    """12 photos, each taken five times within a second, and 24 single ones; one tag in two is known."""
    folder = tmp_path / "photos"
    folder.mkdir()
    random, lines = np.random.default_rng(0), []
    for row in range(36):
        for copy in range(5 if row < 12 else 1):
            name = f"{row:02d}-{copy}.jpg"
            with Image.open(patches.path(row)) as image:
                exif = Image.Exif()
                exif[0x0110] = "Camera"
                exif.get_ifd(0x8769)[0x9003] = f"2026:05:{1 + row % 28:02d} 10:{row:02d}:{10 + copy // 3:02d}"
                image.convert("RGB").save(folder / name, quality=95 - copy, exif=exif)
            tags = [tag for tag, label in zip(patches.categories, patches.labels[row], strict=True) if label == 1]
            lines.append((name, ";".join(tag for tag in tags if random.random() < 0.5), f"scene {row}"))
    with (tmp_path / "tags.csv").open("w", newline="") as out:
        csv.writer(out).writerows([("image", "tags", "scene"), *lines])
    return folder


def train(cli: Cli, archive: Path, run: str, *options: str) -> Path:
    out = archive.parent / run
    data = ("train", archive, "--tags", archive.parent / "tags.csv", *SETTINGS, f"cache.folder={archive.parent / 'c'}")
    answer = cli(*data, "--method", "instant", "--out", out, "-q", *options)
    assert answer.code == 0, answer.err
    return out


@pytest.mark.parametrize("how", ["groups=bursts", "group_column=scene"])
def test_check_counts_them_and_the_split_keeps_them_together(how, cli: Cli, archive):
    answer = cli("check", archive, "--tags", archive.parent / "tags.csv", "-o", how)
    words = "12 bursts" if how == "groups=bursts" else "12 groups of several images"
    assert f"{words}; validation is split by them." in " ".join(answer.out.split())
    labels = load_labels(train(cli, archive, "run", "-o", how))
    sides: dict[str, set[str]] = {}
    for image, split in zip(labels.images, labels.splits.tolist(), strict=True):
        sides.setdefault(image[:2], set()).add(split)
    assert all(len(side) == 1 for side in sides.values())
    assert {"train", "val"} <= {split for side in sides.values() for split in side}


def test_a_run_judges_photos_without_their_burst(cli: Cli, archive):
    """On the same images, so that only what is left out differs."""
    found = {}
    for name, options in {
        "single": (),
        "groups": ("-o", "group_column=scene"),
        "bursts": ("head.bursts=true",),
    }.items():
        run = train(cli, archive, name, "data.val_share=0", *options)
        found[name] = json.loads((run / "result.json").read_text())["estimates"]
        assert cli("discover", run, "-q").code == 0
    assert found["groups"]["map"] != found["single"]["map"] != found["bursts"]["map"]


@pytest.mark.parametrize("how", ["single", "given", "found"])
def test_copies_vouch_for_each_other_unless_the_burst_is_left_out(how):
    """Features that say nothing about the tags, 100 images four times and 150 once: only copies can tell."""
    random = torch.Generator().manual_seed(0)
    scene = torch.cat([torch.arange(100).repeat_interleave(4), torch.arange(100, 250)])
    features = torch.randn(250, 48, generator=random)[scene] + 0.05 * torch.randn(550, 48, generator=random)
    truth = (torch.rand(250, 3, generator=random) < 0.3)[scene]
    known = (truth & (torch.rand(550, 3, generator=random) < 0.7)).to(torch.int8)
    groups = {"single": None, "given": scene, "found": burst_leaders(unit_length(features), least=SAME_MOMENT)}[how]
    odds = fit_presence(Presence(3, 48), ImageSums.of(features, known), features, known, groups=groups).left_out()
    odds, truth = odds[:400], truth[:400]
    above = [(odds[truth[:, c], c][:, None] > odds[~truth[:, c], c]).float().mean() for c in range(3)]
    told = float(torch.stack(above).mean())  # 0.5 by chance
    assert told > 0.68 if how == "single" else told < 0.6, told


def test_groups_of_one_are_split_and_left_out_like_single_photos():
    """Bit for bit: the split, the model, and what it says of its own photos."""
    features, _, known = some_images(200, 4, 24)
    alone = torch.arange(200)
    split = [stratified_split(known.numpy(), 0.25, 3, groups) for groups in (None, alone.numpy())]
    assert np.array_equal(*split)
    sums, models = ImageSums.of(features, known), (Presence(4, 24), Presence(4, 24))
    single = fit_presence(models[0], sums, features, known).left_out()
    grouped = fit_presence(models[1], sums, features, known, groups=alone).left_out()
    assert torch.equal(single, grouped)
    assert all(torch.equal(value, models[1].state_dict()[name]) for name, value in models[0].state_dict().items())


def test_groups_of_one_change_nothing(cli: Cli, patches, tags_file, tmp_path):
    from fewtags.models.saved import load_model

    found = []
    for name, options in {"none": (), "own": ("head.bursts=true",)}.items():
        data = ("train", patches.root, "--tags", tags_file, *SETTINGS, f"cache.folder={tmp_path / 'c'}")
        assert cli(*data, "--method", "instant", "--out", tmp_path / name, "-q", *options).code == 0
        found.append(load_model(tmp_path / name).classifier.head.presence.state_dict())
    assert all(torch.equal(found[0][key], found[1][key]) for key in found[0])


def test_a_burst_is_of_one_folder_camera_and_moment(tmp_path):
    def photo(name: str, when: str | None, camera: str = "a") -> Path:
        exif = Image.Exif()
        exif[0x0110] = camera
        if when:
            exif.get_ifd(0x8769)[0x9003] = f"2026:05:01 {when}"
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (8, 8)).save(tmp_path / name, exif=exif)
        return tmp_path / name

    photos = [
        photo("1.jpg", "10:00:00"), photo("2.jpg", "10:00:04"), photo("3.jpg", "10:00:02"),
        photo("4.jpg", "10:00:01", "b"), photo("x/5.jpg", "10:00:00"), photo("6.jpg", "10:00:09"), photo("7.jpg", None),
    ]  # fmt: skip
    (tmp_path / "8.jpg").write_bytes(b"no picture")
    numbers = burst_numbers([*photos, tmp_path / "8.jpg"])
    assert numbers is not None
    assert len({numbers[row] for row in (0, 1, 2)}) == 1
    assert len(set(numbers.tolist())) == 6
    assert burst_numbers(photos[3:5]) is None
