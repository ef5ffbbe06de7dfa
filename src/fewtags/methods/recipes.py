"""Groups of settings that methods and profiles share, with the reason for each."""

from __future__ import annotations

from typing import Any

# The paper's training setup, shared by all methods in its tables: ResNet-101 at 448, layer4 trainable, Adam.
PAPER_TRAINING: dict[str, Any] = {
    "model.backbone": "resnet101.tv_in1k",  # the authors' weights; timm's own are others
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
    "train.best_by": "map_voc12",
    "train.precision": "fp32",  # half precision rounds logits and similarities, and decisions depend on both
}
PAPER_WORD_DIM = 300  # of GloVe's vectors, for the heads that have one feature per category
# Its baselines without per-category features have a tanh layer before the classifier.
PAPER_LINEAR: dict[str, Any] = {**PAPER_TRAINING, "head.standardise": False, "head.hidden": 1024}
DEFAULT_NOTE = "the general settings of model and training, meant for your own images"
PAPER_NOTE = "the training setup shared by the paper's tables, with its baselines' head, loss scale and settings"

# LL and ROLE train everything, without weight decay.
OWN_END_TO_END: dict[str, Any] = {
    "head.standardise": False,
    "model.train_from": "all",
    "input.size": 448,
    "train.epochs": 10,
    "train.batch_size": 16,
    "train.optimizer": "adam",
    "train.lr": 1e-5,
    "train.weight_decay": 0.0,
    "train.schedule": "none",
}
LL_DEFAULT_NOTE = "its authors' share of labels on VOC, and " + DEFAULT_NOTE
LL_OWN_NOTE = (
    "its authors' end-to-end training and share of labels on COCO; on VOC they use SGD and the default's share"
)


# `refined`, for a frozen backbone: it starts at the closed form, refines it once with the labels it finds, and learns
# the rest as a residual. results/voc2007-256 has the ablation.
REFINED: dict[str, Any] = {
    "head.refine": True,
    "head.windows": True,
    "head.residual": True,
    "input.augment": False,
    "train.epochs": 6,
    "train.batch_size": 128,
    "train.weight_decay": 0.0,  # the head has its own prior
    "train.warmup_epochs": 0.6,
    "train.ema": 0.95,
}
REFINED_NOTE = (
    "for a frozen backbone: starts at the closed form of `instant`; each unknown label is trained on the probability "
    "that it is present"
)


# The paper's head, queue and thresholds, adapted to small data and features of any spread; results/demo-methods shows
# what each change does. Absolute thresholds of 0.6 and more never fire if known positives have a mean similarity of
# 0.2, so theta is relative to s_neg and s_pos; features are centred or whitened before comparison; no tanh layer, which
# overfits; and no cross-image loss, which mistakes hidden positives for negatives and pushes them away.
CSSL_FROZEN: dict[str, Any] = {"head.hidden": False, "head.width": 128}
CALDNR_FROZEN: dict[str, Any] = {
    **CSSL_FROZEN,
    "method.thresholds": "relative",
    "method.similarity": "auto",
    "method.theta_start": 1.0,
    "method.theta_floor": 1.0,
    "method.discover_from_epoch": 2,
    "method.reject_from_epoch": 2,
    "method.csl_weight": 0.0,
}
# The factor on the classification losses is the one that the authors' script names for the cross-entropy of AN, which
# all of these use (paper-notes 32).
CSSL_PAPER: dict[str, Any] = {
    **PAPER_TRAINING,
    "head.hidden": True,
    "head.width": 512,
    "method.loss_scale": 10.0,
}
CALDNR_PAPER: dict[str, Any] = {
    **CSSL_PAPER,
    "method.thresholds": "catu",
    "method.similarity": "cosine",
    "method.theta_start": 0.95,
    "method.theta_floor": 0.6,
    "method.discover_from_epoch": 5,
    "method.reject_from_epoch": 0,
    "method.csl": "sampled",
    "method.csl_weight": 0.05,
}
# Without CATU: one theta for all categories. On frozen features it is about the median of what CATU finds on the
# demo's features.
NO_CATU_FROZEN: dict[str, Any] = {
    "method.thresholds": "fixed",
    "method.theta_start": 0.14,
    "method.theta_floor": 0.14,
    "method.theta_before": 0.14,
    "method.reject_gap": 0.07,
}
NO_CATU_PAPER: dict[str, Any] = {
    "method.thresholds": "fixed",
    "method.theta_before": 1.0,
    "method.reject_gap": 0.3,
}
FROZEN_NOTE = (
    "the paper's head and queue with thresholds relative to the observed similarities, on whitened features; no tanh "
    "layer, no L_csl: on frozen features the published thresholds are never reached"
)
PUBLISHED_NOTE = "the paper's training and, where the text does not say, that of its authors' code"
