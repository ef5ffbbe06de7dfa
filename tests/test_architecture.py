"""docs/architecture.md names what there is: its layers are enforced, its tree is made from the modules."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path

import fewtags
from conftest import PROJECT

PACKAGE = Path(fewtags.__file__).parent
PAGE = (PROJECT / "docs" / "architecture.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    """The first block of code under a heading."""
    return PAGE.split(f"## {title}")[1].split("```")[1]


def test_the_layers_are_those_that_are_enforced():
    contract = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    enforced = [sorted(re.findall(r"\w+", layer)) for layer in contract["layers"]]
    told = [re.match(r"(\w+( \| \w+)*)", line).group(1).split(" | ") for line in section("Layers").strip().splitlines()]
    assert [sorted(names) for names in told] == enforced


def test_files_named_by_their_room_are_in_it():
    for path in re.findall(r"\b((?:data|models|methods|engine|experiments|tests)/[\w/]+\.py)\b", PAGE):
        base = PROJECT if path.startswith("tests/") else PACKAGE
        assert (base / path).is_file(), path


def test_the_tree_is_up_to_date():
    spec = importlib.util.spec_from_file_location("make_tree", PROJECT / "tools" / "make_tree.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert tool.with_tree(PAGE) == PAGE, "run: python tools/make_tree.py"
    assert "  contract.py                   The types that data, models and methods exchange" in PAGE


def test_the_notes_on_the_paper_are_numbered_in_order():
    text = (PROJECT / "docs" / "paper-notes.md").read_text(encoding="utf-8")
    numbers = [int(number) for number in re.findall(r"^(\d+)\. ", text, re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))
    named = {int(number) for number in re.findall(r"[Nn]otes? (\d+)", text)}
    assert named <= set(numbers)
