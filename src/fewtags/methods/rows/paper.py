"""The paper (arXiv 2211.07846) and the rows of its Table 2: semantic decoupling, queues of features, thresholds."""

from __future__ import annotations

from typing import Any

from fewtags.methods import citations
from fewtags.methods.method import Method, Profile
from fewtags.methods.recipes import (
    CALDNR_FROZEN,
    CALDNR_PAPER,
    CSSL_FROZEN,
    CSSL_PAPER,
    FROZEN_NOTE,
    NO_CATU_FROZEN,
    NO_CATU_PAPER,
    PAPER_WORD_DIM,
    PUBLISHED_NOTE,
)

GROUP = "the paper and its rows"


def _row(name: str, title: str, sentence: str, *, catu: bool = True, **parts: bool) -> Method:
    """The method, or it without some of its components."""
    switched_off: dict[str, Any] = {f"method.{key}": value for key, value in parts.items()}
    return Method(
        name=name,
        title=title,
        sentence=sentence,
        head="decoupled",
        objective="fewtags.methods.category_adaptive:CategoryAdaptive",
        venue="IEEE Transactions on Multimedia 2024",
        bibtex=citations.CALDNR,
        settings={**CALDNR_FROZEN, **switched_off, **({} if catu else NO_CATU_FROZEN)},
        note=FROZEN_NOTE,
        profiles={
            "paper": Profile({**CALDNR_PAPER, **({} if catu else NO_CATU_PAPER)}, PUBLISHED_NOTE, PAPER_WORD_DIM)
        },
        group=GROUP,
    )


ROWS = (
    Method(
        name="cssl",
        title="Category-specific features (CSSL)",
        sentence="Assume negative on one attended feature per category: CALDNR's model without label discovery.",
        head="decoupled",
        objective="fewtags.methods.elementwise:AssumeNegative",
        venue="IEEE Transactions on Multimedia 2024",
        bibtex=citations.CALDNR,
        settings=CSSL_FROZEN,
        note=FROZEN_NOTE,
        profiles={"paper": Profile(CSSL_PAPER, PUBLISHED_NOTE, PAPER_WORD_DIM)},
        group=GROUP,
    ),
    _row(
        "cald",
        "Label discovery (CALD)",
        "Trains unknown labels as present where an image looks like the category's known positives.",
        reject=False,
    ),
    _row(
        "cald-no-catu",
        "CALD without CATU",
        "CALD with the same threshold for every category.",
        reject=False,
        catu=False,
    ),
    _row(
        "canr",
        "Noise rejection (CANR)",
        "Ignores assumed negatives where an image looks like the category's known positives.",
        discover=False,
    ),
    _row(
        "canr-no-catu",
        "CANR without CATU",
        "CANR with the same thresholds for every category.",
        discover=False,
        catu=False,
    ),
    _row(
        "caldnr",
        "Category-adaptive label discovery and noise rejection",
        "The paper's method: CALD and CANR together, with thresholds that adapt to each category (CATU).",
    ),
)
