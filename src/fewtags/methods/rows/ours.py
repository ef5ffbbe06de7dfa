"""Ours: the closed form, and what is trained on top of it."""

from __future__ import annotations

from typing import Any

from fewtags.methods import citations
from fewtags.methods.method import Method
from fewtags.methods.recipes import REFINED, REFINED_NOTE

GROUP = "ours"


def _refined(name: str, title: str, sentence: str, **changed: Any) -> Method:
    """`refined`, or it without some of its parts; `changed` are settings with __ for the dot."""
    return Method(
        name=name,
        title=title,
        sentence=sentence,
        head="closed_form",
        objective="fewtags.methods.posterior:PosteriorLabels",
        venue="ours: the likelihood of KDD 2008, with the ideas of arXiv 2211.07846",
        bibtex=citations.ELKAN_NOTO,
        settings={**REFINED, **{key.replace("__", "."): value for key, value in changed.items()}},
        note=REFINED_NOTE,
        group=GROUP,
    )


ROWS = (
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
        group=GROUP,
    ),
    _refined(
        "refined",
        "The closed form, refined by training",
        "Starts at `instant` and trains each unknown label on the probability that it is present.",
    ),
    # Its parts, one by one. The second fit before training belongs to discovery.
    _refined(
        "refined-an",
        "refined, on assumed negatives",
        "The model of `refined`, trained with unknown labels as absent.",
        head__refine=False,
        method__discover=False,
        method__reject=False,
    ),
    _refined(
        "refined-discover",
        "refined, discovery only",
        "`refined` that trains unknown labels as present by their probability, and as absent with weight 1.",
        method__reject=False,
    ),
    _refined(
        "refined-reject",
        "refined, rejection only",
        "`refined` that trains unknown labels as absent by their probability, and never as present.",
        head__refine=False,
        method__discover=False,
    ),
)
