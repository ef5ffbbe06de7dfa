"""`instant`: the closed form of `models.discriminant` and nothing else."""

from __future__ import annotations

from fewtags.methods.base import Objective


class Instant(Objective):
    """When the head (`models.closed_form`) has seen the images it is done, and nothing is trained."""

    trains = False
