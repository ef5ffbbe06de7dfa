"""`instant` and `linear`: methods that are finished when their head has seen the images once."""

from __future__ import annotations

from fewtags.methods.base import Objective


class StartOnly(Objective):
    """The head's start is all there is, and nothing is trained."""

    trains = False
