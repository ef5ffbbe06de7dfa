"""Names that will go say so, to the line that uses them, and go in time."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest

import fewtags
from fewtags.deprecation import deprecated, warn_deprecated

PACKAGE = Path(fewtags.__file__).parent


@deprecated("double", removed_in="0.9", instead="twice")
def double(number: int) -> int:
    """Two times it."""
    return 2 * number


def test_a_deprecated_function_works_on_and_warns_at_the_calling_line():
    with pytest.warns(FutureWarning, match=r"^double will be removed in fewtags 0\.9; use twice instead\.$") as caught:
        assert double(4) == 8
    assert caught[0].filename == __file__
    assert double.__doc__ == "Two times it."


def test_a_warning_by_hand_names_the_caller_of_its_function():
    def old(colour: str | None = None) -> None:
        if colour is not None:
            warn_deprecated("colour", removed_in="0.9", instead="color")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        old()
    with pytest.warns(FutureWarning, match="colour") as caught:
        old("red")
    assert caught[0].filename == __file__


def version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def test_nothing_stays_longer_than_it_said():
    promises = {
        (file.name, number)
        for file in PACKAGE.rglob("*.py")
        if file.name != "deprecation.py"
        for number in re.findall(r'removed_in="([\d.]+)"', file.read_text(encoding="utf-8"))
    }
    assert not [promise for promise in promises if version(promise[1]) <= version(fewtags.__version__)]
