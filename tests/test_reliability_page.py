"""Every promise of docs/reliability.md has a test or a benchmark, and it exists."""

from __future__ import annotations

import re

from conftest import PROJECT

PAGE = (PROJECT / "docs" / "reliability.md").read_text(encoding="utf-8")


def promises() -> list[list[str]]:
    """The cells of the first table's rows; rows of the kind **Files** are headings."""
    table = PAGE.partition("|---|---|---|---|\n")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return [row for row in rows if any(row[1:])]


def test_every_promise_says_how_it_is_tested_how_often_and_what_came_out():
    assert len(promises()) > 20
    for row in promises():
        assert len(row) == 4, row
        assert all(row), row
        assert re.search(r"`(tests|benchmarks)/", row[1]), row


def test_what_it_names_exists():
    for row in promises():
        for name in re.findall(r"`((?:tests|benchmarks)/[^`]+)`", row[1]):
            file, _, function = name.split()[0].partition("::")
            content = (PROJECT / file).read_text(encoding="utf-8")
            assert f"def {function}(" in content if function else content, name
