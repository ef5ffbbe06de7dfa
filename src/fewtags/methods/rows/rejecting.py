"""Methods that leave out or turn round the assumed negatives that look like positives."""

from __future__ import annotations

from fewtags.methods import citations
from fewtags.methods.method import Method, Profile
from fewtags.methods.recipes import DEFAULT_NOTE, LL_DEFAULT_NOTE, LL_OWN_NOTE, OWN_END_TO_END, PAPER_LINEAR, PAPER_NOTE

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
    Method(
        name="boostlu",
        title="BoostLU with large loss rejection (BoostLU + LL-R)",
        sentence="LL-R on a linear head whose positive evidence at single places counts five times.",
        head="boosted",
        objective="fewtags.methods.large_loss:LargeLossRejection",
        venue="CVPR 2023",
        bibtex=citations.BOOSTLU,
        note=LL_DEFAULT_NOTE + "; the head needs whole maps",
        group="rejecting and relabelling",
    ),
    Method(
        name="splc",
        title="Self-paced loss correction (SPLC)",
        sentence="Trains unknown labels as present where the network gives them more than 0.6, after the first epoch.",
        head="linear",
        objective="fewtags.methods.missing_labels:SelfPaced",
        venue="arXiv 2112.07368 (2021)",
        bibtex=citations.HILL_SPLC,
        note="its authors' threshold, margin and exponent, and " + DEFAULT_NOTE,
        group="rejecting and relabelling",
    ),
)
