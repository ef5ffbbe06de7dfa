"""The code says PRESENT, UNKNOWN and ABSENT, not 1, 0 and -1."""

from __future__ import annotations

import ast
import gc
from pathlib import Path

import pytest

import fewtags

PACKAGE = Path(fewtags.__file__).parent


def compares_labels_with_a_number(node: ast.AST) -> bool:
    if not isinstance(node, ast.Compare):
        return False
    left, right = ast.unparse(node.left), ast.unparse(node.comparators[0])
    return left.split("[")[0].endswith("labels") and right in ("1", "0", "-1")


@pytest.mark.parametrize("text", ["labels == 1", "batch.labels != 0", "x = (data.train.labels[rows] == -1).sum()"])
def test_the_check_finds_them(text):
    assert any(map(compares_labels_with_a_number, ast.walk(ast.parse(text))))


def test_labels_are_compared_with_their_states():
    gc.collect()  # garbage of another test that fails to close itself would break ast.parse (python/cpython#106905)
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if compares_labels_with_a_number(node)
    ]
    assert not found, "compare with PRESENT, UNKNOWN or ABSENT of fewtags.labels"
