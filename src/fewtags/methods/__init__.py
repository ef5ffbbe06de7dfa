"""METHODS: every method by name, described without importing torch; `objective_class` loads one."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fewtags.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from fewtags.methods.base import Objective


@dataclass(frozen=True)
class Method:
    """A head, an objective, and what people should know before choosing it."""

    name: str
    title: str
    sentence: str  # what it does, in one sentence
    head: str  # a row of HEADS
    objective: str  # "module:Class"
    venue: str
    bibtex: str
    # Settings that differ from the general defaults, as dotted names: {"head.hidden": 1024, "train.lr": 1e-5}. The user's
    # file and overrides win over them. `profiles` come on top of `settings`; the profile "default" may be absent.
    settings: Mapping[str, Any] = field(default_factory=dict)
    profiles: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    profile_notes: Mapping[str, str] = field(default_factory=dict)  # what each profile is, in words


CALDNR_BIBTEX = """\
@article{pu2024category,
  title  = {Category-Adaptive Label Discovery and Noise Rejection for Multi-label Image Recognition with Partial
            Positive Labels},
  author = {Pu, Tao and Lao, Qianru and Wu, Hefeng and Chen, Tianshui and Lin, Liang},
  note   = {arXiv:2211.07846; IEEE Transactions on Multimedia, doi 10.1109/TMM.2024.3395901},
  year   = {2024}
}"""

# The paper's training, which its tables share between all methods: ResNet-101 at 448, layer4 trainable, Adam.
PAPER_TRAINING: dict[str, Any] = {
    "model.backbone": "resnet101",
    "model.train_from": "layer4",
    "model.pool": 2,
    "model.width": 1024,
    "input.size": 448,
    "head.bias_init": "zero",
    "train.epochs": 20,
    "train.batch_size": 32,
    "train.optimizer": "adam",
    "train.lr": 1e-5,
    "train.head_lr_scale": 1.0,
    "train.weight_decay": 5e-4,
    "train.decay_all": True,
    "train.schedule": "step",
    "train.step_epochs": 10,
    "train.step_gamma": 0.1,
}


def _ablation(name: str, title: str, sentence: str, **settings: Any) -> Method:
    """A row of the paper's Table 2: the method with parts of it left out."""
    return Method(
        name=name,
        title=title,
        sentence=sentence,
        head="decoupled",
        objective="fewtags.methods.category_adaptive:CategoryAdaptive",
        venue="IEEE Transactions on Multimedia 2024",
        bibtex=CALDNR_BIBTEX,
        settings={f"method.{key}": value for key, value in settings.items()},
        profiles={"paper": {**PAPER_TRAINING, "method.csl": "sampled"}},
        profile_notes={"paper": "the training of the paper and, where its text is silent, of its authors' code"},
    )


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method(
            name="an",
            title="Assume negative",
            sentence="Trains every unknown label as absent: the usual thing to do, and what the others are measured against.",
            head="linear",
            objective="fewtags.methods.elementwise:AssumeNegative",
            venue="the common baseline; the row 'ResNet-101' of the paper",
            bibtex="",
        ),
        Method(
            name="cssl",
            title="Category-specific features (CSSL)",
            sentence="Assume negative on one attended feature per category: the model of CALDNR without its labels.",
            head="decoupled",
            objective="fewtags.methods.elementwise:AssumeNegative",
            venue="IEEE Transactions on Multimedia 2024",
            bibtex=CALDNR_BIBTEX,
            profiles={"paper": PAPER_TRAINING},
            profile_notes={"paper": "the training of the paper"},
        ),
        _ablation(
            "cald",
            "Label discovery (CALD)",
            "Trains unknown labels as present where an image looks like the category's known positives.",
            reject=False,
        ),
        _ablation(
            "cald-no-catu",
            "CALD without CATU",
            "CALD with the same threshold for every category.",
            reject=False,
            thresholds="fixed",
        ),
        _ablation(
            "canr",
            "Noise rejection (CANR)",
            "Leaves assumed negatives out where an image looks like the category's known positives.",
            discover=False,
        ),
        _ablation(
            "canr-no-catu",
            "CANR without CATU",
            "CANR with the same thresholds for every category.",
            discover=False,
            thresholds="fixed",
        ),
        _ablation(
            "caldnr",
            "Category-adaptive label discovery and noise rejection",
            "The paper's method: CALD and CANR together, with thresholds that adapt to each category (CATU).",
        ),
    )
}


def list_methods() -> list[str]:
    """Names that `method=` takes."""
    return list(METHODS)


def find_method(name: str) -> Method:
    if name not in METHODS:
        raise UserError(f"There is no method '{name}'; {did_you_mean(name, METHODS)}")
    return METHODS[name]


def objective_class(name: str) -> type[Objective]:
    module, _, attribute = find_method(name).objective.partition(":")
    return getattr(importlib.import_module(module), attribute)
