"""Methods that train unknown labels as absent, and weigh them."""

from __future__ import annotations

from fewtags.methods import citations
from fewtags.methods.method import Method, Profile
from fewtags.methods.recipes import DEFAULT_NOTE, PAPER_LINEAR, PAPER_NOTE

ROWS = (
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
        group="assumed negatives",
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
        group="assumed negatives",
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
        group="assumed negatives",
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
        group="assumed negatives",
    ),
    Method(
        name="wan",
        title="Weak assumed negatives (WAN)",
        sentence="Assume negative, with all assumed negatives of an image counting as much as one known positive.",
        head="linear",
        objective="fewtags.methods.weak_negatives:WeakNegatives",
        venue="CVPR 2021",
        bibtex=citations.ROLE,
        note=DEFAULT_NOTE,
        group="assumed negatives",
    ),
    Method(
        name="an-ls",
        title="Assume negative with label smoothing (AN-LS)",
        sentence="Assume negative, with every label trained a little as its contrary too.",
        head="linear",
        objective="fewtags.methods.weak_negatives:SmoothedNegatives",
        venue="CVPR 2021",
        bibtex=citations.ROLE,
        note=DEFAULT_NOTE,
        group="assumed negatives",
    ),
    Method(
        name="hill",
        title="Hill loss",
        sentence="Assume negative, with a loss that falls again where the network is sure of the contrary.",
        head="linear",
        objective="fewtags.methods.missing_labels:Hill",
        venue="arXiv 2112.07368 (2021)",
        bibtex=citations.HILL_SPLC,
        note="its authors' margin and exponent, and " + DEFAULT_NOTE,
        group="assumed negatives",
    ),
)
