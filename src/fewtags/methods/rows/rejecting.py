"""Methods that leave out or turn round the assumed negatives that look like positives."""

from __future__ import annotations

from fewtags.methods import citations
from fewtags.methods.method import Method, Profile
from fewtags.methods.recipes import LL_DEFAULT_NOTE, LL_OWN_NOTE, OWN_END_TO_END, PAPER_LINEAR, PAPER_NOTE

ROWS = (
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
        group="rejecting and relabelling",
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
        group="rejecting and relabelling",
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
        group="rejecting and relabelling",
    ),
)
