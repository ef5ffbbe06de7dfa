"""Everything your own methods and heads build on, in one place; see docs/how-to/write-your-own-method.md.

These names are stable. They are defined in other modules, which may move.
"""

from fewtags.contract import Batch, Outputs, Problem, Progress, Start, StepResult, WordVectors
from fewtags.distributed import gather_rows, sum_across_ranks
from fewtags.labels import ABSENT, PRESENT, UNKNOWN
from fewtags.methods import Method, Profile, register
from fewtags.methods.base import Objective
from fewtags.methods.losses import assume_negative_loss, asymmetric_loss, focal_loss
from fewtags.models.heads import Head, HeadSpec, register_head
from fewtags.settings import Settings

__all__ = [
    "ABSENT", "PRESENT", "UNKNOWN",
    "Batch", "Head", "HeadSpec", "Method", "Objective", "Outputs", "Problem", "Profile", "Progress", "Settings",
    "Start", "StepResult", "WordVectors",
    "assume_negative_loss", "asymmetric_loss", "focal_loss", "gather_rows", "register", "register_head",
    "sum_across_ranks",
]  # fmt: skip
