"""Methods that estimate the unknown labels, or the risk without them."""

from __future__ import annotations

from fewtags.methods import citations
from fewtags.methods.method import Method, Profile
from fewtags.methods.recipes import DEFAULT_NOTE, OWN_END_TO_END, PAPER_LINEAR, PAPER_NOTE

ROWS = (
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
        group="estimating the unknown",
    ),
)
