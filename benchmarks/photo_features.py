"""Pooled features of a data set's photographs by a pretrained backbone, computed once, for benchmarks that start there.

They are computed a thousand images at a time, so that a stopped benchmark does not begin again.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fewtags.data.annotations import Annotations
from fewtags.data.formats import read_annotations
from fewtags.data.preprocess import InputConfig
from fewtags.engine.prediction import pooled_features
from fewtags.models.build import ModelConfig, build_classifier
from fewtags.models.closed_form import ClosedFormHead
from fewtags.models.saved import SavedModel
from fewtags.presence.ridge import unit_length

AT_ONCE = 1000


@dataclass(frozen=True)
class Part:
    annotations: Annotations  # with complete labels
    features: Tensor  # [N, D] of unit length
    names: Tensor | None  # [N, C] what the names of the categories say about them, as `instant` asks it


@dataclass(frozen=True)
class Photos:
    train: Part
    test: Part
    named: Tensor | None  # [C] which names the backbone's classifier knows


def options_parser(about: str | None, out: str) -> argparse.ArgumentParser:
    """The options of every benchmark that starts from these features; `about` is its documentation."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data/VOCdevkit"))
    parser.add_argument(
        "--weights", type=Path, default=Path("../shared/weights/tf_efficientnet_lite0_fp16.safetensors")
    )
    parser.add_argument("--out", type=Path, default=Path(out))
    parser.add_argument("--work", type=Path, default=Path("runs/voc-features"), help="where features are kept")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    return parser


def photos(data: Path, weights: Path, folder: Path, backbone: str = "tf_efficientnet_lite0") -> Photos:
    """Of the training and test images in `data`, kept in `folder`."""
    annotations = read_annotations(data)
    head, model = ClosedFormHead.Config(), ModelConfig(backbone=backbone, weights=str(weights))
    size, categories = InputConfig(augment=False), annotations.categories
    classifier = build_classifier(model, size.size, "closed_form", head, len(categories), categories=categories)
    saved = SavedModel(classifier, model, size, "closed_form", head, categories, np.zeros(len(categories)))
    train, test = (annotations.split(name) for name in ("train", "test"))
    pooled = [pooled_in_parts(saved, part, folder / name) for name, part in (("train", train), ("test", test))]
    closed_form = classifier.head
    assert isinstance(closed_form, ClosedFormHead)
    closed_form.feature_norm.copy_(pooled[0].norm(dim=1).mean())
    named = None if closed_form.names is None else closed_form.names.known
    units = [unit_length(features) for features in pooled]
    with torch.no_grad():
        names = [closed_form.name_scores(unit) for unit in units]
    return Photos(Part(train, units[0], names[0]), Part(test, units[1], names[1]), named)


def pooled_in_parts(saved: SavedModel, part: Annotations, folder: Path) -> Tensor:
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for first in range(0, len(part), AT_ONCE):
        file = folder / f"{first:06d}.npy"
        if not file.is_file():
            rows = range(first, min(first + AT_ONCE, len(part)))
            features = pooled_features(saved, [part.path(row) for row in rows])
            np.save(file.with_suffix(".part.npy"), features.numpy())
            file.with_suffix(".part.npy").replace(file)
            print(f"{folder.name}: features of {rows.stop} of {len(part)} images", flush=True)
        found.append(torch.from_numpy(np.load(file)))
    return torch.cat(found)
