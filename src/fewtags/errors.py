"""Errors a user can fix. The command line prints them as one sentence, without a traceback.

    UserError            exit 2   wrong usage, configuration or file: says what was found and what to do
    ├── RunFailed        exit 1   the run itself failed (loss not finite, disk full)
    ├── DataError        exit 3   the data cannot be trained on
    ├── QualityTooLow    exit 4   a model is worse than required
    ├── MissingExtra     exit 5   an optional dependency is not installed
    └── Interrupted      exit 130 Ctrl-C or SIGTERM, after the checkpoint was written

Anything else is a bug and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path


class UserError(Exception):
    exit_code = 2


class RunFailed(UserError):
    exit_code = 1


class DataError(UserError):
    exit_code = 3


class QualityTooLow(UserError):
    exit_code = 4


class MissingExtra(UserError):
    exit_code = 5

    def __init__(self, what: str, extra: str):
        super().__init__(f"{what} needs an extra that is not installed; run: pip install 'fewtags[{extra}]'")


class Interrupted(UserError):
    exit_code = 130


def no_such_folder(path: Path) -> UserError:
    """For a folder of a run or model that does not exist; its neighbours may have been meant."""
    neighbours = [str(other) for other in path.absolute().parent.glob("*") if other.is_dir()]
    close = difflib.get_close_matches(str(path.absolute()), neighbours, n=1, cutoff=0.8)
    hint = f"; did you mean {path.parent / Path(close[0]).name}?" if close else "."
    return UserError(f"{path} does not exist, so there is no run or trained model in it{hint}")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The hint after an unknown name: the closest known one, or the whole list if none is close."""
    known = list(known)
    close = difflib.get_close_matches(word, known, n=1)
    return f"did you mean '{close[0]}'?" if close else f"choose from: {', '.join(known) or 'nothing'}."
