"""METHODS: every method by name, described without importing torch; `objective_class` loads one."""

from __future__ import annotations

import importlib
from functools import partial
from typing import TYPE_CHECKING, Any

from fewtags.errors import UserError, did_you_mean
from fewtags.methods import citations
from fewtags.methods.method import Method, Profile
from fewtags.methods.recipes import (
    CALDNR_DEFAULT,
    CALDNR_NOTE,
    CALDNR_PAPER,
    CALDNR_PAPER_NOTE,
    CALDNR_RELATIVE,
    DEFAULT_NOTE,
    LL_DEFAULT_NOTE,
    LL_OWN_NOTE,
    NO_CATU_DEFAULT,
    NO_CATU_PAPER,
    NO_CATU_RELATIVE,
    OWN_END_TO_END,
    PAPER_LINEAR,
    PAPER_NOTE,
    PAPER_TRAINING,
    RELATIVE_NOTE,
)
from fewtags.plugins import loaded

if TYPE_CHECKING:
    from fewtags.methods.base import Objective


def _ablation(name: str, title: str, sentence: str, *, catu: bool = True, **parts: bool) -> Method:
    """A row of the paper's Table 2: the method without some of its components."""
    left_out: dict[str, Any] = {f"method.{key}": value for key, value in parts.items()}
    default, relative, paper = ({**base, **left_out} for base in (CALDNR_DEFAULT, CALDNR_RELATIVE, CALDNR_PAPER))
    thresholds = partial(Profile, head="decoupled", objective="fewtags.methods.category_adaptive:CategoryAdaptive")
    default["head.refine"] = parts.get("discover", True)  # the labels found before training are part of CALD
    if not catu:
        default |= NO_CATU_DEFAULT
        relative |= NO_CATU_RELATIVE
        paper |= NO_CATU_PAPER
    return Method(
        name=name,
        title=title,
        sentence=sentence,
        head="closed_form",
        objective="fewtags.methods.posterior:PosteriorLabels",
        venue="IEEE Transactions on Multimedia 2024",
        bibtex=citations.CALDNR,
        settings=default,
        note=CALDNR_NOTE,
        profiles={
            "relative": thresholds(relative, RELATIVE_NOTE),
            "paper": thresholds(paper, CALDNR_PAPER_NOTE),
        },
    )


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method(
            name="instant",
            title="Closed form (instant)",
            sentence="Whitened similarity to the mean of the known positives: one pass over the images, no training.",
            head="closed_form",
            objective="fewtags.methods.start_only:StartOnly",
            venue="a ridge-regularised linear discriminant; calibrated as in KDD 2008",
            bibtex=citations.ELKAN_NOTO,
            settings={"input.augment": False},
            note="nothing to tune: the penalty and the known proportion are estimated from the labels",
        ),
        Method(
            name="linear",
            title="Logistic regression (linear)",
            sentence="Regularised logistic regression on the frozen backbone's features, unknown labels as absent: "
            "the usual baseline.",
            head="logistic",
            objective="fewtags.methods.start_only:StartOnly",
            venue="the common linear probe, solved by L-BFGS (Mathematical Programming 1989)",
            bibtex=citations.LBFGS,
            settings={"input.augment": False, "model.train_from": "head"},
            note="nothing to tune: the regularisation is chosen on held-out known labels",
        ),
        Method(
            name="an",
            title="Assume negative (AN)",
            sentence="Trains every unknown label as absent: the common baseline.",
            head="linear",
            objective="fewtags.methods.elementwise:AssumeNegative",
            venue="the common baseline, named in CVPR 2021; the row 'ResNet-101' of the paper",
            bibtex=citations.ROLE,
            profiles={"paper": Profile({**PAPER_LINEAR, "method.loss_scale": 10.0}, PAPER_NOTE)},
            note=DEFAULT_NOTE,
        ),
        Method(
            name="focal",
            title="Focal loss",
            sentence="Assume negative, with well-classified labels down-weighted.",
            head="linear",
            objective="fewtags.methods.elementwise:Focal",
            venue="ICCV 2017",
            bibtex=citations.FOCAL,
            profiles={
                "paper": Profile({**PAPER_LINEAR, "method.gamma": 3.0, "method.loss_scale": 60.0}, PAPER_NOTE),
                "own": Profile({"method.gamma": 2.0, "method.alpha": 0.25}, "its authors' gamma and alpha"),
            },
            note="its authors' gamma, without their alpha, which was tuned for object detection; " + DEFAULT_NOTE,
        ),
        Method(
            name="asl",
            title="Asymmetric loss (ASL)",
            sentence="Assume negative, with easy negatives down-weighted much more than positives.",
            head="linear",
            objective="fewtags.methods.elementwise:Asymmetric",
            venue="ICCV 2021",
            bibtex=citations.ASL,
            profiles={
                "paper": Profile({**PAPER_LINEAR, "method.detach_focus": False, "method.loss_scale": 30.0}, PAPER_NOTE),
                "own": Profile(
                    {
                        "model.train_from": "all",
                        "head.standardise": False,
                        "input.size": 448,
                        "train.epochs": 40,
                        "train.lr": 2e-4,
                        "train.head_lr_scale": 1.0,
                        "train.weight_decay": 1e-4,
                        "train.warmup_epochs": 8.0,
                        "train.ema": 0.9997,
                    },
                    "its authors' loss and training, without their data augmentation. They sum over images and "
                    "categories where this takes the mean: the same under Adam up to the scale. The moving average "
                    "of the weights needs about ten thousand steps",
                ),
            },
            note="the loss of `own`, and " + DEFAULT_NOTE,
        ),
        Method(
            name="ssgrl",
            title="Semantic-specific graph representation (SSGRL)",
            sentence="Assume negative on one feature per category, with messages between categories.",
            head="graph",
            objective="fewtags.methods.elementwise:AssumeNegative",
            venue="ICCV 2019",
            bibtex=citations.SSGRL,
            profiles={
                "paper": Profile(
                    {**PAPER_TRAINING, "head.graph": "words", "method.loss_scale": 10.0},
                    PAPER_NOTE + "; its graph is learned, initialised with the similarity of the category names",
                ),
                "own": Profile(
                    {
                        "model.backbone": "resnet101",
                        "model.train_from": "layer4",
                        "head.width": 1024,
                        "input.size": 576,
                        "input.resize": 640,
                        "input.crops": [640, 576, 512, 384, 320],
                        "input.flip": False,
                        "train.batch_size": 4,
                        "train.optimizer": "adam",
                        "train.lr": 1e-5,
                        "train.head_lr_scale": 1.0,
                        "train.weight_decay": 0.0,
                        "train.schedule": "none",
                    },
                    "its authors' model and training, for the given number of epochs",
                ),
            },
            note=DEFAULT_NOTE,
        ),
        Method(
            name="kggr",
            title="Knowledge-guided graph routing (KGGR)",
            sentence="SSGRL, with a second graph over the weights of the categories' classifiers.",
            head="graph",
            objective="fewtags.methods.elementwise:AssumeNegative",
            venue="IEEE TPAMI 2022",
            bibtex=citations.KGGR,
            settings={"head.classifier_graph": "paper"},
            profiles={
                "paper": Profile({**PAPER_TRAINING, "method.loss_scale": 10.0}, PAPER_NOTE),
                "own": Profile(
                    {**PAPER_TRAINING, "train.batch_size": 8, "train.step_epochs": 15},
                    "the training of a public third-party implementation; its authors published none",
                ),
            },
            note=DEFAULT_NOTE,
        ),
        Method(
            name="cst",
            title="Cross-image semantic transfer (CST)",
            sentence="Trains unknown labels as present where the category's feature is similar to its known positives.",
            head="graph",
            objective="fewtags.methods.semantic_transfer:CrossImageTransfer",
            venue="AAAI 2022",
            bibtex=citations.SST,
            profiles={
                "paper": Profile(
                    {**PAPER_TRAINING, "method.csl": "sampled", "method.transfer_others": "absent"}, PAPER_NOTE
                ),
                "own": Profile(
                    {**PAPER_TRAINING, "method.csl": "sampled", "train.batch_size": 8},
                    "its authors' training, plus assuming unknown labels absent, which they did not need",
                ),
            },
            note=DEFAULT_NOTE,
        ),
        Method(
            name="sst",
            title="Structured semantic transfer (SST)",
            sentence="CST, and also where the known labels of the image make an unknown one likely.",
            head="graph",
            objective="fewtags.methods.semantic_transfer:SemanticTransfer",
            venue="AAAI 2022",
            bibtex=citations.SST,
            profiles={
                "own": Profile(
                    {
                        **PAPER_TRAINING,
                        "method.csl": "sampled",
                        "method.pair_width": 512,
                        "method.pair_hidden": 1024,
                        "train.batch_size": 8,
                    },
                    "its authors' training, plus assuming unknown labels absent, which they did not need",
                ),
            },
            note=DEFAULT_NOTE + "; a smaller pair classifier, as its size is quadratic in the number of categories",
        ),
        Method(
            name="ll-r",
            title="Large loss rejection (LL-R)",
            sentence="Ignores the assumed negatives with the largest losses, more of them each epoch.",
            head="linear",
            objective="fewtags.methods.large_loss:LargeLossRejection",
            venue="CVPR 2022",
            bibtex=citations.LARGE_LOSS,
            profiles={
                "paper": Profile({**PAPER_LINEAR, "method.delta_rel": 0.1, "method.average_over": "kept"}, PAPER_NOTE),
                "own": Profile({**OWN_END_TO_END, "train.head_lr_scale": 10.0, "method.delta_rel": 0.4}, LL_OWN_NOTE),
            },
            note=LL_DEFAULT_NOTE,
        ),
        Method(
            name="ll-ct",
            title="Large loss correction, temporary (LL-Ct)",
            sentence="Trains the assumed negatives with the largest losses as present, more of them each epoch.",
            head="linear",
            objective="fewtags.methods.large_loss:LargeLossTemporary",
            venue="CVPR 2022",
            bibtex=citations.LARGE_LOSS,
            profiles={
                "own": Profile({**OWN_END_TO_END, "train.head_lr_scale": 10.0, "method.delta_rel": 0.2}, LL_OWN_NOTE)
            },
            note=LL_DEFAULT_NOTE,
        ),
        Method(
            name="ll-cp",
            title="Large loss correction, permanent (LL-Cp)",
            sentence="Turns the assumed negatives with the largest losses of each batch into positives permanently.",
            head="linear",
            objective="fewtags.methods.large_loss:LargeLossPermanent",
            venue="CVPR 2022",
            bibtex=citations.LARGE_LOSS,
            profiles={
                "own": Profile(
                    {
                        **OWN_END_TO_END,
                        "train.head_lr_scale": 10.0,
                        "method.delta_rel": 0.2,
                        "method.strict": True,
                    },
                    LL_OWN_NOTE,
                )
            },
            note=LL_DEFAULT_NOTE,
        ),
        Method(
            name="role",
            title="Regularised online label estimation (ROLE)",
            sentence="Estimates every unknown label during training, so that each image has about the expected number.",
            head="linear",
            objective="fewtags.methods.role:Role",
            venue="CVPR 2021",
            bibtex=citations.ROLE,
            profiles={
                "paper": Profile(
                    {
                        **PAPER_LINEAR,
                        "method.table_start": "absent",
                        "method.table_lr_scale": 1.0,
                        "method.table_weight_decay": 5e-4,
                        "method.loss_scale": 10.0,
                    },
                    PAPER_NOTE,
                ),
                "own": Profile(
                    {**OWN_END_TO_END, "train.head_lr_scale": 1.0},
                    "its authors' end-to-end training; they chose batch size and learning rate on complete labels",
                ),
            },
            note=DEFAULT_NOTE,
        ),
        Method(
            name="cssl",
            title="Category-specific features (CSSL)",
            sentence="Assume negative on one attended feature per category: CALDNR's model without label discovery.",
            head="closed_form",
            objective="fewtags.methods.posterior:PosteriorLabels",
            venue="IEEE Transactions on Multimedia 2024",
            bibtex=citations.CALDNR,
            settings={
                **CALDNR_DEFAULT,
                "head.refine": False,
                "method.discover": False,
                "method.reject": False,
            },
            note=CALDNR_NOTE,
            profiles={
                "relative": Profile(
                    {"head.hidden": False, "head.width": 128},
                    RELATIVE_NOTE,
                    head="decoupled",
                    objective="fewtags.methods.elementwise:AssumeNegative",
                ),
                "paper": Profile(
                    {**PAPER_TRAINING, "head.hidden": True, "head.width": 512},
                    CALDNR_PAPER_NOTE,
                    head="decoupled",
                    objective="fewtags.methods.elementwise:AssumeNegative",
                ),
            },
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
            catu=False,
        ),
        _ablation(
            "canr",
            "Noise rejection (CANR)",
            "Ignores assumed negatives where an image looks like the category's known positives.",
            discover=False,
        ),
        _ablation(
            "canr-no-catu",
            "CANR without CATU",
            "CANR with the same thresholds for every category.",
            discover=False,
            catu=False,
        ),
        _ablation(
            "caldnr",
            "Category-adaptive label discovery and noise rejection",
            "The paper's method: CALD and CANR together, with thresholds that adapt to each category (CATU).",
        ),
    )
}


def register(method: Method) -> Method:
    """Register your own method by name, so that it can be selected, listed and resumed like the others."""
    if method.name in METHODS:
        raise UserError(f"There is already a method '{method.name}'; choose another name.")
    METHODS[method.name] = method
    return method


def all_methods() -> dict[str, Method]:
    """METHODS, including those of other installed packages."""
    for method in loaded("fewtags.methods", Method):
        METHODS.setdefault(method.name, method)
    return METHODS


def list_methods() -> list[str]:
    """The names `method=` accepts."""
    return list(all_methods())


def find_method(name: str) -> Method:
    if name not in METHODS and name not in all_methods():  # other packages are imported only if needed
        raise UserError(f"There is no method '{name}'; {did_you_mean(name, METHODS)}")
    return METHODS[name]


def objective_class(name: str, profile: str = "default") -> type[Objective]:
    objective = find_method(name).profile(profile).objective
    if not isinstance(objective, str):
        assert objective is not None  # set in a resolved profile
        return objective
    module, _, attribute = objective.partition(":")
    return getattr(importlib.import_module(module), attribute)
