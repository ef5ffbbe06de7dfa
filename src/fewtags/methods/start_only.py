"""`instant` and `linear`: methods that need one pass over the images and no training."""

from __future__ import annotations

from fewtags.methods.base import Objective


class StartOnly(Objective):
    """The head's start is everything; nothing is trained."""

    trains = False
